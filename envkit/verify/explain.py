"""The explanation of a verification that failed: looked for first, then tried."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envkit.environments.manifest import is_harmless
from envkit.inside.probe.shared_object import shared_object
from envkit.knowledge.known import known
from envkit.launch import image_launch, launcher
from envkit.launch.launcher import LaunchRequest
from envkit.system import process
from envkit.verify import settings
from envkit.verify.causes import can_be_explained
from envkit.verify.options import Options
from envkit.verify.outcome import Expected, HostFile, Setting, UnusablePlace
from envkit.verify.package_files import not_as_installed
from envkit.verify.settings import is_in_search_path
from envkit.verify.trials import ISOLATED, MOST_S, MPI_ALONE, Attempt, Trials, differences

if TYPE_CHECKING:
    from envkit.verify.report import Report
    from envkit.verify.target import Target

MPI_PARTS = (
    "lib*mpi*.so*",
    "libopen-*.so*",
    "libp*mix*.so*",
    "libprrte*.so*",
    "openmpi*/*.so",
    "openmpi*/lib/openmpi*/*.so",
    "pmix*/*.so",
)
MOST_PARTS = 500
MOST_HOSTS = 32
SSH_S = 5
PYTHON_S = 20
QUICK_S = 10.0  # ranks that fail so soon are started again as they were first: it costs little, and proves the rest


def seen(expected: Expected, target: Target, env: Mapping[str, str]) -> Expected:
    """Return what is expected, with what can be seen of why it does not hold: damaged files, settings, limits."""
    return replace(
        expected,
        damage=tuple(target.damage()),
        settings=tuple(settings.in_force(env)),
        limits=tuple(settings.low_limits()),
        places=tuple(settings.unwritable(env)),
        host_files=tuple(of_host(target, env)),
        ended_job=settings.ended_job(env),
        noexec=tuple(target.noexec()),
        interposed=tuple(interposed(env)),
        unknown=tuple(settings.of_unknown_components(expected.launcher_said, all_of_mpi(target, env))),
    )


def all_of_mpi(target: Target, env: Mapping[str, str]) -> Iterator[Setting]:
    """Yield the settings in force, the machine's own of Open MPI among them."""
    yield from settings.in_force(env)
    if is_open_mpi(target):
        yield from settings.of_machine(mpi_libraries(target))


def unreachable(hosts: Mapping[str, tuple[str, str]], env: Mapping[str, str]) -> list[UnusablePlace]:
    """Those of some hosts that ssh does not reach without being asked anything, all tried at once.

    Of each host the file that names it is given, "" where whoever verifies has, and the variable that names another.
    """
    words = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_S}"]

    def tried(host: str) -> UnusablePlace | None:
        done = process.capture([*words, host, "true"], env=env, timeout_s=2 * SSH_S)
        lines = done.stderr.strip().splitlines()
        error = lines[-1] if lines else f"status {done.status}"
        where, variable = hosts[host]
        return UnusablePlace(path=host, error=error, where=where, variable=variable) if done.status else None

    with ThreadPoolExecutor(MOST_HOSTS) as pool:
        return [place for place in pool.map(tried, [*hosts][:MOST_HOSTS]) if place]


def asked_hosts(wanted: LaunchRequest, target: Target, said: str, env: Mapping[str, str]) -> dict[str, tuple[str, str]]:
    """The hosts that were named; else those of Open MPI's default hostfile that the launcher spoke of.

    Each with that file, and the variable that names another one.
    """
    if wanted.hosts or not is_open_mpi(target):
        return {host: ("", "") for host, _ in wanted.hosts}
    own = {"localhost", os.uname().nodename, os.uname().nodename.partition(".")[0]}
    named = settings.default_hosts(mpi_libraries(target), env)
    return {host: where for host, where in named if host not in own and re.search(rf"\b{re.escape(host)}\b", said)}


def is_before_init(report: Report) -> bool:
    """Whether no rank came further than hvd.init(), so that it may be MPI alone that fails."""
    return all(rank.size is None for rank in report.ranks)


def has_python(target: Target, env: Mapping[str, str]) -> bool:
    """Whether the environment's Python can start without any package: else no program of it tells anything of MPI."""
    argv = target.inside.command([target.python, *ISOLATED, "-c", "import ctypes, json, re, typing"])
    done = process.capture(argv, env=target.inside.variables(launcher.variables(env)), timeout_s=PYTHON_S)
    return done.status == 0


def mpi_libraries(target: Target) -> list[str]:
    """The MPI libraries that Horovod's extensions load."""
    return [path for extension in target.built.extensions for path in extension.mpi_libraries] if target.built else []


def is_open_mpi(target: Target) -> bool:
    """Whether Horovod may be built with Open MPI, whose settings the machine has."""
    return target.known_mpi is None or target.known_mpi.family == "Open MPI"


def of_host(target: Target, env: Mapping[str, str]) -> list[HostFile]:
    """Return the files of the MPI that are not as installed; it may be the host's, whose package manager knows."""
    cut = [HostFile(path=path, how="cut") for path in cut_libraries(mpi_libraries(target), env)]
    program = process.which("mpirun", path=env.get("PATH"))
    places = [Path(path).resolve() for path in (*mpi_libraries(target), *([program] if program else []))]
    changed = {file.path: file for file in not_as_installed(dict.fromkeys(places))}
    return [*(replace(changed.pop(file.path, file), how="cut") for file in cut), *changed.values()]


def interposed(env: Mapping[str, str]) -> Iterator[str]:
    """Yield the preloaded libraries that define functions of MPI: these stand before the MPI's own."""
    from envkit.binary.elf import Elf

    for word in env.get("LD_PRELOAD", "").replace(":", " ").split():
        with suppress(OSError, ValueError):
            library = Elf.open(Path(word))
            if any(library.defined(name) for name in known("settings")["mpi_functions"]):
                yield word


def cut_libraries(libraries: Iterable[str], env: Mapping[str, str]) -> Iterator[str]:
    """Yield the libraries of the MPI, and what they load, that are shorter than they say.

    The MPI may be the host's, or one that LD_LIBRARY_PATH leads to.
    """
    search = [Path(word) for word in env.get("LD_LIBRARY_PATH", "").split(":") if word.startswith("/")]
    for folder in dict.fromkeys((*(Path(path).resolve().parent for path in libraries), *search)):
        for pattern in MPI_PARTS:
            for path in sorted(folder.glob(pattern))[:MOST_PARTS]:
                with suppress(OSError, ValueError):
                    library = shared_object(str(path))
                    if library["size"] < library["wanted"]:
                        yield str(path)


def is_plain(expected: Expected, ranks: int) -> bool:
    """Whether what was seen explains enough: files that are damaged or may not be run, who was stopped, an old job,
    a host that a file names and that does not answer, a TMPDIR that is of no use, a launcher that starts ranks twice.

    Without the LD_LIBRARY_PATH that leads to a cut library of an MPI another may be found: that is tried.
    """
    damaged = any(file.how != "added" and not is_harmless(file) for file in expected.damage)
    nowhere = expected.ended_job is not None and not ranks
    of_host = any(not is_in_search_path(file, expected.settings) for file in expected.host_files)
    listed = any(host.where for host in expected.mute)
    no_place = not ranks and settings.own_place(expected) is not None
    of_launcher = expected.stopped or expected.again
    return bool(damaged or of_host or listed or no_place or expected.noexec or of_launcher or nowhere)


def is_outlived(report: Report) -> bool:
    """Whether all went well but that the launcher did not end: each trial would wait for it as long."""
    return any((result.id, result.case) == ("launcher-ended", "stays") for result in report.results)


def explained(
    expected: Expected,
    report: Report,
    target: Target,
    wanted: LaunchRequest,
    options: Options,
    env: Mapping[str, str],
    passes: Callable[[Attempt, float], bool],
    tell: Callable[[str], None],
    failed_s: float,
) -> Expected:
    """Return what is expected, with all that explains why it does not hold.

    Nothing is tried where files are damaged, which explains enough, or where another start could change nothing. Where
    nothing that is tried passes, every file is read. ``failed_s`` is how long the ranks took to fail.
    """
    expected = seen(expected, target, env)
    if not report.ranks:
        hosts = asked_hosts(wanted, target, expected.launcher_said, env)
        expected = replace(expected, mute=tuple(unreachable(hosts, env)))
    is_clear = is_plain(expected, len(report.ranks)) or is_outlived(report)
    if options.quick or is_clear or not any(map(can_be_explained, report.results)):
        return expected
    first = f"{report.cause.id}: {report.cause.message}" if report.cause else ""
    tell(f"The ranks fail ({first}). Trying what passes, for {MOST_S:.0f} s at most (--quick does not).")
    trials = Trials(passes=passes, until=time.monotonic() + MOST_S)
    telling = tuple(setting for setting in expected.settings if not settings.is_harmless(setting))
    has_gloo = bool(target.built and target.built.flag("gloo"))
    by_horovodrun = report.started is not None and report.started.launcher == "horovodrun"
    mpi = next(iter(mpi_libraries(target)), "") if not by_horovodrun and is_before_init(report) else ""
    differences(
        trials,
        wanted,
        telling or expected.settings,
        settings.of_machine(mpi_libraries(target)) if is_open_mpi(target) else [],
        other_launcher=has_gloo and not by_horovodrun,
        fabric=report.has_fabric,
        named=expected.unknown,
        inside=image_launch.may_start_its_own(target.inside, target.mpi(env), wanted, env, options.mpi_model),
        again_first=not telling or failed_s < QUICK_S,
        mpi=mpi if mpi and has_python(target, env) else "",
    )
    passed = any(trial.passed and trial.name != MPI_ALONE for trial in trials.done)
    damage = expected.damage if passed else tuple(target.damage(every=True))
    return replace(expected, trials=tuple(trials.done), damage=damage)
