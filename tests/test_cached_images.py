"""Images in a cache: what is pushed, which one a plan takes, and what happens with one that is damaged."""

import io
import json
import platform
import shutil
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
from envkit.apptainer.image_plan import ImagePlan, Layer, note_of, place_of
from envkit.apptainer.installation import ImageInstallation
from envkit.apptainer.receipt import ImageReceipt
from envkit.cache import contents, manifest, oci, unpack
from envkit.cache.manifest import Ci, Manifest, PackedFile
from envkit.cache.offers import NO_KEYS, FoundBuilds, lines
from envkit.cache.place import Caches, Place, SignedManifest
from envkit.cache.publishing import publish
from envkit.cli import run
from envkit.environments import filelocks, receipt
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.environments.prefix import Prefix, Tree
from envkit.errors import BuildFailed, CacheInvalid, EnvironmentDamaged, HostProblem, UsageProblem
from envkit.install import cache_pull, cache_push, cleaning, earlier, sbom
from envkit.machine.host import Host, Platform
from envkit.machine.runtime import Runtime
from envkit.planning import preflight
from envkit.planning.request import Request
from envkit.planning.stack import Stack, stacks
from envkit.report.progress import SILENT
from envkit.sources.fetch import Source
from envkit.system.files import sha256
from envkit.verify import last

from .conftest import Fake
from .integration.site import needs
from .test_cache import here
from .verify.test_report import report

NAME = "pytorch-2.13-cpu-image"
KEY = "a" * 64
MACHINE = platform.machine()
MIRROR = "http://mirror/debian"
BASE = "it was made from the Debian of a mirror, and here it would be from an image (--base mirror plans the former)"


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
    return cached.find(request, stack, [image], MACHINE, caches)


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
    assert not again.sent and not again.object_sent
    assert [one.state for one in contents.verified([entry.place], ()).builds] == ["unsigned"]
    assert contents.prune(entry.place, 0, dry_run=False).removed == ()


def test_what_can_sign_nothing_is_said(made: ImageReceipt, prefix: Prefix, folder: Path, tmp_path: Path) -> None:
    """A key that can sign nothing is as one that is not there, whatever it lacks."""
    needs("openssl")
    key = tmp_path / "key"
    key.write_text(f"-----BEGIN PUBLIC KEY-----\nMCowBQYDK2VwAyEA{'A' * 43}=\n-----END PUBLIC KEY-----\n")
    with pytest.raises(UsageProblem) as told:
        cache_push.push(prefix, made.name, Place(named=str(folder)), key)
    assert told.value.why == "It is a public key."
    key.write_text("root:x:0:0:root:/root:/bin/bash\n")
    with pytest.raises(UsageProblem) as told:
        cache_push.push(prefix, made.name, Place(named=str(folder)), key)
    assert told.value.why == "It is no private key in PEM."
    key.write_text("-----BEGIN PRIVATE KEY-----\nMC4CAQAwBQYDK2Vw\n-----END PRIVATE KEY-----\n")
    with pytest.raises(UsageProblem) as told:
        cache_push.push(prefix, made.name, Place(named=str(folder)), key)
    assert told.value.why == "It is cut off or damaged."
    with pytest.raises(UsageProblem, match="is no key: it is not a file"):
        cache_push.push(prefix, made.name, Place(named=str(folder)), tmp_path)
    for kind, words, why in (
        ("x25519", (), "Keys of its kind sign nothing."),
        ("ed25519", ("-aes256", "-pass", "pass:abc"), "It has a passphrase, for which envkit does not ask."),
    ):
        subprocess.run(["openssl", "genpkey", "-algorithm", kind, *words, "-out", key], check=True)
        with pytest.raises(UsageProblem) as told:
            cache_push.push(prefix, made.name, Place(named=str(folder)), key)
        assert (told.value.what, told.value.why) == (f"Nothing can be signed with {key}.", why)
        assert told.value.exit_code == 2 and "without a passphrase" in told.value.fix


@pytest.mark.parametrize(("mode", "is_told"), [(0o600, False), (0o640, True), (0o666, True)])
def test_a_private_key_that_others_can_use_is_told(
    mode: int, is_told: bool, made: ImageReceipt, prefix: Prefix, folder: Path, tmp_path: Path
) -> None:
    needs("openssl")
    key, said = tmp_path / "mine.pem", io.StringIO()
    subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
    key.chmod(mode)
    cache_push.push(prefix, made.name, Place(named=str(folder)), key, console=Console(file=said, width=400))
    told = f"Others can read or change {key} (mode {mode:o}), and so sign as you. Close it: chmod 600 {key}\n"
    assert (told in said.getvalue()) is is_told


@pytest.mark.parametrize("configured", [None, "own", "other"])
def test_a_key_that_signs_for_nobody_is_told(
    configured: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever has only the keys of the configuration takes nothing of it."""
    for name in ("own", "other"):
        key = tmp_path / f"{name}.pem"
        subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", key], check=True)
        subprocess.run(["openssl", "pkey", "-in", key, "-pubout", "-out", tmp_path / f"{name}.pub"], check=True)
    monkeypatch.setenv("ENVKIT_CACHE_KEYS", f"{tmp_path / configured}.pub,/nonexistent" if configured else "")
    said = io.StringIO()
    cache_push.tell_of_unknown(tmp_path / "own.pem", Console(file=said, width=400))
    assert ("None of the keys of your configuration" in said.getvalue()) == (configured == "other")


def test_a_push_says_what_it_sends_and_how_much(layered: ImageReceipt, prefix: Prefix, folder: Path) -> None:
    """The image first, and of nothing that is there already that it is sent."""
    said = io.StringIO()
    console = Console(file=said, width=400)
    cache_push.push(prefix, NAME, Place(named=str(folder)), None, console=console, has_layers=True)
    assert said.getvalue() == ""
    shutil.rmtree(folder / "objects")
    cache_push.push(prefix, NAME, Place(named=str(folder)), None, console=console, has_layers=True)
    size = Path(layered.image).stat().st_size
    assert said.getvalue().splitlines() == [f"Pushing {NAME}, {size} B", f"{NAME} is there after 0 s"]


def test_an_object_that_was_there_already_is_not_said_to_be_pushed(
    entry: SignedManifest, folder: Path, prefix: Prefix, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / f"manifests/{NAME}/{entry.id}.json").unlink()
    assert run(["cache", "push", NAME, "--prefix", str(prefix.root), "--to", str(folder), "--unsigned"]) == 0
    said = capsys.readouterr().out
    assert said.startswith(f"Pushed {NAME} to {folder}\n") and "Its object was there already, and was not sent." in said


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


def test_no_argument_that_is_kept_has_a_password(planned: Callable[..., ImageInstallation], tmp_path: Path) -> None:
    given = (("PIP", "--index-url=https://ada:hunter2@pip.example.org/simple"), ("JOBS", "4"))
    shown = planned(build_args=given).shown_arguments
    assert shown == {"PIP": "--index-url=https://***@pip.example.org/simple", "JOBS": "4"}
    assert planned(build_args=(("TOKEN", "hunter2"),), dockerfile=tmp_path / "Dockerfile").shown_arguments == {}


def test_images_of_other_arguments_are_told_apart(
    made: ImageReceipt, prefix: Prefix, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    changed = msgspec.structs.replace(made, arguments={"PATCHES": "cxx17 bfloat16"})
    assert changed.described()["Made from"] == f"{made.source}, PATCHES=cxx17 bfloat16"
    receipt.write(receipt.path_of(Tree(root=Path(made.tree)), NAME), changed)
    [done] = cache_push.push(prefix, NAME, Place(named=str(folder)), None).builds
    for words in (["list", str(folder)], ["show", done.id[:8], str(folder)]):
        assert run(["cache", *words]) == 0
        said = capsys.readouterr().out
        assert "PATCHES=" in said and "bfloat16" in said


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
        ({"key": "b" * 64}, BASE),
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
    assert [*cached.unfit(other, image, MACHINE, [image])] == [
        f"it is for machine type s390x, and here it is {MACHINE}"
    ]


def test_one_whose_code_this_cpu_does_not_run_does_not_fit(entry: SignedManifest) -> None:
    needs = msgspec.structs.replace(entry.manifest.needs, cpu=("no-such-feature",))
    other = replace(entry, manifest=msgspec.structs.replace(entry.manifest, needs=needs))
    image = Layer(name="image", recipe="", key=KEY.ljust(64, "0"), image=Path("/nowhere"))
    assert [*cached.unfit(other, image, MACHINE, [image])] == ["its code needs no-such-feature, which this CPU lacks"]


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
    found = cached.find(Request(prefix=prefix), stack, [image], MACHINE, caches)
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
    assert found.offers == () and "There is no such folder" in found.wrong[0] and found.none == ()


def test_a_cache_that_has_nothing_of_it_is_said_to_have_been_asked(
    planned: Callable[..., ImageInstallation], prefix: Prefix, stack: Stack, tmp_path: Path
) -> None:
    (empty := tmp_path / "empty").mkdir()
    assert [*lines(looked(prefix, stack, empty))] == [f"Cache:    {empty} has no build of this"]
    said = [line for line in planned(at=empty).heading() if line.startswith("Cache:")]
    assert said == [f"Cache:    {empty} has no build of this"]


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
        found = cached.find(Request(prefix=prefix), stack, [image], MACHINE, caches)
        [offer] = found.offers
        return found.taken != {}, offer.why_not

    none = "none of your keys ('cache.keys') has signed it"
    assert verdict("theirs") == verdict("mine", "theirs") == (True, ())
    assert verdict("mine") == (False, (none,))
    assert verdict() == (False, (NO_KEYS,))
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
        {"part": LockedPart(name="other-image", recipe="", sha256=KEY)},
    ],
)
def test_a_manifest_that_is_none_of_an_image_is_refused(entry: SignedManifest, changes: dict[str, Any]) -> None:
    content = manifest.packed(msgspec.structs.replace(entry.manifest, **changes), b"")
    with pytest.raises(ValueError, match="no manifest of a module or an image"):
        manifest.read(content)


def test_a_module_takes_no_image_for_one_of_its_builds(entry: SignedManifest, tmp_path: Path) -> None:
    with pytest.raises(CacheInvalid) as refused:
        unpack.take(entry, Tree(root=tmp_path), Path("/usr/bin/python3"), lambda: None, {})
    assert "Its manifest names" in refused.value.why


def test_it_is_copied_from_one_cache_into_another(entry: SignedManifest, folder: Path, tmp_path: Path) -> None:
    new = tmp_path / "new"
    new.mkdir()
    caches = Caches(places=(str(folder),), keys=(), unsigned=True)
    done = cache_pull.copied(
        [entry], Place(named=str(new)), caches, replace(here(), machine=MACHINE, python="3.99"), {}, SILENT
    )
    assert done.state == "copied"
    assert (new / entry.manifest.object_name).read_bytes() == (folder / entry.manifest.object_name).read_bytes()
    other = cache_pull.copied([entry], Place(named=str(new)), caches, replace(here(), machine="s390x"), {}, SILENT)
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
    install_image: Callable[..., ImageReceipt], made: ImageReceipt, prefix: Prefix, folder: Path, fake: Fake
) -> ImageReceipt:
    """An image of four layers, which went into a cache with it; its apptainer writes what it is to build from."""
    apptainer = fake(
        "apptainer",
        f'[ "$1" != inspect ] || exec echo "MirrorURL: {MIRROR}"\nshift $(($# - 2)); echo "built: $(cat "$2")" >"$1"',
    )
    more = install_image(NAME, debian="d" * 64, build_1="1" * 64, build_2="2" * 64, image=KEY)
    assert made.lock
    parts = tuple(LockedPart(name=layer.name, recipe="cpu.def", sha256=layer.key) for layer in more.layers)
    lock = msgspec.structs.replace(made.lock, parts=parts)
    changed = msgspec.structs.replace(made, layers=more.layers, lock=lock, runtime=str(apptainer))
    receipt.write(receipt.path_of(Tree(root=Path(made.tree)), NAME), changed)
    done = cache_push.push(prefix, NAME, Place(named=str(folder)), None, has_layers=True)
    assert [build.module for build in done.builds] == [
        NAME,
        *(f"{NAME}.{name}" for name in ("debian", "build-1", "build-2")),
    ]
    assert done.left_out == {}
    return changed


@pytest.fixture
def planned(
    layered: ImageReceipt, stack: Stack, folder: Path, machine: Callable[..., Host], tmp_path: Path
) -> Callable[..., ImageInstallation]:
    """Plan the same image in another prefix."""
    prefix = Prefix(root=tmp_path / "other")
    prefix.create()
    tree = prefix.tree(Platform.own())

    def plan(
        unsigned: bool = True, keys: tuple[str, ...] = (), at: Path = folder, mirror: str = MIRROR, **changes: Any
    ) -> ImageInstallation:
        layers = tuple(
            Layer(
                name=one.name, recipe=f"{one.name} {'--find-links=/mnt' if one.name.startswith('build-') else ''}",
                key=one.key, image=place_of(tree.layers, NAME if one.name == "image" else one.name, one.key),
                mirror=mirror if one.name == "debian" else "",
            )
            for one in layered.layers
        )  # fmt: skip
        wheels = tuple(Source(filename=f"{name}.whl", sha256="0" * 64, needed_by="") for name in ("torch", "numpy"))
        return ImageInstallation(
            request=replace(Request(prefix=prefix), **changes), stack=msgspec.structs.replace(stack, disk_mb=0),
            host=machine(machine=MACHINE),
            runtime=Runtime(path=Path(layered.runtime), family="apptainer", version="1.4.5"),
            plan=ImagePlan(layers=layers, sources=wheels, folder=tmp_path), tree=tree,
            caches=Caches(places=(str(at),), keys=keys, unsigned=unsigned),
        )  # fmt: skip

    return plan


def build(work: ImageInstallation, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Build it, as far as no cache has it; return what was said, and how many files were to be fetched."""
    said = io.StringIO()
    monkeypatch.setattr(
        "envkit.apptainer.installation.fetch_all", lambda sources, *_: said.write(f"Fetching {len(sources)} files\n")
    )
    (logs := tmp_path / "logs").mkdir(exist_ok=True)
    work.build(logs, Console(file=said, width=500))
    return said.getvalue()


def there(work: ImageInstallation) -> dict[str, str]:
    """Return the layers that lie there, and how they came there."""
    return {
        layer.name: "taken" if cached.is_noted(layer.image) else layer.image.read_text().partition(":")[0]
        for layer in work.plan.layers
        if layer.image.exists()
    }


TAKEN = {"debian": "taken", "build-2": "taken", "image": "built"}
BUILT = {"debian": "built", "build-1": "built", "build-2": "built", "image": "built"}


def test_of_layers_the_last_is_taken(
    planned: Callable[..., ImageInstallation], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    work = planned(sandbox=True)
    assert (work.taken_below, work.missing) == (["debian", "build-2"], ["debian", "build-2", "image"])
    assert [line for line in work.heading() if line.startswith("Cache:")] == [
        f"Cache:    the layer {NAME}.{name} is taken from {folder}, not built here:" for name in ("debian", "build-2")
    ]
    id_of = work.found.taken[f"{NAME}.build-2"].entry.id
    said = build(work, tmp_path, monkeypatch)
    assert f"Taken from {folder}: the layer build-2, built on" in said
    assert there(work) == TAKEN
    last_one = work.plan.layers[2].image
    origin = cached.noted(last_one)
    assert last_one.read_text() == NAME and origin and (origin.place, origin.id) == (str(folder), id_of)


def test_what_is_still_to_be_taken_is_not_said_to_be_in_place(
    planned: Callable[..., ImageInstallation], tmp_path: Path
) -> None:
    """After Ctrl-C while a layer was being copied, when only its note was there."""
    work, said = planned(sandbox=True), io.StringIO()
    debian, _, build_2, _ = work.plan.layers
    debian.image.parent.mkdir(parents=True)
    debian.image.write_text("built: here")
    note_of(build_2.image).write_text("{}")
    receipt.begin(work.tree, NAME, "fetching", tmp_path)
    earlier.say_resumed(work, Console(file=said, width=500))
    assert said.getvalue().endswith("2 of 4 layers are in place; left: build-2, image.\n")
    assert "1 of 4 layers to build" in "\n".join(work.listing())


def test_an_image_that_was_taken_already_needs_no_room(
    planned: Callable[..., ImageInstallation], folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only the verification is left then; before that the room of the image is asked for, not of a build."""
    work = planned()
    work = replace(work, stack=msgspec.structs.replace(work.stack, disk_mb=4000))
    assert work.offer
    size = work.offer.entry.manifest.size
    assert work.share_to_take == size / 4e9
    monkeypatch.setattr(preflight, "room", lambda _: (0, None))
    image = cached.taken_to(work.tree.layers, work.offer)
    image.parent.mkdir(parents=True)
    image.write_text("the image")
    assert [problem.what for problem in work.problems() if "MB free" in problem.what] == []


def test_a_layer_before_the_last_is_taken_where_that_is_another(
    planned: Callable[..., ImageInstallation], layered: ImageReceipt
) -> None:
    """As with other patches for Horovod."""
    work = planned(sandbox=True)
    other = msgspec.structs.replace(work.plan.layers[2], key="f" * 64)
    layers = (*work.plan.layers[:2], other, work.plan.layers[3])
    work = replace(work, plan=msgspec.structs.replace(work.plan, layers=layers))
    assert (work.taken_below, work.missing) == (["debian", "build-1"], ["debian", "build-1", "build-2", "image"])
    assert any("its layer build-2 has another recipe" in line for line in lines(work.looked_below))


def test_what_a_build_leaves_in_its_temporary_folder_goes_with_it(
    planned: Callable[..., ImageInstallation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A build that is killed cannot tidy up: what pip left in /var/tmp was in the machine's own."""
    (place := tmp_path / "scratch").mkdir()
    monkeypatch.setenv("APPTAINER_TMPDIR", str(place))
    work = planned(rebuild=True)
    assert work.runtime
    here = 'at=${word%:/var/tmp}; echo left >"$at/pip-build"; ls -ld "$at"'
    find = f"for word; do case $word in *:/var/tmp) {here};; esac; done"
    work.runtime.path.write_text(f"#!/bin/sh\n{find} >{tmp_path}/seen\nexit 1\n")
    with pytest.raises(BuildFailed):
        build(work, tmp_path, monkeypatch)
    seen = (tmp_path / "seen").read_text()
    assert seen.startswith("drwxrwxrwt") and f" {place}/envkit-build-" in seen
    assert [*place.iterdir()] == []


def spoil(folder: Path, name: str) -> None:
    """Change the object of an image or a layer in a cache."""
    [entry] = [entry for entry in contents.entries([Place(named=str(folder))])[0] if entry.manifest.module == name]
    (folder / entry.manifest.object_name).write_bytes(b"x" * entry.manifest.size)


@pytest.fixture
def apart(layered: ImageReceipt, prefix: Prefix, folder: Path) -> ImageReceipt:
    """That image, whose layers are files of their own, and its cache."""
    tree, layers = Tree(root=Path(layered.tree)), list(layered.layers)
    for number, layer in enumerate(layers[:-1]):
        path = place_of(tree.layers, layer.name, layer.key)
        path.write_text(layer.name)
        layers[number] = msgspec.structs.replace(layer, sha256=sha256(path))
    changed = msgspec.structs.replace(layered, layers=tuple(layers))
    receipt.write(receipt.path_of(tree, NAME), changed)
    shutil.rmtree(folder)
    folder.mkdir()
    cache_push.push(prefix, NAME, Place(named=str(folder)), None, has_layers=True)
    return changed


def test_where_the_image_is_damaged_its_layers_are_taken(
    apart: ImageReceipt, planned: Callable[..., ImageInstallation], folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    work = planned()
    assert work.missing == ["image"] and work.is_taken and work.looked_below == FoundBuilds()
    spoil(folder, NAME)
    said = build(work, tmp_path, monkeypatch)
    assert "The image is not taken from there. 'envkit cache verify" in said and "Building 1 of 4 layers" in said
    assert f"A build in the cache {folder} cannot be used." in said and "The cache" not in said
    assert there(work) == TAKEN and work.taken == [] and "Fetching 0 files" in said


def test_where_the_image_is_damaged_and_there_are_no_layers_all_is_built(
    apart: ImageReceipt, planned: Callable[..., ImageInstallation], folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    spoil(folder, NAME)
    for path in folder.glob(f"manifests/{NAME}.*"):
        shutil.rmtree(path)
    work = planned()
    assert work.is_taken
    assert "Fetching 2 files" in build(work, tmp_path, monkeypatch)
    assert there(work) == BUILT


def test_where_the_last_layer_is_damaged_the_one_before_is_taken(
    apart: ImageReceipt, planned: Callable[..., ImageInstallation], folder: Path, tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    work = planned(sandbox=True)
    assert work.to_fetch == ()
    spoil(folder, f"{NAME}.build-2")
    said = build(work, tmp_path, monkeypatch)
    assert "The layer build-2 is not taken from there." in said
    assert there(work) == {**TAKEN, "build-1": "taken", "build-2": "built"} and "Fetching 2 files" in said
    assert work.plan.layers[1].image.read_text() == "build-1"


def test_a_damaged_layer_leaves_nothing(
    apart: ImageReceipt, planned: Callable[..., ImageInstallation], folder: Path, tmp_path: Path
) -> None:
    work = planned(sandbox=True)
    spoil(folder, f"{NAME}.build-2")
    layer, said = work.plan.layers[2], io.StringIO()
    assert not cached.take_layer(work.offers_of([layer]), layer, Console(file=said, width=500))
    assert "The layer build-2 is not taken from there." in said.getvalue()
    assert [*layer.image.parent.iterdir()] == [] and cached.noted(layer.image) is None


@pytest.mark.parametrize("changes", [{"rebuild": True}, {"again": (NAME,)}, {"unsigned": False, "keys": ("/k.pub",)}])
def test_what_came_from_a_cache_is_built_again(
    changes: dict[str, Any], planned: Callable[..., ImageInstallation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where that is asked for, and where nobody's key has signed it who counts now."""
    build(planned(sandbox=True), tmp_path, monkeypatch)
    assert planned().left() == []  # the image as it was left, which is to be verified
    work = planned(**changes)
    assert work.missing == ["debian", "build-1", "build-2", "image"]
    said = build(work, tmp_path, monkeypatch)
    assert there(work) == BUILT and "Building 4 of 4 layers" in said
    assert planned(**changes).left() == [] and not any(map(cached.is_noted, work.tree.layers.glob("*.sif")))


def test_by_whose_key_a_layer_that_lies_there_was_taken(
    planned: Callable[..., ImageInstallation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(planned(sandbox=True), tmp_path, monkeypatch)
    for layer in planned().plan.layers[:3]:
        if origin := cached.noted(layer.image):
            note_of(layer.image).write_bytes(msgspec.json.encode(msgspec.structs.replace(origin, key="/theirs.pub")))
    assert planned(unsigned=False, keys=("/mine.pub", "/theirs.pub")).left() == []
    assert planned(unsigned=True).left() == []
    assert len(planned(unsigned=False, keys=("/mine.pub",)).left()) == 4
    note_of(planned().plan.layers[0].image).write_text("{")  # whose it was cannot be told
    assert [layer.name for layer in planned(unsigned=False, keys=("/theirs.pub",)).left()] == ["debian", "image"]


def test_what_was_built_on_a_layer_from_a_cache_goes_with_it(
    planned: Callable[..., ImageInstallation], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where the build that takes its place fails."""
    shutil.rmtree(folder / f"manifests/{NAME}.build-2")
    first = planned(sandbox=True)
    debian, _, build_2, _ = first.plan.layers
    build(first, tmp_path, monkeypatch)
    assert there(first) == {"debian": "taken", "build-1": "taken", "build-2": "built", "image": "built"}
    note_of(debian.image).unlink()  # that one was built here
    work = planned(rebuild=True)
    assert work.missing == ["build-1", "build-2", "image"]
    broken = work.runtime
    assert broken
    broken.path.write_text("#!/bin/sh\nexit 1\n")
    with pytest.raises(BuildFailed):
        build(work, tmp_path, monkeypatch)
    assert {*there(work)} == {"debian"}
    assert not build_2.image.exists() and work.missing == ["build-1", "build-2", "image"]


def test_what_was_built_on_a_debian_that_was_cleaned_away_is_built_again(
    planned: Callable[..., ImageInstallation], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Debian is built anew then, without the note that says where the other was from."""
    for name in ("build-1", "build-2"):
        shutil.rmtree(folder / f"manifests/{NAME}.{name}")
    first = planned(sandbox=True)
    build(first, tmp_path, monkeypatch)
    assert there(first) == {"debian": "taken", "build-1": "built", "build-2": "built", "image": "built"}
    debian = first.plan.layers[0].image
    assert cleaning.layer_away(first.request.prefix, debian) and not debian.exists() and cached.is_noted(debian)
    assert [layer.name for layer in planned().left()] == ["debian", "build-1", "build-2", "image"]


def test_a_layer_that_was_cleaned_away_is_not_forgotten(
    planned: Callable[..., ImageInstallation], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was built on it counts as long as it would."""
    shutil.rmtree(folder / f"manifests/{NAME}.build-2")
    first = planned(sandbox=True)
    build(first, tmp_path, monkeypatch)
    cleaning.layer_away(first.request.prefix, first.plan.layers[1].image)
    assert planned().refused == []
    assert "build-2" in [layer.name for layer in planned(unsigned=False, keys=("/k.pub",)).refused]


def test_layers_that_are_to_go_stay_while_another_installation_is_under_way(
    planned: Callable[..., ImageInstallation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(planned(sandbox=True), tmp_path, monkeypatch)
    work = planned(rebuild=True)
    before = there(work)
    with (
        filelocks.held(work.tree, "stack-other", Console(), ""),
        pytest.raises(HostProblem, match="while another installation is under way") as refused,
    ):
        build(work, tmp_path, monkeypatch)
    assert "debian" in refused.value.why and there(work) == before


def test_a_manifest_that_calls_a_layer_an_image_is_not_taken_for_either(
    layered: ImageReceipt, planned: Callable[..., ImageInstallation], folder: Path
) -> None:
    """Whoever writes a manifest does not decide whether what is taken is noted."""
    place = Place(named=str(folder))
    [entry] = [one for one in contents.entries([place])[0] if one.manifest.module == f"{NAME}.build-2"]
    entry = place.entry(f"{NAME}.build-2/{entry.id}.json")
    forged = renamed(entry.manifest, f"{NAME}.build-2")
    (folder / f"manifests/{NAME}.build-2/{entry.id}.json").write_bytes(manifest.packed(forged, b""))
    work = planned(sandbox=True)
    assert work.taken_below == ["debian", "build-1"]
    assert [offer.why_not for offer in work.offers_of([work.plan.layers[2]]).offers] == [(cached.OTHER,)]
    with pytest.raises(ValueError, match="no manifest of a module or an image"):
        manifest.read(manifest.packed(renamed(entry.manifest, "other"), b""))


def renamed(of: Manifest, stack: str) -> Manifest:
    """Return a manifest that says that it is of another stack."""
    lock = msgspec.structs.replace(of.provenance.lock, name=stack)
    return msgspec.structs.replace(of, provenance=msgspec.structs.replace(of.provenance, lock=lock))


def test_a_cache_that_fails_is_asked_once_and_told_once(
    planned: Callable[..., ImageInstallation], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, names = list[str](), Place.names

    def counted(place: Place, wrong: list[CacheInvalid] | None = None) -> list[str]:
        asked.append(place.named)
        return names(place, wrong)

    monkeypatch.setattr(Place, "names", counted)
    work = planned(at=tmp_path / "none")
    [line] = [line for line in work.heading() if line.startswith("Cache:")]
    assert "There is no such folder" in line and len(asked) == 1
    assert [f"Cache:    {problem}" for problem in work.cache_problems] == [line]
    said = build(work, tmp_path, monkeypatch)
    assert said.count(f"{work.found.wrong[0]} It is left out.") == 1 and len(asked) == 1


def test_what_is_wrong_with_a_layer_in_a_cache_is_said(
    planned: Callable[..., ImageInstallation], folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    [path] = folder.glob(f"manifests/{NAME}.build-2/*.json")
    path.write_text("{")
    work = planned(sandbox=True)
    assert work.taken_below == ["debian", "build-1"]
    assert any(f"The manifest {NAME}.build-2/{path.name} cannot be read" in problem for problem in work.cache_problems)
    said = build(work, tmp_path, monkeypatch)
    assert said.count(f"The manifest {NAME}.build-2/{path.name} cannot be read") == 1


def test_nothing_is_offered_where_nothing_is_left_to_do(planned: Callable[..., ImageInstallation]) -> None:
    assert [one.taken for one in planned().offered] == [True]
    work = planned()
    work.image.image.parent.mkdir(parents=True)
    work.image.image.write_text("built: here")
    assert work.missing == [] and work.offered == [] and work.looked == FoundBuilds()


def test_wheels_are_fetched_only_for_a_layer_that_takes_them(planned: Callable[..., ImageInstallation]) -> None:
    """The whole list of them stays that of the plan, which is what goes into a bundle."""
    taken = planned(sandbox=True, offline=True)
    assert (len(taken.sources), taken.to_fetch) == (2, ())
    assert not any("torch.whl" in problem.what for problem in taken.problems())
    built = planned(rebuild=True, offline=True)
    assert built.to_fetch == built.sources
    assert any("torch.whl" in problem.what for problem in built.problems())
    assert "0 of 0 files to fetch" in "\n".join(taken.listing())


def test_which_layers_are_not_pushed(layered: ImageReceipt, prefix: Prefix, folder: Path) -> None:
    tree = Tree(root=Path(layered.tree))
    origin = receipt.Cached(place="/c", id="1" * 64, host="h", built="b", key="")
    layers = list(layered.layers)
    layers[0] = msgspec.structs.replace(layers[0], cached=origin)
    place_of(tree.layers, layers[1].name, layers[1].key).unlink()
    taken_one = msgspec.structs.replace(layered, layers=tuple(layers))
    receipt.write(receipt.path_of(tree, NAME), taken_one)
    assert left_out(prefix, folder) == {
        "debian": f"It was taken {origin.shown}.",
        "build-1": "It has gone; build-2, which was built on it, takes its place.",
    }
    assert taken_one.origin == f"the layer debian {origin.shown}"
    last_one = place_of(tree.layers, layers[2].name, layers[2].key)
    last_one.write_text("another")
    why = f"It is not what {NAME} was built on: it was built anew, or is damaged."
    assert left_out(prefix, folder)["build-2"] == why
    last_one.unlink()
    again = f"envkit install {NAME} --rebuild --prefix {prefix.root}"
    gone = f"It has gone. To build it again: {again}"
    assert {name: why for name, why in left_out(prefix, folder).items() if name != "debian"} == {
        "build-1": gone, "build-2": gone,
    }  # fmt: skip
    layers[0] = msgspec.structs.replace(layers[0], cached=None, sha256="")  # as of an earlier envkit
    receipt.write(receipt.path_of(tree, NAME), msgspec.structs.replace(layered, layers=tuple(layers)))
    unsaid = f"The receipt does not say which file it was. To build on it again: {again}"
    assert left_out(prefix, folder)["debian"] == unsaid


def left_out(prefix: Prefix, folder: Path) -> dict[str, str]:
    """Push an image with its layers; return which layers were not pushed, and why."""
    return cache_push.push(prefix, NAME, Place(named=str(folder)), None, has_layers=True).left_out


def test_a_plan_says_in_what_an_image_differs(
    planned: Callable[..., ImageInstallation], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The base first: who has no debootstrap plans another one."""

    def why(work: ImageInstallation, **keys: str) -> str:
        layers = tuple(
            msgspec.structs.replace(one, key=keys.get(one.name.replace("-", "_"), one.key))
            for one in work.plan.layers
            if keys.get(one.name) != ""
        )
        changed = replace(work, plan=msgspec.structs.replace(work.plan, layers=layers))
        [offer] = [offer for offer in changed.found.offers if offer.entry.manifest.module == NAME]
        return offer.why_not[0]

    monkeypatch.setattr(cached, "__version__", "0.1.0")
    other = "f" * 64
    former = "it was made from the Debian of a mirror, and here it would be from an image"
    assert why(planned(), debian="", build_1=other, image=other) == f"{former} (--base mirror plans the former)"
    assert "of another release" in why(planned(), debian=other, build_1=other, image=other)
    same = "has another recipe, other arguments or files"
    assert why(planned(), build_2=other, image=other).startswith(f"its layer build-2 {same}")
    assert why(planned(), image=other).startswith(f"the image itself {same}")
    monkeypatch.setattr(cached, "__version__", "77")
    assert why(planned(), image=other).endswith("and this is 77)")


def test_a_debian_of_another_mirror_is_built(planned: Callable[..., ImageInstallation]) -> None:
    """What is built on it takes packages from there."""
    work = planned(mirror="http://other/debian", sandbox=True)
    assert (work.taken_below, work.missing) == (["build-2"], ["debian", "build-2", "image"])
    why = f"{NAME}.debian: it is from another mirror of Debian than http://other/debian (--base URL names one)"
    assert any(line.startswith("Cache:    not ") and line.endswith(why) for line in work.heading())


def test_a_debian_that_does_not_say_its_mirror_is_not_pushed(
    layered: ImageReceipt, prefix: Prefix, folder: Path
) -> None:
    Path(layered.runtime).write_text("#!/bin/sh\nexit 1\n")
    [(name, why)] = left_out(prefix, folder).items()
    assert name == "debian" and why.startswith("Which mirror it is from cannot be read in ")


def test_from_a_ci_layers_stay_that_the_image_was_not_built_on(
    layered: ImageReceipt, planned: Callable[..., ImageInstallation], prefix: Prefix, folder: Path, tmp_path: Path
) -> None:
    """The image was taken from there, by a job that has layers of an earlier build."""
    place = Place(named=str(folder))
    [entry] = [one for one in contents.entries([place])[0] if one.manifest.module == NAME]
    origin = receipt.Cached(place=str(folder), id=entry.id, host="h", built="b", key="")
    receipt.write(receipt.path_of(Tree(root=Path(layered.tree)), NAME), msgspec.structs.replace(layered, cached=origin))
    before, job = place.names(), Ci(kind="GitHub", repository="r", commit="c", run="u")
    done = cache_push.push(prefix, NAME, place, None, job, has_layers=True)
    assert [(build.module, build.sent) for build in done.builds] == [(NAME, False)] and place.names() == before
    assert {*done.left_out.values()} == {f"The image itself was taken {origin.shown}, and not built on it."}
    work, said = planned(), Console(file=io.StringIO())
    for layer in work.plan.layers[:-1]:
        layer.image.parent.mkdir(parents=True, exist_ok=True)
        layer.image.write_text("built: here")
    assert all(work.built(layer).sha256 for layer in work.plan.layers[:-1])
    taken = cached.take(work.looked, tmp_path / "layers", said)
    assert taken
    work.taken.append(taken)
    assert not any(work.built(layer).sha256 for layer in work.plan.layers[:-1])


def test_a_folder_is_not_pushed(layered: ImageReceipt, prefix: Prefix, folder: Path) -> None:
    receipt.write(
        receipt.path_of(Tree(root=Path(layered.tree)), NAME), msgspec.structs.replace(layered, sha256="", size=0)
    )
    with pytest.raises(UsageProblem) as refused:
        left_out(prefix, folder)
    assert "--sandbox" in refused.value.why and "without --sandbox" in refused.value.fix


def test_names_are_looked_at_before_anything_is_sent(
    layered: ImageReceipt, prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A tag has 128 characters, 65 of which are for the key."""
    monkeypatch.setattr(oci, "LONGEST", 65 + len(NAME))
    assert oci.refuses(NAME) == "" and f"at most {len(NAME)} letters" in oci.refuses(f"{NAME}.build-2")
    monkeypatch.setattr(oci, "Reached", lambda _: pytest.fail("the registry was asked"))
    with pytest.raises(HostProblem, match=rf"^{NAME}\.debian cannot be put into oci://host/cache\.$") as refused:
        cache_push.push(prefix, NAME, Place(named="oci://host/cache"), None, has_layers=True)
    assert "shorter name" in refused.value.fix


def test_a_cache_tells_of_a_layer(
    layered: ImageReceipt, prefix: Prefix, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    id_of = {entry.manifest.module: entry.id for entry in contents.entries([Place(named=str(folder))])[0]}
    assert run(["cache", "show", id_of[f"{NAME}.build-1"], str(folder)]) == 0
    shown = capsys.readouterr().out
    assert f"Layer:    {NAME}.build-1" in shown and "Made of:  layer 11111111111111111111, cpu.def\n" in shown
    assert "Inside:" not in shown
    assert run(["cache", "list", str(folder), "--json"]) == 0
    assert {build["module"]: build["layer"] for build in json.loads(capsys.readouterr().out)["builds"]} == {
        name: name != NAME for name in id_of
    }
    assert contents.prune(Place(named=str(folder)), 0, dry_run=False).removed == ()
