"""Where a verification failed: what explains it, looked at first, then tried."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from envkit.environments.manifest import is_harmless
from envkit.inside.probe.shared_object import shared_object
from envkit.launch.launcher import Wanted
from envkit.system import process
from envkit.verify import settings
from envkit.verify.causes import can_be_explained
from envkit.verify.options import Options
from envkit.verify.outcome import Expected, Place
from envkit.verify.trials import MOST_S, MPI_ALONE, Attempt, Trials, differences

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


def seen(expected: Expected, target: Target, env: Mapping[str, str]) -> Expected:
    """What is expected, with what can be seen of why it does not hold: damaged files, settings, limits."""
    return replace(
        expected,
        damage=tuple(target.damage()),
        settings=tuple(settings.in_force(env)),
        limits=tuple(settings.low_limits()),
        places=tuple(settings.unwritable(env)),
        cut=tuple(cut_libraries(target)),
    )


def mute(wanted: Wanted, env: Mapping[str, str]) -> list[Place]:
    """The hosts that were named and that ssh does not reach without being asked anything, all tried at once."""
    words = ["ssh", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={SSH_S}"]

    def tried(host: str) -> Place | None:
        done = process.capture([*words, host, "true"], env=env, timeout_s=2 * SSH_S)
        said = done.stderr.strip().splitlines()
        return Place(path=host, error=said[-1] if said else f"status {done.status}") if done.status else None

    with ThreadPoolExecutor(MOST_HOSTS) as pool:
        return [place for place in pool.map(tried, [host for host, _ in wanted.hosts][:MOST_HOSTS]) if place]


def is_before_init(made: Report) -> bool:
    """Whether no rank came further than hvd.init(), so that it may be MPI alone that fails."""
    return all(rank.size is None for rank in made.ranks)


def mpi_libraries(target: Target) -> list[str]:
    """The MPI libraries that Horovod's extensions load."""
    return [path for one in target.built.extensions for path in one.mpi_libraries] if target.built else []


def is_open_mpi(target: Target) -> bool:
    """Whether Horovod may be built with Open MPI, whose settings the machine has."""
    return target.known_mpi is None or target.known_mpi.family == "Open MPI"


def cut_libraries(target: Target) -> Iterator[str]:
    """Yield the libraries of the MPI, and what they load, that are shorter than they say; the MPI may be the host's."""
    for folder in dict.fromkeys(Path(path).resolve().parent for path in mpi_libraries(target)):
        for pattern in MPI_PARTS:
            for path in sorted(folder.glob(pattern))[:MOST_PARTS]:
                with suppress(OSError, ValueError):
                    told = shared_object(str(path))
                    if told["size"] < told["wanted"]:
                        yield str(path)


def explained(
    expected: Expected,
    made: Report,
    target: Target,
    wanted: Wanted,
    options: Options,
    env: Mapping[str, str],
    passes: Callable[[Attempt, float], bool],
    tell: Callable[[str], None],
) -> Expected:
    """What is expected, with all that explains why it does not hold.

    Nothing is tried where files are damaged, which explains enough, or where another start could change nothing. Where
    nothing that is tried passes, every file is read.
    """
    expected = seen(expected, target, env)
    if not made.ranks:
        expected = replace(expected, mute=tuple(mute(wanted, env)))
    is_damaged = bool(expected.cut) or any(one.how != "added" and not is_harmless(one) for one in expected.damage)
    if options.quick or is_damaged or not any(map(can_be_explained, made.results)):
        return expected
    first = f"{made.cause.id}: {made.cause.message}" if made.cause else ""
    tell(f"The ranks fail ({first}). Trying what passes, for {MOST_S:.0f} s at most (--quick does not).")
    trials = Trials(passes=passes, until=time.monotonic() + MOST_S)
    has_gloo = bool(target.built and target.built.flag("gloo"))
    by_horovodrun = made.started is not None and made.started.launcher == "horovodrun"
    differences(
        trials,
        wanted,
        expected.settings,
        settings.of_machine(mpi_libraries(target)) if is_open_mpi(target) else [],
        other_launcher=has_gloo and not by_horovodrun,
        fabric=made.has_fabric,
        mpi=next(iter(mpi_libraries(target)), "") if not by_horovodrun and is_before_init(made) else "",
    )
    passed = any(trial.passed and trial.name != MPI_ALONE for trial in trials.done)
    damage = expected.damage if passed else tuple(target.damage(every=True))
    return replace(expected, trials=tuple(trials.done), damage=damage)
