"""Images in a cache: what is pushed, which one a plan takes, and what happens with one that is damaged."""

import io
import json
import platform
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from envkit.apptainer import cached
from envkit.apptainer.image_plan import Layer, note_of, place_of
from envkit.apptainer.receipt import ImageReceipt
from envkit.cache import contents, manifest, unpack
from envkit.cache.manifest import PackedFile
from envkit.cache.offers import FoundBuilds, lines
from envkit.cache.place import Caches, Place, SignedManifest, publish
from envkit.cli import run
from envkit.environments import receipt
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import CacheInvalid, EnvironmentDamaged, HostProblem, UsageProblem
from envkit.install import cache_pull, cache_push, sbom
from envkit.planning.request import Request
from envkit.planning.stack import Stack, stacks
from envkit.verify import last

from .integration.site import needs
from .test_cache import here
from .verify.test_report import report

NAME = "pytorch-2.13-cpu-image"
KEY = "a" * 64
MACHINE = platform.machine()


@pytest.fixture
def stack() -> Stack:
    """The stack that the image is of."""
    return next(stack for stack in stacks() if stack.name == NAME)


@pytest.fixture
def made(
    install_image: Callable[..., ImageReceipt], stack: Stack, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> ImageReceipt:
    """An image that was built from the stack's recipe and has passed, as far as its files tell."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    found = install_image(NAME, debian="d" * 64, image=KEY)
    parts = tuple(LockedPart(name=layer.name, recipe=stack.recipe, sha256=layer.key) for layer in found.layers)
    lock = Lock(
        name=NAME, method="apptainer", framework="pytorch", accelerator="cpu", release="",
        machine=LockedMachine(type=MACHINE), tools={"envkit": "0.1.0", "apptainer": "1.4.5"}, parts=parts,
    )  # fmt: skip
    found = msgspec.structs.replace(found, source=stack.recipe, lock=lock)
    receipt.write(receipt.path_of(Tree(root=Path(found.tree)), NAME), found)
    told = report("pytorch-2ranks")
    hosts = tuple(msgspec.structs.replace(one, name=platform.node()) for one in told.hosts)
    last.keep(msgspec.structs.replace(told, hosts=hosts), NAME, found.tree)
    return found


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """An empty cache."""
    made = tmp_path / "cache"
    made.mkdir()
    return made


@pytest.fixture
def entry(made: ImageReceipt, prefix: Prefix, folder: Path) -> SignedManifest:
    """The image in a cache."""
    [done] = cache_push.push(prefix, NAME, Place(named=str(folder)), None).builds
    assert (done.module, done.sent, done.signed) == (NAME, True, False)
    return Place(named=str(folder)).entry(f"{NAME}/{done.id}.json")


def looked(
    prefix: Prefix, stack: Stack, folder: Path, key: str = KEY, *, unsigned: bool = True, **changes: Any
) -> FoundBuilds:
    """Return what a plan finds in a cache."""
    request = replace(Request(prefix=prefix), **changes)
    image = Layer(name="image", recipe="", key=key, image=Path("/nowhere"))
    caches = Caches(places=(str(folder),), keys=(), unsigned=unsigned)
    return cached.find_images(request, stack, image, MACHINE, caches)


def taken(found: FoundBuilds, layers: Path) -> tuple[cached.TakenImage | None, str]:
    """Return the image that was taken, if one was, and what was said."""
    said = io.StringIO()
    return cached.take(found, layers, Console(file=said, width=500)), said.getvalue()


def test_an_image_is_pushed_as_it_is(entry: SignedManifest, made: ImageReceipt, folder: Path, prefix: Prefix) -> None:
    assert {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()} >= {
        "index.json", f"manifests/{NAME}/{entry.id}.json", f"objects/{made.sha256}.sif",
    }  # fmt: skip
    assert (folder / entry.manifest.object_name).read_bytes() == Path(made.image).read_bytes()
    assert entry.manifest.part.sha256 == KEY.ljust(64, "0")
    [again] = cache_push.push(prefix, NAME, entry.place, None).builds
    assert not again.sent
    assert [one.state for one in contents.verified([entry.place], ()).builds] == ["unsigned"]
    assert contents.prune(entry.place, 0, dry_run=False).removed == ()


def test_commands_tell_of_it(entry: SignedManifest, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["cache", "list", str(folder)]) == 0
    assert NAME in capsys.readouterr().out
    assert run(["cache", "show", entry.id[:10], str(folder)]) == 0
    shown = capsys.readouterr().out
    for line in (
        f"Image:    {NAME}",
        "By:       envkit 0.1.0, apptainer 1.4.5",
        "Verdict:  PASS",
        "Made of:  layer aaaa",
    ):
        assert line in shown
    assert "unpacked" not in shown and "Module" not in shown
    assert run(["cache", "show", entry.id[:10], str(folder), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["files"].keys() == {f"{NAME}.sif"}


def test_a_plan_takes_what_is_made_of_the_same(
    entry: SignedManifest, made: ImageReceipt, prefix: Prefix, stack: Stack, folder: Path, tmp_path: Path
) -> None:
    found = looked(prefix, stack, folder)
    assert found.taken != {} and found.taken[NAME].entry.id == entry.id
    assert any("the image is taken from" in line for line in lines(found))
    layers = tmp_path / "layers"
    done, said = taken(found, layers)
    assert done and f"Taken from {folder}" in said
    assert done.image.read_bytes() == Path(made.image).read_bytes()
    assert done.image.stat().st_mode & 0o111
    assert [path.name for path in layers.iterdir()] == [f"taken-{entry.id[:20]}.sif"]
    assert (done.origin.place, done.origin.id) == (str(folder), entry.id)
    before = done.image.stat()
    (folder / entry.manifest.object_name).unlink()  # what is there already is not fetched again
    again, _ = taken(found, layers)
    assert again == done and done.image.stat() == before
    done.image.write_text("another")
    assert taken(found, layers)[0] is None


@pytest.mark.parametrize(
    ("changes", "why"),
    [
        ({"key": "b" * 64}, cached.OTHER),
        ({"unsigned": False}, "it is not signed (--unsigned-cache takes it all the same)"),
    ],
)
def test_what_does_not_fit_is_said(
    changes: dict[str, Any], why: str, entry: SignedManifest, prefix: Prefix, stack: Stack, folder: Path
) -> None:
    found = looked(prefix, stack, folder, **changes)
    assert found.taken == {}
    assert [offer.why_not for offer in found.offers] == [(why,)]
    assert [*lines(found)] == [f"Cache:    not {entry.id[:12]} of {folder}: {why}"]


def test_an_image_of_another_machine_does_not_fit(
    entry: SignedManifest, prefix: Prefix, stack: Stack, folder: Path
) -> None:
    needs = msgspec.structs.replace(entry.manifest.needs, machine="s390x")
    other = replace(entry, manifest=msgspec.structs.replace(entry.manifest, needs=needs))
    image = Layer(name="image", recipe="", key=KEY, image=Path("/nowhere"))
    assert [*cached.unfit(other, image, MACHINE)] == [f"it is for machine type s390x, and here it is {MACHINE}"]


def test_one_whose_code_this_cpu_does_not_run_does_not_fit(entry: SignedManifest) -> None:
    needs = msgspec.structs.replace(entry.manifest.needs, cpu=("no-such-feature",))
    other = replace(entry, manifest=msgspec.structs.replace(entry.manifest, needs=needs))
    image = Layer(name="image", recipe="", key=KEY.ljust(64, "0"), image=Path("/nowhere"))
    assert [*cached.unfit(other, image, MACHINE)] == ["its code needs no-such-feature, which this CPU has not"]


def test_of_several_the_newest_of_the_first_place_is_taken(
    entry: SignedManifest, prefix: Prefix, stack: Stack, folder: Path, tmp_path: Path
) -> None:
    content = Path(folder, entry.manifest.object_name).read_bytes()
    second = tmp_path / "second"
    second.mkdir()
    for at, built in ((folder, "2030-01-01"), (folder, "2020-01-01"), (second, "2040-01-01")):
        origin = msgspec.structs.replace(entry.manifest.provenance, built=built)
        of = msgspec.structs.replace(entry.manifest.part, recipe=built)
        changed = msgspec.structs.replace(entry.manifest, provenance=origin, part=of)
        publish(Place(named=str(at)), changed, io.BytesIO(content), b"")
    image = Layer(name="image", recipe="", key=KEY.ljust(64, "0"), image=Path("/nowhere"))
    caches = Caches(places=(str(folder), str(second)), keys=(), unsigned=True)
    found = cached.find_images(Request(prefix=prefix), stack, image, MACHINE, caches)
    assert [offer.entry.manifest.provenance.built[:4] for offer in found.offers] == ["2030", "2026", "2020", "2040"]


@pytest.mark.parametrize(
    "changes",
    [
        {"rebuild": True}, {"sandbox": True}, {"sign": Path("/key")}, {"source": "docker://a@sha256:0"},
        {"dockerfile": Path("/Dockerfile")}, {"again": (NAME,)},
    ],
)  # fmt: skip
def test_no_cache_is_asked_for_what_it_cannot_have(
    changes: dict[str, Any], entry: SignedManifest, prefix: Prefix, stack: Stack, folder: Path
) -> None:
    assert looked(prefix, stack, folder, **changes) == FoundBuilds()


def test_a_cache_that_is_not_there_is_said(prefix: Prefix, stack: Stack, tmp_path: Path) -> None:
    found = looked(prefix, stack, tmp_path / "none")
    assert found.offers == () and "There is no such folder" in found.wrong[0]
    assert taken(found, tmp_path / "layers") == (None, f"{found.wrong[0]} It is left out.\n")


def test_whose_signature_counts(made: ImageReceipt, prefix: Prefix, stack: Stack, folder: Path, tmp_path: Path) -> None:
    """Of an image as of a module; a manifest that was changed after it was signed is nobody's."""
    needs("openssl")
    keys = dict[str, tuple[Path, Path]]()
    for name in ("mine", "theirs"):
        own, public = tmp_path / f"{name}.pem", tmp_path / f"{name}.pub"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", own], check=True)
        subprocess.run(["openssl", "pkey", "-in", own, "-pubout", "-out", public], check=True)
        keys[name] = own, public
    [pushed] = cache_push.push(prefix, NAME, Place(named=str(folder)), keys["theirs"][0]).builds
    assert pushed.signed

    def verdict(*names: str) -> tuple[bool, tuple[str, ...]]:
        caches = Caches(places=(str(folder),), keys=tuple(str(keys[name][1]) for name in names))
        image = Layer(name="image", recipe="", key=KEY.ljust(64, "0"), image=Path("/nowhere"))
        found = cached.find_images(Request(prefix=prefix), stack, image, MACHINE, caches)
        [offer] = found.offers
        return found.taken != {}, offer.why_not

    none = "none of your keys ('cache.keys') has signed it"
    assert verdict("theirs") == verdict("mine", "theirs") == (True, ())
    assert verdict("mine") == verdict() == (False, (none,))
    path = folder / f"manifests/{NAME}/{pushed.id}.json"
    path.write_bytes(path.read_bytes().replace(platform.node().encode(), b"elsewhere"))
    assert verdict("theirs") == (False, (none,))


@pytest.fixture(params=["changed", "cut", "longer", "gone"])
def damaged(request: pytest.FixtureRequest, entry: SignedManifest, folder: Path) -> Iterator[str]:
    """A cache whose object is not what its manifest says."""
    path = folder / entry.manifest.object_name
    content = path.read_bytes()
    texts = {"changed": b"X" + content[1:], "cut": content[:-1], "longer": content + b"X"}
    if request.param == "gone":
        path.unlink()
    else:
        path.write_bytes(texts[request.param])
    yield request.param


def test_one_that_is_not_what_it_should_be_leaves_nothing(
    damaged: str, prefix: Prefix, stack: Stack, folder: Path, tmp_path: Path
) -> None:
    found = looked(prefix, stack, folder)
    done, said = taken(found, tmp_path / "layers")
    assert done is None and "The image is not taken from there." in said
    assert [*(tmp_path / "layers").iterdir()] == []
    [checked] = contents.verified([Place(named=str(folder))], ()).builds
    assert checked.state == "bad"


def test_one_for_which_there_is_no_room_is_not_begun(
    entry: SignedManifest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=entry.manifest.size - 1))
    with pytest.raises(CacheInvalid, match="There is no room") as refused:
        cached.put(entry, tmp_path / "layers" / "new.sif", "image", Console(file=io.StringIO()))
    assert " free." in refused.value.why
    assert [*(tmp_path / "layers").iterdir()] == []


@pytest.mark.parametrize(
    "changes",
    [
        {"files": {}},
        {"files": {"other.sif": PackedFile(size=1, sha256="0" * 64, is_program=True)}},
        {"files": {f"{NAME}.sif": PackedFile(link="/etc/passwd")}},
        {"size": -1},
        {"part": LockedPart(name="../image", recipe="", sha256=KEY)},
        {"part": LockedPart(name="..", recipe="", sha256=KEY)},
        {"part": LockedPart(name="", recipe="", sha256=KEY)},
    ],
)
def test_a_manifest_that_is_none_of_an_image_is_refused(entry: SignedManifest, changes: dict[str, Any]) -> None:
    content = manifest.packed(msgspec.structs.replace(entry.manifest, **changes), b"")
    with pytest.raises(ValueError, match="no manifest of a module or an image"):
        manifest.read(content)


def test_a_module_takes_no_image_for_one_of_its_builds(entry: SignedManifest, tmp_path: Path) -> None:
    assert entry.place.names("Horovod/0.28.1") == []
    with pytest.raises(CacheInvalid) as refused:
        unpack.take(entry, Tree(root=tmp_path), Path("/usr/bin/python3"), lambda: None, {})
    assert "Its manifest names" in refused.value.why


def test_it_is_copied_from_one_cache_into_another(entry: SignedManifest, folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    caches = Caches(places=(str(folder),), keys=(), unsigned=True)
    done = cache_pull.copied([entry], Place(named=str(new)), caches, replace(here(), machine=MACHINE, python="3.99"))
    assert done.state == "copied"
    assert (new / entry.manifest.object_name).read_bytes() == (folder / entry.manifest.object_name).read_bytes()
    other = cache_pull.copied([entry], Place(named=str(new)), caches, replace(here(), machine="s390x"))
    assert other.state == "unfit"


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"source": "docker://ours@sha256:0"}, UsageProblem),
        ({"sha256": "", "size": 0}, UsageProblem),
        ({"layers": (receipt.BuiltLayer(name="image", key=KEY),)}, UsageProblem),
        ({"cached": receipt.Cached(place="/c", id="1" * 64, host="h", built="b", key="")}, HostProblem),
    ],
)
def test_what_was_not_built_here_is_not_pushed(
    changes: dict[str, Any], kind: type[Exception], made: ImageReceipt, prefix: Prefix, folder: Path
) -> None:
    changed = msgspec.structs.replace(made, **changes)
    receipt.write(receipt.path_of(Tree(root=Path(made.tree)), NAME), changed)
    with pytest.raises(kind, match="pushed"):
        cache_push.push(prefix, NAME, Place(named=str(folder)), None)
    assert [*folder.iterdir()] == []


def test_what_has_changed_is_not_pushed(made: ImageReceipt, prefix: Prefix, folder: Path) -> None:
    Path(made.image).write_text("another")
    with pytest.raises(EnvironmentDamaged):
        cache_push.push(prefix, NAME, Place(named=str(folder)), None)
    assert [*folder.iterdir()] == []


def test_the_receipt_and_the_list_of_parts_say_where_it_is_from(made: ImageReceipt) -> None:
    origin = receipt.Cached(place="/c", id="1" * 64, host="builder", built="2026-11-27", key="")
    there = msgspec.structs.replace(made, cached=origin)
    assert there.described()["Taken"] == f"the image {origin.shown}"
    assert made.origin == "" and "Taken" not in made.described()
    assert there.lock is not None and made.lock is not None
    assert origin.shown in sbom.text(there, there.lock)
    assert "builder" not in sbom.text(made, made.lock)


def layer_of(made: ImageReceipt, name: str, folder: Path) -> Layer:
    """Return a layer of an image as a plan has it, to lie in a folder."""
    key = next(layer.key for layer in made.layers if layer.name == name)
    return Layer(name=name, recipe="", key=key, image=place_of(folder, name, key))


@pytest.fixture
def layered(
    install_image: Callable[..., ImageReceipt], made: ImageReceipt, prefix: Prefix, folder: Path
) -> ImageReceipt:
    """An image of four layers, which went into a cache with it."""
    more = install_image(NAME, debian="d" * 64, build_1="1" * 64, build_2="2" * 64, image=KEY)
    assert made.lock
    parts = tuple(LockedPart(name=layer.name, recipe="cpu.def", sha256=layer.key) for layer in more.layers)
    changed = msgspec.structs.replace(made, layers=more.layers, lock=msgspec.structs.replace(made.lock, parts=parts))
    receipt.write(receipt.path_of(Tree(root=Path(made.tree)), NAME), changed)
    done = cache_push.push(prefix, NAME, Place(named=str(folder)), None, has_layers=True)
    assert [build.module for build in done.builds] == [
        NAME,
        *(f"{NAME}.{name}" for name in ("debian", "build-1", "build-2")),
    ]
    assert done.left_out == {}
    return changed


def below(layered: ImageReceipt, prefix: Prefix, stack: Stack, folder: Path, at: Path) -> FoundBuilds:
    """Return which layers a plan finds in a cache."""
    debian, *others = (layer_of(layered, name, at) for name in ("debian", "build-1", "build-2"))
    caches = Caches(places=(str(folder),), keys=(), unsigned=True)
    return cached.find_layers(Request(prefix=prefix), stack, [[debian], others], MACHINE, caches)


def test_of_layers_the_last_is_taken(
    layered: ImageReceipt, prefix: Prefix, stack: Stack, folder: Path, tmp_path: Path
) -> None:
    found = below(layered, prefix, stack, folder, tmp_path / "layers")
    assert {*found.taken} == {f"{NAME}.debian", f"{NAME}.build-2"}
    assert [line for line in lines(found) if line.startswith("Cache:")] == [
        f"Cache:    the layer {NAME}.{name} is taken from {folder}, not built here:" for name in ("debian", "build-2")
    ]
    said, last_one = io.StringIO(), layer_of(layered, "build-2", tmp_path / "layers")
    cached.take_layer(found, stack, last_one, Console(file=said, width=500))
    assert last_one.image.read_text() == NAME and f"Taken from {folder}: the layer build-2, built on" in said.getvalue()
    origin = cached.noted(last_one.image)
    assert origin and (origin.place, origin.id) == (str(folder), found.taken[f"{NAME}.build-2"].entry.id)
    assert {path.name for path in last_one.image.parent.iterdir()} == {
        last_one.image.name, note_of(last_one.image).name,
    }  # fmt: skip


def test_a_layer_before_the_last_is_taken_where_that_is_another(
    layered: ImageReceipt, prefix: Prefix, stack: Stack, folder: Path, tmp_path: Path
) -> None:
    """As with other patches for Horovod."""
    layers = list(layered.layers)
    layers[2] = msgspec.structs.replace(layers[2], key="f" * 64)
    changed = msgspec.structs.replace(layered, layers=tuple(layers))
    found = below(changed, prefix, stack, folder, tmp_path / "layers")
    assert {*found.taken} == {f"{NAME}.debian", f"{NAME}.build-1"}
    assert any(cached.OTHER in line for line in lines(found))


def test_a_damaged_layer_leaves_nothing(
    layered: ImageReceipt, prefix: Prefix, stack: Stack, folder: Path, tmp_path: Path
) -> None:
    found = below(layered, prefix, stack, folder, tmp_path / "layers")
    (folder / found.taken[f"{NAME}.build-2"].entry.manifest.object_name).write_bytes(b"x" * len(NAME))
    said, wanted = io.StringIO(), layer_of(layered, "build-2", tmp_path / "layers")
    cached.take_layer(found, stack, wanted, Console(file=said, width=500))
    assert "The layer build-2 is not taken from there." in said.getvalue()
    assert [*wanted.image.parent.iterdir()] == [] and cached.noted(wanted.image) is None


def test_which_layers_are_not_pushed(layered: ImageReceipt, prefix: Prefix, folder: Path) -> None:
    tree = Tree(root=Path(layered.tree))
    origin = receipt.Cached(place="/c", id="1" * 64, host="h", built="b", key="")
    layers = list(layered.layers)
    layers[0] = msgspec.structs.replace(layers[0], cached=origin)
    place_of(tree.layers, layers[1].name, layers[1].key).unlink()
    taken_one = msgspec.structs.replace(layered, layers=tuple(layers))
    receipt.write(receipt.path_of(tree, NAME), taken_one)
    done = cache_push.push(prefix, NAME, Place(named=str(folder)), None, has_layers=True)
    assert done.left_out == {
        "debian": f"It was taken {origin.shown}.",
        "build-1": f"It has gone. To build it again: envkit install {NAME} --rebuild",
    }
    assert taken_one.origin == f"the layer debian {origin.shown}"
    place_of(tree.layers, layers[2].name, layers[2].key).write_text("another")
    with pytest.raises(EnvironmentDamaged):
        cache_push.push(prefix, NAME, Place(named=str(folder)), None, has_layers=True)


def test_a_cache_tells_of_a_layer(
    layered: ImageReceipt, prefix: Prefix, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    id_of = {entry.manifest.module: entry.id for entry in contents.entries([Place(named=str(folder))])[0]}
    assert run(["cache", "show", id_of[f"{NAME}.build-1"], str(folder)]) == 0
    shown = capsys.readouterr().out
    assert f"Layer:    {NAME}.build-1" in shown and "Made of:  layer 11111111111111111111" in shown
    assert contents.prune(Place(named=str(folder)), 0, dry_run=False).removed == ()
