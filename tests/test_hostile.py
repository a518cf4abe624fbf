"""Receipts, names and links that were made to do harm: nothing is executed, nothing outside of a tree is touched."""

import io
import json
import os
import random
import re
import shutil
import string
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from envkit import cli
from envkit.apptainer.receipt import ImageReceipt
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import receipt, replaced
from envkit.environments.name_syntax import is_module, is_name
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import EnvironmentDamaged, HostProblem
from envkit.install import removal
from envkit.machine.host import Platform
from envkit.methods import installed

Install = Callable[..., ModuleReceipt]
InstallImage = Callable[..., ImageReceipt]
MACHINE = os.uname().machine


@pytest.fixture
def tree(prefix: Prefix) -> Tree:
    return prefix.tree(Platform(machine=MACHINE, python="3.11"))


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A folder outside of every tree."""
    folder = tmp_path / "victim"
    (folder / "1.0").mkdir(parents=True)
    for name in ("thesis", "1.0/thesis", "1.0.lua", "1.0.sif", "toy-cpu.json"):
        (folder / name).write_text("years of work")
    return folder


def content(folder: Path) -> dict[str, tuple[int, bytes | None]]:
    """Everything in a folder: mode, and content of files."""
    return {
        str(path): (path.lstat().st_mode, path.read_bytes() if path.is_file() else None)
        for path in sorted((folder, *folder.rglob("*")))
    }


def envkit(*words: str, **settings: str) -> subprocess.CompletedProcess[str]:
    """Call envkit as its program does, in this process: what ends in a traceback raises here."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        for name, value in settings.items():
            patch.setenv(name, value)
        status = cli.run(list(words))
    return subprocess.CompletedProcess(words, status, out.getvalue(), err.getvalue())


def clear(done: subprocess.CompletedProcess[str], status: int) -> str:
    """Check that a command failed with a message for people; return it in one line."""
    assert done.returncode == status, done.stderr
    assert "Traceback" not in done.stderr
    assert not any(c not in "\n\t" and not c.isprintable() for c in done.stderr + done.stdout)
    return " ".join(done.stderr.split())


def edit(tree: Tree, name: str, /, **changes: Any) -> Path:
    """Change fields of a receipt."""
    path = receipt.path_of(tree, name)
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))
    return path


CLIMBS = ("../../../../../victim/1.0", "..", ".", "", "/", "a/../../../../victim/1.0", "a//b", "a/", "./a", "a/./b")


@pytest.mark.parametrize("word", [*CLIMBS, "ABSOLUTE"])
@pytest.mark.parametrize("field", ["module", "modules", "name", "tree", "load"])
@pytest.mark.parametrize("dependencies", [False, True])
def test_a_receipt_cannot_name_what_lies_elsewhere(
    install: Install, prefix: Prefix, tree: Tree, victim: Path, field: str, word: str, dependencies: bool
) -> None:
    install("toy-cpu")
    install("other-cpu", "Python/system", "Other/1.0")
    word = str(victim / "1.0") if word == "ABSOLUTE" else word
    made = {"modules": [{"name": word, "easyconfig": "", "sha256": ""}], "load": [word]}.get(field, word)
    edit(tree, "toy-cpu", **{field: made})
    before = content(victim)
    if field == "tree" and word.startswith("/"):  # a copy, so it goes, from here
        removal.remove(prefix, "toy-cpu", dependencies=dependencies, console=Console(file=io.StringIO()))
    else:
        with pytest.raises(EnvironmentDamaged, match=r"toy-cpu\.json cannot be read\."):
            removal.remove(prefix, "toy-cpu", dependencies=dependencies, console=Console(file=io.StringIO()))
    assert content(victim) == before
    assert isinstance(found := installed.find(prefix, "other-cpu"), ModuleReceipt) and found.module == "Other/1.0"


@pytest.mark.parametrize("field", ["module", "name", "tree"])
def test_remove_says_what_is_wrong_with_a_receipt(
    install: Install, prefix: Prefix, tree: Tree, victim: Path, field: str
) -> None:
    install("toy-cpu")
    edit(tree, "toy-cpu", **{field: "../" * 12 + str(victim)})
    before = content(victim)
    assert "toy-cpu.json cannot be read." in clear(envkit("remove", "toy-cpu", ENVKIT_PREFIX=str(prefix.root)), 6)
    assert content(victim) == before


@pytest.mark.parametrize("image", ["../../../victim/1.0.sif", "VICTIM/file", "toy-image.sif", "IMAGES/other.sif"])
def test_an_image_receipt_cannot_name_what_lies_elsewhere(
    install_image: InstallImage, prefix: Prefix, tree: Tree, victim: Path, image: str
) -> None:
    install_image(debian="a1")
    other = install_image("other", debian="a1")
    edit(tree, "toy-image", image=image.replace("IMAGES", str(tree.images)).replace("VICTIM", str(victim)))
    before = content(victim)
    done = envkit("remove", "toy-image", "--dependencies", ENVKIT_PREFIX=str(prefix.root))
    assert "toy-image.json cannot be read." in clear(done, 6)
    assert content(victim) == before and Path(other.image).is_file()


@pytest.mark.parametrize(("field", "value"), [("name", "../../x"), ("key", "*"), ("key", "../" * 8 + "victim")])
def test_layers_of_a_receipt_are_names_and_digests(
    install_image: InstallImage, prefix: Prefix, tree: Tree, field: str, value: str
) -> None:
    install_image(debian="a1")
    edit(tree, "toy-image", layers=[{"name": "debian", "key": "a" * 64, field: value}])
    with pytest.raises(EnvironmentDamaged, match="cannot be read"):
        installed.find(prefix, "toy-image")


@pytest.mark.parametrize("dependencies", [False, True])
def test_removing_a_copy_leaves_the_original(
    install: Install, prefix: Prefix, tmp_path: Path, dependencies: bool
) -> None:
    install("toy-cpu")
    copy = Prefix(root=tmp_path / "copy")
    shutil.copytree(prefix.root, copy.root, symlinks=True)
    before = content(prefix.root)
    refused = clear(envkit("run", "toy-cpu", "--", "true", ENVKIT_PREFIX=str(copy.root)), 6)
    assert f"It was installed in {prefix.root}" in refused
    assert f"envkit remove toy-cpu --dependencies --prefix {copy.root}" in refused
    assert "copied or moved here" in " ".join(envkit("list", ENVKIT_PREFIX=str(copy.root)).stdout.split())
    words = ["--dependencies"] if dependencies else []
    gone = envkit("remove", "toy-cpu", *words, ENVKIT_PREFIX=str(copy.root))
    assert gone.returncode == 0, gone.stderr
    assert content(prefix.root) == before
    assert not list(copy.root.glob("*/software/Toy/1.0")) and not list(copy.root.glob("*/modules/*/Toy/*"))
    assert installed.find(prefix, "toy-cpu")


def test_removing_an_image_from_a_copy(install_image: InstallImage, prefix: Prefix, tmp_path: Path) -> None:
    made = install_image(debian="a1")
    copy = Prefix(root=tmp_path / "copy")
    shutil.copytree(prefix.root, copy.root)
    before = content(prefix.root)
    removal.remove(copy, "toy-image", dependencies=True, console=Console(file=io.StringIO()))
    assert content(prefix.root) == before and Path(made.image).is_file()
    assert not list(copy.root.rglob("*.sif"))


def test_a_prefix_behind_a_link_is_no_copy(install: Install, prefix: Prefix, tmp_path: Path) -> None:
    install("toy-cpu")
    (tmp_path / "link").symlink_to(prefix.root)
    assert not installed.find(Prefix(root=tmp_path / "link"), "toy-cpu").copied_from


def test_a_moved_prefix_is_told(install: Install, prefix: Prefix, tmp_path: Path) -> None:
    install("toy-cpu")
    prefix.root.rename(tmp_path / "moved")
    with pytest.raises(EnvironmentDamaged) as damaged:
        installed.find(Prefix(root=tmp_path / "moved"), "toy-cpu")
    assert str(prefix.root) in damaged.value.why and "Move it back" in damaged.value.fix


LINKS = ("software", "software/Toy", "software/Toy/1.0", "modules", "modules/all", "modules/all/Toy", "built", "kept",
         "environments", "locks", "modules/all/Toy/1.0.lua", "software/Toy/1.0/inner")  # fmt: skip


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("dependencies", [False, True])
def test_no_link_is_followed(
    install: Install, prefix: Prefix, tree: Tree, victim: Path, link: str, dependencies: bool
) -> None:
    install("toy-cpu")
    kept = receipt.kept_path(tree, "toy-cpu")
    kept.parent.mkdir(exist_ok=True)
    kept.write_text("{}")
    place = tree.root / link
    if place.is_dir():
        shutil.copytree(place, victim / "there", symlinks=True)
        shutil.rmtree(place)
    elif place.exists():
        shutil.copy(place, victim / "there")
        place.unlink()
    else:
        shutil.copytree(victim / "1.0", victim / "there")
    place.symlink_to(victim / "there")
    (victim / "there").chmod(0o555)
    before = content(victim)
    words = ["--dependencies"] if dependencies else []
    done = envkit("remove", "toy-cpu", *words, ENVKIT_PREFIX=str(prefix.root))
    assert content(victim) == before
    if link == "environments":
        assert "is a link, and nothing outside of" in clear(done, 7)
        assert kept.read_text() == "{}"
        return
    if link == "locks":
        assert "is a link, and envkit writes nothing through one" in clear(done, 7)
        return
    assert done.returncode == 0, done.stderr
    assert not receipt.path_of(tree, "toy-cpu").exists()
    if (link.count("/") < 2 and link.startswith(("software", "modules/"))) or link == "modules/all/Toy":
        assert "it lies outside of" in " ".join(done.stdout.split())


@pytest.mark.integration
@pytest.mark.parametrize("kind", ["file", "dangling", "loop"])
@pytest.mark.parametrize("name", ["locks", "unfinished", "environments", "kept", "replaced"])
def test_what_is_no_folder_of_a_tree_is_said(
    install: Install, prefix: Prefix, tree: Tree, name: str, kind: str
) -> None:
    """In a sentence, whatever is asked for, and no traceback."""
    install("toy-cpu")
    place = tree.root / name
    if place.is_dir():
        shutil.rmtree(place)
    place.touch() if kind == "file" else place.symlink_to("/nowhere" if kind == "dangling" else place)
    for words in (
        ["remove", "toy-cpu"],
        ["list"],
        ["install", "toy-cpu"],
        ["clean", "all", "--yes"],
        ["show", "toy-cpu"],
    ):
        done = envkit(*words, ENVKIT_PREFIX=str(prefix.root))
        assert done.returncode != 1 and "Traceback" not in done.stderr, done.stderr


@pytest.mark.parametrize("method", ["x" * 2_000_000, "x\x1b" * 500_000])
def test_what_is_wrong_with_a_receipt_is_said_in_short(
    install: Install, prefix: Prefix, tree: Tree, method: str
) -> None:
    install("toy-cpu")
    path = receipt.path_of(tree, "toy-cpu")
    path.write_text(json.dumps({**json.loads(path.read_text()), "method": method}))
    done = envkit("list", ENVKIT_PREFIX=str(prefix.root))
    assert "cannot be read" in done.stdout and len(done.stdout + done.stderr) < 20_000


@pytest.mark.parametrize("link", ["images", "layers", "images/toy-image.sif"])
def test_no_link_to_an_image_is_followed(
    install_image: InstallImage, prefix: Prefix, tree: Tree, victim: Path, link: str
) -> None:
    install_image(debian="a1")
    (tree.root / link).rename(victim / "there")
    (tree.root / link).symlink_to(victim / "there")
    before = content(victim)
    removal.remove(prefix, "toy-image", dependencies=True, console=Console(file=io.StringIO()))
    assert content(victim) == before


BAD = {
    "empty": b"",
    "cut": b'{"method": "easybuild", "name": "to',
    "nested": b"[" * 100_000,
    "binary": bytes(range(256)),
    "other": b'{"method": "none"}',
    "list": b"[]",
    "latin": '{"method": "easybuild", "name": "ü"}'.encode("latin-1"),
    "nested in a field": b'{"method": "easybuild", "lock": ' + b'{"a": ' * 100_000,
}


def sparse(path: Path) -> None:
    """A file of a terabyte, of which nothing is on the disk."""
    with path.open("wb") as stream:
        stream.truncate(1 << 40)


IN_THE_WAY: dict[str, Callable[[Path], None]] = {
    "folder": lambda path: path.mkdir(),
    "dangling": lambda path: path.symlink_to("none"),
    "loop": lambda path: path.symlink_to(path),
    "unreadable": lambda path: path.symlink_to("/proc/1/mem"),
    "pipe": lambda path: os.mkfifo(path),
    "device": lambda path: path.symlink_to("/dev/zero"),
    "huge": sparse,
}


@pytest.mark.integration
@pytest.mark.parametrize("bad", [*BAD, *IN_THE_WAY, "escape", "old name", "mark-up"])
def test_one_bad_receipt_does_not_disable_the_others(install: Install, prefix: Prefix, tree: Tree, bad: str) -> None:
    install("toy-cpu")
    install("good-cpu", "Python/system", "Good/1.0")
    path = receipt.path_of(tree, "toy-cpu")
    if bad in BAD:
        path.write_bytes(BAD[bad])
    elif bad == "escape":
        edit(tree, "toy-cpu", verified="\x1b]0;evil\x07")
    elif bad == "old name":
        edit(tree, "toy-cpu", name="good-cpu")
    elif bad == "mark-up":
        edit(tree, "toy-cpu", module="[/red]")
    else:
        path.unlink()
        IN_THE_WAY[bad](path)
    settings = {"ENVKIT_PREFIX": str(prefix.root), "COLUMNS": "300"}
    listed = {one["name"]: one for one in json.loads(envkit("list", "--json", **settings).stdout)["environments"]}
    assert listed["good-cpu"]["state"] == "installed"
    assert listed["toy-cpu"]["state"] == "damaged" and listed["toy-cpu"]["why"].startswith("The receipt ")
    table = envkit("list", **settings)
    assert table.returncode == 0 and "toy-cpu" in table.stdout and "\x1b" not in table.stdout
    assert isinstance(installed.find(prefix, "good-cpu"), ModuleReceipt)
    for words in (["run", "toy-cpu", "--", "true"], ["remove", "toy-cpu"]):
        assert "toy-cpu.json cannot be read." in clear(envkit(*words, **settings), 6)
    kept = envkit("remove", "good-cpu", "--dependencies", **settings)
    assert kept.returncode == 0 and "is kept" in kept.stdout
    assert tree.has("Python/system") and not tree.has("Good/1.0")


RECORDS = ("built/Toy--1.0.json", "built/Toy--1.0.files", "kept/toy-cpu.json", "unfinished/toy-cpu.json",
           "replaced/toy-cpu.json", "../sources/.verified.json")  # fmt: skip


@pytest.mark.integration
@pytest.mark.parametrize("bad", ["nested", "latin", "binary", "pipe", "huge", "loop"])
@pytest.mark.parametrize("record", RECORDS)
def test_no_other_record_that_is_bad_ends_in_a_traceback(
    install: Install, prefix: Prefix, tree: Tree, record: str, bad: str
) -> None:
    install("toy-cpu")
    path = tree.root / record
    path.parent.mkdir(exist_ok=True)
    if bad in BAD:
        path.write_bytes(BAD[bad])
    else:
        IN_THE_WAY[bad](path)
    for words in (["list"], ["show", "toy-cpu"], ["repair", "toy-cpu", "--dry-run"], ["remove", "toy-cpu"]):
        done = envkit(*words, ENVKIT_PREFIX=str(prefix.root))
        assert "Traceback" not in done.stderr, done.stderr
        assert done.returncode in (0, 6), done.stderr


def hostile() -> list[str]:
    """Words that shells, file systems, terminals and modules tools take for something else; the same in every run."""
    random.seed(20)
    acts = ("$(touch X)", "`touch X`", ";touch X", "|touch X", "&touch X&", "'$(touch X)", '"$(touch X)', "\ntouch X\n")
    odd = ("-h", "--help", "--", "-", ".", "..", "../a", "~", "~root", "*", "a b", " a", "a\t", "\x1b[31mred", "\x07a",
           "\u202eevil", "ünï", "a\0b", "\r", "{a,b}", "a>X", "a<X", "!!", "#", "%s", "a\\", "[red]a", "é" * 60, "",
           "a" * 5000, "/etc/passwd", "$HOME", "${IFS}", "$'\\x41'", "(touch X)", "a=$(touch X)", "\udce9")  # fmt: skip
    alphabet = string.printable + "é\u2028\x9b"
    mixed = ["".join(random.choices(alphabet, k=random.randint(1, 12))) for _ in range(60)]
    return [*acts, *odd, *("Ti" + act for act in acts), *(act + "-1.0" for act in acts), *mixed]


def test_every_name_of_the_collection_can_be_used() -> None:
    from envkit.system.resources import easybuild_collection

    stems = [path.stem for path in easybuild_collection().rglob("*.eb")]
    assert len(stems) > 10_000 and all(map(is_name, stems))
    assert all(map(is_module, (stem.replace("-", "/", 1) for stem in stems)))


@pytest.mark.parametrize("word", hostile(), ids=ascii)
def test_a_name_that_passes_is_harmless(word: str) -> None:
    for passes, more in ((is_name, "+"), (is_module, "+@=~/")):
        if passes(word):
            assert word.isascii() and len(word) <= 200 and not word.startswith(("-", "~", "/"))
            assert re.fullmatch(rf"[\w.{more}-]+", word, re.ASCII) and ".." not in word.split("/")
            found = subprocess.run(["bash", "-c", f"printf %s {word}"], capture_output=True, text=True, check=True)
            assert found.stdout == word


@pytest.fixture
def refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[[Sequence[str]], str]:
    """Run a command line that is refused, in a folder where nothing may appear; return what it says, in one line."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))

    def run(words: Sequence[str]) -> str:
        assert cli.run(list(words)) == 2
        said = capsys.readouterr()
        assert list(folder.iterdir()) == []
        assert not any(c != "\n" and not c.isprintable() for c in said.err + said.out)
        return " ".join(said.err.split())

    return run


Refused = Callable[[Sequence[str]], str]


@pytest.mark.parametrize("word", [word for word in hostile() if not is_module(word)], ids=ascii)
def test_load_executes_nothing(word: str, refused: Refused) -> None:
    assert "that cannot be a module." in refused(["install", "pytorch", "--dry-run", "--load", word])


WHEREVER = (["doctor", "--load"], ["fetch", "--load"], ["run", "eessi", "--load"], ["eessi", "prefetch"])


@pytest.mark.parametrize("words", WHEREVER, ids=" ".join)
def test_modules_are_looked_at_wherever_they_are_named(words: list[str], refused: Refused) -> None:
    command = ["--", "true"] if words[0] == "run" else []
    assert "that cannot be a module." in refused([*words, "'$(touch X)", *command])


@pytest.mark.parametrize("word", [word for word in hostile() if not is_name(word)], ids=ascii)
def test_a_recipe_with_such_a_name(word: str, tmp_path: Path, refused: Refused) -> None:
    path = tmp_path / "recipes" / f"{word.replace('/', '_')[:200]}.eb"
    path.parent.mkdir()
    try:
        path.write_text("name = 'x'\n")
    except (OSError, ValueError):
        return  # no file can be called so
    if not is_name(path.stem):
        assert "cannot be the name of a recipe here." in refused(["install", str(path), "--dry-run"])


@pytest.mark.parametrize("name", ["$(touch X)", "`touch X`", "a\x1b[31m", "\\$(touch X)", "!!"], ids=ascii)
def test_the_prompt_executes_nothing(name: str, tmp_path: Path) -> None:
    from envkit.system.resources import data

    (tmp_path / "load").mkdir()
    lines = ["load.sh", "/bin/true", "/proc/nonexistent", "--"]
    env = {"PATH": os.environ["PATH"], "HOME": str(tmp_path), "ENVKIT_NAME": name, "ENVKIT_WORDS": "\n".join(lines)}
    argv = ["bash", "--noprofile", "--rcfile", str(data("environments/shell/rc.bash")), "-i"]
    shell = subprocess.run(argv, input="echo\nexit\n", cwd=tmp_path / "load", env=env, capture_output=True, text=True,
                           check=False, start_new_session=True)  # fmt: skip
    assert "(envkit " in shell.stderr and "\x1b" not in shell.stderr
    assert list((tmp_path / "load").iterdir()) == []


def test_a_record_is_not_written_through_what_lies_in_its_way(tree: Tree, victim: Path) -> None:
    path = tree.root / "built" / "x.json"
    path.parent.mkdir(parents=True)
    (path.parent / f".{path.name}.{os.getpid()}").symlink_to(victim / "thesis")
    before = content(victim)
    path.symlink_to(victim / "1.0" / "thesis")
    receipt.write(path, receipt.Built(module="X/1", easyconfig="", sha256="", seconds=0))
    assert content(victim) == before and not path.is_symlink()


AS_ANOTHER = """\
import os, sys
from envkit import cli
words, warm, prefix = sys.argv[3:], *sys.argv[1:3]
cli.run([*words, "--prefix", warm])  # what is imported late may be where another user does not get
os.setgroups([])
os.setgid(65534)
os.setuid(65534)
print("----", flush=True)
print("----", file=sys.stderr, flush=True)
status = cli.run([*words, "--prefix", prefix])
sys.stdout.flush()
os._exit(status)
"""


@pytest.mark.integration
@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to become another user")
@pytest.mark.parametrize("words", [["list"], ["show", "toy-cpu"], ["remove", "toy-cpu"], ["check-build", "toy-cpu"]])
@pytest.mark.parametrize("mode", [0o700, 0o755], ids=oct)
def test_the_prefix_of_another_user(
    install: Install, prefix: Prefix, tree: Tree, words: list[str], mode: int, tmp_path: Path
) -> None:
    install("toy-cpu")
    shutil.copytree(prefix.root, tmp_path / "warm", symlinks=True)
    prefix.root.chmod(mode)
    for folder in [folder for folder in prefix.root.parents if folder.stat().st_mode & 0o005 != 0o005]:
        folder.chmod(0o755)
    before = content(prefix.root)
    argv = [sys.executable, "-c", AS_ANOTHER, str(tmp_path / "warm"), str(prefix.root), *words]
    done = subprocess.run(
        argv, capture_output=True, text=True, check=False, env={**os.environ, "HOME": "/proc/nonexistent"}
    )
    said, told = done.stdout.partition("----")[2], " ".join(done.stderr.partition("----")[2].split())
    assert content(prefix.root) == before
    assert "Traceback" not in told
    if mode == 0o700:
        assert done.returncode == 7, told
        assert f"{prefix.root} cannot be read. Permission denied." in told
    elif words[0] == "remove":
        assert done.returncode == 7, told
        assert f"{tree.root} cannot be written to. Permission denied." in told
    elif words[0] in ("list", "show"):
        assert done.returncode == 0 and "toy-cpu" in said


def test_what_is_set_aside_is_not_sought_behind_a_link(tree: Tree, victim: Path) -> None:
    """A prefix that somebody gave away: whoever looks into it loses nothing."""
    before = content(victim)
    tree.replaced.mkdir(parents=True)
    (tree.replaced / "1.0.json").write_text('{"modules":[],"files":[]}')
    for kind in ("old", "new", "both"):
        for one in ("old", "new") if kind == "both" else (kind,):
            (tree.replaced / one).symlink_to(victim)
        envkit("list", "--prefix", str(tree.root.parent))
        replaced.recover(tree)
        assert content(victim) == before
        with pytest.raises(HostProblem, match="is left where it is"):
            replaced.put_back(tree, "1.0")
        with pytest.raises(HostProblem, match="is left where it is"):
            replaced.settle(tree, "1.0")
        for one in ("old", "new"):
            (tree.replaced / one).unlink(missing_ok=True)
    assert content(victim) == before
