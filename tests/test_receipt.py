import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from envkit.apptainer import receipt as image_receipt
from envkit.apptainer.receipt import ImageReceipt
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments import filelocks, receipt, replaced, venv
from envkit.environments.lockfile import Lock, LockedMachine
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Built, Cached, Fingerprint, Fingerprints, Module, Mpi, Parts
from envkit.environments.venv import Venv
from envkit.errors import EnvironmentDamaged, EnvironmentMissing, HostProblem, UsageProblem
from envkit.install import listing
from envkit.machine.host import Platform
from envkit.methods import installed
from envkit.planning.stack import stacks
from envkit.report.progress import SILENT
from envkit.system.files import identity, sha256

from .people import open_folder

Install = Callable[..., ModuleReceipt]
InstallImage = Callable[..., ImageReceipt]


@pytest.fixture
def tree(prefix: Prefix) -> Tree:
    return prefix.tree(Platform.own())


def test_what_is_written_is_read(install: Install, tree: Tree) -> None:
    made = install("toy-cpu", load=("site/1",))
    path = receipt.path_of(tree, "toy-cpu")
    assert installed.read(path) == made
    assert msgspec.json.decode(path.read_bytes())["version"] == 1
    assert path.read_text().startswith('{\n  "method": "easybuild",\n  "') and path.read_text().endswith('"\n}\n')


def test_the_way_in(install: Install, tree: Tree) -> None:
    inside = install("toy-cpu", load=("site/1",)).environment
    assert (inside.name, inside.modules, inside.load) == ("toy-cpu", ("Toy/1.0",), ("site/1",))
    assert inside.modulepath == tree.root / "modules" / "all"


def test_readers_see_all_of_a_record_or_nothing(tree: Tree) -> None:
    path = tree.root / "built" / "x.json"
    records = [Built(module=letter * 200_000, easyconfig="", sha256="", seconds=0.0) for letter in "ab"]
    receipt.write(path, records[0])
    seen: list[Built] = []
    done = threading.Event()

    def read() -> None:
        while not done.is_set():
            seen.append(msgspec.json.decode(path.read_bytes(), type=Built))

    reader = threading.Thread(target=read)
    reader.start()
    for record in records * 10:
        receipt.write(path, record)
    done.set()
    reader.join()
    assert seen and all(one in records for one in seen)
    assert [one.name for one in path.parent.iterdir()] == ["x.json"]


@pytest.mark.parametrize("text", ["", "{", "{}", '{"version": 1, "name": 5}', "\0" * 100])
def test_a_damaged_receipt(text: str, install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy-cpu")
    path = receipt.path_of(tree, "toy-cpu")
    path.write_text(text)
    with pytest.raises(EnvironmentDamaged, match=r"The receipt .+/toy-cpu\.json cannot be read\.") as damaged:
        installed.find(prefix, "toy-cpu")
    assert "envkit install toy-cpu" in damaged.value.fix


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy-cpu")
    made = install("other")
    for path in (
        receipt.path_of(tree, "toy-cpu"),
        receipt.kept_path(tree, "other"),
        receipt.built_path(tree, made.module),
        tree.unfinished / "other.json",
        tree.replaced / "other.json",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        os.mkfifo(path)
    with pytest.raises(EnvironmentDamaged, match="cannot be read") as damaged:
        installed.read(receipt.path_of(tree, "toy-cpu"))
    assert "It is a pipe" in damaged.value.why
    assert installed.find(prefix, "other").name == "other"
    assert (receipt.kept(tree, "other"), receipt.built(tree, made.module)) == (None, None)
    assert receipt.unfinished(tree, "other") is None


def test_a_receipt_that_is_being_written_is_none(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("toy-cpu")
    (tree.environments / ".toy-cpu.json.123").write_text("{")
    assert [one.name for one in installed.installed(prefix)] == ["toy-cpu"]


def test_own_python_first_then_the_newest_and_of_this_machine_only(
    install: Install, prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    for python in ("3.9.1", "3.13.0", "3.11.7"):
        install("toy-cpu", python=python)
    other = prefix.root / "other-py3.14" / "environments"
    other.mkdir(parents=True)
    (other / "x.json").write_text("{")
    for own, order in (("3.12", ["3.13.0", "3.11.7", "3.9.1"]), ("3.11", ["3.11.7", "3.13.0", "3.9.1"])):
        monkeypatch.setattr(Platform, "own", lambda own=own: Platform(machine=os.uname().machine, python=own))
        assert [one.python for one in installed.installed(prefix)] == order
        assert installed.find(prefix, "toy-cpu").python == installed.find(prefix, None).python == order[0]
        for python in order:
            apart = f"toy-cpu-py{python.rpartition('.')[0]}"
            found = installed.find(prefix, apart)
            assert (found.name, found.python) == ("toy-cpu", python)
    with pytest.raises(EnvironmentMissing):
        installed.find(prefix, "toy-cpu-py3.10")


def test_find_the_only_one_without_a_name(install: Install, prefix: Prefix) -> None:
    made = install("toy-cpu")
    assert (
        installed.find(prefix, None) == installed.find(prefix, "toy-cpu") == installed.find(prefix, "Toy/1.0") == made
    )


def test_find_needs_a_name_where_there_are_several(install: Install, prefix: Prefix) -> None:
    install("a")
    install("b")
    assert installed.find(prefix, "b").name == "b"
    with pytest.raises(EnvironmentMissing, match=r"Which environment\? There is more than one\.") as several:
        installed.find(prefix, None)
    assert several.value.why == f"Installed in {prefix.root}: a, b."
    assert 'environment = "a" (envkit config --path)' in several.value.fix


def test_find_what_is_not_there(install: Install, prefix: Prefix) -> None:
    with pytest.raises(EnvironmentMissing, match=r"No environment is installed\.") as missing:
        installed.find(prefix, None)
    assert missing.value.why == f"Installed in {prefix.root}: none."
    install("a")
    with pytest.raises(EnvironmentMissing, match=r"There is no environment 'b'\.") as missing:
        installed.find(prefix, "b")
    assert missing.value.why == f"Installed in {prefix.root}: a."


@pytest.mark.parametrize(
    ("name", "fix"),
    [
        ("mien", "Perhaps mine is meant. 'envkit list' has all."),
        ("pytroch", "Perhaps pytorch is meant. Try to install that: envkit install pytorch --prefix {}"),
        ("pytorch-2.13-cpu", "Try to install it: envkit install pytorch-2.13-cpu --prefix {}"),
        (
            "pytorch/2.13-cpu",
            "Perhaps pytorch-2.13-cpu is meant. Try to install that: envkit install pytorch-2.13-cpu",
        ),
        ("x", "See with 'envkit list' what there is and what can be installed."),
    ],
)
def test_what_may_be_meant(name: str, fix: str, install: Install, prefix: Prefix) -> None:
    install("mine")
    with pytest.raises(EnvironmentMissing) as missing:
        installed.find(prefix, name)
    assert missing.value.fix.startswith(fix.format(prefix.root))


@pytest.mark.parametrize("name", ["pytorch", "toy", "toy-c"])
def test_a_name_may_be_shortened(name: str, install: Callable[..., ModuleReceipt], prefix: Prefix) -> None:
    made = install("toy-cpu")
    install("other", framework="tensorflow")
    assert installed.find(prefix, name) == installed.placed(prefix, name)[1] == made


def test_a_name_that_can_mean_several_is_refused_with_all_of_them(
    install: Callable[..., ModuleReceipt], prefix: Prefix
) -> None:
    install("toy-cpu")
    install("toy-cuda")
    with pytest.raises(EnvironmentMissing, match=r"Which environment is 'toy-c'\?") as missing:
        installed.find(prefix, "toy-c")
    assert missing.value.why.endswith(": toy-cpu, toy-cuda.")
    install("toy-c")
    assert installed.find(prefix, "toy-c").name == "toy-c"


def test_the_name_of_a_stack_does_not_mean_another_that_begins_with_it(
    install: Callable[..., ModuleReceipt], prefix: Prefix
) -> None:
    install("pytorch-2.13-cpu-image")
    with pytest.raises(EnvironmentMissing, match=r"There is no environment 'pytorch-2\.13-cpu'"):
        installed.placed(prefix, "pytorch-2.13-cpu")
    with pytest.raises(EnvironmentMissing):
        installed.placed(prefix, "")


def test_find_in_a_prefix_that_does_not_exist(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentMissing):
        installed.find(Prefix(root=tmp_path / "none"), None)


def test_an_environment_whose_module_has_gone(install: Install, prefix: Prefix, tree: Tree) -> None:
    made = install("toy-cpu")
    (tree.modulepath / "Toy" / "1.0.lua").unlink()
    with pytest.raises(EnvironmentDamaged, match=r"its module Toy/1\.0 has gone"):
        installed.find(prefix, "toy-cpu")
    assert installed.placed(prefix, "toy-cpu")[1] == made


def test_records_of_modules(tree: Tree) -> None:
    made = Built(module="Toy/1.0", easyconfig="/r/Toy-1.0.eb", sha256="0" * 64, seconds=1.5)
    assert receipt.built(tree, "Toy/1.0") is None
    receipt.write(receipt.built_path(tree, "Toy/1.0"), made)
    assert receipt.built(tree, "Toy/1.0") == made
    receipt.built_path(tree, "Toy/1.0").write_text("{")
    assert receipt.built(tree, "Toy/1.0") is None


def test_notes_of_installations_under_way(tree: Tree, tmp_path: Path) -> None:
    assert receipt.waiting(tree, "toy") == "Another process is installing toy; waiting for it."
    receipt.begin(tree, "toy", "building", tmp_path)
    note = receipt.unfinished(tree, "toy")
    assert note is not None and (note.stage, note.pid, note.log) == ("building", os.getpid(), str(tmp_path))
    assert f"Process {os.getpid()} on " in receipt.waiting(tree, "toy")
    receipt.end(tree, "toy")
    receipt.end(tree, "toy")
    assert receipt.unfinished(tree, "toy") is None


def test_an_image_is_known_by_its_method(install_image: InstallImage, prefix: Prefix) -> None:
    made = install_image()
    found = installed.find(prefix, "toy-image")
    assert (found, found.method) == (made, "apptainer")
    assert installed.find(prefix, made.image) == made
    inside = found.environment
    assert (inside.name, inside.variables({})["ENVKIT_NAME"]) == ("toy-image", "toy-image")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda path: None, ""),
        (lambda path: os.utime(path, ns=(1, 1)), ""),
        (lambda path: path.write_text("toy-imagf"), "is not the one that was installed"),
        (lambda path: path.write_text("longer than it was"), "is not the one that was installed"),
        (lambda path: path.unlink(), "has gone"),
    ],
    ids=["same", "touched", "changed", "longer", "gone"],
)
def test_what_became_of_an_image(
    change: Callable[[Path], None], said: str, install_image: InstallImage, prefix: Prefix
) -> None:
    made = install_image()
    change(Path(made.image))
    if not said:
        assert installed.find(prefix, "toy-image") == made
        return
    with pytest.raises(EnvironmentDamaged, match="The environment toy-image is damaged") as refused:
        installed.find(prefix, "toy-image")
    assert said in f"{refused.value.what} {refused.value.why}"
    assert "envkit repair toy-image" in refused.value.fix


def read_of(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The images that are hashed from now on."""
    read = list[Path]()

    def noted(path: Path) -> str:
        read.append(path)
        return sha256(path)

    monkeypatch.setattr(image_receipt, "sha256", noted)
    return read


def test_an_image_is_hashed_only_when_it_may_have_changed(
    install_image: InstallImage, prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    image, read = Path(install_image().image), read_of(monkeypatch)
    for changes, times in ((False, 1), (False, 1), (True, 2), (False, 2)):
        if changes:
            image.chmod(0o700)
        installed.find(prefix, "toy-image")
        assert read == [image] * times


def test_an_image_that_was_changed_under_its_old_time(install_image: InstallImage, prefix: Prefix) -> None:
    """As with touch -r: size, time and inode are those that it had."""
    image = Path(install_image().image)
    installed.find(prefix, "toy-image")
    before = image.stat()
    image.write_text("toy-imagf")
    os.utime(image, ns=(before.st_atime_ns, before.st_mtime_ns))
    now = image.stat()
    assert (now.st_size, now.st_mtime_ns, now.st_ino) == (before.st_size, before.st_mtime_ns, before.st_ino)
    with pytest.raises(EnvironmentDamaged, match="is not the one that was installed"):
        installed.find(prefix, "toy-image")


def test_verify_reads_an_image_to_its_end(install_image: InstallImage, prefix: Prefix, tree: Tree) -> None:
    """So that rot on the disk, which changes no time at all, is found."""
    made = install_image()
    image = Path(made.image)
    installed.require_same_image(made)
    image.write_text("toy-imagf")
    receipt.write(
        receipt.kept_path(tree, made.name), image_receipt.SeenImage(identity=identity(image.stat()), sha256=made.sha256)
    )
    assert installed.find(prefix, "toy-image") == made
    with pytest.raises(EnvironmentDamaged, match="is not the one that was installed"):
        installed.require_same_image(made)


@pytest.mark.parametrize("text", ["", "{}", "[" * 100_000, '{"identity": [1], "sha256": ""}'])
def test_what_was_seen_of_an_image_cannot_be_read(
    text: str, install_image: InstallImage, prefix: Prefix, tree: Tree
) -> None:
    made = install_image()
    receipt.kept_path(tree, made.name).parent.mkdir(parents=True)
    receipt.kept_path(tree, made.name).write_text(text)
    assert installed.find(prefix, "toy-image") == made


@pytest.fixture
def copy(install: Install, prefix: Prefix, tree: Tree, tmp_path: Path) -> Tree:
    """The tree of a prefix that was copied with toy-cpu in it."""
    install("toy-cpu")
    shutil.copytree(prefix.root, tmp_path / "copy")
    return Tree(root=tmp_path / "copy" / tree.root.relative_to(prefix.root))


def test_a_copied_environment_lies_where_it_was_copied_to(copy: Tree, tree: Tree, tmp_path: Path) -> None:
    path = receipt.path_of(copy, "toy-cpu")
    found, made = installed.read(path), installed.read(receipt.path_of(tree, "toy-cpu"))
    assert found == msgspec.structs.replace(made, tree=str(copy.root), copied_from=str(tree.root))
    assert (installed.there(tree, "toy-cpu"), installed.there(copy, "toy-cpu")) == (made, None)
    assert installed.there(tree, "other") is None
    with pytest.raises(EnvironmentDamaged, match=r"toy-cpu does not work where it lies\.") as damaged:
        installed.find(Prefix(root=tmp_path / "copy"), "toy-cpu")
    assert damaged.value.why.startswith(f"It was installed in {tree.root} and was copied or moved to {copy.root};")
    assert damaged.value.fix.splitlines()[1:] == [
        f"  envkit remove toy-cpu --dependencies --prefix {tmp_path}/copy",
        f"  envkit install toy-cpu --prefix {tmp_path}/copy",
    ]


def test_a_receipt_that_says_where_it_was_copied_from_is_not_believed(install: Install, tree: Tree) -> None:
    made = install("toy-cpu", copied_from="/elsewhere")
    assert installed.there(tree, "toy-cpu") == msgspec.structs.replace(made, copied_from=msgspec.UNSET)


@pytest.mark.parametrize(
    ("file", "changes", "why", "fix"),
    [
        ("toy-cpu", {"name": "other"}, "Its name is 'other', that of its file 'toy-cpu'.", "Put it back with"),
        ("toy-cpu", {"tree": "software"}, "Its tree is 'software'.", "Put it back with 'envkit install toy-cpu "),
        ("toy cpu", {"name": "toy cpu"}, "Its name is 'toy cpu', that of its file 'toy cpu'.", "Delete it; what"),
        ("toy-cpu", {"module": "a b"}, "It names 'a b'.", "Put it back with"),
        ("toy-cpu", {"log": "a\x1bb"}, r"It names 'a\x1bb'.", "Put it back with"),
        ("toy-cpu", {"requires": ("mpi", "\x07")}, r"It names '\x07'.", "Put it back with"),
    ],
)
def test_a_receipt_that_none_of_envkits_is(
    file: str, changes: dict[str, str], why: str, fix: str, install: Install, tree: Tree
) -> None:
    made = install("toy-cpu", **{name: value for name, value in changes.items() if name != "name"})
    path = receipt.path_of(tree, file)
    receipt.write(path, msgspec.structs.replace(made, name=changes.get("name", "toy-cpu")))
    with pytest.raises(EnvironmentDamaged) as damaged:
        installed.read(path)
    assert damaged.value.what == f"The receipt {path} cannot be read."
    assert damaged.value.why == why
    assert damaged.value.fix.startswith(fix)


def test_the_lock_of_an_environment(install: Install) -> None:
    lock = Lock(
        name="toy-cpu",
        method="easybuild",
        framework="pytorch",
        accelerator="cpu",
        release="",
        machine=LockedMachine(type="x86_64", python="3.11"),
        tools={},
        parts=(),
    )
    assert installed.lock_of(install("toy-cpu", lock=lock)) == lock
    with pytest.raises(EnvironmentMissing, match=r"The environment toy-cpu has no lock\.") as missing:
        installed.lock_of(install("toy-cpu", envkit="0.0.9"))
    assert missing.value.why == "It was installed by envkit 0.0.9, before there were locks."
    assert "envkit install toy-cpu --rebuild --prefix " in missing.value.fix


def test_one_that_is_being_built_again_is_said_to_be(install: Install, prefix: Prefix, tree: Tree) -> None:
    install("other", python="3.9.1")
    install("other")
    aside = replaced.Aside(modules=(), files=(), in_jobs=True)
    receipt.write(tree.replaced / "toy-cpu.json", aside)
    with pytest.raises(EnvironmentMissing, match=r"The environment toy-cpu is being built again\.") as missing:
        installed.find(prefix, "toy-cpu")
    assert missing.value.why == "It is offered again when the new one has passed, or as it was before if that fails."
    assert missing.value.fix.endswith(f"envkit install toy-cpu --prefix {prefix.root}")
    with pytest.raises(EnvironmentMissing, match=r"There is no environment 'toy'\."):
        installed.find(prefix, "toy")


@pytest.mark.parametrize("name", ["toy-cpu", "toy", None])
def test_while_it_is_being_built_again_it_is_said_by_whom(name: str | None, prefix: Prefix, tree: Tree) -> None:
    receipt.write(tree.replaced / "toy-cpu.json", replaced.Aside(modules=("Toy/1.0",), files=(), in_jobs=True))
    receipt.begin(tree, "toy-cpu", "building", prefix.logs / "toy")
    with filelocks.held(tree, "stack-toy-cpu", SILENT, ""), pytest.raises(HostProblem) as busy:
        installed.find(prefix, name)
    assert busy.value.what == "The environment toy-cpu is being built again."
    assert busy.value.why.startswith(f"By process {os.getpid()} on {os.uname().nodename}, since ")
    assert busy.value.why.endswith(f"; building (log: {prefix.logs}/toy).")
    assert busy.value.fix.startswith("Wait for it, or end it (Ctrl-C there); then run the same command again.")
    with pytest.raises(EnvironmentMissing):
        installed.find(prefix, name)


def test_what_shares_modules_with_one_that_is_being_built_again_is_not_said_to_be_damaged(
    install: Install, prefix: Prefix, tree: Tree
) -> None:
    install("other", "Python/system", "Toy/1.0")
    for path in (tree.root / "modules").rglob("Toy/1.0.lua"):
        path.unlink()
    receipt.write(tree.replaced / "toy-cpu.json", replaced.Aside(modules=("Toy/1.0",), files=(), in_jobs=True))
    receipt.begin(tree, "toy-cpu", "building", prefix.logs / "toy")
    with filelocks.held(tree, "stack-toy-cpu", SILENT, ""), pytest.raises(HostProblem, match="other is being built"):
        installed.find(prefix, "other")
    with pytest.raises(EnvironmentDamaged):
        installed.find(prefix, "other")


@pytest.mark.parametrize("name", ["new", "ne"])
def test_one_that_is_being_installed_is_said_to_be(name: str, prefix: Prefix, tree: Tree) -> None:
    receipt.begin(tree, "new", "fetching", prefix.logs / "new")
    with filelocks.held(tree, "stack-new", SILENT, ""), pytest.raises(HostProblem, match=r"new is being installed now"):
        installed.find(prefix, name)


@pytest.mark.parametrize(
    "find",
    [
        lambda tree: installed.there(tree, "toy-cpu"),
        lambda tree: [*installed.all_in(tree)],
        lambda tree: [*receipt.parts_in(tree)],
    ],
    ids=["there", "all_in", "parts_in"],
)
def test_what_a_killed_installation_set_aside_is_there_again(
    find: Callable[[Tree], object], install: Install, tree: Tree
) -> None:
    install("toy-cpu")
    path = receipt.path_of(tree, "toy-cpu")
    aside = tree.replaced / "old" / "toy-cpu" / path.relative_to(tree.root)
    aside.parent.mkdir(parents=True)
    path.rename(aside)
    note = replaced.Aside(modules=(), files=(str(path.relative_to(tree.root)),))
    receipt.write(tree.replaced / "toy-cpu.json", note)
    assert find(tree)
    assert path.exists()


def test_what_the_files_of_an_environment_were(tree: Tree) -> None:
    were = {"software/x": Fingerprint(size=1, changed=2, sha256="0" * 64)}
    receipt.write(receipt.kept_path(tree, "toy-cpu"), Fingerprints(files=were))
    assert receipt.kept(tree, "toy-cpu") == were


def test_records_lie_where_they_are_looked_for(tree: Tree, tmp_path: Path) -> None:
    receipt.begin(tree, "toy", "building", tmp_path, iter(["mpi4py", "dask"]))
    note = receipt.unfinished(tree, "toy")
    assert note is not None and (note.stack, note.node) == ("toy", os.uname().nodename)
    assert note.extras == ("mpi4py", "dask")
    assert receipt.waiting(tree, "toy") == (
        f"Process {os.getpid()} on {os.uname().nodename} is installing toy (log: {tmp_path}); waiting for it."
    )
    assert receipt.kept_path(tree, "toy") == tree.kept / "toy.json"
    assert receipt.path_of(tree, "toy") == tree.root / "environments" / "toy.json"
    assert receipt.built_path(tree, "Toy/1.0") == tree.root / "built" / "Toy--1.0.json"


def test_what_environments_are_made_of(install: Install, install_image: InstallImage, tree: Tree) -> None:
    """Receipts that cannot be read, and files that are none, are left out."""
    install("toy-cpu")
    install_image(debian="a1")
    install("named-otherwise", "Toy/2.0")
    (tree.environments / "named-otherwise.json").rename(tree.environments / "renamed.json")
    modules = tuple(Module(name=name, easyconfig="", sha256="") for name in ("Toy/1.0", "../x"))
    bad = Parts(name="bad", tree="/", modules=modules)
    receipt.write(tree.environments / "bad.json", bad)
    receipt.write(tree.environments / ".hidden.json", bad)
    receipt.write(tree.environments / "toy-cpu.txt", bad)
    (tree.environments / "broken.json").write_text("{")
    (tree.environments / "gone.json").symlink_to("nowhere")
    found = {one.name: one for one in receipt.parts_in(tree)}
    assert set(found) == {"toy-cpu", "toy-image"}
    assert [one.name for one in found["toy-cpu"].modules] == ["Python/system", "Toy/1.0"]
    [layer] = found["toy-image"].layers
    assert (layer.name, layer.key) == ("debian", "a1".ljust(64, "0"))
    named = {path.name for path in receipt.files_in(tree)}
    assert named == {"toy-cpu.json", "toy-image.json", "renamed.json", "bad.json", "broken.json", "gone.json"}


def test_two_paths_of_one_folder(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to("a")
    one = tmp_path / "a"
    same = {name: receipt.is_same(one, tmp_path / name) for name in ("a", "b", "link", "gone")}
    assert same == {"a": True, "b": False, "link": True, "gone": False}
    assert receipt.is_same(tmp_path / "gone", tmp_path / "gone")


def test_what_a_method_does_not_say_of_an_environment(install: Install) -> None:
    made = install("toy-cpu")
    assert (made.interpreter, made.flags, made.srun) == ("python", None, ())
    assert (made.source, made.sha256, made.is_image) == ("", "", False)
    assert [one.name for one in made.recipes] == ["Python/system", "Toy/1.0"]


def test_an_image_has_no_recipes_of_modules(install_image: InstallImage) -> None:
    made = install_image()
    assert (made.recipes, made.is_image) == ((), True)


def test_one_that_is_entered_by_another_module_works_while_one_is_built(install: Install, tree: Tree) -> None:
    assert not receipt.has_other_module(tree, "toy-cpu", "Toy/2.0")
    install("toy-cpu")
    assert receipt.has_other_module(tree, "toy-cpu", "Toy/2.0")
    assert not receipt.has_other_module(tree, "toy-cpu", "Toy/1.0")
    (tree.modulepath / "Toy" / "1.0.lua").unlink()
    assert not receipt.has_other_module(tree, "toy-cpu", "Toy/2.0")
    receipt.path_of(tree, "toy-cpu").write_text("{")
    assert not receipt.has_other_module(tree, "toy-cpu", "Toy/2.0")


def test_the_extras_of_an_environment(install: Install, tree: Tree) -> None:
    assert receipt.extras(tree, "toy-cpu") == []
    install("toy-cpu", extras={"mpi4py": "mpi4py/4.0", "dask": "dask/2025"})
    assert receipt.extras(tree, "toy-cpu") == ["mpi4py", "dask"]
    receipt.path_of(tree, "toy-cpu").write_text("[")
    assert receipt.extras(tree, "toy-cpu") == []


def test_the_cache_that_a_module_was_taken_from(install: Install) -> None:
    cached = Cached(place="/cache", id="0123456789abcdef", host="n1", built="2026-01-02", key="k")
    modules = (
        Module(name="Python/system", easyconfig="", sha256=""),
        Module(name="Toy/1.0", easyconfig="", sha256="", cached=cached),
        Module(
            name="Toy/2.0", easyconfig="", sha256="", cached=msgspec.structs.replace(cached, place="/other", key="")
        ),
    )
    said = "; ".join(
        f"Toy/{version} from the cache {place}, object 0123456789ab, built on n1, 2026-01-02, {signed}"
        for version, place, signed in (
            ("2.0", "/other", "unsigned or signed by none of your keys"),
            ("1.0", "/cache", "signed with k"),
        )
    )
    taken = install("toy-cpu", modules=modules)
    assert taken.origin == said
    assert f"\nTaken:      {said}\n" in listing.describe(taken)
    assert install("toy-cpu", modules=modules[:1]).origin == ""
    of_machine = msgspec.structs.replace(modules[-1], name="GCC/system")
    assert install("toy-cpu", modules=(*modules, of_machine)).origin == said
    assert "GCC/system" in install("toy-cpu", modules=(*modules, of_machine)).origins


@pytest.mark.parametrize(
    ("recipe", "mpi", "said"),
    [
        ("/r/embedded/openmpi/x.eb", Mpi(family="Open MPI", version="4.1.8"), "Open MPI 4.1.8"),
        ("/r/openmpi/x.eb", Mpi(family="Open MPI", version="4.1.8"), ""),
        ("/r/embedded/openmpi/x.eb", None, ""),
    ],
)
def test_the_mpi_of_a_wheel(recipe: str, mpi: Mpi | None, said: str, install: Install) -> None:
    modules = (Module(name="a", easyconfig="/r/a.eb", sha256=""), Module(name="b", easyconfig=recipe, sha256=""))
    made = install("toy-cpu", modules=modules, mpi=mpi)
    assert made.wheel_mpi == said
    assert ("(from a wheel: only TCP between nodes, no fast network)" in listing.describe(made)) is bool(said)


def test_an_image_is_entered_by_no_shell_that_runs_and_has_no_virtual_environment(
    install_image: InstallImage, prefix: Prefix, tmp_path: Path
) -> None:
    made = install_image()
    with pytest.raises(HostProblem) as refused:
        made.require_modules()
    where = f"toy-image --prefix {prefix.root}"
    assert refused.value.what == "toy-image cannot be entered in a shell that runs already."
    assert refused.value.why.startswith("It is an image: its Python is seen only by what is started in it")
    assert refused.value.fix == (
        f"Start what you need inside: 'envkit shell {where}', or 'envkit run {where} -- COMMAND'."
    )
    with pytest.raises(HostProblem) as refused:
        made.within(tmp_path)
    assert refused.value.what == "toy-image cannot have a virtual environment on top of it."
    assert refused.value.why.startswith("It is an image: ")
    assert refused.value.fix.startswith("Have the packages built into an image: ")


@pytest.fixture
def own(tree: Tree, tmp_path: Path) -> Path:
    """A virtual environment on top of toy-cpu."""
    folder = tmp_path / "own"
    (folder / "bin").mkdir(parents=True)
    (folder / "bin" / "python").touch()
    made = Venv(folder=str(folder), name="toy-cpu", tree=str(tree.root), fixed={}, absent=(), envkit="0.1.0")
    receipt.write(folder / "envkit.json", made)
    return folder


def test_a_folder_names_what_a_virtual_environment_is_on_top_of(install: Install, prefix: Prefix, own: Path) -> None:
    made = install("toy-cpu")
    found = installed.find(prefix, str(own))
    assert (found.name, found.called) == ("toy-cpu", str(own))
    assert found == made.within(own)


def test_a_virtual_environment_whose_environment_has_gone(prefix: Prefix, tree: Tree, own: Path) -> None:
    with pytest.raises(EnvironmentMissing) as missing:
        installed.find(prefix, str(own))
    assert missing.value.what == f"{own} is on top of the environment toy-cpu, which has gone."
    assert missing.value.why == f"There is no {receipt.path_of(tree, 'toy-cpu')}."
    assert missing.value.fix == f"Install it again: envkit install toy-cpu --prefix {prefix.root}"


def test_a_virtual_environment_is_no_environment_in_a_prefix(install: Install, prefix: Prefix, own: Path) -> None:
    install("toy-cpu")
    with pytest.raises(UsageProblem) as refused:
        installed.placed(prefix, str(own))
    assert (refused.value.what, refused.value.why, refused.value.fix) == (
        f"{own} is a virtual environment on top of toy-cpu, and none of envkit's own.",
        "It is one of your folders.",
        "Delete it with rm -r, or make it again with 'envkit venv'.",
    )


def test_the_name_of_an_environment_counts_more_than_a_folder_of_that_name(
    install: Install, prefix: Prefix, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own.parent)
    assert installed.venv_named(prefix, "./own") == own
    assert (installed.venv_named(prefix, "other"), installed.venv_named(prefix, None)) == (None, None)
    made = install("own")
    assert installed.venv_named(prefix, "own") is None
    assert installed.find(prefix, "own") == installed.placed(prefix, "own")[1] == made


def test_no_folder_of_where_one_is_takes_the_place_of_an_environment(
    install: Install, prefix: Prefix, own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In somebody's repository, that would be theirs, called by a short name of the user's own environment."""
    made = install("pytorch-2.13-cpu")
    own.rename(own.with_name("pytorch"))
    monkeypatch.chdir(own.parent)
    assert installed.venv_named(prefix, "pytorch") is None
    assert installed.find(prefix, "pytorch") == made
    with pytest.raises(EnvironmentMissing):
        installed.find(prefix, "tensorflow")


@pytest.mark.parametrize(
    "changes",
    [{"folder": "own"}, {"tree": "/proc/self/cwd/p/x86_64-py3.11"}, {"tree": "p"}, {"tree": ""}, {"folder": ""}],
)
def test_a_record_that_leads_to_where_one_is(
    changes: dict[str, str], own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = own / venv.RECORD
    record.write_text(json.dumps({**json.loads(record.read_text()), **changes}))
    monkeypatch.chdir(own.parent)
    with pytest.raises(EnvironmentDamaged, match="cannot be used"):
        venv.read(own)


def test_why_a_receipt_cannot_be_read(tree: Tree) -> None:
    path = tree.environments / "toy-cpu.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to("nowhere")
    with pytest.raises(EnvironmentDamaged) as damaged:
        installed.read(path)
    assert damaged.value.why == "No such file or directory"


def test_a_recipe_of_a_users_own_installs_what_it_was_built_from(
    install: Install, prefix: Prefix, tree: Tree, tmp_path: Path
) -> None:
    """Its record says where it lies; records that cannot be read, and recipes of other names, are passed over."""
    recipe = tmp_path / "a b" / "mine.eb"
    receipt.write(tree.root / "built" / "x.json", Built(module="X/1", easyconfig="/r/x.eb", sha256="", seconds=1.0))
    (tree.root / "built" / "broken.json").write_text("{")
    (tree.root / "built" / "gone.json").symlink_to("nowhere")
    assert installed.recipe_of(tree, "mine") == ""
    receipt.write(tree.root / "built" / "m.json", Built(module="M/1", easyconfig=str(recipe), sha256="", seconds=1.0))
    assert installed.recipe_of(tree, "mine") == f"'{recipe}'"
    with pytest.raises(EnvironmentMissing, match=r"There is no environment 'mine'\.") as missing:
        installed.find(prefix, "mine")
    assert missing.value.why.startswith("Its modules are there, but not its receipt: ")
    assert missing.value.fix.endswith(f"envkit install '{recipe}' --prefix {prefix.root}")
    receipt.path_of(tree, "mine").parent.mkdir(parents=True, exist_ok=True)
    receipt.path_of(tree, "mine").write_text("{")
    with pytest.raises(EnvironmentDamaged) as damaged:
        installed.read(receipt.path_of(tree, "mine"))
    assert damaged.value.fix.startswith(f"Put it back with 'envkit install '{recipe}' --prefix {prefix.root}', or ")


def test_files_that_others_can_change_are_not_verified(install: Install) -> None:
    """They are looked at where the environment lies, which others can get at."""
    with open_folder() as folder:
        tree = Prefix(root=folder / "prefix").tree(Platform.own())
        file = tree.software / "Toy" / "1.0" / "file"
        file.parent.mkdir(parents=True)
        file.touch()
        made = install("toy-cpu", tree=str(tree.root))
        installed.require_files(made)
        file.chmod(0o666)
        with pytest.raises(HostProblem) as refused:
            installed.require_files(made)
        assert refused.value.what == "Nothing of toy-cpu is run: others can change it."
        assert str(file) in (refused.value.why or "")
        assert f"envkit repair toy-cpu --prefix {folder / 'prefix'}" in refused.value.fix


def test_a_link_in_the_place_of_a_record_is_not_followed(tree: Tree, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.write_text("kept")
    path = receipt.built_path(tree, "Toy/1.0")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.symlink_to(other)
    receipt.write(path, Built(module="Toy/1.0", easyconfig="", sha256="", seconds=0.0))
    assert other.read_text() == "kept" and not path.is_symlink()
    assert receipt.built(tree, "Toy/1.0") is not None


def test_a_note_that_cannot_be_read_is_none(tree: Tree) -> None:
    note = tree.unfinished / "toy.json"
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text("{")
    assert receipt.unfinished(tree, "toy") is None
    receipt.kept_path(tree, "toy").parent.mkdir(parents=True, exist_ok=True)
    receipt.kept_path(tree, "toy").write_text("{")
    assert receipt.kept(tree, "toy") is None


def test_a_whole_one_behind_a_damaged_one_of_its_name_is_offered(
    install: Install, prefix: Prefix, tree: Tree, tmp_path: Path
) -> None:
    """Of several prefixes; one that is as damaged, or was copied there, is not."""
    install("toy-cpu", modules_command="/bin/true")
    both = Prefix(root=prefix.root, order=(prefix.root, tmp_path / "other"))
    other = Tree(root=tmp_path / "other" / tree.root.relative_to(prefix.root))
    shutil.copytree(tree.root, other.root)
    (tree.modulepath / "Toy" / "1.0.lua").unlink()
    offer = f"Or take the one of {tmp_path / 'other'}, which is as it was installed: --prefix {tmp_path / 'other'}"

    def told() -> str:
        with pytest.raises(EnvironmentDamaged, match=r"its module Toy/1\.0 has gone") as damaged:
            installed.find(both, "toy-cpu")
        return damaged.value.fix

    assert offer not in told()
    path = receipt.path_of(other, "toy-cpu")
    made = msgspec.structs.replace(installed.read(path), tree=str(other.root), copied_from=msgspec.UNSET)
    receipt.write(path, made)
    assert told().endswith(f"\n{offer}")
    (other.modulepath / "Toy" / "1.0.lua").unlink()
    assert offer not in told()
    path.write_text("{")
    assert offer not in told()


def test_a_stack_is_installed_by_its_name_once_its_module_was_built(tree: Tree) -> None:
    stack = next(one for one in stacks() if one.module)
    assert installed.recipe_of(tree, stack.name) == ""
    made = Built(module=stack.module, easyconfig="", sha256="", seconds=0.0)
    receipt.write(receipt.built_path(tree, stack.module), made)
    assert installed.recipe_of(tree, stack.name) == stack.name
