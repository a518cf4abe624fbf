"""The block that `horovodrun --check-build` prints (Horovod 0.28.1: horovod/runner/launch.py), made true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.binary.build_flags import FLAGS, FRAMEWORKS

if TYPE_CHECKING:
    from envkit.binary.build_flags import BuildFlags, Extension

CONTROLLERS = (("mpi", "MPI"), ("gloo", "Gloo"))
OPERATIONS = (("nccl", "NCCL"), ("ddl", "DDL"), ("ccl", "CCL"), ("mpi", "MPI"), ("gloo", "Gloo"))


def check_build_block(flags: BuildFlags) -> str:
    """The block of `horovodrun --check-build`, with a true [X], and a line for each thing that is wrong."""
    loads = {extension.framework: extension.loads for extension in flags.extensions}
    lines = [f"Horovod v{flags.horovod}:", "", "Available Frameworks:"]
    lines += [line(loads.get(framework.name, False), framework.title) for framework in FRAMEWORKS]
    lines += ["", "Available Controllers:"]
    lines += [line(flags.flag(name), title) for name, title in CONTROLLERS]
    lines += ["", "Available Tensor Operations:"]
    lines += [line(flags.flag(name), title) for name, title in OPERATIONS]
    lines[-1] += "    "
    notes = notes_on(flags)
    return "\n".join([*lines, "", *notes] if notes else lines)


def line(value: object, title: str) -> str:
    """Return the line of a flag, with a box that is ticked or not."""
    return f"    [{'X' if value else ' '}] {title}"


def notes_on(flags: BuildFlags) -> list[str]:
    """Return a line for each thing that is wrong."""
    titles = {framework.name: framework.title for framework in FRAMEWORKS}
    notes = []
    for extension in flags.extensions:
        title = titles[extension.framework]
        notes += [f"{title}: {printable(problem)}" for problem in problems_of(extension)]
    for name in FLAGS:
        answers = {e.framework: e.flags.get(name) for e in flags.extensions if e.loads}
        if len(set(answers.values())) > 1:
            details = ", ".join(f"{titles[key]} {word(value)}" for key, value in answers.items())
            notes.append(f"The frameworks were not built alike: {name}: {details}")
    return notes


def problems_of(extension: Extension) -> list[str]:
    """Return what is wrong with one extension."""
    if not extension.exists and extension.others:
        return [f"the extension is not this Python's: {', '.join(extension.others)}"]
    if not extension.exists:
        wanted = extension.built_for or extension.installed
        return ["Horovod has no extension for it, though it is there"] if wanted else []
    problems = [f"the extension cannot be read: {extension.unreadable}"] if extension.unreadable else []
    problems += [f"the extension cannot load: no {library}" for library in extension.missing_libraries]
    problems += [f"the extension cannot load: undefined {symbol}" for symbol in extension.missing_symbols[:3]]
    if len(extension.missing_symbols) > 3:
        problems.append(f"and {len(extension.missing_symbols) - 3} more undefined symbols")
    if extension.has_drifted:
        problems.append(f"built for {extension.built_for}, but {extension.installed} is installed")
    if not extension.framework_found:
        problems.append("the extension is there, but the framework is not installed")
    unknown = [name for name in FLAGS if extension.flags.get(name) is None]
    if unknown and not extension.unreadable:
        problems.append(f"cannot tell: {', '.join(unknown)}")
    return problems


def printable(text: str) -> str:
    """A damaged file may hold any name."""
    return text if text.isprintable() else repr(text)[1:-1]


def word(value: int | None) -> str:
    """Return a flag as a word."""
    return "unknown" if value is None else "yes" if value else "no"
