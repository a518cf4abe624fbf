"""Which ranks' envkit is there, was killed, or has come to its end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from envkit.verify import presence
from envkit.verify.presence import GONE, LATE, STOPPED, Absent

HOLDS = """\
import sys, time
from pathlib import Path
from envkit.verify import presence
with presence.held(Path(sys.argv[1]), 1):
    print("held", flush=True)
    sys.stdin.read()
"""


def test_a_rank_is_there_until_it_ends_or_is_killed(tmp_path: Path) -> None:
    assert not presence.has_gone(tmp_path, 1) and not presence.are_others(tmp_path)
    with presence.held(tmp_path, 0):
        assert not presence.has_gone(tmp_path, 0) and presence.are_others(tmp_path)
    assert not presence.has_gone(tmp_path, 0) and not list(tmp_path.iterdir())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGSTOP])
def test_why_a_rank_has_not_come_to_its_end(number: signal.Signals, tmp_path: Path) -> None:
    argv = [sys.executable, "-c", HOLDS, str(tmp_path)]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout and other.stdout.readline() == "held\n"
        presence.arrive(tmp_path, 0)
        assert presence.absent(tmp_path, tmp_path, {0, 1}) == (Absent(rank=1, why=LATE, pid=other.pid),)
        other.send_signal(number)
        os.waitid(os.P_PID, other.pid, os.WEXITED | os.WSTOPPED | os.WNOWAIT)
        [absent] = presence.absent(tmp_path, tmp_path, {0, 1})
        assert absent == Absent(rank=1, why=GONE if number == signal.SIGKILL else STOPPED, pid=other.pid)
        assert presence.are_others(tmp_path) is (number == signal.SIGSTOP)
        presence.arrive(tmp_path, 1)
        assert presence.absent(tmp_path, tmp_path, {0, 1}) == ()
        other.kill()


def test_ranks_of_another_node_are_known_by_their_end_alone(tmp_path: Path) -> None:
    (tmp_path / "node1.arrived").write_text("2\n3\n")
    (tmp_path / "node2.arrived").write_text("12\n")
    assert presence.absent(tmp_path, tmp_path / "local", {1, 2, 3, 12}) == (Absent(rank=1, why=LATE),)
