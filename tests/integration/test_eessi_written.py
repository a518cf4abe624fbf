"""Writing below EESSI's repository, for real: what is written goes to a folder of the user, and never to the tree."""

import os
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path

import pytest

from .. import cvmfs2, eessi_tree
from ..eessi_tree import REPOSITORY
from .site import needs, until
from .test_eessi import ENVKIT, Place, mounts_of

pytestmark = pytest.mark.integration

OWN = f"{REPOSITORY}/versions/2023.06/own"
WRITE = f"mkdir {OWN} && echo built >{OWN}/file && rm {REPOSITORY}/versions/2023.06/removed && pwd"


@pytest.fixture
def place(tmp_path: Path) -> Place:
    """A user with a copy of the repository of their own, who has entered nothing yet."""
    needs("lmod")
    for name in ("bin", "tmp"):
        (tmp_path / name).mkdir()
    tree = eessi_tree.make(tmp_path / "repository")
    (tree / "versions/2023.06/removed").touch()
    return Place(home=tmp_path, tree=tree)


@pytest.fixture
def client(place: Place) -> Path:
    """A program that stands in for cvmfs2, and mounts by FUSE as it does."""
    needs("fuse-overlayfs")
    path = place.home / "bin" / "cvmfs2"
    eessi_tree.write(path, cvmfs2.program(place.tree, place.home / "asked"), program=True)
    return path


def below(folder: Path) -> dict[str, bytes]:
    """Every file of a tree."""
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def write(place: Place, *words: str, **changes: str) -> str:
    """Write below the repository in a shell; return what envkit says."""
    words = ("shell", "eessi", "--writable", "mine", *words, "--", "sh", "-c", WRITE)
    done = place.envkit(*words, before=(), **changes)
    assert (done.returncode, done.stdout) == (0, f"{place.home}\n"), done.stderr
    return done.stderr


def shown(place: Place, *words: str, **changes: str) -> str:
    """Return what a command sees of what was written and removed."""
    look = f"cat {OWN}/file; ls {REPOSITORY}/versions/2023.06/removed; true"
    return place.run(*words, "--", "sh", "-c", look, **changes).stdout


def test_what_is_written_goes_to_the_folder_alone(place: Place) -> None:
    before, upper = below(place.tree), place.home / "mine/overlay-upper"
    assert f"what is written below {REPOSITORY} goes to {upper}\n" in write(place)
    assert below(place.tree) == before
    assert (upper / "versions/2023.06/own/file").read_text() == "built\n"
    assert shown(place) == f"{REPOSITORY}/versions/2023.06/removed\n"
    for _run in range(3):  # one right behind the other
        assert shown(place, "--writable", "mine") == "built\n"
    assert shown(place, "--resume", "2023.06", "--writable", str(place.home / "mine")) == "built\n"


def test_nothing_of_envkits_removes_it(place: Place) -> None:
    write(place)
    kept = below(place.home / "mine/overlay-upper")
    assert place.envkit("eessi", "clean").returncode == 0
    assert place.envkit("clean", "all", "--yes", "--prefix", str(place.home / "prefix")).returncode == 0
    assert not place.sessions()
    assert below(place.home / "mine/overlay-upper") == kept
    packing = [
        "tar",
        "--xattrs",
        "--xattrs-include=user.*",
        "-czf",
        "mine.tar.gz",
        "-C",
        "mine/overlay-upper",
        "versions",
    ]
    subprocess.run(packing, cwd=place.home, check=True)
    assert (place.home / "mine.tar.gz").stat().st_size > 0


def test_ranks_inside_write_too(place: Place) -> None:
    words = ["--writable", "mine", "-n", "2", "--load", "foss/2023a", "--"]
    script = f"mkdir -p {OWN} && touch {OWN}/$OMPI_COMM_WORLD_RANK"
    done = place.run(*words, "sh", "-c", script, OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1")
    assert done.returncode == 0, done.stderr
    assert {path.name for path in (place.home / "mine/overlay-upper/versions/2023.06/own").iterdir()} == {"0", "1"}


def test_over_the_mount_of_a_client(place: Place, client: Path, server: Mapping[str, str]) -> None:
    write(place, "--access", "userns", **server)
    settings = place.home / "tmp" / f"envkit-eessi-{os.getuid()}" / "2023.06/envkit.conf"
    assert "CVMFS_CLAIM_OWNERSHIP=yes" in settings.read_text()
    assert (place.home / "mine/overlay-upper/versions/2023.06/own/file").read_text() == "built\n"
    until(lambda: not mounts_of(place), "the mounts to go", 10)


def test_what_eessi_container_has_built_is_used(place: Place) -> None:
    kept = place.home / "kept/software.eessi.io"
    built = kept / "overlay-upper/versions/2023.06/own"
    for folder in (built, kept / "overlay-work"):
        folder.mkdir(parents=True)
    (place.home / "kept").chmod(0o700)
    kept.chmod(0o700)
    (built / "file").write_text("by the container\n")
    assert shown(place, "--writable", str(kept)).startswith("by the container\n")
    (built / ".wh.gone").touch()
    refused = place.run("--writable", str(kept), "--", "true")
    assert (refused.returncode, f"{built}/.wh.gone is a mark of fuse-overlayfs" in refused.stderr) == (3, True)


def test_a_folder_in_use(place: Place) -> None:
    """By a session, and by what one has left, with none of its files open."""
    ready = place.home / "ready"
    first = subprocess.Popen(
        [str(ENVKIT), "run", "eessi", "--writable", "mine", "--", "sh", "-c", f"touch {ready}; exec sleep 1000"],
        env=place.env(), cwd=place.home, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    until(ready.exists, "the first", 60)
    said = "mine is in use by another session"
    second = place.run("--writable", "mine", "--", "true")
    first.kill()
    first.wait()
    assert (second.returncode, said in " ".join(second.stderr.split())) == (3, True), second.stderr
    code = (
        "import subprocess; "
        "print(subprocess.Popen(['sleep', '60'], stdin=-3, stdout=-3, stderr=-3, start_new_session=True).pid)"
    )
    done = place.run("--writable", "mine", "--", "python3", "-c", code)
    assert done.returncode == 0, done.stderr
    third = place.run("--writable", "mine", "--", "true")
    os.kill(int(done.stdout), signal.SIGKILL)
    said = f"in use by process {done.stdout.strip()}, which an earlier one left"
    assert (third.returncode, said in " ".join(third.stderr.split())) == (3, True), third.stderr
    assert place.run("--writable", "mine", "--", "true").returncode == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--access", "apptainer"], "--writable does not go with --access apptainer"),
        (["--bind", f"HOME:{REPOSITORY}/host_injections"], "it lies below /cvmfs/software.eessi.io"),
    ],
)
def test_what_does_not_go_together(words: list[str], said: str, place: Place) -> None:
    words = [word.replace("HOME", str(place.home)) for word in words]
    done = place.run(*words, "--writable", "mine", "--", "true")
    assert (done.returncode, said in " ".join(done.stderr.split())) == (2, True), done.stderr
    assert not place.sessions()


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to give a file away")
@pytest.mark.parametrize("ids", [(65534, 0), (0, 12345)], ids=["user", "group"])
@pytest.mark.parametrize("folder", [".", "versions/2023.06"])
def test_a_copy_of_somebody_else(ids: tuple[int, int], folder: str, place: Place) -> None:
    theirs = shutil.copytree(place.tree, place.home / "theirs", symlinks=True)
    os.chown(theirs / folder, *ids)
    done = place.run("--writable", "mine", "--", "true", ENVKIT_EESSI_DIR=str(theirs))
    assert (done.returncode, "belongs to another user or group" in done.stderr) == (2, True), done.stderr


@pytest.mark.parametrize("name", ["a,b", "a:b", "a b"])
def test_a_folder_that_the_kernel_does_not_take(name: str, place: Place) -> None:
    done = place.run("--writable", name, "--", "true")
    assert (done.returncode, "the kernel takes no" in " ".join(done.stderr.split())) == (3, True), done.stderr
    assert not (place.home / name).exists()


@pytest.mark.parametrize("name", [b"\xff\xfe", "é".encode()])
def test_any_other_name(name: bytes, place: Place) -> None:
    write(place)
    (place.home / "mine").rename(place.home / os.fsdecode(name))
    assert shown(place, "--writable", os.fsdecode(name)) == "built\n"


def test_a_folder_of_everybody_is_refused(place: Place) -> None:
    (place.home / "mine").mkdir()
    (place.home / "mine").chmod(0o777)
    done = place.run("--writable", "mine", "--", "true")
    assert done.returncode == 3 and "mine" in done.stderr, done.stderr


def test_where_the_kernel_refuses(place: Place) -> None:
    """A folder of another kind of file system than the one that the kernel takes."""
    upper = place.home / "mine/overlay-upper"
    upper.mkdir(parents=True, mode=0o700)
    upper.parent.chmod(0o700)
    (place.home / "mine/overlay-work").mkdir(mode=0o700)
    done = place.envkit(
        "run", "eessi", "--writable", "mine", "--", "true",
        before=("unshare", "--mount", "sh", "-c", f'mount -t proc proc {upper} && exec "$@"', "sh"),
    )  # fmt: skip
    assert done.returncode == 3, done.stderr
    assert f"{REPOSITORY} cannot be written to here:" in done.stderr and "Linux 5.11" in done.stderr
