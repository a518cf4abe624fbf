"""What a package manager says of the files of the machine's MPI."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest

from envkit.system import process
from envkit.system.process import Completed
from envkit.verify.package_files import not_as_installed, verified

DEBIAN = """missing     /usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3/mca_pml_ob1.so
??5??????   /usr/bin/orterun
??5?????? c /etc/openmpi/openmpi-mca-params.conf
missing     /usr/share/doc/libopenmpi3/copyright
missing   c /usr/lib/openmpi/site.conf
"""
RPM = """missing     /usr/lib64/openmpi/lib/libmpi.so.40.30.4
S.5......    /usr/lib64/openmpi/bin/orterun
S.5....T.  c /etc/openmpi-x86_64/openmpi-mca-params.conf
missing   d /usr/share/man/man1/mpirun.1.gz
"""


def test_programs_and_libraries_count_and_settings_do_not() -> None:
    assert [str(one) for one in verified("libopenmpi3", DEBIAN)] == [
        "/usr/lib/x86_64-linux-gnu/openmpi/lib/openmpi3/mca_pml_ob1.so (gone)",
        "/usr/bin/orterun (changed)",
    ]
    assert [(one.path, one.how) for one in verified("openmpi", RPM)] == [
        ("/usr/lib64/openmpi/lib/libmpi.so.40.30.4", "gone"),
        ("/usr/lib64/openmpi/bin/orterun", "changed"),
    ]


def test_packages_that_an_mpi_needs_are_asked_for_too(monkeypatch: pytest.MonkeyPatch) -> None:
    depends = {
        "openmpi-bin": "libc6 (>= 2.34), libopenmpi3 (>= 4.1.4), openssh-client | ssh-client",
        "libopenmpi3": "libpmix2 (>= 4.2.2), zlib1g",
    }

    def capture(argv: Sequence[str], **_options: object) -> Completed:
        words = list(argv)
        if "--search" in words:
            said = "diversion by x from: /y\nopenmpi-bin: /usr/bin/orterun\n"
        elif "--show" in words:
            said = "".join(f"{depends.get(name, '')}, " for name in words[4:])
        else:
            said = {"libpmix2": "missing     /usr/lib/x86_64-linux-gnu/libpmix.so.2.9.0\n"}.get(words[-1], "")
        return Completed(argv=tuple(argv), status=0, stdout=said, stderr="", seconds=0.0)

    monkeypatch.setattr(process, "capture", capture)
    monkeypatch.setattr(process, "which", lambda name, path=None: f"/usr/bin/{name}")
    [one] = not_as_installed([Path("/usr/bin/orterun")])
    assert (one.path, one.package) == ("/usr/lib/x86_64-linux-gnu/libpmix.so.2.9.0", "libpmix2")


def test_what_no_package_has_is_not_judged(tmp_path: Path) -> None:
    (tmp_path / "mpirun").touch()
    assert not_as_installed([tmp_path / "mpirun"]) == []
    assert not_as_installed([]) == []


@pytest.mark.skipif(shutil.which("dpkg") is None, reason="no dpkg on this machine")
def test_the_real_one_finds_what_is_gone_below_another_root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    there = subprocess.run(["dpkg-query", "--listfiles", "coreutils"], capture_output=True, text=True).stdout.split()
    program = next(path for path in there if path.endswith("/env"))
    real = process.capture

    def elsewhere(argv: Sequence[str], **options: object) -> Completed:
        words = ["dpkg", f"--root={tmp_path}", "--verify", argv[-1]] if "--verify" in argv else list(argv)
        return real(words, timeout_s=60)

    (tmp_path / "var/lib/dpkg").mkdir(parents=True)
    for name in ("status", "info"):
        (tmp_path / "var/lib/dpkg" / name).symlink_to(f"/var/lib/dpkg/{name}")
    monkeypatch.setattr(process, "capture", elsewhere)
    found = not_as_installed([Path(program)])
    assert any(one.how == "gone" and one.path.endswith("/env") and one.package == "coreutils" for one in found)
