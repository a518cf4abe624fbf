"""The container runtime of a machine, and what keeps a user from building images there."""

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.errors import HostProblem
from envkit.machine import runtime, subids
from envkit.machine.runtime import Runtime

Fake = Callable[..., Path]


@pytest.fixture(autouse=True)
def forgotten() -> None:
    """A folder of an earlier test may have had the same name."""
    runtime.find.cache_clear()


@pytest.mark.parametrize(
    ("program", "says", "family", "version"),
    [
        ("apptainer", "apptainer version 1.4.5", "Apptainer", "1.4.5"),
        ("singularity", "apptainer version 1.3.0-1.el9", "Apptainer", "1.3.0-1.el9"),
        ("singularity", "singularity-ce version 4.1.1-jammy", "SingularityCE", "4.1.1-jammy"),
        ("singularity", "singularity version 3.8.7", "SingularityCE", "3.8.7"),
    ],
)
def test_which_it_is(program: str, says: str, family: str, version: str, fake: Fake) -> None:
    path = fake(program, f"echo {says}")
    assert runtime.find(str(path.parent)) == Runtime(path=path, family=family, version=version)


def test_apptainer_comes_first(fake: Fake) -> None:
    fake("singularity", "echo singularity-ce version 4.1.1")
    path = fake("apptainer", "echo apptainer version 1.4.5")
    found = runtime.find(str(path.parent))
    assert found is not None and found.path == path


@pytest.mark.parametrize("body", ["", "exit 1", "echo what"])
def test_a_program_that_is_none(body: str, fake: Fake) -> None:
    assert runtime.find(str(fake("apptainer", body).parent)) is None


def test_none_at_all(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runtime, "find", lambda: None)
    with pytest.raises(HostProblem, match="neither apptainer nor singularity") as refused:
        runtime.require()
    assert "dnf install apptainer" in refused.value.fix


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> None:
    """An ordinary user."""
    monkeypatch.setattr(os, "geteuid", lambda: 1000)


@pytest.mark.usefixtures("user")
def test_what_keeps_a_user_from_building(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subids, "has_range", lambda _file, _user: False)
    monkeypatch.setattr(os, "access", lambda path, _mode: path != "/dev/fuse")
    unshare = fake("unshare", "echo 'unshare: unshare failed: Operation not permitted' >&2; exit 1")
    env = {"PATH": f"{unshare.parent}:{os.defpath}"}
    userns, ids, fuse = runtime.build_problems(env)
    assert "no user namespace can be made (unshare: unshare failed: Operation not permitted)" in userns.what
    assert "--from FILE.sif" in userns.fix
    assert "in /etc/subuid and /etc/subgid," in ids.what
    assert ids.fix == subids.advice(runtime.user_name(), [Path("/etc/subuid"), Path("/etc/subgid")])
    assert "/dev/fuse" in fuse.what


@pytest.mark.usefixtures("user")
def test_nothing_keeps_a_user_from_building(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subids, "has_range", lambda _file, _user: True)
    monkeypatch.setattr(os, "access", lambda _path, _mode: True)
    assert list(runtime.build_problems({"PATH": str(fake("unshare").parent)})) == []
    assert runtime.build_words() == ["--fakeroot"]
