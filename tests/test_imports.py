"""Imports point one way: each module may see those of the layers below its own, never those above or beside."""

import ast
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import envkit
from envkit.jobs.registry import SCHEDULERS

PACKAGE = Path(envkit.__file__).parent
LAYERS = (
    (
        "errors",
        "supervise",
        "namespace",
        "methods.eb",
        "methods.eb_hooks",
        "eessi.nearest",
        "diagnose.inside",
        "provide.inside",
    ),
    ("definition", "dockerfile", "doctor.facts", "names"),
    ("resources", "subids", "verify.elf", "verify.machine_code"),
    ("process",),
    ("files",),
    (
        "verify.loader",
        "sources.cache",
        "verify.facts",
        "verify.known",
        "site",
        "lock",
        "verify.session",
        "verify.waiting",
        "eessi.known",
        "eessi.binds",
        "eessi.release",
        "jobs.job",
        "doctor.report",
        "compat.known",
    ),
    (
        "environment",
        "sources.pipconfig",
        "sources.bundle",
        "verify.build_flags",
        "verify.arithmetic",
        "verify.speed",
        "eessi.servers",
        "jobs.mpijob",
        "jobs.submit",
        "doctor.ask",
        "doctor.node",
        "doctor.rules",
        "compat.judge",
    ),
    (
        "verify.report.words",
        "verify.options",
        "runtime",
        "verify.image_facts",
        "eessi.inside",
        "eessi.injected",
        "eessi.sessions",
        "compat.complete",
        "jobs.runai",
        "jobs.trainjob",
    ),
    (
        "host",
        "sources.connection",
        "verify.build_block",
        "verify.outcome",
        "eessi.access",
        "eessi.image",
        "timeline",
        "verify.report.templates",
    ),
    ("diagnose.known",),
    ("diagnose.scan", "diagnose.place"),
    ("diagnose.source", "diagnose.judge"),
    ("diagnose",),
    (
        "diagnose.words",
        "stack",
        "prefix",
        "compat.report",
        "eessi.listing",
        "eessi.ways",
        "sources.index",
        "verify.checks.process",
        "verify.checks.nodes",
        "verify.checks.elements",
    ),
    ("eessi.entry", "replaced"),
    (
        "receipt",
        "request",
        "compat.install",
        "sources.download",
        "verify.checks.build",
        "verify.checks.gpu",
        "verify.checks.machine",
        "verify.checks.fabric",
        "verify.checks.speed",
        "verify.checks.security",
        "verify.checks.drift",
        "verify.checks.world",
        "verify.checks.collectives",
    ),
    ("verify.checks.truth", "sources.ask"),
    ("fetch", "launcher", "catalogue", "choice", "verify.checks", "verify.drift", "host_mpi"),
    (
        "plan",
        "progress",
        "mnist",
        "verify.baseline",
        "verify.report.model",
        "mpi_model",
        "eessi.ranks",
        "eessi.prefetch",
        "jobs.scheduler",
    ),
    (
        "example",
        *(f"jobs.{name}" for name in SCHEDULERS),
        "verify.report.terminal",
        "verify.report.junit",
        "verify.report.plots",
    ),
    (
        "build_jobs.progress",
        "jobs.registry",
        "verify.report",
        "verify.report.page",
        "verify.report.timeline_page",
        "doctor.terminal",
        "compat.terminal",
    ),
    (
        "jobs.follow",
        "methods.easybuild",
        "methods.apptainer",
        "locks",
        "doctor.compare",
        "verify.target",
        "verify.judge",
    ),
    ("jobs.many", "verify.launch", "sbom", "methods.config_guess"),
    ("verify.attend",),
    ("preflight", "build", "removal"),
    ("build_jobs.failed",),
    ("build_jobs",),
    ("provide.work", "provide.easybuild", "provide.contents", "provide.layer", "doctor.look"),
    ("provide.image",),
    ("provide.apptainer",),
    ("provide.eessi", "doctor.gather"),
    ("choose",),
    ("install",),
    ("cli",),
    ("commands.options", "commands.batch", "__main__"),
    ("commands.submitted",),
    (
        "commands.compat",
        "commands.diagnose",
        "commands.doctor",
        "commands.enter",
        "commands.example",
        "commands.eessi",
        "commands.job",
        "commands.listing",
        "commands.plans",
        "commands.remove",
        "commands.verify",
    ),
    ("commands.install", "commands.export"),
    ("commands.fetch",),
)
# Within these, nothing but what is named may be imported of the rest of the package.
ENCLOSED = {
    "diagnose": {"errors", "process", "resources", "verify.known", "verify.outcome"},
    "eessi": {
        "environment",
        "errors",
        "files",
        "host",
        "launcher",
        "process",
        "receipt",
        "resources",
        "runtime",
        "verify.probe.started",
    },
    "jobs": {"errors", "launcher", "process", "receipt", "resources", "site"},
    "sources": {"errors", "files", "process"},
    "verify": {
        "diagnose",
        "eessi.inside",
        "environment",
        "errors",
        "files",
        "launcher",
        "mpi_model",
        "prefix",
        "process",
        "receipt",
        "resources",
        "timeline",
    },
    "methods": {
        "errors",
        "resources",
        "process",
        "fetch",
        "files",
        "host",
        "plan",
        "prefix",
        "receipt",
        "stack",
        "definition",
    },
}
STARTS_PROGRAMS = {"process", "supervise", "namespace", "verify.probe.watch"}
LOOKED_AT = {"torch", "tensorflow", "horovod", "keras", "tf_keras", "mpi4py"}
FILES = {
    ".".join(path.relative_to(PACKAGE).with_suffix("").parts).removesuffix(".__init__"): path
    for path in PACKAGE.rglob("*.py")
    if (path.name != "__init__.py" or "\nfrom " in path.read_text()) and "recipes" not in path.parts
}
PROBE = sorted(name for name in FILES if name.startswith("verify.probe."))
MODULES = sorted(set(FILES) - set(PROBE))


@cache
def nodes(module: str) -> tuple[ast.AST, ...]:
    """Every node of the syntax tree of a module."""
    return tuple(ast.walk(ast.parse(FILES[module].read_text())))


@cache
def imported(module: str) -> frozenset[str]:
    """Every module that one imports, anywhere in it, by its whole name."""
    found = set[str]()
    for node in nodes(module):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or module in PROBE, f"relative import in {module}"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return frozenset(found)


def own(module: str) -> set[str]:
    """The modules of the package that one imports."""
    return {name.removeprefix("envkit.") for name in imported(module)} & set(FILES) - {module}


def calls(module: str) -> Iterator[ast.Call]:
    """Every call in a module."""
    return (node for node in nodes(module) if isinstance(node, ast.Call))


def test_of_the_probe_only_what_starts_nothing_is_used_outside() -> None:
    used = {name for module in MODULES for name in own(module) & set(PROBE)}
    assert used == {"verify.probe.node", "verify.probe.started"}


def test_every_module_has_one_layer() -> None:
    assert sorted(name for names in LAYERS for name in names) == MODULES


def test_imports_point_down() -> None:
    layer = {name: number for number, names in enumerate(LAYERS) for name in names}
    up = [
        f"{module} imports {name}"
        for module in MODULES
        for name in sorted(own(module) - set(PROBE))
        if layer[name] >= layer[module]
    ]
    assert up == []


def test_folders_see_little_of_the_rest() -> None:
    seen = [
        f"{module} imports {name}"
        for module in MODULES
        for folder in ENCLOSED.keys() & {module.partition(".")[0]}
        for name in sorted(own(module) - ENCLOSED[folder])
        if not name.startswith(f"{folder}.")
    ]
    assert seen == []


def test_checks_do_not_measure_and_the_probe_does_not_judge() -> None:
    measures = {"process", "launcher", "verify.launch", "verify.elf", "verify.loader", *PROBE}
    checks = [module for module in MODULES if module.startswith("verify.checks.")]
    assert checks
    assert [module for module in checks if own(module) & measures] == []
    assert own("verify.facts") == {"errors"}
    assert own("doctor.rules") == {"doctor.facts", "doctor.report", "resources"}
    assert own("compat.judge") == {"compat.known", "errors"}
    assert own("compat.complete") == {"compat.judge", "compat.known"}


def test_what_runs_elsewhere_imports_the_standard_library_and_what_it_looks_at() -> None:
    foreign = []
    for module in ("supervise", "namespace", "eessi.nearest", "diagnose.inside", "provide.inside", *PROBE):
        absolute = {
            (alias.name if isinstance(node, ast.Import) else str(node.module)).partition(".")[0]
            for node in nodes(module)
            if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)
            for alias in node.names
        }
        allowed = set(sys.stdlib_module_names) | (LOOKED_AT if module in PROBE else set())
        foreign += [f"{module} imports {name}" for name in sorted(absolute - allowed)]
    assert foreign == []


def test_programs_are_started_in_one_place() -> None:
    starting = ("exec", "fork", "spawn", "posix_spawn", "system", "popen")
    elsewhere = []
    for module in FILES.keys() - STARTS_PROGRAMS:
        roots = {name.partition(".")[0] for name in imported(module)}
        elsewhere += [f"{module} imports {name}" for name in {"subprocess", "pty", "multiprocessing"} & roots]
        elsewhere += [
            f"{module} calls os.{node.attr}"
            for node in nodes(module)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os"
            if node.attr.startswith(starting)
        ]
    assert sorted(elsewhere) == []


def test_no_shell_reads_a_command() -> None:
    assert [
        f"{module}:{call.lineno}" for module in FILES for call in calls(module) for keyword in call.keywords
        if keyword.arg == "shell"
    ] == []  # fmt: skip


def test_the_own_process_is_left_as_it_is() -> None:
    changing = {"os.chdir", "os.umask", "os.putenv", "os.environ.update"}
    changed = []
    for module in FILES.keys() - {"namespace"}:
        changed += [f"{module}:{call.lineno}" for call in calls(module) if ast.unparse(call.func) in changing]
        changed += [
            f"{module}:{node.lineno}"
            for node in nodes(module)
            if isinstance(node, ast.Assign)
            if any(ast.unparse(target).startswith("os.environ") for target in node.targets)
        ]
    assert sorted(changed) == []
