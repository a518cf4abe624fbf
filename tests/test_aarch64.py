"""What scripts/aarch64.sh says where it cannot do its work, before it does anything."""

from collections.abc import Callable
from pathlib import Path

import pytest

from . import aarch64

Change = Callable[[pytest.MonkeyPatch], None]


def has(name: str, value: object) -> Change:
    """Have a name of the module, with dots in it one of another module, mean something else."""
    return lambda patch: patch.setattr(f"tests.aarch64.{name}", value)


@pytest.fixture
def fit(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that can."""
    for change in (
        has("platform.machine", lambda: "x86_64"),
        has("platform.release", lambda: "6.12.1-amd64"),
        has("platform.freedesktop_os_release", lambda: {"ID": "debian", "VERSION_CODENAME": "bookworm"}),
        has("os.geteuid", lambda: 0),
        has("shutil.which", lambda name: f"/usr/bin/{name}"),
        has("mirror", lambda: "http://mirror.example/debian"),
        has("BINFMT", tmp_path),
    ):
        change(monkeypatch)


@pytest.mark.usefixtures("fit")
def test_a_folder_of_somebody_else_is_left_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "thesis").touch()
    assert aarch64.main(str(tmp_path)) == 3
    assert "remove it, or name another" in capsys.readouterr().err and (tmp_path / "thesis").is_file()


@pytest.mark.usefixtures("fit")
def test_an_image_takes_the_apptainer_of_the_tests(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(aarch64, "RUNTIME", tmp_path / "apptainer")
    assert aarch64.main(str(tmp_path / "root"), "tensorflow-2.21-cpu-image") == 3
    assert f"There is no {tmp_path}/apptainer" in capsys.readouterr().err and not (tmp_path / "root").exists()
    (tmp_path / "apptainer/bin").mkdir(parents=True)
    (tmp_path / "apptainer/bin/apptainer").touch()
    assert aarch64.unfit("tensorflow-2.21-cpu-image") == ""


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (has("platform.machine", lambda: "aarch64"), "scripts/quickstart.sh does it without emulation."),
        (has("os.geteuid", lambda: 1000), "It needs root"),
        (has("platform.release", lambda: "6.1.0-amd64"), "Linux 6.1.0-amd64 has no binfmt_misc in user namespaces"),
        (has("BINFMT", Path("/proc/nonexistent")), "modprobe binfmt_misc"),
        (has("platform.freedesktop_os_release", lambda: {"ID": "ubuntu"}), "It is for Debian"),
        (has("shutil.which", lambda _: None), "apt-get install qemu-user-static g++-aarch64-linux-gnu debootstrap"),
        (has("mirror", lambda: None), "names no mirror of Debian"),
    ],
    ids=["aarch64", "user", "old", "none", "ubuntu", "packages", "mirror"],
)
@pytest.mark.usefixtures("fit")
def test_what_cannot_be_is_said_before_anything_is_made(
    change: Change, said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert aarch64.unfit() == ""
    change(monkeypatch)
    assert aarch64.main(str(tmp_path / "root")) == 3
    assert said in capsys.readouterr().err and not (tmp_path / "root").exists()
