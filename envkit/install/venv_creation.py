"""Making a virtual environment on top of an environment, in which pip cannot take the place of what that has.

Its Python is the environment's own. It sees the environment's packages by a path file, also where nobody has entered
the modules; inside them they come first, by PYTHONPATH. pip is bound to their versions by constraints.
"""

import os
import re
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
from packaging.markers import InvalidMarker, Marker

from envkit import __version__
from envkit.environments import receipt, venv
from envkit.environments.prefix import TOLERATED, is_kernels
from envkit.environments.venv import Venv, normalized
from envkit.errors import (
    BuildFailed,
    DiskFull,
    EnvkitError,
    HostProblem,
    Interrupted,
    NotWritable,
    RequirementsRefused,
    SourcesMissing,
    UsageProblem,
)
from envkit.machine.modules_tool import require_entered
from envkit.report.words import one_line
from envkit.system import files, process, temporary, toml
from envkit.system.addresses import redact
from envkit.system.resources import data

if TYPE_CHECKING:
    from envkit.environments.environment import Environment
    from envkit.environments.receipt import Receipt

PATH_FILE = "envkit.pth"
CONSTRAINTS = "constraints.txt"
MOST_FILES = 200  # of requirements that are looked at
TAKEN = ".envkit-venv"  # in a folder while a process makes a virtual environment of it
PLAIN_VERSION = re.compile(r"[\w.+!-]+", re.ASCII)
STAMP = re.compile(r"^\S+T\S+ ", re.MULTILINE)
BUILDING = re.compile(r"\[present-rich\]|subprocess-exited-with-error|Failed (?:to build|building)")
INSTALLED = re.compile(r"^\s*Successfully installed (.+)$", re.MULTILINE)
WOULD = re.compile(r"^\s*Would install ", re.MULTILINE)
CONFLICT = re.compile(r"ResolutionImpossible|is not a supported wheel on this|requires a different Python")
MISNAMED = re.compile(
    r"Could not open \w+ file: \[Errno|Invalid (?:requirement|constraint)|no such option|not a valid wheel filename"
    r"|looks like a filename|\[Errno (?:2|13|20|21)\]|is not a valid editable requirement|is not installable"
    r"|[Ii]nvalid wheel filename|Cannot determine archive format|In --require-hashes mode|recursively references itself"
    r"|InvalidMarker: |Invalid IPv6 URL|maximum recursion depth"
)
UNDECODED = "codec can't decode byte"  # of a file of requirements
THROWN = re.compile(r"^(?:\w+\.)*\w+: .+$", re.MULTILINE)  # the last line of a traceback
LOGGED = re.compile(r"ERROR|WARNING|DEBUG")
COMMENT = re.compile(r"(?:^|\s)#.*")
OPTIONS = re.compile(r"(?:^| )-.*")  # behind a requirement in its line
INCLUDED = re.compile(r"(?:-r|--requirement|-c|--constraint)[ =]*(.+)")
FULL = re.compile(r"\[Errno (?:28|122)\]")
UNOBTAINABLE = re.compile(
    r"Could not find a version|No matching distribution|WARNING: Retrying|Max retries exceeded|ConnectionPool"
    r"|Connection (?:broken|aborted|to)|Could not fetch URL|(?:Client|Server) Error|git (?:clone|fetch) "
)
CANCELLED = "Operation cancelled by user"
STEERING = {"PIP_CONSTRAINT", "PIP_TARGET", "PIP_PREFIX", "PIP_ROOT", "PIP_PYTHON", "PIP_HELP", "PIP_VERSION"}
PLAIN = {
    "PIP_DRY_RUN": "0",
    "PIP_USER": "0",
    "PIP_FORCE_REINSTALL": "0",
    "PIP_IGNORE_INSTALLED": "0",
}  # stand before pip's configuration; what ELSEWHERE names has no such value
ELSEWHERE = re.compile(r"^(?:global|install)\.(?:target|prefix|root|python)(?==)", re.MULTILINE)
REASONS = 6
LONGEST = 200  # letters of a line that is shown
EXECUTABLE = 0o755


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The packages that may differ from the environment, and what would replace its MPI or framework (venv.toml)."""

    free: tuple[str, ...]
    mpi: tuple[str, ...]
    same: dict[str, tuple[str, ...]]


def rules() -> Rules:
    """Return the rules."""
    return toml.read(data("install/venv_creation.toml"), Rules)


def make(environment: "Receipt", folder: Path, requirements: Sequence[Path], envkit: Sequence[str]) -> Venv:
    """Make a virtual environment in ``folder``, and have pip install ``requirements``; ``envkit`` is called from there.

    What stops it leaves nothing of it. Raises HostProblem for an environment that can have none, UsageProblem,
    RequirementsRefused, SourcesMissing, BuildFailed, NotWritable, Interrupted.
    """
    if environment.called != environment.name:
        raise UsageProblem(
            what=f"{environment.called} is a virtual environment itself, and none is made on top of another.",
            fix="Name the environment below it: "
            f"envkit venv {environment.name} DIR --prefix {Path(environment.tree).parent}",
        )
    inside = environment.within(folder).environment
    require_new(folder)
    venv.require_place(folder)
    for path in requirements:
        require_file(path)
        require_lines(path)
    require_python(environment)
    packages = versions(environment.environment)
    record = record_of(environment, folder, packages)
    with process.interruptible(), whole(folder):
        create(environment.environment, folder)
        furnish(record, folder, environment.site_packages, envkit)
        if requirements:
            install(inside, record, folder, requirements)
        receipt.write(folder / venv.RECORD, record)
    return record


def require_python(environment: "Receipt") -> None:
    """Require that an environment without Horovod has a Python, and not that of the caller. Raises UsageProblem."""
    if environment.horovod:
        return
    inside = environment.environment
    asked = ["sh", "-c", "command -v python || :"]
    answer = require_entered(process.capture(inside.command(asked), env=inside.variables(os.environ)))
    found = answer.stdout.strip()
    if not found or (found == process.which("python") and not Path(found).is_relative_to(environment.tree)):
        raise UsageProblem(
            what=f"{environment.name} has no Python of its own.",
            why=f"Inside it 'python' is {found}, as it is here." if found else "Inside it there is no 'python'.",
            fix="Name an environment that has one: 'envkit list' has those that are installed.",
        )


def require_new(folder: Path) -> None:
    """Require a folder that can be made, or is empty. Raises UsageProblem, NotWritable."""
    if not TOLERATED.fullmatch(str(folder)):
        odd = " ".join(sorted({repr(c) for c in str(folder) if not TOLERATED.fullmatch(c)}))
        raise UsageProblem(
            what=f"The folder {str(folder)!r} cannot be used: it has {odd} in it.",
            why="pip's configuration and the first lines of scripts split or change such a path.",
            fix="Choose another, of letters, digits and . _ - + @ = , ~ ^ only.",
        )
    if is_kernels(folder):
        raise UsageProblem(
            what=f"The folder {folder} cannot be used: it lies in a folder of the kernel's.",
            why="What is in /proc, /sys and /dev is no file on a disk.",
            fix="Name a folder below your home, or on another file system.",
        )
    try:
        if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
            raise UsageProblem(what=f"{folder} is there already, and no folder.", fix="Name a new folder.")
        names = [path.name for path in folder.iterdir()] if folder.exists() else []
    except OSError as error:
        raise NotWritable(what=f"{folder} cannot be read.", why=said(error), fix="Name another folder.") from error
    if names:
        raise is_taken(folder) if TAKEN in names else not_empty(folder)


def said(error: OSError) -> str:
    """Return what the system says of a file, and of which."""
    return f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ".")


def not_empty(folder: Path) -> UsageProblem:
    """Say that a folder has something in it."""
    return UsageProblem(
        what=f"{folder} is there already, and not empty.",
        why="A virtual environment is made in a folder of its own; nothing is written over.",
        fix="Name a new folder, or delete this one.",
    )


def is_taken(folder: Path) -> UsageProblem:
    """Say that another process makes a virtual environment in a folder."""
    return UsageProblem(
        what=f"Another 'envkit venv' is at work in {folder}.",
        why=f"It has made {folder / TAKEN}, which it removes at its end; one that was killed leaves it.",
        fix="Wait for it, or name another folder. If none is running, on any node, delete the folder.",
    )


def require_file(path: Path) -> None:
    """Require a file of requirements, which pip can read. Raises UsageProblem."""
    try:
        what = "It is no file" if path.exists() and not path.is_file() else ""
        if not what:
            path.open("rb").close()
    except FileNotFoundError:
        what = "There is no such file"
    except OSError as error:
        what = f"It cannot be read: {error.strerror}"
    if what:
        raise UsageProblem(what=f"--requirement {path}: {what}.", fix="Name a file as 'pip install -r' takes it.")


def require_lines(path: Path) -> None:
    """Require a file of requirements, and those it includes, without what has pip end in a traceback.

    That is a condition that is none, and a file that includes itself. Raises UsageProblem.
    """
    first = Path(os.path.normpath(path.absolute()))
    todo: list[tuple[Path, tuple[Path, ...]]] = [(first, (first,))]
    read = set[Path]()
    while todo and len(read) < MOST_FILES:
        file, above = todo.pop()
        if file in read:
            continue
        read.add(file)
        try:
            text = files.read(file).decode("utf-8-sig").replace("\\\n", " ")
        except (OSError, ValueError):  # pip reads other encodings, too
            continue
        for line in (COMMENT.sub("", line).strip() for line in text.splitlines()):
            if included := INCLUDED.fullmatch(line):
                inner = Path(os.path.normpath(file.parent / included[1]))
                if "://" in included[1]:
                    continue
                if inner in above:
                    raise misnamed(f"{inner} includes itself: {redact(one_line(line))[:LONGEST]}")
                todo.append((inner, (*above, inner)))
            else:
                require_condition(line)


def require_condition(line: str) -> None:
    """Require that the condition of a requirement is one. Raises UsageProblem."""
    requirement = OPTIONS.sub("", line)
    marker = requirement.partition("; " if "://" in requirement else ";")[2].strip()
    try:
        if marker and "${" not in marker:
            Marker(marker)
    except (InvalidMarker, RecursionError) as error:
        why = one_line(str(error).partition("\n")[0])
        raise misnamed(f"Invalid requirement: {redact(one_line(requirement))[:LONGEST]!r}: {why}") from error


def misnamed(why: str) -> UsageProblem:
    """Say that something in a file of requirements is a mistake."""
    return UsageProblem(
        what="pip cannot read what is required.",
        why=why,
        fix="Correct the line, or name a file that is there and that you may read. What '-r' and '-c' name in a "
        "file is looked for beside it, any other path in the folder that you are in. Nothing was left behind.",
    )


def versions(inside: "Environment") -> dict[str, str]:
    """Return the versions of an environment's packages, by normalized name. Raises ModuleNotLoaded, HostProblem."""
    argv = inside.command(["python", str(data("inside/packages.py"))])
    answer = require_entered(
        process.capture(argv, env=inside.variables(os.environ), cwd=process.NEUTRAL, timeout_s=300)
    )
    if answer.status:
        raise HostProblem(
            what=f"The Python of {inside.name} does not say what packages it has.",
            why=answer.stderr.strip()[-2000:],
            fix=f"See with 'envkit verify {inside.name}' whether it works.",
        )
    packages: dict[str, str] = msgspec.json.decode(answer.stdout)["versions"]
    return {
        normalized(name): version for name, version in packages.items() if version and PLAIN_VERSION.fullmatch(version)
    }


def record_of(environment: "Receipt", folder: Path, packages: dict[str, str]) -> Venv:
    """Return the record of a virtual environment on top of an environment with those packages."""
    policy = rules()
    fixed = {name: packages[name] for name in sorted(packages) if name not in policy.free}
    absent = (name for name in (*policy.mpi, *policy.same.get(environment.framework, ())) if name not in fixed)
    return Venv(
        folder=str(folder),
        name=environment.name,
        tree=environment.tree,
        fixed=fixed,
        absent=tuple(absent),
        envkit=__version__,
    )


@contextmanager
def whole(folder: Path) -> Iterator[None]:
    """Take a folder, made if need be, and remove what is made of it if the block does not come to its end.

    Of several processes, on whatever nodes, one has it: who makes the file TAKEN in it. Raises UsageProblem for the
    others, NotWritable.
    """
    above: list[Path] = []
    is_made, ours = False, folder / TAKEN
    try:
        above = make_above(folder)
        try:
            folder.mkdir()
            is_made = True
        except FileExistsError:
            pass
        ours.touch(exist_ok=False)
    except OSError as error:
        remove_empty([folder] if is_made else [], above)
        if isinstance(error, (FileExistsError, FileNotFoundError)):  # another has it, or has just removed it
            raise is_taken(folder) from error
        raise NotWritable(
            what=f"{folder} cannot be {'written to' if os.path.isdir(folder) else 'made'}.",  # noqa: PTH112  (raises nothing)
            why=said(error),
            fix="Name another folder.",
        ) from error
    try:
        if any(path != ours for path in folder.iterdir()):
            is_made = False
            above = []
            ours.unlink()
            raise not_empty(folder)
        yield
        ours.unlink()
    except BaseException:
        if ours.exists():
            for path in folder.iterdir():
                if path != ours:
                    with suppress(OSError):
                        files.discard(path)
            ours.unlink()  # last: from here on it may be another's
        remove_empty([folder] if is_made else [], above)
        raise


def make_above(folder: Path) -> list[Path]:
    """Make the folders above one that are missing; return them, the innermost first. Raises OSError."""
    missing = [path for path in folder.parents if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
    return missing


def remove_empty(*folders: Sequence[Path]) -> None:
    """Remove folders, in this order, each if it is empty."""
    for path in (path for several in folders for path in several):
        with suppress(OSError):
            path.rmdir()


def create(inside: "Environment", folder: Path) -> None:
    """Make a bare virtual environment with the environment's Python. Raises HostProblem."""
    argv = inside.command(["python", "-I", "-m", "venv", "--without-pip", str(folder)])
    answer = require_entered(
        process.capture(argv, env=inside.variables(os.environ), cwd=process.NEUTRAL, timeout_s=300)
    )
    if answer.status:
        raise HostProblem(
            what=f"The Python of {inside.name} makes no virtual environment in {folder}.",
            why=(answer.stderr or answer.stdout).strip()[-2000:],
            fix="It needs the module 'venv' (Debian, Ubuntu: apt install python3-venv), and room in that folder.",
        )


def furnish(virtual_environment: Venv, folder: Path, packages: Sequence[str], envkit: Sequence[str]) -> None:
    """Put into a bare virtual environment what binds it to the environment below. Raises OSError."""
    for place in venv.site_packages(folder):
        (place / PATH_FILE).write_text("".join(f"{path}\n" for path in packages))
    constraints = folder / CONSTRAINTS
    constraints.write_text("".join(constraint_lines(virtual_environment)))
    head = f"# pip reads this only for this folder; written by 'envkit venv'.\n[install]\nconstraint = {constraints}\n"
    (folder / "pip.conf").write_text(f"{head}\n[global]\ndisable-pip-version-check = true\n")
    for old in (folder / "bin").glob("[Aa]ctivate*"):
        old.unlink()
    line = f"envkit_venv={shlex.quote(str(folder))}\n"
    texts = {
        "activate": line + shell_text("venv_activate.sh"),
        "activate.fish": f"set -g {line.replace('=', ' ', 1)}{shell_text('venv_activate.fish')}",
        "envkit": f'#!/bin/sh\nexec {shlex.join(envkit)} "$@"\n',
    }
    texts |= {name: f"#!/bin/sh\n{line}{shell_text('venv_pip.sh')}" for name in ("pip", "pip3")}
    for name, text in texts.items():
        path = folder / "bin" / name
        path.write_text(text)
        if text.startswith("#!"):
            path.chmod(EXECUTABLE)


def shell_text(name: str) -> str:
    """Return a file of the shell's."""
    return data(f"environments/shell/{name}").read_text()


def constraint_lines(virtual_environment: Venv) -> Iterator[str]:
    """Yield the lines of the constraints: what the environment has, and what is not to be there."""
    yield f"# What {virtual_environment.name} has, and what would stand before it; written by 'envkit venv'.\n"
    yield from (f"{name}=={version}\n" for name, version in virtual_environment.fixed.items())
    yield from (f"{name}<0\n" for name in virtual_environment.absent)


def install(inside: "Environment", virtual_environment: Venv, folder: Path, requirements: Sequence[Path]) -> None:
    """Have pip install what is required; it says itself what it does. Nothing of the folder that one is in is run."""
    require_here(inside, folder)
    with temporary.folder("pip") as scratch:
        log = scratch / "log"
        words = [word for path in requirements for word in ("--requirement", str(path.absolute()))]
        argv = [*pip_of(folder), "install", "--log", str(log), "--constraint", str(folder / CONSTRAINTS), *words]
        status = process.run_foreground(inside.command(argv), {**pip_variables(inside), "TMPDIR": str(scratch)})
        text = STAMP.sub("", files.read(log).decode(errors="replace")) if log.is_file() else ""
        if status:
            raise failed(virtual_environment, folder, status, text)
        require_installed(folder, text)


def pip_of(folder: Path) -> list[str]:
    """Return the argv of a virtual environment's pip."""
    return [str(folder / "bin" / "python"), "-I", "-m", "pip"]


def pip_variables(inside: "Environment") -> dict[str, str]:
    """Return the variables for pip: none that would take the place of the constraints, or install elsewhere."""
    env = inside.variables(os.environ)
    return {name: value for name, value in env.items() if name not in STEERING} | PLAIN


def require_here(inside: "Environment", folder: Path) -> None:
    """Require that pip's configuration has it install into the folder that it belongs to. Raises HostProblem."""
    argv = inside.command([*pip_of(folder), "config", "list"])
    answer = require_entered(process.capture(argv, env=pip_variables(inside), timeout_s=300))
    if answer.status:
        raise HostProblem(
            what="pip cannot read its configuration.",
            why=redact(answer.stderr.strip()[-2000:]),
            fix="Mend the file that it names. Nothing was left behind.",
        )
    if options := ELSEWHERE.findall(answer.stdout):
        raise HostProblem(
            what=f"pip would not install into {folder}: its configuration says {', '.join(options)}.",
            why="No variable and no option takes that back.",
            fix=f"Take it out: pip config unset {options[0]}. 'pip config debug' says in which file it is. Nothing was "
            "left behind.",
        )


def require_installed(folder: Path, log: str) -> None:
    """Require that what pip says it has installed lies in a folder; the log is empty if it did nothing.

    Raises HostProblem.
    """
    present = {*venv.installed(folder), *venv.linked(folder)}
    words = [word for line in INSTALLED.findall(log) for word in line.split()]
    lacking = [word for word in words if not {normalized(word), normalized(word.rpartition("-")[0])} & present]
    if log and not lacking and not WOULD.search(log):
        return
    raise HostProblem(
        what=f"pip ended without an error, but what is required is not in {folder}.",
        why=f"pip says that it has installed {', '.join(lacking)}." if lacking else "pip has installed nothing.",
        fix="Something has it do so: see the variables that begin with PIP_, and 'pip config list'. Nothing was left "
        f"in {folder}.",
    )


def failed(virtual_environment: Venv, folder: Path, status: int, log: str) -> EnvkitError:
    """Return why pip has ended with another status than 0, from its log."""
    if status < 0 or CANCELLED in log:
        number = -status if status < 0 else 2
        return Interrupted(
            signal_number=number, what="Stopped while pip was installing.", why=f"Nothing is left of {folder}."
        )
    errors = [redact(line.strip()) for line in log.splitlines() if line.startswith("ERROR: ")]
    if lines := list(contradictions(virtual_environment, log)):
        return RequirementsRefused(
            what=f"What is required does not go with {virtual_environment.name}.",
            why="\n".join([*lines, f"What {virtual_environment.name} has was built and verified together, and stays."]),
            fix="Require a version that goes with it, leave it out, or use an environment that has what it needs "
            "('envkit list'). Nothing was left behind.",
        )
    if errors == ["ERROR: Exception:"]:
        errors = [f"ERROR: {redact(thrown)}" for thrown in exceptions(log)[-1:]]
    warned = [redact(line.strip()) for line in log.splitlines() if line.startswith("WARNING: Retrying")]
    lines = [line.removeprefix("ERROR: ").removeprefix("[present-rich] ") for line in errors][:REASONS]
    why = "\n".join(lines) or f"It ended with {status}."
    ended = "\n".join(errors)
    if CONFLICT.search(ended):
        causes = [redact(line) for line in conflict(log)[:REASONS]]
        return RequirementsRefused(
            what="What is required does not go together, or not with this Python.",
            why="\n".join([*causes, *lines]),
            fix="Allow other versions of what is named, or leave one of them out. Nothing was left behind.",
        )
    if BUILDING.search(log) and not re.search("Could not find a version|git (?:clone|fetch) ", log):
        return BuildFailed(
            what="pip could not build what is required.",
            why=why,
            fix="What it says is above. Take a version that has a wheel for this Python, or load what its build "
            "lacks. Nothing was left behind.",
        )
    is_coded = UNDECODED in ended and "req_file.py" in log
    if MISNAMED.search(ended) or is_coded:
        return misnamed(why)
    if FULL.search(ended):
        return DiskFull(
            what="There was no room for what is required.",
            why=why,
            fix="Free some room in that folder and in the one for temporary files ($TMPDIR; df -h, quota -s). Nothing "
            "was left behind.",
        )
    if UNOBTAINABLE.search(log):
        return SourcesMissing(
            what="pip could not get what is required.",
            why="\n".join([*lines, *(line.removeprefix("WARNING: ") for line in warned[:1])]) or why,
            fix="Without a network, bring the wheels and name their folder: PIP_NO_INDEX=1 PIP_FIND_LINKS=DIR. 'pip "
            "config list' says which index is asked. Nothing was left behind.",
        )
    return HostProblem(
        what="pip could not install what is required.",
        why=why,
        fix="What it says is above. Nothing was left behind.",
    )


def exceptions(log: str) -> list[str]:
    """Return the exceptions in the tracebacks of pip's log, the one that ended it last."""
    return [
        match[0] for match in THROWN.finditer(log.partition("ERROR: Exception:\n")[2]) if not LOGGED.match(match[0])
    ]


def conflict(log: str) -> list[str]:
    """Return the lines of pip's log that say what a conflict is caused by."""
    section = log.partition("The conflict is caused by:\n")[2].partition("\n\n")[0]
    return [line.strip() for line in section.splitlines() if line.strip()]


def contradictions(virtual_environment: Venv, log: str) -> Iterator[str]:
    """Yield what contradicts what is fixed, and what fixes it, as pip's log tells it."""
    lines = conflict(log)
    alone = re.findall(
        r"^ERROR: Could not find a version that satisfies the requirement ([\w.-]+)<0", log, re.MULTILINE
    )
    fixing = [match[1] for line in lines if (match := re.match(r"The user requested \(constraint\) ([\w.-]+)", line))]
    if not fixing and not alone:
        return
    yield from (line.replace("The user requested ", "required: ") for line in lines if "(constraint)" not in line)
    for name in dict.fromkeys(map(normalized, (*fixing, *alone))):
        if name in virtual_environment.fixed:
            yield f"fixed by {virtual_environment.name}: {name} {virtual_environment.fixed[name]}"
        elif name in virtual_environment.absent:
            yield f"not beside {virtual_environment.name}: {name} would take the place of its MPI or framework"
