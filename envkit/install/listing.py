"""The environments that are installed and the stacks that can be, as values and as text."""

import os
import pwd
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from shlex import quote

import msgspec

from envkit.environments import filelocks, receipt, trust, venv
from envkit.environments.name_syntax import is_name, shown
from envkit.environments.prefix import Prefix, Tree, locate
from envkit.environments.receipt import Receipt
from envkit.errors import EnvironmentDamaged, HostProblem, Problem
from envkit.knowledge import methods
from envkit.machine import host
from envkit.machine.host import Accelerator
from envkit.methods.installed import every, named_apart, trees
from envkit.planning import extras
from envkit.planning.stack import Stack, stacks
from envkit.report import words
from envkit.report.paper import Paper

VERSION = 2
SAID = {
    "gone": "has gone",
    "changed": "has changed",
    "added": "was added",
    "open to others": "can be changed by others",
    "unreadable": "may not be read by you",
}


class EnvironmentState(StrEnum):
    """The state of an environment, or of a stack that is not installed.

    ``refused``: somebody may change it who is not trusted. ``unfinished``: an installation has begun and ended early.
    ``fits``: nothing is known to be lacking here. ``lacks``: this machine lacks something. ``unknown``: whether it does
    was not asked, or could not be found out in time.
    """

    INSTALLED = "installed"
    DAMAGED = "damaged"
    REFUSED = "refused"
    INSTALLING = "installing"
    UNFINISHED = "unfinished"
    FITS = "fits"
    LACKS = "lacks"
    UNKNOWN = "unknown"


class Lacking(msgspec.Struct, frozen=True, kw_only=True):
    """A thing that this machine lacks, and what to do about it."""

    what: str
    fix: str


class Begun(msgspec.Struct, frozen=True, kw_only=True):
    """An installation under way, or one that has ended early: whose, where, since when (ISO 8601), and how far.

    ``running``: a process holds its lock. ``failed``: why its build has failed, if it has. ``extras``: what it was to
    add to the stack.
    """

    user: str
    host: str
    pid: int
    since: str
    stage: str
    log: str
    running: bool
    failed: str = ""
    extras: tuple[str, ...] = ()


class ListedEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """An environment that is installed, or a stack that can be.

    ``why`` and ``fix`` are words on ``state``. ``built``: whether this project has built and verified the stack
    anywhere, and ``status`` where; null of what is no stack of it. ``wheel_mpi``: whether its MPI is a wheel's, which
    speaks only TCP between nodes. ``gpu``: whether this machine has the accelerator that it is for.
    ``verified`` is a date and ``created`` a time (ISO 8601). ``extras`` name what was added to it. ``size`` are the
    bytes of its files, those of modules that it shares with other environments included, null where that is not known;
    ``room`` are those that an installation takes, about. ``begun`` is there where an installation of it has begun and
    not ended. An entry that has the name of an earlier one is of a later prefix: with that alone, the name means it.
    """

    name: str
    state: EnvironmentState
    method: str
    framework: str
    accelerator: str
    why: str = ""
    fix: str = ""
    built: bool | None = None
    status: str | None = None
    gpu: bool = True
    lacking: tuple[Lacking, ...] = ()
    prefix: str | None = None
    python: str | None = None
    mpi: str | None = None
    wheel_mpi: bool = False
    horovod: bool | None = None
    verified: str | None = None
    created: str | None = None
    extras: tuple[str, ...] = ()
    size: int | None = None
    room: int | None = None
    begun: Begun | None = None


class Listing(msgspec.Struct, frozen=True, kw_only=True):
    """The answer of ``envkit list``."""

    version: int = VERSION
    environments: tuple[ListedEnvironment, ...]


def begun(tree: Tree, note: Path) -> Begun | None:
    """Return what is known of an installation that has begun."""
    unfinished = receipt.unfinished(tree, note.stem)
    user = ""
    with suppress(OSError, KeyError):
        user = pwd.getpwuid(note.lstat().st_uid).pw_name
    if unfinished is None:
        return None
    return Begun(
        user=user,
        host=unfinished.node,
        pid=unfinished.pid,
        since=unfinished.began.replace(" ", "T"),
        stage=unfinished.stage,
        log=unfinished.log,
        running=filelocks.is_running(tree, unfinished),
        failed=unfinished.failed,
        extras=tuple(extra for extra in unfinished.extras if extra in extras.known()),
    )


def begun_at(prefix: Prefix) -> list[tuple[Tree, str, Begun]]:
    """Return the installations that have begun and not ended, those that run first. Raises NotReadable."""
    installations = [
        (tree, path.stem, installation)
        for tree in trees(prefix)
        if os.access(tree.unfinished, os.R_OK | os.X_OK)
        for path in sorted(tree.unfinished.glob("[!.]*.json"))
        if is_name(path.stem) and (installation := begun(tree, path))
    ]
    return sorted(installations, key=lambda place: not place[2].running)


def entries(prefix: Prefix, lacking: Mapping[str, Sequence[Problem] | None] | None = None) -> list[ListedEnvironment]:
    """Return an entry for each stack and each installed environment; ``lacking`` is what this machine lacks for stacks.

    Of a name that several prefixes have, that of the first one comes first. Raises NotReadable.
    """
    lines, behind = dict[str, ListedEnvironment](), list[ListedEnvironment]()
    seen = set[str]()
    under_way = {(tree.root, name): (tree, start) for tree, name, start in begun_at(prefix)}
    for tree, name, environment in every(prefix):
        apart = named_apart(tree, name)
        called = apart if name in lines and apart not in seen else name  # what another Python has of the same name
        _, again = under_way.pop((tree.root, name), (tree, None))
        line = msgspec.structs.replace(entry(called, environment, tree), begun=again)
        if called in lines:
            behind.append(line)
        else:
            lines[called] = line
        seen.add(apart)
    stacks_by_name = {stack.name: stack for stack in stacks()}
    begun_only = [started(name, *place, stacks_by_name.get(name)) for (_, name), place in under_way.items()]
    present = [*lines.values(), *behind, *begun_only]
    absent = [stack for stack in stacks() if stack.name not in {line.name for line in present}]
    return present + [possible(stack, (lacking or {}).get(stack.name)) for stack in absent]


def started(name: str, tree: Tree, start: Begun, stack: Stack | None) -> ListedEnvironment:
    """Return the line of an environment of which an installation has begun, and no more."""
    state = EnvironmentState.INSTALLING if start.running else EnvironmentState.UNFINISHED
    has_ended = state is EnvironmentState.UNFINISHED
    root = tree.root.parent
    at = "" if any(usual.root == root for usual in locate(None).every) else f" --prefix {quote(str(root))}"
    again = f"envkit install {name}" + (f" --with {','.join(start.extras)}" if start.extras else "") + at
    return ListedEnvironment(
        name=name,
        state=state,
        method=stack.method if stack else methods.usual(),
        framework=stack.framework if stack else "none",
        accelerator=stack.accelerator.value if stack else "cpu",
        why=start.failed or f"It ended while {start.stage}." if has_ended else "",
        fix=f"Go on with it by the command that began it: {again}, with the other options that it had. "
        f"Or remove it: envkit remove {name}{at}."
        if has_ended
        else "",
        built=built(stack),
        status=stack.status if stack else None,
        prefix=str(tree.root.parent),
        begun=start,
    )


def possible(stack: Stack, lacking: Sequence[Problem] | None) -> ListedEnvironment:
    """Return the line of a stack that is not installed."""
    state = (
        EnvironmentState.UNKNOWN if lacking is None else EnvironmentState.LACKS if lacking else EnvironmentState.FITS
    )
    problems = tuple(Lacking(what=problem.what, fix=problem.fix) for problem in lacking or ())
    first = problems[0] if problems else None
    return ListedEnvironment(
        name=stack.name,
        state=state,
        method=stack.method,
        framework=stack.framework,
        accelerator=stack.accelerator.value,
        why=first.what if first else "",
        fix=first.fix if first else "",
        built=built(stack),
        status=stack.status,
        gpu=stack.accelerator in (Accelerator.CPU, host.accelerator()),
        lacking=problems,
        room=stack.disk_mb * 1_000_000 or None,
    )


def built(stack: Stack | None) -> bool | None:
    """Say whether this project has built a stack; None of what is none of its own."""
    return None if stack is None or stack.of_site else bool(stack.tried)


def entry(name: str, environment: Receipt | EnvironmentDamaged, tree: Tree) -> ListedEnvironment:
    """Return the line of an environment that is there, or of a receipt that cannot be read."""
    where = str(tree.root.parent)
    if isinstance(environment, EnvironmentDamaged):
        return ListedEnvironment(
            name=shown(name),
            state=EnvironmentState.DAMAGED,
            method="unknown",
            framework="unknown",
            accelerator="unknown",
            why=f"{environment.what} {environment.why}",
            fix=environment.fix,
            prefix=where,
        )
    state, why, fix = state_of(tree, environment)
    size = environment.measure()
    stack = next((candidate for candidate in stacks() if candidate.name == environment.name), None)
    return ListedEnvironment(
        name=name,
        state=state,
        method=environment.method,
        framework=environment.framework,
        accelerator=environment.accelerator,
        why=why,
        fix=fix,
        built=built(stack),
        status=stack.status if stack else None,
        gpu=environment.accelerator in ("cpu", host.accelerator().value),
        prefix=where,
        python=environment.python,
        mpi=f"{environment.mpi.family} {environment.mpi.version}" if environment.mpi else None,
        wheel_mpi=bool(environment.wheel_mpi),
        horovod=bool(environment.horovod),
        verified=environment.verified if environment.horovod else None,
        created=environment.created,
        extras=tuple(environment.extras),
        size=None if size.unlisted and not size.size else size.size,
    )


def state_of(tree: Tree, environment: Receipt) -> tuple[EnvironmentState, str, str]:
    """Return the state of an environment that is there, why, and what to do."""
    if environment.copied_from:
        fix = f"Move it back, or remove it here: envkit remove {environment.name} --prefix {tree.root.parent}"
        return EnvironmentState.DAMAGED, f"it was copied or moved here from {environment.copied_from}", fix
    if refused := distrust(tree, environment):
        fix = "Have its owner close it, or name in ENVKIT_TRUST whom you trust."
        return EnvironmentState.REFUSED, refused, fix
    if lost := broken(environment):
        return EnvironmentState.DAMAGED, lost, repair(environment)
    return EnvironmentState.INSTALLED, "", ""


def distrust(tree: Tree, environment: Receipt) -> str:
    """Say why an environment is not entered that somebody else can change; nothing if nobody can."""
    try:
        modules = [module.name for module in environment.recipes]
        trust.require(tree.root.parent, tree, receipt.path_of(tree, environment.name), modules)
    except HostProblem as error:
        return error.why
    return ""


def broken(environment: Receipt) -> str:
    """Say which file of an environment is damaged, as far as sizes tell it; nothing if none is."""
    lost = environment.broken()
    return f"{shown(lost.path)} {SAID[lost.how]}" if lost else ""


def damage(environment: Receipt) -> str:
    """Say that, and what mends it."""
    lost = broken(environment)
    return f"{lost}; mend it with '{repair(environment)}'" if lost else ""


def repair(environment: Receipt) -> str:
    """Return the command that mends an environment."""
    return f"envkit repair {environment.name} --prefix {Path(environment.tree).parent}"


def to_json(environments: list[ListedEnvironment]) -> str:
    """Return the entries as versioned JSON."""
    return msgspec.json.format(msgspec.json.encode(Listing(environments=tuple(environments)))).decode()


TITLES = {
    "installed": "Installed",
    "damaged": "Installed and damaged",
    "refused": "Installed and not used, since others can change it",
    "installing": "Being installed",
    "unfinished": "Begun, and not finished",
    "fits": "Can be installed here",
    "fits-elsewhere": "Can be installed here, and runs on nodes with a GPU, which this one lacks",
    "never-built": "Never built by this project; nothing is known to be lacking here",
    "lacks": "Cannot be installed here as it is",
    "unknown": "Whether they can be installed here could not be found out",
}


def section(environment: ListedEnvironment) -> str:
    """Return the heading that an entry stands under, as TITLES names it."""
    if environment.state is not EnvironmentState.FITS:
        return environment.state.value
    return "never-built" if environment.built is False else "fits" if environment.gpu else "fits-elsewhere"


def text(environments: Sequence[ListedEnvironment], prefix: Prefix, paper: Paper) -> str:
    """Return the entries for people: by state, each in a line, what is wrong with it below."""
    lines = list[str]()
    firsts = {row.name: row for row in reversed(environments)}
    names, methods = (max((len(getattr(row, of)) for row in environments), default=0) for of in ("name", "method"))
    for kind, title in TITLES.items():
        group = [row for row in environments if section(row) == kind]
        lines += [*([""] if lines and group else []), *([paper.styled(title, "bold")] if group else [])]
        for number, environment in enumerate(group):
            start = words.plain(f"  {environment.name:<{names}}  {environment.method:<{methods}}")
            hidden = firsts[environment.name] is not environment
            rest = words.plain(", ".join(details(environment, prefix, is_hidden=hidden)))
            fits = len(start) + 2 + len(rest) <= paper.width
            lines.append(f"{start}  {rest}".rstrip() if fits else start.rstrip())
            lines += [] if fits else paper.paragraph("     ", "dim", rest)
            following = remark(group[number + 1]) if number + 1 < len(group) else ""
            if (note := remark(environment)) and note != following:  # once, below the last of those that it is about
                lines += paper.paragraph("     ", "dim", note)
    return "\n".join(lines)


def details(environment: ListedEnvironment, prefix: Prefix, *, is_hidden: bool) -> Iterator[str]:
    """Yield what there is to say of an entry in its line; ``is_hidden``: another one of its name comes first."""
    if environment.state is EnvironmentState.INSTALLED:
        yield (
            f"verified {environment.verified}"
            if environment.verified
            else f"{(environment.created or '')[:10]}, no Horovod"
        )
    if environment.extras:
        yield f"with {' '.join(environment.extras)}"
    if environment.wheel_mpi:
        yield "MPI of a wheel: only TCP between nodes"
    elif environment.mpi:
        yield environment.mpi
    if environment.size:
        yield words.gigabytes(environment.size)
    elif environment.room:
        yield f"takes {words.gigabytes(environment.room)}"
    if is_hidden:
        yield f"meant with --prefix {environment.prefix}"
    elif environment.prefix and environment.prefix != str(prefix.root):
        yield f"in {environment.prefix}"
    if environment.built is None and not environment.prefix and environment.status:
        yield environment.status


def remark(environment: ListedEnvironment) -> str:
    """Return who is at work on an entry, or what is wrong with it and what to do; nothing if neither is."""
    if environment.begun and environment.begun.running:
        again = "Built again" if environment.state is EnvironmentState.INSTALLED else "Built"
        start = environment.begun
        where = f"process {start.pid} on {start.host}"
        return f"{again} by {start.user or 'somebody'}, {where}, since {start.since}; now {start.stage}."
    if not environment.why:
        return ""
    more = f" And {len(environment.lacking) - 1} more: 'envkit doctor'." if len(environment.lacking) > 1 else ""
    first = environment.why.partition(" ")[0]
    is_name = first.endswith(":") or "/" in first
    why = f"{first if is_name else first.capitalize()}{environment.why[len(first) :].rstrip('.')}."
    return f"{why}{more}" if more else f"{why} {environment.fix}".strip()


def receipt_json(environment: Receipt) -> str:
    """Return a receipt as JSON."""
    return msgspec.json.format(msgspec.json.encode(environment)).decode()


def came_with(environment: Receipt) -> str:
    """Say where the MPI of an environment is from, and what that means; nothing of the machine's own."""
    if environment.wheel_mpi:
        return " (from a wheel: only TCP between nodes, no fast network)"
    return " (came with it)" if environment.mpi and environment.mpi.embedded else ""


def of_folder(environment: Receipt) -> dict[str, str]:
    """Say what there is of a virtual environment: where it is, its own packages, what it is on top of."""
    own = [f"{name} {version}" for name, version in sorted(venv.installed(Path(environment.called)).items())]
    return {
        "Folder": environment.called,
        "Packages": ", ".join(own) or "none of its own",
        "On top of": environment.name,
    }


def describe(environment: Receipt) -> str:
    """Return a receipt for people."""
    mpi = f"{environment.mpi.family} {environment.mpi.version}{came_with(environment)}" if environment.mpi else "none"
    lines = {
        **({"Name": environment.name} if environment.called == environment.name else of_folder(environment)),
        "Method": environment.method,
        "Framework": f"{environment.framework} on {environment.accelerator}",
        "Python": environment.python,
        "MPI": mpi,
        "Verified": environment.verified if environment.horovod else "no: there is no Horovod in it",
        "Horovod": environment.horovod or "none",
        "Tree": environment.tree,
        "Log": environment.log,
        **environment.described(),
    }
    if lost := damage(environment):
        lines["Damaged"] = lost
    return "\n".join(f"{key + ':':<11} {value}" for key, value in lines.items())
