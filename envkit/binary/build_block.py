"""The block that `horovodrun --check-build` prints (Horovod 0.28.1: horovod/runner/launch.py), made true."""

from __future__ import annotations

from typing import TYPE_CHECKING

from envkit.binary.build_flags import FLAGS, FRAMEWORKS

if TYPE_CHECKING:
    from envkit.binary.build_flags import BuildFlags, Extension

_CONTROLLERS = (("mpi", "MPI"), ("gloo", "Gloo"))
_OPERATIONS = (("nccl", "NCCL"), ("ddl", "DDL"), ("ccl", "CCL"), ("mpi", "MPI"), ("gloo", "Gloo"))


def check_build_block(flags: BuildFlags) -> str:
    """The block of `horovodrun --check-build`, with a true [X], and a line for each thing that is wrong."""
    loads = {extension.framework: extension.loads for extension in flags.extensions}
    lines = [f"Horovod v{flags.horovod}:", "", "Available Frameworks:"]
    lines += [_line(loads.get(framework.name, False), framework.title) for framework in FRAMEWORKS]
    lines += ["", "Available Controllers:"]
    lines += [_line(flags.flag(name), title) for name, title in _CONTROLLERS]
    lines += ["", "Available Tensor Operations:"]
    lines += [_line(flags.flag(name), title) for name, title in _OPERATIONS]
    lines[-1] += "    "
    notes = _notes(flags)
    return "\n".join([*lines, "", *notes] if notes else lines)


def _line(value: object, title: str) -> str:
    return f"    [{'X' if value else ' '}] {title}"


def _notes(flags: BuildFlags) -> list[str]:
    titles = {framework.name: framework.title for framework in FRAMEWORKS}
    notes = []
    for extension in flags.extensions:
        title = titles[extension.framework]
        notes += [f"{title}: {_printable(problem)}" for problem in _problems(extension)]
    for name in FLAGS:
        answers = {e.framework: e.flags.get(name) for e in flags.extensions if e.loads}
        if len(set(answers.values())) > 1:
            told = ", ".join(f"{titles[key]} {_word(value)}" for key, value in answers.items())
            notes.append(f"The frameworks were not built alike: {name}: {told}")
    return notes


def _problems(extension: Extension) -> list[str]:
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


def _printable(text: str) -> str:
    """A damaged file may hold any name."""
    return text if text.isprintable() else repr(text)[1:-1]


def _word(value: int | None) -> str:
    return "unknown" if value is None else "yes" if value else "no"
