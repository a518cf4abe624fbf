"""Signals to the launcher, to a rank's measuring process and to its watchdog, at a step."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence

from .kinds import During, Kind, World
from .world import children, named

WHOM = ("measuring process", "watchdog", "whole rank")
LAUNCHERS = ("mpirun", "orterun", "mpiexec.hydra")


def at_step(rank: int, phase: str, whom: str, number: signal.Signals) -> During:
    """Send a signal to a process of a rank when it comes to a step."""

    def during(world: World, running: subprocess.Popen[bytes]) -> None:
        watchdog = world.at(running, rank, phase)
        targets = [watchdog] if whom == "watchdog" else children(watchdog) if watchdog else []
        if whom == "whole rank" and watchdog:
            targets = [watchdog, *children(watchdog)]
        if whom == "launcher" and watchdog:
            targets = named(*LAUNCHERS)
        world.notes.append(f"{number.name} to {whom} {targets} of rank {rank} at {phase}")
        for pid in targets:
            if pid:
                os.kill(pid, number)

    return during


SAID = {
    signal.SIGSTOP: r"stopped|SIGSTOP|suspended|paused",
    signal.SIGKILL: r"SIGKILL|killed|signal 9",
    signal.SIGSEGV: r"SIGSEGV|segmentation|signal 11",
    signal.SIGABRT: r"SIGABRT|abort|signal 6",
    signal.SIGTERM: r"SIGTERM|terminated|signal 15",
    signal.SIGBUS: r"SIGBUS|bus error|signal 7",
    signal.SIGILL: r"SIGILL|illegal instruction|signal 4",
    signal.SIGFPE: r"SIGFPE|floating.point|signal 8",
}
WORDS = {
    signal.SIGSTOP: r"SIGCONT|continue|stopped|resume|\bfg\b",
    signal.SIGKILL: r"memory|limit|dmesg|again|who|log",
}


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Each signal to each process at some of the steps."""
    deeds = [
        (1, "import", "measuring process", signal.SIGKILL),
        (0, "collectives_cpu", "measuring process", signal.SIGKILL),
        (1, "init", "measuring process", signal.SIGKILL),
        (0, "import", "measuring process", signal.SIGSEGV),
        (1, "collectives_cpu", "measuring process", signal.SIGSEGV),
        (1, "init", "measuring process", signal.SIGABRT),
        (0, "training", "measuring process", signal.SIGABRT),
        (1, "load", "measuring process", signal.SIGBUS),
        (1, "values_cpu", "measuring process", signal.SIGBUS),
        (0, "import", "measuring process", signal.SIGILL),
        (1, "values_cpu", "measuring process", signal.SIGFPE),
        (1, "import", "measuring process", signal.SIGSTOP),
        (0, "values_cpu", "measuring process", signal.SIGSTOP),
        (1, "process_sets", "measuring process", signal.SIGSTOP),
        (1, "shutdown", "measuring process", signal.SIGKILL),
        (1, "import", "watchdog", signal.SIGKILL),
        (0, "values_cpu", "watchdog", signal.SIGKILL),
        (1, "import", "watchdog", signal.SIGTERM),
        (0, "init", "watchdog", signal.SIGSEGV),
        (1, "import", "watchdog", signal.SIGSTOP),
        (0, "values_cpu", "watchdog", signal.SIGSTOP),
        (1, "import", "whole rank", signal.SIGSTOP),
        (0, "values_cpu", "whole rank", signal.SIGSTOP),
        (0, "values_cpu", "launcher", signal.SIGSTOP),
        (0, "import", "launcher", signal.SIGKILL),
        (0, "values_cpu", "launcher", signal.SIGTERM),
        (0, "import", "launcher", signal.SIGSEGV),
        (1, "init", "launcher", signal.SIGTERM),
        (0, "values_cpu", "launcher", signal.SIGABRT),
    ]
    for rank, phase, whom, number in deeds:
        true = SAID[number]
        if whom == "launcher":
            true = rf"(launcher|mpirun)[^\n]*({true})|({true})[^\n]*(launcher|mpirun)"
        stopped = number == signal.SIGSTOP
        yield Kind(
            name=f"signals/{whom.replace(' ', '-')}/{number.name}/{phase}/rank-{rank}",
            group=f"signals to {'the launcher' if whom == 'launcher' else 'a ' + whom}",
            did=f"{number.name} to the {whom}"
            + (f" of rank {rank}" if whom != "launcher" else "")
            + f" as rank {rank} is at '{phase}'",
            do=lambda world: None,
            true=true,
            mended="words",
            words=WORDS.get(number, "."),
            options=("-n", "2", "--timeout", "12" if stopped else "25"),
            during=at_step(rank, phase, whom, number),
        )
    for number in (signal.SIGCONT, signal.SIGWINCH, signal.SIGURG):
        yield Kind(
            name=f"harmless/{number.name}-to-a-rank",
            group="harmless",
            did=f"{number.name} to the measuring process of rank 1 at import",
            do=lambda world: None,
            during=at_step(1, "import", "measuring process", number),
        )
