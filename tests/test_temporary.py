"""Folders for temporary files: what killed processes have left is removed, and nothing else is."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from envkit.system import temporary


@pytest.fixture
def ended() -> int:
    """The number of a process that has ended."""
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


@pytest.mark.parametrize(
    ("mode", "goes"), [(0o700, True), (0o1777, True), (0o755, True), (0o2775, False), (0o777, False)]
)
def test_nothing_is_removed_where_others_can_rename_it(mode: int, goes: bool, ended: int, tmp_path: Path) -> None:
    """Who may write to a folder that is not sticky can give any folder in it the name of one that was left."""
    place = tmp_path / "place"
    place.mkdir()
    place.chmod(mode)
    left = place / f"envkit-verify-1-of-{temporary.this_node()}.{ended}.0123abcd"
    (left / "results").mkdir(parents=True)
    temporary.sweep([place])
    assert left.exists() is not goes


def test_what_a_process_still_uses_stays(tmp_path: Path) -> None:
    used = tmp_path / f"envkit-x-of-{temporary.this_node()}.{os.getpid()}.0123abcd"
    used.mkdir()
    temporary.sweep([tmp_path, tmp_path / "nowhere"])
    assert used.exists()
