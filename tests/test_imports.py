"""Imports point one way: each module may see those of the layers below its own, never those above or beside."""

import ast
import sys
from pathlib import Path

import pytest

import envkit

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
    ("resources", "verify.elf", "verify.machine_code"),
    (
        "process",
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
        "files",
        "sources.pipconfig",
        "sources.bundle",
        "verify.build_flags",
        "verify.arithmetic",
        "verify.speed",
        "eessi.servers",
        "jobs.mpijob",
        "jobs.pbs",
        "jobs.slurm",
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
        "jobs.follow",
        "compat.complete",
        "jobs.runai",
        "jobs.trainjob",
    ),
    (
        "host",
        "jobs.many",
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
    ("verify.checks.truth",),
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
    ),
    ("example", "build_jobs.progress", "verify.report.terminal", "verify.report.junit", "verify.report.plots"),
    ("verify.report", "verify.report.page", "verify.report.timeline_page", "doctor.terminal", "compat.terminal"),
    ("methods.easybuild", "methods.apptainer", "locks", "doctor.compare", "verify.target", "verify.judge"),
    ("verify.launch", "sbom", "methods.config_guess"),
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
    "jobs": {"errors", "process", "resources"},
    "sources": {"errors", "process"},
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
    "methods": {"errors", "resources", "process", "fetch", "files", "host", "plan", "prefix", "stack", "definition"},
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


def imported(module: str) -> set[str]:
    """Every module that one imports, anywhere in it, by its whole name."""
    found = set()
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 or module in PROBE, "relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names} | {str(node.module)}
    return found


def own(module: str) -> set[str]:
    """The modules of the package that one imports."""
    return {name.removeprefix("envkit.") for name in imported(module)} & set(FILES) - {module}


def test_of_the_probe_only_what_starts_nothing_is_used_outside() -> None:
    used = {name for module in MODULES for name in own(module) & set(PROBE)}
    assert used == {"verify.probe.node", "verify.probe.started"}


def layer(module: str) -> int:
    return next(number for number, names in enumerate(LAYERS) if module in names)


def test_every_module_has_one_layer() -> None:
    assert sorted(name for names in LAYERS for name in names) == MODULES


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_down(module: str) -> None:
    assert {name for name in own(module) - set(PROBE) if layer(name) >= layer(module)} == set()


@pytest.mark.parametrize("module", [name for name in MODULES if name.partition(".")[0] in ENCLOSED])
def test_folders_see_little_of_the_rest(module: str) -> None:
    folder = module.partition(".")[0]
    assert {name for name in own(module) if not name.startswith(f"{folder}.")} <= ENCLOSED[folder]


def test_checks_do_not_measure_and_the_probe_does_not_judge() -> None:
    measures = {"process", "launcher", "verify.launch", "verify.elf", "verify.loader", *PROBE}
    checks = [module for module in MODULES if module.startswith("verify.checks.")]
    assert checks
    for module in checks:
        assert not own(module) & measures
    assert own("verify.facts") == {"errors"}
    assert own("doctor.rules") == {"doctor.facts", "doctor.report", "resources"}
    assert own("compat.judge") == {"compat.known", "errors"}
    assert own("compat.complete") == {"compat.judge", "compat.known"}


@pytest.mark.parametrize(
    "module", ["supervise", "namespace", "eessi.nearest", "diagnose.inside", "provide.inside", *PROBE]
)
def test_what_runs_elsewhere_imports_the_standard_library_and_what_it_looks_at(module: str) -> None:
    absolute = {
        alias.name if isinstance(node, ast.Import) else str(node.module)
        for node in ast.walk(ast.parse(FILES[module].read_text()))
        if isinstance(node, ast.Import) or (isinstance(node, ast.ImportFrom) and not node.level)
        for alias in node.names
    }
    foreign = LOOKED_AT if module in PROBE else set[str]()
    assert {name.partition(".")[0] for name in absolute} <= set(sys.stdlib_module_names) | foreign


@pytest.mark.parametrize("module", [name for name in FILES if name not in STARTS_PROGRAMS])
def test_programs_are_started_in_one_place(module: str) -> None:
    assert not {"subprocess", "pty", "multiprocessing"} & {name.partition(".")[0] for name in imported(module)}
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            assert not node.attr.startswith(("exec", "fork", "spawn", "posix_spawn", "system", "popen")), node.attr


@pytest.mark.parametrize("module", FILES)
def test_no_shell_reads_a_command(module: str) -> None:
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Call):
            assert "shell" not in {keyword.arg for keyword in node.keywords}


@pytest.mark.parametrize("module", [name for name in FILES if name != "namespace"])
def test_the_own_process_is_left_as_it_is(module: str) -> None:
    for node in ast.walk(ast.parse(FILES[module].read_text())):
        if isinstance(node, ast.Call):
            assert ast.unparse(node.func) not in {"os.chdir", "os.umask", "os.putenv", "os.environ.update"}
        if isinstance(node, ast.Assign):
            assert not any(ast.unparse(target).startswith("os.environ") for target in node.targets)
