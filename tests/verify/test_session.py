"""Where ranks meet: folders that killed processes have left are removed by the next verification."""

from __future__ import annotations

import os
import resource
import subprocess
from pathlib import Path

import pytest

from envkit.errors import HostProblem
from envkit.inside.probe.node import local_folder, name_of_node, plain
from envkit.system import temporary as temporary_folders
from envkit.verify import session


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder for temporary files."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    return tmp_path


def dead() -> int:
    """The number of a process that has ended."""
    with subprocess.Popen(["true"]) as process:
        process.wait()
    return process.pid


def test_what_a_killed_process_has_left_is_removed(temporary: Path) -> None:
    node, uid = temporary_folders.this_node(), os.getuid()
    gone = [f"envkit-{kind}-of-{node}.{dead()}.0123abcd" for kind in (f"verify-{uid}", "home", str(uid))]
    gone.append(f"envkit-{uid}-of-{node}.{dead()}.0123abcd-{plain(name_of_node())}")
    kept = [
        f"envkit-verify-{uid}-of-{node}.{os.getpid()}.0123abcd",
        f"envkit-verify-{uid}-of-another.4026531836.{dead()}.0123abcd",
        f"envkit-verify-{uid}-of-{os.uname().nodename}.1.{dead()}.0123abcd",  # of a container of the same name
        f"envkit-verify-{uid}-0123456789abcdef",
        "envkit-data",
    ]
    for name in (*gone, *kept):
        (temporary / name / "inside").mkdir(parents=True)
    made = session.of_starter(False, None)
    assert sorted(path.name for path in temporary.iterdir()) == sorted([*kept, made.shared.name])
    assert temporary_folders.OF_PROCESS.fullmatch(made.shared.name) and temporary_folders.OF_PROCESS.fullmatch(
        Path(local_folder(made.name)).name
    )


def test_a_link_of_such_a_name_is_not_followed(temporary: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "file").touch()
    (temporary / f"envkit-home-of-{temporary_folders.this_node()}.{dead()}.0123abcd").symlink_to(elsewhere)
    session.of_starter(False, None)
    assert (elsewhere / "file").exists()


@pytest.mark.parametrize(("soft", "hard", "fix"), [(1 << 10, -1, "ulimit -Sf hard"), (0, 1 << 10, "new session")])
def test_a_session_in_which_files_cannot_grow_is_refused_at_once(
    soft: int, hard: int, fix: str, temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (soft, hard))
    with pytest.raises(HostProblem, match="ulimit -f") as caught:
        session.of_starter(several_hosts=False, chosen=None)
    assert fix in caught.value.fix
    assert not list(temporary.iterdir())
