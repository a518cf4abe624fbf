"""Folders of sessions and caches into which another user has put something before: nothing outside is touched."""

import hashlib
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from envkit.eessi import shared

from .. import cvmfs2, eessi_tree
from ..eessi_tree import write
from .site import SYSTEM_PATH, needs

pytestmark = [pytest.mark.integration, pytest.mark.skipif(os.geteuid() != 0, reason="becomes other users")]

ENVKIT = Path(sys.executable).with_name("envkit")
VICTIM, OTHER = 0, 23_002
SHARED = shared.usual("software.eessi.io").name
LIMIT_S = 60


class Scene:
    """A victim with a home and data, and a temporary folder in which everybody may write, as another user does."""

    def __init__(self, home: Path, tree: Path, settings: Mapping[str, str]) -> None:
        self.home, self.tree, self.settings = home, tree, settings
        self.shared, self.data = home / "tmp", home / "data"
        self.caches = self.shared / f"envkit-eessi-{VICTIM}"
        self.sessions = home / "state" / "envkit" / "eessi"
        for folder in (self.shared, self.data, home / "bin", home / "other"):
            folder.mkdir(mode=0o755)
        for name in (SHARED, "mine", "lib", "run"):
            (self.data / name).mkdir()
            (self.data / name / "precious").write_text(f"the only copy of {name}")
        (self.data / "file").write_text("the only copy")
        write(home / "bin" / "cvmfs2", cvmfs2.program(tree), program=True)
        os.chown(home / "other", OTHER, OTHER)
        self.shared.chmod(0o1777)

    def envkit(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run envkit as the victim."""
        env = {"PATH": f"{self.home}/bin:{SYSTEM_PATH}", "HOME": str(self.home), "USER": "v", "LANG": "C.UTF-8"}
        env |= {"TMPDIR": str(self.shared), "XDG_STATE_HOME": str(self.home / "state"), **self.settings}
        env |= {"XDG_CACHE_HOME": str(self.home / "cache"), "ENVKIT_EESSI_CACHE": str(self.home / "kept")}
        return subprocess.run(
            [str(ENVKIT), *words], env=env, cwd=self.home, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )

    def begun(self) -> None:
        """Have a session "mine" with its cache, and the cache of the client that is shared."""
        for folder in (self.sessions / "mine", self.caches / "mine" / "lib", self.caches / SHARED):
            folder.mkdir(parents=True, mode=0o700)
            (folder / "made").touch()
        text = '{"version":"2023.06","access":"userns","cpu":"x86_64","modules":[]}'
        (self.sessions / "mine" / "session.json").write_text(text)
        for folder in (self.caches, self.sessions):
            folder.chmod(0o700)

    def outside(self) -> dict[str, tuple[int, int, str]]:
        """What there is of the victim's data and of the other user's folder: kind and owner, content."""
        found = {}
        for place in (self.data, self.home / "other"):
            for path in sorted(place.rglob("*")):
                state = path.lstat()
                content = hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else ""
                found[str(path)] = (state.st_mode, state.st_uid, content)
        return found


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    needs("lmod", "fuse-overlayfs")
    return eessi_tree.make(tmp_path_factory.mktemp("eessi") / "repository")


@pytest.fixture
def scene(tmp_path: Path, tree: Path, server: Mapping[str, str]) -> Scene:
    folder = tmp_path / "all"
    folder.mkdir()
    return Scene(folder, tree, server)


def link(target: Callable[[Scene], Path]) -> Callable[[Scene, Path], None]:
    return lambda scene, path: path.symlink_to(target(scene))


def listening(_: Scene, path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        here = os.open(path.parent, os.O_RDONLY)
        made.bind(f"/proc/self/fd/{here}/{path.name}")
        os.close(here)


def world_writable(_: Scene, path: Path) -> None:
    path.mkdir()
    path.chmod(0o777)
    os.chown(path, VICTIM, VICTIM)
    (path / SHARED).mkdir()
    (path / SHARED / "users").symlink_to(path.parents[1] / "data" / "created")


def foreign(scene: Scene, path: Path) -> None:
    """A folder of the other user's, which leads to the victim's data."""
    path.mkdir()
    for name in (SHARED, "mine"):
        (path / name).symlink_to(scene.data / name)


PLANTED: dict[str, Callable[[Scene, Path], None]] = {
    "link-to-folder": link(lambda scene: scene.data),
    "link-to-file": link(lambda scene: scene.data / "file"),
    "link-to-nothing": link(lambda scene: scene.data / "created"),
    "pipe": lambda _, path: os.mkfifo(path, 0o666),
    "socket": listening,
    "foreign": foreign,
    "world-writable": world_writable,
    "hard-link": lambda scene, path: path.hardlink_to(scene.data / "file"),
}
COMMANDS = (
    ("eessi", "clean"),
    ("eessi", "list"),
    ("eessi", "clean", "mine"),
    ("eessi", "prefetch", "Tool"),
    ("run", "eessi", "--", "true"),
    ("run", "eessi", "--resume", "mine", "--", "true"),
    ("run", "eessi", "--save", "saved.json", "--", "true"),
    ("shell", "eessi", "--", "true"),
)
# Where it is planted, from the folder of all.
WHERE = (
    f"tmp/envkit-eessi-{VICTIM}",
    f"tmp/envkit-eessi-{VICTIM}/mine",
    f"tmp/envkit-eessi-{VICTIM}/mine/lib",
    f"tmp/envkit-eessi-{VICTIM}/{SHARED}",
    f"tmp/envkit-eessi-{VICTIM}/{SHARED}/users",
    f"tmp/envkit-eessi-{VICTIM}/{SHARED}/alike",
    f"tmp/envkit-eessi-{VICTIM}/{SHARED}/lib",
    f"tmp/envkit-eessi-{VICTIM}/{SHARED}/cvmfs2.log",
    "state/envkit/eessi",
    "state/envkit/eessi/mine",
    "state/envkit/eessi/mine/lock",
    "state/envkit/eessi/mine/loaded",
)


@pytest.mark.parametrize("kind", PLANTED)
@pytest.mark.parametrize("where", WHERE, ids=lambda where: where.replace(SHARED, "shared").replace("/", "-"))
def test_nothing_outside_is_touched_and_nothing_hangs(scene: Scene, kind: str, where: str) -> None:
    """Each at each place meets 'clean', and in turn each of the other commands."""
    path = scene.home / where
    turn = WHERE.index(where) + list(PLANTED).index(kind)
    scene.begun()
    for command in (COMMANDS[0], COMMANDS[1 + turn % (len(COMMANDS) - 1)]):
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        PLANTED[kind](scene, path)
        if kind not in ("world-writable", "hard-link"):
            os.chown(path, OTHER, OTHER, follow_symlinks=False)
        before = scene.outside()
        done = scene.envkit(*command)
        assert scene.outside() == before, (command, done.stderr)
        assert "Traceback" not in done.stderr and done.returncode in (0, 2, 3), (command, done.stderr)
        if done.returncode == 3:
            assert str(path) in done.stderr and "What to do: " in done.stderr, (command, done.stderr)


@pytest.mark.parametrize("kind", ["link-to-folder", "link-to-nothing", "pipe", "foreign"])
def test_another_user_keeps_nobody_from_their_sessions(scene: Scene, kind: str) -> None:
    """Who takes the name of the folder before takes nothing but that name."""
    PLANTED[kind](scene, scene.caches)
    os.chown(scene.caches, OTHER, OTHER, follow_symlinks=False)
    before = scene.outside()
    for command in (("run", "eessi", "--resume", "mine", "--", "true"), ("eessi", "list"), ("eessi", "clean")):
        done = scene.envkit(*command)
        assert done.returncode == 0, (command, done.stderr)
    assert scene.outside() == before
    [own] = scene.shared.glob(f"{scene.caches.name}-*")
    assert not (own / "mine").exists()
    assert own.stat().st_mode & 0o077 == 0 and own.stat().st_uid == VICTIM


def test_a_folder_that_others_may_write_to_is_named_with_what_to_do(scene: Scene) -> None:
    world_writable(scene, scene.caches)
    done = scene.envkit("eessi", "clean")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"envkit: {scene.caches} is not a folder that only you can change." in done.stderr
    assert f"chmod go-w {scene.caches}" in done.stderr and "export TMPDIR=FOLDER" in done.stderr


def test_the_sessions_beside_a_planted_one_are_removed(scene: Scene) -> None:
    scene.begun()
    shutil.copytree(scene.sessions / "mine", scene.sessions / "bad")
    os.mkfifo(scene.sessions / "bad" / "loaded")
    listed = scene.envkit("eessi", "list")
    assert "mine" in listed.stdout and f"{scene.sessions}/bad/loaded is not a plain file." in listed.stderr
    done = scene.envkit("eessi", "clean")
    assert done.returncode == 3
    assert "Removed the session mine.\n" in done.stdout and "bad/loaded is not a plain file." in done.stderr
    assert not (scene.sessions / "mine").exists() and not (scene.caches / "mine").exists()
    with suppress(FileNotFoundError):
        assert not list(scene.caches.glob("shared-*"))
