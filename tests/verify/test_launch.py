"""How long a launcher is waited for."""

from __future__ import annotations

import resource
import time
from pathlib import Path

import pytest

from envkit.verify import launch
from envkit.verify.launch import Patience

HOPELESS = (
    "ssh: Could not resolve hostname node9: Name or service not known",
    "ssh: connect to host node9 port 22: Connection refused",
    "ada@node9: Permission denied (publickey,password).",
    "[proxy:0@n1] HYDU_create_process (lib/utils/launch.c:73): execvp error on file /x/python (No such file)",
)


@pytest.mark.parametrize("line", HOPELESS)
def test_a_launcher_that_has_given_up_on_a_rank_is_not_waited_for(
    line: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "log"
    patience = Patience(tmp_path, log, 120.0)
    patience.look()
    log.write_text("Warning: Permanently added 'node9' to the list of known hosts.\n")
    patience.look()
    assert patience.hopeless_since is None
    with log.open("a") as stream:
        stream.write(f"{line}\n")
    patience.look()
    assert not patience.is_over(), "the ranks that were started may have something to say"
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + launch.HOPELESS_S + 1)
    assert patience.is_over()
    (tmp_path / "node1.json").touch()
    patience.look()
    assert not patience.is_over()


def test_one_that_has_said_nothing_of_the_kind_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "log").write_text("bash: module: Permission denied\nCould not resolve a symbol\n")
    patience = Patience(tmp_path, tmp_path / "log", 120.0)
    patience.look()
    now = time.monotonic()
    monkeypatch.setattr(time, "monotonic", lambda: now + 100)
    assert not patience.is_over()


def test_ranks_that_their_session_allows_nothing_are_not_waited_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = time.monotonic()
    for files, over in ((24, True), (1024, False)):
        limits = {resource.RLIMIT_NOFILE: (files, files)}
        monkeypatch.setattr(resource, "getrlimit", lambda number, known=limits: known.get(number, (-1, -1)))
        patience = Patience(tmp_path, tmp_path / "log", 120.0)
        patience.sign = now - launch.LIMITED_S - 1
        assert patience.is_over() is over
