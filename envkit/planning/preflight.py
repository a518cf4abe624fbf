"""Finding what would stop an installation before it starts: all of it at once, each with its remedy."""

import os
from collections.abc import Iterable, Sequence
from importlib.metadata import metadata
from pathlib import Path
from shlex import quote

from packaging.specifiers import SpecifierSet

from envkit.environments.prefix import Prefix
from envkit.errors import (
    ChecksumMismatch,
    ConsentMissing,
    EnvkitError,
    HostProblem,
    NotWritable,
    Problem,
    SourceMissing,
    SourcesMissing,
)
from envkit.machine import modules_tool
from envkit.machine.host import Host, writable_parent
from envkit.planning.plan import Plan
from envkit.planning.stack import Stack
from envkit.sources import fetch
from envkit.sources.source_cache import distinct
from envkit.system import files, process
from envkit.system.resources import easybuild_collection, recipes

PATIENCE_S = 5.0  # for the answers of all places together
SHOWN = 5  # sources that are listed, with what each place said


def host_problems(host: Host, stack: Stack) -> Iterable[Problem]:
    """Yield what this machine lacks for a stack."""
    if stack.machines and host.machine not in stack.machines:
        yield Problem(
            what=f"{stack.name} is not for {host.machine}.", fix=f"It can be installed on {', '.join(stack.machines)}."
        )
    elif stack.pythons and host.machine not in stack.pythons:
        yield Problem(
            what=f"{stack.name} has no wheels for {host.machine}.",
            fix=f"It can be installed on {', '.join(stack.pythons)}.",
        )
    elif not stack.runs_on(host.platform):
        fitting = stack.pythons[host.machine]
        own = [version for version in fitting if version in SpecifierSet(metadata("envkit")["Requires-Python"])]
        install = f"Install envkit under Python {', '.join(own)}, or load" if own else "Load"
        yield Problem(
            what=f"Python {host.python.version} ({host.python.path}) is not one that {stack.name} has wheels for.",
            fix=f"{install} a Python {', '.join(fitting)} with --load.",
        )
    if host.modules_tool is None:
        yield Problem(what="Neither Lmod nor Environment Modules was found.", fix=modules_tool.REMEDY)
    if host.compiler is None:
        yield Problem(
            what="There is no gcc and g++ that compile C++17.",
            fix="Debian, Ubuntu: apt install g++. RHEL: dnf install gcc-c++. On a cluster: --load its module.",
        )
    if not host.python.headers and not brings_python(stack):
        yield Problem(
            what=f"The headers of {host.python.path} are missing (Python.h).",
            fix="Debian, Ubuntu: apt install python3-dev. RHEL: dnf install python3-devel.",
        )
    for tool in ("make", "tar", "patch"):
        if process.which(tool, path=host.env["PATH"]) is None:
            yield Problem(what=f"The program {tool} is missing.", fix=f"Install the package {tool}.")


def brings_python(stack: Stack) -> bool:
    """Say whether a stack has a Python of its own: no wheels, and a recipe that is not for the machine's."""
    return not stack.pythons and not Path(stack.easyconfig).is_absolute() and "-system" not in stack.easyconfig


def missing_programs(host: Host, stack: Stack) -> Iterable[Problem]:
    """Yield each program of the host that the recipes of a stack demand, and that is not there."""
    for name in stack.programs:
        if process.which(name, path=host.env["PATH"]) is None:
            yield Problem(
                what=f"The program {name} is missing, which {stack.name} needs.",
                fix="Install it, or name the site's module that has it with --load.",
            )


def machine_problems(host: Host, stack: Stack) -> Iterable[Problem]:
    """Yield the problem of a machine that a stack is not for."""
    if stack.machines and host.machine not in stack.machines:
        fits = ", ".join(stack.machines)
        yield Problem(what=f"{stack.name} cannot be built on {host.machine}.", fix=f"It can be built on {fits}.")


def known_problems(host: Host, stack: Stack, modules: Iterable[str] = (), *, force: bool) -> Iterable[Problem]:
    """Yield what is known to fail, by the modules of its plan as well, unless it is to be tried all the same."""
    from envkit.planning.compatibility import known_bad

    return () if force else known_bad(stack, host, modules)


def patch_problems(plan: Plan, prefix: Prefix) -> Iterable[Problem]:
    """Yield what is wrong with patches of recipes that are neither envkit's nor EasyBuild's own, as eb finds them."""
    for step in plan.steps:
        recipe, name = Path(step.easyconfig), step.module.partition("/")[0]
        if any(recipe.is_relative_to(own) for own in (recipes("easyconfigs"), easybuild_collection())):
            continue
        below = [Path(folder) / part for folder in plan.robot for part in ("", f"{name[0].lower()}/{name}", name)]
        places = [recipe.parent, *below, prefix.root / "sources" / name[0].lower() / name]
        for patch in step.patches:
            found = next((place / patch.filename for place in places if (place / patch.filename).is_file()), None)
            if found is None:
                yield Problem(
                    what=f"The patch {patch.filename}, which {recipe.name} names, is not there.",
                    fix=f"Put it beside the recipe, in {recipe.parent}.",
                )
            elif patch.sha256 and files.sha256(found) != patch.sha256:
                yield Problem(
                    what=f"{found} is not the patch that {recipe.name} pins: its SHA-256 is {files.sha256(found)}.",
                    fix=f"Put the right one in its place, or correct the recipe: {recipe}",
                )


def prefix_problems(prefix: Prefix, stack: Stack, remaining: float) -> Iterable[Problem]:
    """Yield what the place lacks: permission, bytes, inodes. ``remaining`` is the share that is not built yet."""
    parent = writable_parent(prefix.root)
    if not os.access(parent, os.W_OK | os.X_OK):
        yield Problem(what=f"{parent} cannot be written to.", fix="Choose another folder with --prefix.")
        return
    free_mb, inodes = room(parent)
    if free_mb < stack.disk_mb * remaining:
        yield Problem(
            what=f"{parent} has {free_mb} MB free; {stack.name} takes about {stack.disk_mb * remaining:.0f} MB.",
            fix="Free space, or choose another --prefix.",
        )
    if inodes is not None and inodes < stack.inodes * remaining:
        yield Problem(
            what=f"{parent} has {inodes} inodes left; {stack.name} takes about {stack.inodes * remaining:.0f}.",
            fix="Remove files, or choose another --prefix.",
        )


def room(folder: Path) -> tuple[int, int | None]:
    """Return the MB and the inodes that are free for this user; None where the file system does not count inodes."""
    state = os.statvfs(folder)
    return state.f_bavail * state.f_frsize // 1_000_000, state.f_favail if state.f_files else None


def plan_problems(plan: Plan, missing: Sequence[str], accepted: Sequence[str], host: Host) -> Iterable[Problem]:
    """Yield what the steps that are left would stop at: licences, packages of the system, unpinned sources."""
    steps = [step for step in plan.steps if step.module in missing]
    for name in sorted({step.eula for step in steps} - {"", *accepted}):
        what, fix = f"The licence of {name} has to be accepted.", f"Read it, then add --accept-eula {name}."
        yield ConsentMissing(what=what, fix=fix)
    groups = sorted({group for step in steps for group in step.os_dependencies})
    for group in groups:
        if not any(has_package(name, host) for name in group):
            yield Problem(
                what=f"A package or program of the system is missing: {' or '.join(group)}.",
                fix="Install one of them, or name the site's module that has it with --load.",
            )
    for source in (source for step in steps for source in step.sources):
        if source.sha256 is None:
            yield Problem(
                what=f"{source.needed_by} pins no SHA-256 for {source.filename}.",
                fix=f"Add it to the recipe: eb --inject-checksums {quote(source.needed_by)}",
            )


def lacking(wanted: Sequence[fetch.Source], prefix: Prefix, carried: fetch.BundleManifest | None) -> list[fetch.Source]:
    """Return the sources that are not in the cache, nor in a bundle that is yet to be unpacked into it."""
    digests = {entry.filename: entry.sha256 for entry in carried.files} if carried else {}
    absent = fetch.missing(wanted, prefix.sources) if prefix.sources.is_dir() else wanted
    return [
        source for source in absent if source.place not in digests or source.sha256 not in (None, digests[source.place])
    ]


def source_problems(
    wanted: Sequence[fetch.Source],
    prefix: Prefix,
    stack: Stack,
    carried: fetch.BundleManifest | None = None,
    *,
    has_caches: bool = False,
) -> Iterable[Problem]:
    """Yield each source that is not in the prefix, for an installation without a network."""
    try:
        absent = lacking(wanted, prefix, carried) if carried else wanted
        fetch.fetch(absent, prefix.sources, offline=True, progress=lambda _: None, stack=stack.name)
    except (ChecksumMismatch, SourcesMissing) as error:
        error.fix += "\nWithout --offline they are sought in your caches ('cache.from'), too." if has_caches else ""
        yield SourceMissing(what=f"{error.what}\n{error.why}".strip(), fix=error.fix)


def set_aside(wanted: Sequence[fetch.Source], prefix: Prefix) -> Iterable[str]:
    """Yield each source that the cache has with another content, and what an installation would do with it."""
    for damage in fetch.damaged(wanted, prefix.sources):
        yield f"Damaged:  {damage}; it would be set aside and fetched again"


def ask(wanted: Sequence[fetch.Source], prefix: Prefix, kept: Sequence[fetch.FileStore] = ()) -> fetch.Answers:
    """Ask every place for the sources that are not in the cache, for PATIENCE_S in all."""
    cache = prefix.sources
    absent = fetch.missing(wanted, cache) if cache.is_dir() else distinct(wanted)
    return fetch.ask([source for source in absent if source.sha256 is not None], PATIENCE_S, kept)


def refused_sources(answers: fetch.Answers, stack: Stack, host: Host) -> Iterable[Problem]:
    """Yield that sources cannot be had from where they are sought."""
    if not (refused := answers.refused):
        return
    shown = [
        "\n    ".join([f"{failure.source.place} (for {failure.source.needed_by})", *failure.reasons])
        for failure in refused[:SHOWN]
    ]
    if len(refused) > SHOWN:
        shown.append(f"and {len(refused) - SHOWN} more")
    others = [version for version in stack.pythons.get(host.machine, ()) if version != host.platform.python]
    another = f" Another Python may have other files ({', '.join(others)})." if others else ""
    yield SourceMissing(
        what=f"{len(refused)} of {answers.number} sources cannot be fetched from any place where they are sought:\n"
        + "\n".join(shown),
        fix="Check the network, the proxy and pip's configuration (python -m pip config list): let this machine reach "
        f"those hosts, or name pip another index, or find-links, that has the files.{another} {carry_over(stack)}",
    )


def silent_places(answers: fetch.Answers, stack: Stack) -> Iterable[Problem]:
    """Yield who did not answer in time, and about which files; a download waits longer, so nothing has failed yet."""
    if not (answers.unanswered or answers.unasked):
        return
    names = [source.place for source in answers.unanswered[:SHOWN]]
    names += [f"and {len(answers.unanswered) - SHOWN} more"] if len(answers.unanswered) > SHOWN else []
    if answers.unanswered:
        who = f"{', '.join(answers.silent)} did not answer" if answers.silent else "There was no answer"
        what = f"{who} within {PATIENCE_S:.0f} s about {', '.join(names)}."
    else:
        what = f"Answers take long: {PATIENCE_S:.0f} s were not enough for all."
    if answers.unasked:
        what += f" {len(answers.unasked)} more of {answers.number} files were not asked about in that time."
    yield SourceMissing(
        what=what,
        fix="Downloads wait longer, so an installation may succeed; if not, name pip another index. "
        f"{carry_over(stack)}",
    )


def carry_over(stack: Stack) -> str:
    """Say how sources get to a machine without a network."""
    return (
        f"Or carry them over. Where they can be fetched: envkit fetch {stack.name} --bundle FILE.tar; "
        f"and here: envkit install {stack.name} --bundle FILE.tar."
    )


def has_package(name: str, host: Host) -> bool:
    """Say whether there is a package, a program on PATH or a file of that name."""
    if Path(name).exists() or process.which(name, path=host.env["PATH"]):
        return True
    if process.capture(["dpkg-query", "-W", "-f=${Status}", name], env=host.env).stdout == "install ok installed":
        return True
    return process.capture(["rpm", "-q", "--whatprovides", name], env=host.env).status == 0


def refusal(problems: Sequence[Problem]) -> type[EnvkitError]:
    """Return the failure that these problems are."""
    if len(problems) == 1 and problems[0].what.endswith(" cannot be written to."):  # not /dev/shm, which is the host's
        return NotWritable
    return SourcesMissing if all(isinstance(problem, SourceMissing) for problem in problems) else HostProblem


def require(problems: Sequence[Problem], stack: Stack) -> None:
    """Raise HostProblem with every problem, if there is one; NotWritable, SourcesMissing where it is that alone."""
    if not problems:
        return
    listed = "\n".join(f"{number}. {p.what}\n   -> {p.fix}" for number, p in enumerate(problems, start=1))
    raise refusal(problems)(
        what=f"{stack.name} cannot be installed on this machine as it is.",
        why=listed,
        fix="Do what the arrows say, and run the same command again. Nothing has been changed.",
    )
