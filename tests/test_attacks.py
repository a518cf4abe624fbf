"""Each kind of attack that has once worked, as one user of a machine tries it on another, at the command line.

Eve attacks, Ada calls envkit, and Ben is in no way concerned; each has a uid of their own. What is tried here once is
tried in many forms by the tests that SECURITY.md names.
"""

import json
import os
import random
import re
import shutil
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from subprocess import CompletedProcess
from typing import Any

import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import receipt
from envkit.environments.lockfile import LockedFile, LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.machine.host import Platform
from envkit.sources.bundle import write_bundle
from envkit.sources.fetch import Source

from .integration.site import SYSTEM_PATH
from .integration.test_dockerfile_builds import small
from .integration.test_eessi import apptainer
from .integration.test_hostile_folder import MODULES, PROGRAMS
from .people import REPOSITORY, Person, open_folder, people, recipes_of_toys
from .verify.test_hostile_objects import BROKEN, HEADERS_WITHOUT_END

pytestmark = [
    pytest.mark.integration,
    pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become other users"),
    pytest.mark.xdist_group("users"),
]

Install = Callable[..., ModuleReceipt]
SECRET = "hunter2-and-more"
OBEYED = "\x1b]0;evil\x07\x1b[31m"


@pytest.fixture(scope="module")
def persons() -> Iterator[dict[str, Person]]:
    with people("ada", "ben", "eve") as made:
        yield made


@pytest.fixture
def ada(persons: dict[str, Person]) -> Person:
    """Who calls envkit. She has a thesis, which nobody else can read."""
    for path in persons["ada"].home.iterdir():
        shutil.rmtree(path) if path.is_dir() and not path.is_symlink() else path.unlink()
    thesis = persons["ada"].home / "thesis"
    thesis.write_text(SECRET)
    thesis.chmod(0o600)
    persons["ada"].owns(thesis)
    return persons["ada"]


@pytest.fixture
def eve(persons: dict[str, Person]) -> Person:
    return persons["eve"]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that all may write to, as /tmp."""
    with open_folder() as made:
        made.chmod(0o1777)
        yield made


@pytest.fixture
def prefix(folder: Path) -> Prefix:
    made = Prefix(root=folder / "prefix")
    made.create()
    made.root.chmod(0o755)
    return made


@pytest.fixture
def tree(prefix: Prefix) -> Tree:
    return prefix.tree(Platform.own())


def said(done: CompletedProcess[str], *codes: int) -> str:
    """What was printed, of a command that ended with one of these codes and without a traceback."""
    assert "Traceback" not in done.stderr and done.returncode in codes, done.stdout + done.stderr
    return " ".join((done.stdout + done.stderr).split())


def is_whole(ada: Person) -> bool:
    """Whether Ada's thesis is there, and still nobody else's."""
    path = ada.home / "thesis"
    return path.read_text() == SECRET and stat.S_IMODE(path.stat().st_mode) == 0o600


def forged(path: Path, **changes: Any) -> None:
    """Change what a receipt says."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.fixture
def toys(folder: Path, ada: Person) -> Path:
    """The recipes of toys that eb builds in seconds."""
    return recipes_of_toys(folder, ada)


@pytest.mark.parametrize("how", ["module", "name", "tree"])
def test_01_remove_deletes_nothing_that_a_receipt_of_eve_names(
    ada: Person, eve: Person, install: Install, prefix: Prefix, tree: Tree, how: str
) -> None:
    install("toy-cpu")
    path = receipt.path_of(tree, "toy-cpu")
    module = {"name": f"../../../../..{ada.home}/thesis", "easyconfig": "/x", "sha256": "0" * 64}
    changes: dict[str, dict[str, Any]] = {
        "module": {"modules": [module]},
        "name": {"name": "../x"},
        "tree": {"tree": str(ada.home)},
    }
    forged(path, **changes[how])
    eve.owns(prefix.root)
    ada.run("chmod", "700", ada.home)
    os.chown(prefix.root, ada.uid, -1)
    for words in (["remove", "toy-cpu"], ["remove", "toy-cpu", "--dependencies"]):
        said(ada.envkit(*words, ENVKIT_PREFIX=prefix.root, ENVKIT_TRUST=eve.name), 0, 3, 6, 7)
    assert is_whole(ada)


def test_01_remove_deletes_no_image_that_a_receipt_of_eve_names(
    ada: Person, eve: Person, install_image: Callable[..., ImageReceipt], prefix: Prefix, tree: Tree
) -> None:
    install_image("toy-image", debian="a1")
    forged(receipt.path_of(tree, "toy-image"), image=str(ada.home / "thesis"))
    eve.owns(prefix.root)
    os.chown(prefix.root, ada.uid, -1)
    for words in (["remove", "toy-image"], ["remove", "toy-image", "--dependencies"]):
        said(ada.envkit(*words, ENVKIT_PREFIX=prefix.root, ENVKIT_TRUST=eve.name), 6)
    assert is_whole(ada)


def test_01_remove_in_a_copy_of_eve_leaves_the_original(
    ada: Person, eve: Person, folder: Path, install: Install, prefix: Prefix, tree: Tree
) -> None:
    """Eve hands Ada a copy of Ada's own prefix, to be tidied up."""
    install("toy-cpu")
    ada.owns(prefix.root)
    files = sorted(str(path) for path in prefix.root.rglob("*"))
    assert eve.run("cp", "-r", prefix.root, folder / "handed").returncode == 0
    assert ada.run("cp", "-r", folder / "handed", ada.home / "copy").returncode == 0
    ada.run("chmod", "700", ada.home / "copy")
    said(ada.envkit("remove", "toy-cpu", "--dependencies", ENVKIT_PREFIX=ada.home / "copy"), 0)
    assert sorted(str(path) for path in prefix.root.rglob("*")) == files
    assert not [*(ada.home / "copy").rglob("Toy")]
    assert "toy-cpu" in said(ada.envkit("show", "toy-cpu", ENVKIT_PREFIX=prefix.root), 0)


@pytest.mark.parametrize("command", ["remove", "clean"])
def test_01_nothing_goes_of_a_prefix_of_eve_that_leads_elsewhere(
    ada: Person, eve: Person, folder: Path, install: Install, prefix: Prefix, tree: Tree, command: str
) -> None:
    """Its tree is a link to Ada's own, or a record in it names her thesis among the sources."""
    install("toy-cpu")
    ada.owns(prefix.root)
    files = sorted(str(path) for path in prefix.root.rglob("*"))
    own = folder / "eve"
    record = own / tree.root.name / "built" / "x.json"
    if command == "remove":
        own.mkdir()
        (own / tree.root.name).symlink_to(tree.root)
    else:
        (own / tree.root.name / "locks").mkdir(parents=True)
        (own / "sources").mkdir()
        part = LockedPart(name="X/1", recipe="x.eb", sha256="0" * 64,
                          sources=(LockedFile(filename=str(ada.home / "thesis"), sha256="0" * 64),))  # fmt: skip
        receipt.write(record, receipt.Built(module="X/1", easyconfig="", sha256="", seconds=1, part=part))
    eve.owns(own)
    words = ["remove", "toy-cpu", "--dependencies"] if command == "remove" else ["clean", "all", "--yes"]
    assert f"Nothing in the prefix {own} is removed: others can change it." in said(
        ada.envkit(*words, ENVKIT_PREFIX=own), 3
    )
    said(ada.envkit(*words, ENVKIT_PREFIX=own, ENVKIT_TRUST=eve.name), 0, 3, 6, 7)
    assert is_whole(ada) and sorted(str(path) for path in prefix.root.rglob("*") if "locks" not in path.parts) == [
        one for one in files if "/locks" not in one
    ]


@pytest.mark.parametrize(
    "name",
    [
        *("built", "environments", "images", "kept", "layers", "locks", "modules", "replaced", "software"),
        *("unfinished", "../logs", "../sources"),
    ],
)
def test_01_nothing_goes_behind_a_folder_of_a_copy_that_leads_elsewhere(
    ada: Person, folder: Path, install: Install, prefix: Prefix, tree: Tree, toys: Path, name: str
) -> None:
    """Ada has copied a prefix of Eve, in which one folder is a link into Ada's home; to her the link is her own."""
    install("toy-cpu")
    outside, inside = folder / "webapp", tree.root / name
    inside.mkdir(parents=True, exist_ok=True)
    inside.rename(outside)
    inside.symlink_to(outside)
    for number in range(15):
        (outside / f"toy-base-1.0-20250101-0000{number:02}").mkdir()
    for thesis in ("toy-cpu.json", "toy-base-1.0.json", "x.part-999999@host", "toy-base/1.0/thesis", "Toy/1.0/thesis"):
        (outside / thesis).parent.mkdir(parents=True, exist_ok=True)
        if not (outside / thesis).exists():
            (outside / thesis).write_text("keep")
    ada.owns(folder)
    before = {path: path.is_file() and path.read_bytes() for path in outside.rglob("*")}
    recipe = toys / "toy-base-1.0.eb"
    for words in (
        ["install", recipe, "--jobs", "1"],
        ["fetch", recipe],
        ["remove", "toy-cpu"],
        ["clean", "all", "--yes"],
    ):
        told = said(ada.envkit(*words, ENVKIT_PREFIX=prefix.root), 0, 2, 3, 5, 6, 7)
        if words[0] in ("install", "fetch") and name != "../sources":
            assert "is a link, and envkit writes nothing through one" in told
    ignored = {outside / "cleaning.lock", *(outside.glob("stack-*"))} if name == "locks" else set()
    if name == "../sources":  # several prefixes may share them: more may be there, and nothing less
        ignored = {*outside.rglob("*")} - {*before}
    assert {path: path.is_file() and path.read_bytes() for path in {*outside.rglob("*")} - ignored} == before


@pytest.mark.parametrize("name", ["software/toy-base", "modules/all", "modules/all/toy-base", "software/toy-base/1.0"])
def test_01_nor_behind_one_further_down(
    ada: Person, folder: Path, install: Install, prefix: Prefix, tree: Tree, toys: Path, name: str
) -> None:
    install("toy-cpu")
    outside, link = folder / "webapp", tree.root / name
    for thesis in ("1.0/thesis", "1.0.lua", "bin/thesis"):
        (outside / thesis).parent.mkdir(parents=True, exist_ok=True)
        (outside / thesis).write_text("keep")
    link.parent.mkdir(parents=True, exist_ok=True)
    if link.is_dir():
        link.rename(folder / "before")
    link.symlink_to(outside)
    ada.owns(folder)
    before = {path: path.is_file() and path.read_bytes() for path in outside.rglob("*")}
    told = said(ada.envkit("install", toys / "toy-base-1.0.eb", "--jobs", "1", ENVKIT_PREFIX=prefix.root), 7)
    assert "is a link, and envkit writes nothing through one" in told
    assert {path: path.is_file() and path.read_bytes() for path in outside.rglob("*")} == before


def test_01_a_log_of_eve_that_leads_to_a_folder_of_ada(
    ada: Person, eve: Person, folder: Path, prefix: Prefix, toys: Path
) -> None:
    """Old logs are removed, and nothing behind a link; a folder of logs that is open to all is refused."""
    victim, home = folder / "victim", prefix.logs
    (victim / "tmp").mkdir(parents=True)
    (victim / "tmp" / "thesis").write_text("keep")
    ada.owns(folder)
    home.chmod(0o1777)
    for day in range(1, 4):
        link = home / f"toy-base-1.0-2025010{day}-000000"
        assert eve.run("ln", "-s", victim, link).returncode == 0
    words = ("install", toys / "toy-base-1.0.eb", "--jobs", "1")
    assert "others can change it" in said(ada.envkit(*words, ENVKIT_PREFIX=prefix.root), 3)
    home.chmod(0o755)
    said(ada.envkit(*words, ENVKIT_PREFIX=prefix.root), 0)
    assert (victim / "tmp" / "thesis").read_text() == "keep"


def test_01_a_receipt_that_eve_can_write_says_not_what_root_removes(
    ada: Person, eve: Person, install: Install, prefix: Prefix, tree: Tree
) -> None:
    install("toy-cpu", "Base/1.0", "Toy/1.0")
    ada.owns(prefix.root)
    path = receipt.path_of(tree, "toy-cpu")
    path.chmod(0o666)
    assert eve.run("sh", "-c", f"echo >> {path}").returncode == 0
    assert "can change it" in said(ada.envkit("remove", "toy-cpu", ENVKIT_PREFIX=prefix.root), 3)
    assert "can change it" in said(ada.envkit("remove", "toy-cpu", "--dry-run", ENVKIT_PREFIX=prefix.root), 3)
    assert path.exists() and (tree.software / "Toy/1.0").exists()


@pytest.mark.parametrize("kind", ["link", "pipe", "folder"])
def test_02_eessi_clean_follows_nothing_that_eve_has_planted(ada: Person, eve: Person, folder: Path, kind: str) -> None:
    path = folder / f"envkit-eessi-{ada.uid}"
    made: dict[str, list[str | Path]] = {
        "link": ["ln", "-s", ada.home, path],
        "pipe": ["mkfifo", "-m", "666", path],
        "folder": ["mkdir", "-m", "777", path],
    }
    assert eve.run(*made[kind]).returncode == 0
    said(ada.envkit("eessi", "clean", TMPDIR=folder), 0, 3)
    assert is_whole(ada) and path.lstat().st_uid == eve.uid


def test_02_nor_what_she_has_planted_in_a_cache(ada: Person, eve: Person, folder: Path) -> None:
    """Ada has made it herself, and opened it to all."""
    cache = folder / f"envkit-eessi-{ada.uid}" / "2023.06"
    assert ada.run("mkdir", "-p", cache).returncode == 0
    assert ada.run("chmod", "-R", "777", cache.parent).returncode == 0
    for name in ("lib", "run", "cvmfs2.log", "held"):
        assert eve.run("ln", "-s", ada.home, cache / name).returncode == 0
    said(ada.envkit("eessi", "clean", "2023.06", TMPDIR=folder), 0, 2, 3, 6)
    said(ada.envkit("clean", "sessions", "--yes", TMPDIR=folder, ENVKIT_PREFIX=ada.home / "prefix"), 0, 3)
    assert is_whole(ada)


def test_03_nothing_of_eves_folder_is_run(ada: Person, eve: Person, folder: Path) -> None:
    trap = folder / "trap"
    sprung = folder / "sprung"
    trap.mkdir()
    for name in ("json", "os", "typing", "click", "msgspec", "sitecustomize", "envkit/__init__", "horovod/__init__"):
        path = trap / f"{name}.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"open({str(sprung)!r}, 'w').close()\n")
    for name in ("eb", "lmod", "mpirun", "gcc", "python3", "bash"):
        (trap / name).write_text(f"#!/bin/sh\n: >{sprung}\n")
        (trap / name).chmod(0o755)
    eve.owns(trap)
    program = Path(sys.executable).with_name("envkit")
    for words in (["list"], ["show"], ["install", "pytorch", "--dry-run", "--offline"]):
        said(ada.run("env", f"--chdir={trap}", program, *words), 0, 3, 4, 6)
    assert not sprung.exists()


def test_03_a_build_in_eves_folder_is_whole(ada: Person, eve: Person, folder: Path, toys: Path) -> None:
    """As in a clone of Horovod, whose folders are called as what is imported; built, and built again."""
    trap, sprung = folder / "trap", folder / "sprung"
    for name in MODULES:
        path = trap / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"open({str(sprung)!r}, 'a').write({name!r})\nraise SystemExit('trapped')\n")
    for name in PROGRAMS:
        (trap / name).write_text(f"#!/bin/sh\necho {name} >>{sprung}\nexit 9\n")
        (trap / name).chmod(0o755)
    eve.owns(trap)
    program, place = Path(sys.executable).with_name("envkit"), ada.home / "prefix"

    def within(*words: str | Path) -> str:
        return said(ada.run("env", f"--chdir={trap}", program, *words, ENVKIT_PREFIX=place), 0)

    for more in ([], ["--rebuild"]):
        assert "Installed toy-top-1.0." in within("install", toys / "toy-top-1.0.eb", "--jobs", "1", *more)
        assert within("run", "toy-top-1.0", "--", "toy-top") == "toy 0"
    assert not sprung.exists()


def test_03_a_recipe_that_eve_has_broken_takes_nothing_away(ada: Person, eve: Person, folder: Path, toys: Path) -> None:
    """Built again from it, what Ada has stays as it is."""
    place, recipe = ada.home / "prefix", toys / "toy-base-1.0.eb"
    said(ada.envkit("install", recipe, "--jobs", "1", ENVKIT_PREFIX=place), 0)
    [kept] = place.glob("*/environments/toy-base-1.0.json")
    before = kept.read_text()
    eve.owns(recipe)
    assert eve.run("sh", "-c", f"echo 'sanity_check_commands = [\"false\"]' >>{recipe}").returncode == 0
    said(ada.envkit("install", recipe, "--rebuild", "--jobs", "1", ENVKIT_PREFIX=place), 5)
    assert kept.read_text() == before
    assert "toy 0" in said(ada.envkit("run", "toy-base-1.0", "--", "toy-base", ENVKIT_PREFIX=place), 0)


@pytest.mark.parametrize("source", ["link", "../../../../..{home}/thesis", "{home}/thesis"])
def test_04_a_dockerfile_of_eve_reaches_no_file_of_ada(ada: Person, eve: Person, folder: Path, source: str) -> None:
    context = folder / "context"
    context.mkdir()
    (context / "link").symlink_to(ada.home / "thesis")
    text = f"FROM debian@sha256:{'0' * 64}\nCOPY {source.format(home=ada.home)} /taken\n"
    (context / "Dockerfile").write_text(text)
    eve.owns(context)
    words = ("install", "own", "--method", "apptainer", "--from-dockerfile", context / "Dockerfile", "--dry-run")
    told = said(ada.envkit(*words, ENVKIT_PREFIX=ada.home / "prefix"), 2, 3)
    assert f"{context}/Dockerfile:2: COPY takes" in told and SECRET not in told


def test_04_what_eve_has_changed_is_not_what_was_planned(ada: Person, eve: Person, folder: Path) -> None:
    """A file of a Dockerfile's folder, and one of an image in a folder: of the same size, at the same time."""
    context = folder / "context"
    context.mkdir()
    (context / "Dockerfile").write_text(f"FROM debian@sha256:{'0' * 64}\nCOPY data /taken\n")
    data = context / "data"
    data.write_text("good")
    eve.owns(context)

    def key(*words: str | Path) -> str:
        done = ada.envkit("install", "own", "--method", "apptainer", *words, "--dry-run",
                          ENVKIT_PREFIX=ada.home / "prefix")  # fmt: skip
        said(done, 0, 3)
        [found] = re.findall(r"layers/own-([0-9a-f]{20})\.sif", done.stdout)
        return str(found)

    given = (("--from-dockerfile", context / "Dockerfile"), ("--from", context))
    planned, before = [key(*words) for words in given], data.stat()
    assert planned == [key(*words) for words in given]
    assert eve.run("sh", "-c", f"printf evil >{data}; touch -d @{before.st_mtime:.9f} {data}").returncode == 0
    assert data.stat().st_size == before.st_size and data.read_text() == "evil"
    assert not set(planned) & {key(*words) for words in given}


def test_05_an_image_that_eve_has_changed_is_not_entered(
    ada: Person, eve: Person, install_image: Callable[..., ImageReceipt], prefix: Prefix
) -> None:
    """In its place, with its size, and with its time, which its owner puts back unknowingly, as a backup does."""
    image = Path(install_image("toy-image").image)
    ada.owns(prefix.root)
    before = image.stat()
    image.chmod(0o666)
    assert eve.run("sh", "-c", f"printf evil | dd of={image} conv=notrunc status=none").returncode == 0
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    image.chmod(0o644)
    assert image.stat().st_size == before.st_size and image.read_text().startswith("evil")
    told = said(ada.envkit("run", "toy-image", "--", "true", ENVKIT_PREFIX=prefix.root), 6)
    assert "toy-image is damaged" in told


def test_05_an_image_that_eve_changes_while_it_is_taken_over(ada: Person, eve: Person, folder: Path) -> None:
    """She writes to it without a pause, from before it is looked at until Ada has given up."""
    source, place = folder / "small.sif", ada.home / "prefix"
    box = small(folder / "box")
    subprocess.run([apptainer(), "--silent", "build", str(source), str(box)], check=True, capture_output=True)
    shutil.rmtree(box)
    eve.owns(source)
    source.chmod(0o644)
    program = Path(apptainer()).parent
    writes = f"import time\nwhile True:\n    open({str(source)!r}, 'ab').write(bytes(1))\n    time.sleep(0.001)"
    become = ["setpriv", f"--reuid={eve.uid}", f"--regid={eve.gid}", "--clear-groups"]
    with subprocess.Popen([*become, "/usr/bin/python3", "-c", writes]) as writer:
        try:
            done = ada.envkit("install", "small", "--method", "apptainer", "--from", source,
                              ENVKIT_PREFIX=place, PATH=f"{program}:{SYSTEM_PATH}")  # fmt: skip
            assert writer.poll() is None
        finally:
            writer.kill()
    assert "was changed while it was taken over" in said(done, 3)
    assert not [*place.rglob("*.sif"), *place.rglob("small.json")]


def test_06_a_log_of_eve_is_read_to_its_end(ada: Person, eve: Person, folder: Path) -> None:
    """Megabytes of one line, and of carriage returns."""
    for name, text in (("line", "error: " * 300_000), ("returns", "\r 1/2 [====>...] - loss: 0.1" * 60_000)):
        (folder / name).write_text(text)
        eve.owns(folder / name)
        limited = ("prlimit", "--cpu=15", sys.executable, "-m", "envkit")  # s, of which one or two are needed
        said(ada.run(*limited, "diagnose", folder / name, PYTHONPATH=REPOSITORY), 0, 1, 9)


def test_07_a_damaged_extension_ends_in_no_traceback(
    ada: Person, eve: Person, install: Install, prefix: Prefix, tree: Tree
) -> None:
    """Emptied, cut off, or changed by Eve at random, in a prefix of hers that Ada looks after."""
    home = tree.software / "Toy/1.0/lib/horovod"
    install("toy-cpu", horovod=str(home))
    library = home / "torch" / "mpi_lib_v2.cpython-311-x86_64-linux-gnu.so"
    library.parent.mkdir(parents=True)
    whole, chance = Path(sys.executable).resolve().read_bytes()[:200_000], random.Random(7)
    contents = [b"", b"\x7fELF\x02\x01\x01" + bytes(5000), whole, whole[:64] + bytes(len(whole) - 64)]
    for _ in range(12):
        changed = bytearray(whole)
        for _ in range(chance.randint(1, 40)):
            changed[chance.randrange(64 if chance.random() < 0.3 else len(whole))] = chance.randrange(256)
        contents.append(bytes(changed))
    for content in contents:
        library.write_bytes(content)
        eve.owns(prefix.root)
        said(ada.envkit("check-build", "toy-cpu", ENVKIT_PREFIX=prefix.root, ENVKIT_TRUST=eve.name), 1)
    library.unlink()
    assert eve.run("mkfifo", "-m", "666", library).returncode == 0
    said(ada.envkit("check-build", "toy-cpu", ENVKIT_PREFIX=prefix.root, ENVKIT_TRUST=eve.name), 1)


@pytest.mark.parametrize("kind", ["pipe", "headers", "names"])
def test_07_nor_does_an_mpi_of_eve(
    ada: Person, eve: Person, folder: Path, install: Install, prefix: Prefix, kind: str
) -> None:
    """In a folder of hers that Ada's LD_LIBRARY_PATH names: a pipe, headers without an end, names that lead nowhere."""
    install("toy-cpu", horovod="/nowhere")
    ada.owns(prefix.root)
    library = folder / "lib" / "libmpi.so.99"
    library.parent.mkdir()
    eve.owns(library.parent)
    if kind == "pipe":
        assert eve.run("mkfifo", "-m", "666", library).returncode == 0
    else:
        body = HEADERS_WITHOUT_END if kind == "headers" else BROKEN["names in no segment"]
        library.write_bytes(body)
        eve.owns(library)
    settings: dict[str, Any] = {"ENVKIT_PREFIX": prefix.root, "LD_LIBRARY_PATH": library.parent}
    if kind != "pipe":  # which the loader itself would wait for
        settings["LD_PRELOAD"] = library
    told = said(ada.envkit("verify", "toy-cpu", "-n", "1", **settings), 1)
    assert "horovod-present" in told


def ranges(name: str) -> list[range]:
    """The subordinate ids of a user."""
    lines = [line.split(":") for line in Path("/etc/subuid").read_text().splitlines()]
    return [range(int(first), int(first) + int(count)) for user, first, count in lines if user == name]


def test_08_ids_that_ada_is_advised_to_take_are_not_eves(ada: Person, eve: Person, persons: dict[str, Person]) -> None:
    if not ranges(ada.name):
        pytest.skip("useradd gives no subordinate ids here")
    for own in ranges(ada.name):
        ids = f"{own.start}-{own.stop - 1}"
        subprocess.run(["usermod", "--del-subuids", ids, "--del-subgids", ids, ada.name], check=True)
    told = said(ada.envkit("install", "pytorch", "--method", "apptainer", "--dry-run"), 3)
    [(first, last)] = re.findall(r"usermod --add-subuids (\d+)-(\d+) ", told)
    others = [*ranges("root"), *ranges(eve.name), *ranges(persons["ben"].name)]
    assert others and not [one for one in others if one.start <= int(last) and one.stop > int(first)]


def test_09_a_password_of_ada_is_read_by_nobody(ada: Person, eve: Person, persons: dict[str, Person]) -> None:
    """Of the proxy: not in what is made, which others cannot read besides, nor in what is printed."""
    place = ada.home / "prefix"
    proxy = f"http://ada:{SECRET}@127.0.0.1:9"
    ada.home.chmod(0o755)
    (ada.home / "thesis").unlink()
    try:
        told = said(ada.envkit("fetch", "pytorch", ENVKIT_PREFIX=place, https_proxy=proxy, http_proxy=proxy,
                               PIP_INDEX_URL="http://127.0.0.1:9/simple"), 4)  # fmt: skip
        assert SECRET not in told
        assert ada.run("grep", "-r", SECRET, ada.home).returncode == 1
        for person in (eve, persons["ben"]):
            assert person.run("ls", place).returncode != 0
    finally:
        ada.home.chmod(0o700)


def test_09_a_password_is_in_nothing_that_eb_has_built(ada: Person, eve: Person, folder: Path, toys: Path) -> None:
    """Where the prefix is shared on purpose, so that Eve can read all of it."""
    place = folder / "shared"
    place.mkdir(mode=0o755)
    ada.owns(place)
    proxy = f"http://ada:{SECRET}@127.0.0.1:9"
    names = ("http_proxy", "https_proxy", "HTTPS_PROXY", "ALL_PROXY", "ftp_proxy", "PIP_PROXY")
    settings: dict[str, Any] = {**dict.fromkeys(names, proxy), "ENVKIT_PREFIX": place}
    settings["PIP_INDEX_URL"] = f"http://ada:{SECRET}@127.0.0.1:9/simple"
    told = said(ada.envkit("install", toys / "toy-top-1.0.eb", "--jobs", "1", **settings), 0)
    assert SECRET not in told
    assert eve.run("ls", *place.glob("*/software/toy-top/1.0/easybuild")).returncode == 0
    assert eve.run("grep", "-r", SECRET, place).returncode in (1, 2)  # 2: there is what she cannot read
    assert "hunter2" not in eve.run("grep", "-rh", "hunter2", place).stdout
    (ada.home / "thesis").unlink()
    assert ada.run("grep", "-r", SECRET, place, ada.home).returncode == 1


def test_10_a_receipt_of_eve_hides_no_other(
    ada: Person, eve: Person, install: Install, prefix: Prefix, tree: Tree
) -> None:
    install("good-cpu", "Python/system", "Good/1.0")
    ada.owns(prefix.root)
    for name, text in (("nested", "[" * 100_000), ("closed", "{}"), ("a\x1b[31m", "{"), ("large", "x" * 50_000_000)):
        path = tree.environments / f"{name}.json"
        path.write_text(text)
        path.chmod(0o600)
        eve.owns(path)
    done = ada.envkit("list", "--json", ENVKIT_PREFIX=prefix.root)
    said(done, 0)
    states = {one["name"]: one["state"] for one in json.loads(done.stdout)["environments"]}
    assert states["good-cpu"].startswith("installed")
    assert ada.envkit("show", "good-cpu", ENVKIT_PREFIX=prefix.root).returncode == 0
    assert "\x1b" not in ada.envkit("list", ENVKIT_PREFIX=prefix.root).stdout


def test_10_what_eve_shows_nobody_is_said_to_be_closed(
    ada: Person, eve: Person, install: Install, prefix: Prefix
) -> None:
    install("toy-cpu")
    eve.owns(prefix.root)
    prefix.root.chmod(0o700)
    for words in (["list"], ["show", "toy-cpu"], ["run", "toy-cpu", "--", "true"], ["verify", "toy-cpu"]):
        assert str(prefix.root) in said(ada.envkit(*words, ENVKIT_PREFIX=prefix.root), 3, 6, 7)


def test_11_a_cache_of_eve_is_not_believed(ada: Person, eve: Person, folder: Path) -> None:
    """She has made the folder of the prefix before, and says that what lies there is checked."""
    place = folder / "prefix"
    (place / "sources").mkdir(parents=True)
    (place / "sources" / ".verified.json").write_text("{}")
    eve.owns(place)
    for words in (["fetch", "pytorch"], ["install", "pytorch", "--offline"]):
        told = said(ada.envkit(*words, ENVKIT_PREFIX=place), 3)
        assert f"{place}: It belongs to {eve.name}." in told


def test_11_a_source_that_rots_is_found(ada: Person, toys: Path) -> None:
    """Of the same size, at the same time, beside a stamp that says that it was checked."""
    place = ada.home / "prefix"
    said(ada.envkit("fetch", toys / "toy-base-1.0.eb", ENVKIT_PREFIX=place), 0)
    [source] = (place / "sources").rglob("toy.c")
    whole, before = source.read_bytes(), source.stat()
    source.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    os.utime(source, ns=(before.st_atime_ns, before.st_mtime_ns))
    told = said(ada.envkit("fetch", toys / "toy-base-1.0.eb", "--recheck", ENVKIT_PREFIX=place), 0, 4)
    assert "toy.c" in told and source.read_bytes() == whole


def test_12_a_bundle_of_eve_displaces_nothing(ada: Person, eve: Person, folder: Path) -> None:
    place, brought = ada.home / "prefix", folder / "brought"
    for path, text in ((place / "sources", "good"), (brought, "evil")):
        path.mkdir(parents=True)
        (path / "own-1.0.tar.gz").write_text(text)
    place.chmod(0o700)
    ada.owns(place)
    bundle = folder / "evil.tar"
    install = ("install", "pytorch", "--method", "easybuild", "--offline")
    write_bundle([Source(filename="own-1.0.tar.gz", sha256=None, needed_by="x")], brought, bundle, stack="x")
    eve.owns(bundle)
    said(ada.envkit(*install, "--bundle", bundle, ENVKIT_PREFIX=place), 3, 4)
    assert (place / "sources" / "own-1.0.tar.gz").read_text() == "good"
    bundle.write_bytes(b"manifest.json".ljust(100, b"\0") + b"[" * 100_000)
    said(ada.envkit(*install, "--bundle", bundle, ENVKIT_PREFIX=place), 4)


def test_13_a_log_of_eve_neither_steers_the_terminal_nor_a_command(ada: Person, eve: Person, folder: Path) -> None:
    log = folder / f"{OBEYED}.log".replace("/", "")
    log.write_text(
        f"{OBEYED}error: {OBEYED}\nThe End User License Agreement (EULA) for CUDA;curl${{IFS}}evil is currently not "
        "accepted!\n"
    )
    eve.owns(log)
    for words in ([], ["--json"]):
        done = ada.envkit("diagnose", *words, log)
        said(done, 0)
        assert not {"\x1b", "\x07"} & set(done.stdout + done.stderr)
        assert "--accept-eula CUDA;curl" not in done.stdout and "--accept-eula NAME" in " ".join(done.stdout.split())


@pytest.mark.parametrize("name", ["$(touch sprung)", "`touch sprung`", "--help", "a;touch sprung"])
def test_14_names_that_eve_has_given_run_nothing(
    ada: Person, eve: Person, folder: Path, install: Install, prefix: Prefix, tree: Tree, name: str
) -> None:
    recipe = folder / f"{name}.eb"
    recipe.write_text("name = 'x'\n")
    install("toy-cpu")
    forged(receipt.path_of(tree, "toy-cpu"), load=[name])
    eve.owns(recipe, prefix.root)
    said(ada.envkit("install", recipe, "--dry-run", ENVKIT_PREFIX=ada.home / "prefix"), 2, 3)
    for words in (["run", "toy-cpu", "--", "true"], ["shell", "toy-cpu"]):
        said(ada.envkit(*words, ENVKIT_PREFIX=prefix.root, ENVKIT_TRUST=eve.name), 6)
    assert not [*ada.home.rglob("sprung"), *folder.rglob("sprung")]


@pytest.mark.parametrize("name", ["$(touch sprung)", "`touch sprung`", "a\n`touch sprung`", "';touch sprung;'"])
def test_14_nor_do_modules_and_prompts(
    ada: Person, eve: Person, install: Install, prefix: Prefix, tree: Tree, name: str
) -> None:
    said(ada.envkit("install", "pytorch", "--dry-run", "--load", name), 2)
    install("toy-cpu")
    path = receipt.path_of(tree, "toy-cpu")
    forged(path, name=name)
    eve.owns(prefix.root)
    for words in (["list"], ["shell", "toy-cpu"], ["shell", name], ["activate", name]):
        said(ada.envkit(*words, ENVKIT_PREFIX=prefix.root, ENVKIT_TRUST=eve.name), 0, 2, 3, 6)
    assert not [*ada.home.rglob("sprung"), *prefix.root.rglob("sprung")]


def test_15_what_eve_leads_elsewhere_is_not_opened_up(
    ada: Person, eve: Person, folder: Path, install: Install, prefix: Prefix
) -> None:
    """A link in the way of a job script, whose target keeps its mode; the system itself may refuse to follow it."""
    install("toy-cpu")
    ada.owns(prefix.root)
    link = folder / "job.sh"
    assert eve.run("ln", "-s", ada.home / "thesis", link).returncode == 0
    words = ("--nodes", "1", "--ranks-per-node", "1", "--output", link, "--force", "--", "true")
    said(ada.envkit("job", "slurm", "toy-cpu", *words, umask=0o022, ENVKIT_PREFIX=prefix.root), 0, 7)
    assert stat.S_IMODE((ada.home / "thesis").stat().st_mode) == 0o600
    own = ada.home / "job.sh"
    said(ada.envkit("job", "slurm", "toy-cpu", *words[:4], "--output", own, "--", "true", umask=0o077,
                    ENVKIT_PREFIX=prefix.root), 0)  # fmt: skip
    assert stat.S_IMODE(own.stat().st_mode) == 0o600


def test_15_eve_has_not_made_the_folder_where_ada_keeps_kernels(ada: Person, eve: Person) -> None:
    """MIOpen's, in the node's /tmp: she knows Ada's number, the machine and the job, and still finds another name."""
    code = "from envkit.environments.environment import kernels; print(kernels({'SLURM_JOB_ID': '4711'}))"

    def place(person: Person) -> str:
        return said(person.run(sys.executable, "-c", code, PYTHONPATH=REPOSITORY), 0)

    own = place(ada)
    assert re.fullmatch(rf"/tmp/miopen-{ada.uid}-[0-9a-f]{{16}}", own) and place(ada) == own
    assert place(eve).replace(str(eve.uid), str(ada.uid)) != own


def test_15_a_server_of_eve_does_not_fill_the_disk(ada: Person, folder: Path, toys: Path) -> None:
    """It says that a source has a terabyte, and sends without an end."""

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(1 << 40))
            self.end_headers()
            with suppress(OSError):
                while True:
                    self.wfile.write(bytes(1 << 16))

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        server.daemon_threads = True
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            recipe = toys / "toy-base-1.0.eb"
            here = f"http://127.0.0.1:{server.server_port}"
            recipe.write_text(recipe.read_text().replace(f"file://{toys}", here))
            assert here in recipe.read_text()
            place = ada.home / "prefix"
            told = said(ada.envkit("fetch", recipe, ENVKIT_PREFIX=place, PIP_CONFIG_FILE=os.devnull), 4)
        finally:
            server.shutdown()
            thread.join()
    assert "it has 1099511627776 bytes, as the server says" in told
    assert sum(path.stat().st_size for path in place.rglob("*")) < 1 << 20


def test_15_a_receipt_is_not_written_where_eve_leads_it(ada: Person, eve: Person, folder: Path, toys: Path) -> None:
    """She may write to the folder of receipts, and has put links there to what is Ada's."""
    place = folder / "own"
    place.mkdir(mode=0o755)
    environments = place / str(Platform.own()) / "environments"
    environments.mkdir(parents=True)
    ada.owns(place)
    environments.chmod(0o777)
    for name in ("toy-base-1.0.json", ".toy-base-1.0.json", "toy-base-1.0.partial.json"):
        assert eve.run("ln", "-s", ada.home / "thesis", environments / name).returncode == 0
    told = said(ada.envkit("install", toys / "toy-base-1.0.eb", "--jobs", "1", ENVKIT_PREFIX=place), 0, 3, 6, 7)
    assert is_whole(ada), told


def test_15_a_timeline_of_eve_changes_no_status(ada: Person, eve: Person, folder: Path, toys: Path) -> None:
    place, timeline = ada.home / "prefix", folder / "timeline.json"
    said(ada.envkit("install", toys / "toy-base-1.0.eb", "--jobs", "1", ENVKIT_PREFIX=place), 0)
    hostile = '[{"ph": "B", "name": "\\u001b]0;evil\\u0007", "pid": 1, "ts": ' + "9" * 5000 + "}]"
    timeline.write_text(hostile)
    timeline.chmod(0o666)
    eve.owns(timeline)
    own = ada.home / "timeline.json"
    for path, script in ((timeline, "exit 7"), (own, f"cat {timeline} >{own}; exit 7")):
        words = ("run", "toy-base-1.0", "--timeline", path, "--", "sh", "-c", script)
        done = ada.envkit(*words, ENVKIT_PREFIX=place)
        said(done, 7)
        assert "\x1b" not in done.stdout + done.stderr


@pytest.mark.parametrize("kind", ["pipe", "loop", "socket", "/dev/zero", "/dev/tty"])
def test_15_what_is_no_log_is_refused(ada: Person, eve: Person, folder: Path, kind: str) -> None:
    path = Path(kind) if kind.startswith("/") else folder / kind
    if kind == "pipe":
        eve.run("mkfifo", "-m", "666", path)
    elif kind == "loop":
        eve.run("ln", "-s", path, path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one:
            one.bind(str(path))
    assert "What to do: " in said(ada.envkit("diagnose", path), 2)


def test_15_a_rank_is_not_kept_from_its_meeting_place(
    ada: Person, eve: Person, folder: Path, install: Install, prefix: Prefix
) -> None:
    """Eve, who sees the number of the job, has taken every name that she can think of."""
    install("toy-cpu", horovod="/nowhere")
    ada.owns(prefix.root)
    for name in ("", "4711", "4711.0", "srun-4711.0"):
        eve.run("mkdir", "-m", "777", folder / f"envkit-verify-{ada.uid}-{name}", folder / f"envkit-{ada.uid}-{name}")
    envkit = (sys.executable, "-m", "envkit", "verify", "toy-cpu", "--quick")
    settings: dict[str, Any] = {"TMPDIR": folder, "ENVKIT_PREFIX": prefix.root, "PYTHONPATH": REPOSITORY}
    told = said(ada.run("mpirun", "-n", "1", *envkit, **settings), 1)
    assert "horovod-present" in told and "started with mpirun" in told  # it came to a verdict
    for rank in ("²", "1" * 5000):
        job: dict[str, Any] = {"SLURM_JOB_ID": "4711", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "1", "SLURM_PROCID": rank}
        assert "horovod-present" in said(ada.run(*envkit, **settings, **job), 1)
    assert not [path for path in folder.glob("envkit-*") if path.stat().st_uid == eve.uid and any(path.iterdir())]


def test_16_what_root_unpacks_is_nobody_elses(eve: Person, folder: Path) -> None:
    """An archive names uids; who has one of them here could change what root then compiles."""
    from envkit.easybuild.eb_command import AS_ONE_UNPACKS

    (folder / "x-1.0").mkdir()
    (folder / "x-1.0" / "setup.py").touch()
    (folder / "x-1.0" / "setup.py").chmod(0o666)
    eve.owns(folder / "x-1.0")
    words = ["tar", "--numeric-owner", "-C", str(folder)]
    subprocess.run([*words, "-czf", str(folder / "x.tar.gz"), "x-1.0"], check=True)
    shutil.rmtree(folder / "x-1.0")
    env = {**os.environ, **AS_ONE_UNPACKS}
    subprocess.run(["tar", "-C", str(folder), "-xzf", str(folder / "x.tar.gz")], env=env, umask=0o022, check=True)
    made = (folder / "x-1.0" / "setup.py").stat()
    assert made.st_uid == 0 and stat.S_IMODE(made.st_mode) == 0o644
