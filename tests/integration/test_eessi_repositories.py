"""Other repositories of EESSI's layout, for real: a tree of a site's own, by every way, in sessions, with modules."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path

import pytest

from .. import cvmfs2, eessi_tree
from ..eessi_tree import write
from .site import needs
from .test_eessi import NAMESPACE, Place, apptainer, make_image

NAME, RELEASE = "software.example.org", "2024.05"
MOUNT = f"/cvmfs/{NAME}"
OTHER = ("--repository", NAME)
SHOW = ("--", "sh", "-c", "echo $EESSI_CVMFS_REPO $EESSI_VERSION $LOADEDMODULES; tool 5")
SHOWN = f"{MOUNT} {RELEASE} EESSI/{RELEASE}:Tool/1.0\ntool 1.0\n"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@pytest.fixture(scope="module")
def trees(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A copy of EESSI's own repository, and one of the site's."""
    needs("lmod")
    folder = tmp_path_factory.mktemp("repositories")
    own = eessi_tree.make(folder / "own", MOUNT, (RELEASE, "2024.11-001"))
    return eessi_tree.make(folder / "eessi"), own


@pytest.fixture
def site(tmp_path: Path, trees: tuple[Path, Path]) -> Path:
    """The copy of the site's repository."""
    return trees[1]


@pytest.fixture
def place(tmp_path: Path, trees: tuple[Path, Path]) -> Place:
    """A user whose own file has the site's repository, and who names a copy of EESSI's."""
    for name in ("bin", "tmp"):
        (tmp_path / name).mkdir()
    listed(tmp_path)
    return Place(home=tmp_path, tree=trees[0])


def listed(home: Path, **keys: str) -> None:
    """Write the file of the repositories."""
    lines = "".join(f"{key} = {value}\n" for key, value in {"release": f'"{RELEASE}"', **keys}.items())
    write(home / ".config" / "envkit" / "repositories.toml", f'["{NAME}"]\n{lines}')


def client(place: Place, tree: Path) -> Path:
    """Put a client on PATH that finds the site's repository, and no other."""
    needs("fuse-overlayfs")
    write(place.home / "bin" / "cvmfs2", cvmfs2.program(tree, place.home / "asked", NAME), program=True)
    return place.home / "bin" / "cvmfs2"


def test_the_repositories_are_listed(place: Place) -> None:
    answer = json.loads(place.envkit("eessi", "repositories", "--json").stdout)
    told = {one["name"]: one for one in answer["repositories"]}
    assert list(told) == ["software.eessi.io", "riscv.eessi.io", NAME]
    assert told[NAME]["file"] == str(place.home / ".config" / "envkit" / "repositories.toml")
    assert (told[NAME]["release"], told[NAME]["mounted"], told["riscv.eessi.io"]["file"]) == (RELEASE, False, "")
    before = (*NAMESPACE, "bind", str(place.tree), MOUNT, "--")
    there = json.loads(place.envkit("eessi", "repositories", "--json", before=before).stdout)
    assert [one["name"] for one in there["repositories"] if one["mounted"]] == [NAME]
    assert f"{NAME} " in place.envkit("eessi", "repositories").stdout


def test_by_a_native_mount(place: Place, site: Path) -> None:
    before = (*NAMESPACE, "bind", str(site), MOUNT, "--")
    done = place.envkit("run", "eessi", *OTHER, "--load", "Tool/1.0", *SHOW, before=before)
    assert (done.returncode, done.stdout) == (5, SHOWN), done.stderr
    assert f"envkit: {MOUNT} is mounted (--access native)" in done.stderr
    assert f"envkit: {NAME} {RELEASE} for " in done.stderr
    modules = place.envkit("eessi", "modules", "Tool", *OTHER, before=before)
    assert modules.stdout == "Tool/1.0\nTool/2.0\n", modules.stderr
    later = place.envkit(
        "run", "eessi", *OTHER, "--release", "2024.11-001", "--", "sh", "-c", "echo $EESSI_VERSION", before=before
    )
    assert later.stdout == "2024.11-001\n", later.stderr
    none = place.envkit("run", "eessi", *OTHER, "--release", "2023.06", "--", "true", before=before)
    assert (none.returncode, none.stdout) == (2, "")
    assert (
        f"envkit: {NAME} has no release 2023.06." in none.stderr and f"one of: {RELEASE}, 2024.11-001." in none.stderr
    )


def test_by_a_copy_which_is_never_that_of_eessis_own(place: Place, site: Path) -> None:
    """ENVKIT_EESSI_DIR, which is set here, names a copy of EESSI's."""
    refused = place.run(*OTHER, "--access", "dir", "--", "echo", "reached")
    assert (refused.returncode, refused.stdout) == (3, "")
    assert "no local copy is named" in refused.stderr and "ENVKIT_EESSI_DIR" not in refused.stderr
    done = place.run(*OTHER, "--access", f"dir:{site}", "--load", "Tool/1.0", *SHOW)
    assert (done.returncode, done.stdout) == (5, SHOWN), done.stderr
    listed(place.home, copy=f'"{site}"')
    again = place.run(*OTHER, "--load", "Tool/1.0", *SHOW)
    assert (again.returncode, again.stdout) == (5, SHOWN), again.stderr
    assert place.run("--", "sh", "-c", "echo $EESSI_VERSION").stdout == "2023.06\n"


def test_by_the_hosts_client(place: Place, site: Path, server: Mapping[str, str]) -> None:
    client(place, site)
    done = place.run(*OTHER, "--load", "Tool/1.0", "--resume", "mine", *SHOW, **server)
    assert (done.returncode, done.stdout) == (5, SHOWN), done.stderr
    assert (place.home / "asked").read_text().endswith(f"envkit.conf {NAME} {MOUNT}\n")
    assert place.sessions()["mine"]["repository"] == NAME
    usual = place.run("--access", "userns", "--", "echo", "reached", **server)
    assert (usual.returncode, usual.stdout) == (3, ""), usual.stderr  # which this client does not find


def test_servers_and_a_key_that_the_clients_configuration_has_not(
    place: Place, site: Path, server: Mapping[str, str]
) -> None:
    """The client is told them; without the entry it would have neither."""
    client(place, site)
    key = place.home / "site.pub"
    settings = {"CVMFS_HTTP_PROXY": "DIRECT", "ENVKIT_EESSI_DIR": ""}
    url = server["CVMFS_SERVER_URL"].replace("@fqrn@", NAME)
    listed(place.home, servers=f'["{url}"]', key=f'"{key}"')
    gone = place.run(*OTHER, "--access", "userns", "--", "echo", "reached", **settings)
    assert (gone.returncode, gone.stdout) == (3, "") and f"the key of {NAME}, {key}, cannot be read" in gone.stderr
    key.write_text("-----BEGIN PUBLIC KEY-----\n-----END PUBLIC KEY-----\n")
    done = place.run(*OTHER, "--access", "userns", "--load", "Tool/1.0", *SHOW, **settings)
    assert (done.returncode, done.stdout) == (5, SHOWN), done.stderr
    [local] = (place.home / "tmp" / f"envkit-eessi-{os.getuid()}").glob("shared-*")
    told = (local / "envkit.conf").read_text()
    assert f"CVMFS_PUBLIC_KEY={local}/repository.pub\n" in told and f"CVMFS_SERVER_URL={url}\n" in told
    assert (local / "repository.pub").read_text() == key.read_text()


def test_by_an_image(place: Place, site: Path, server: Mapping[str, str]) -> None:
    needs("fuse-overlayfs")
    root = make_image(place.home, site)
    write(root / "sbin" / "cvmfs2", cvmfs2.program(site, None, NAME), program=True)
    (root / MOUNT.strip("/")).mkdir(parents=True)
    (place.home / "bin" / "apptainer").symlink_to(apptainer())
    changes = {**server, "ENVKIT_EESSI_IMAGE": str(root), "SINGULARITY_BIND": "/usr,/etc/alternatives"}
    done = place.run(*OTHER, "--access", "apptainer", "--load", "Tool/1.0", *SHOW, **changes)
    assert (done.returncode, done.stdout) == (5, SHOWN), done.stderr
    modules = place.envkit("eessi", "modules", "Tool", *OTHER, "--access", "apptainer", "--json", before=(), **changes)
    assert json.loads(modules.stdout)["modules"] == ["Tool/1.0", "Tool/2.0"], modules.stderr


def test_a_session_is_of_its_repository(place: Place, site: Path) -> None:
    access = ("--access", f"dir:{site}")
    first = place.run(*OTHER, *access, "--resume", "mine", "--load", "Tool/1.0", *SHOW)
    assert first.stdout == SHOWN, first.stderr
    again = place.run("--resume", "mine", *SHOW)
    assert (again.returncode, again.stdout) == (5, SHOWN), again.stderr
    other = place.run("--resume", "mine", "--repository", "software.eessi.io", "--", "true")
    assert other.returncode == 2
    assert f"The session mine is of {NAME}, not software.eessi.io." in other.stderr
    kept = place.envkit("shell", "eessi", *OTHER, *access, "--save", "saved.json", "--", "true")
    assert f"session {NAME}-{RELEASE};" in kept.stderr, kept.stderr
    resumed = place.run("--resume", "./saved.json", "--load", "Tool/1.0", *SHOW)
    assert resumed.stdout == SHOWN, resumed.stderr


def test_what_modules_need_is_read_from_it(place: Place, site: Path, server: Mapping[str, str]) -> None:
    client(place, site)
    kept = place.home / "kept"
    changes = {**server, "ENVKIT_EESSI_CACHE": str(kept)}
    done = place.envkit("eessi", "prefetch", "Tool", *OTHER, "--json", before=(), **changes)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["cache"], told["release"], told["files"] > 3) == (str(kept), RELEASE, True)
    dead = {**changes, "CVMFS_SERVER_URL": "http://127.0.0.1:9/cvmfs/@fqrn@"}
    assert place.run(*OTHER, "--access", "userns", "--", "echo", "in", **dead).stdout == "in\n"
    usual = place.run("--access", "userns", "--", "echo", "in", **dead)  # of which that cache has nothing
    assert (usual.returncode, usual.stdout) == (3, "")
    assert "none of the servers of software.eessi.io answers" in usual.stderr


def test_a_start_file_that_enters_another_repository(place: Place, trees: tuple[Path, Path], tmp_path: Path) -> None:
    """As a copy of EESSI's does, whose module names EESSI's repository."""
    spoilt = shutil.copytree(trees[1], tmp_path / "spoilt", symlinks=True)
    module = spoilt / "init" / "modules" / "EESSI" / f"{RELEASE}.lua"
    text = module.read_text().replace(f'repository = "{MOUNT}"', f'repository = "{trees[1]}"')
    module.write_text(text)
    done = place.run(*OTHER, "--access", f"dir:{spoilt}", "--", "echo", "reached")
    assert (done.returncode, done.stdout) == (3, "")
    assert f"Another repository was entered in place of {NAME}: {trees[1]}/" in done.stderr


def test_the_doctor_looks_for_ways_to_it(place: Place, site: Path) -> None:
    before = (*NAMESPACE, "bind", str(site), MOUNT, "--")
    here = json.loads(place.envkit("doctor", "--json", *OTHER, before=before).stdout)
    ways = {one["access"]: one for one in here["facts"]["ways"]}
    assert (ways["native"]["refusal"], ways["native"]["why"]) == (None, f"{MOUNT} is mounted")
    assert ways["dir"]["refusal"]["what"] == "no local copy is named"
    usual = json.loads(place.envkit("doctor", "--json", before=before).stdout)
    ways = {one["access"]: one for one in usual["facts"]["ways"]}
    assert "software.eessi.io is not mounted" in ways["native"]["refusal"]["what"]
    assert ways["dir"]["refusal"] is None


@pytest.mark.parametrize("name", ["nowhere.example.org", "software.eessi.oi", "../x", "a b"])
def test_a_repository_that_nobody_knows(place: Place, name: str) -> None:
    for words in (["run", "eessi", "--repository", name, "--", "true"], ["eessi", "modules", "--repository", name]):
        done = place.envkit(*words)
        assert (done.returncode, done.stdout) == (2, "")
        assert f"--repository {name!a}: envkit knows none of that name." in done.stderr
        assert f"There are: software.eessi.io, riscv.eessi.io, {NAME}." in done.stderr
        assert str(place.home / ".config" / "envkit" / "repositories.toml") in done.stderr
