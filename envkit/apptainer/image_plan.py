"""What an image is made of: a recipe as layers, each an image that is kept, and the builds that make them."""

import hashlib
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from shlex import quote

import msgspec

from envkit.apptainer import definition_file
from envkit.apptainer.definition_file import Section
from envkit.errors import RecipeInvalid
from envkit.sources.fetch import Source
from envkit.system import process
from envkit.system.files import sha256, tree_sha256
from envkit.system.resources import recipes

OWN_ARGUMENTS = (
    "BOOTSTRAP",
    "BASE",
    "PIP",
    "JOBS",
    "PROBE",
)  # what a result does not depend on, or depends on by its key
PIN = re.compile(
    r"^(?P<name>[\w.-]+)={2,3}(?P<version>\S+)(?: ; platform_machine == \"(?P<machine>\w+)\")? "
    r"--hash=sha256:(?P<sha256>[0-9a-f]{64})  # (?P<file>\S+)$"
)
MIRROR_OF = re.compile(r"^MirrorURL: (\S+)$", re.MULTILINE)  # in a definition file
EXTRA_INDEX = re.compile(r"^--extra-index-url (\S+)$", re.MULTILINE)


class Base(msgspec.Struct, frozen=True, kw_only=True):
    """The start of an image: an image by digest of a registry, a file, or Debian from a mirror."""

    bootstrap: str
    reference: str


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """An image to build: its recipe, and a key that is another one when anything it is made of is.

    ``mirror`` is that which a Debian is made from. Any mirror has the same packages, so it changes no key.
    """

    name: str
    recipe: str
    key: str
    image: Path
    mirror: str = ""

    @property
    def shared_key(self) -> str:
        """The key that it has in caches."""
        return shared_key(self.key, self.mirror)


DEBIAN = "debian"  # the layer that others begin with, where it is made from a mirror
IMAGE = "image"  # the last
HOROVODS_PATCH = re.compile(r"Horovod-.*\.patch$")
DATED = r"/\d{8}T\d{6}Z"
MIRROR = rf"https?://[^\s@]+?/debian(?:{DATED})?"


class ImagePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The layers of an image in the order of building, the last being the image itself, and what pip takes."""

    layers: tuple[Layer, ...]
    sources: tuple[Source, ...]
    folder: Path
    snapshot: str = ""  # the date of the Debian that it starts from, where its mirror has one


@dataclass(frozen=True, kw_only=True)
class ImageRecipe:
    """A recipe with its arguments, and what an image of it starts from.

    ``own`` are the arguments that do not change the result, such as how many files are compiled at a time.
    """

    name: str
    recipe: str
    arguments: Mapping[str, str]
    own: Mapping[str, str]
    base: Base
    machine: str
    folder: Path = field(default_factory=lambda: recipes("containers"))

    @property
    def stages(self) -> tuple[definition_file.Stage, ...]:
        """The stages of the recipe."""
        return definition_file.read(self.folder / self.recipe)

    def values(self, stages: Sequence[definition_file.Stage]) -> dict[str, str]:
        """Return every argument with its value. Raises RecipeInvalid for one that the recipe does not take."""
        defaults = {name: value for stage in stages for name, value in stage.arguments.items()}
        for name in self.arguments:
            if name not in defaults or name in OWN_ARGUMENTS:
                free = ", ".join(sorted(defaults.keys() - set(OWN_ARGUMENTS)))
                fix = f"It takes: {free}. What it starts from is said by --base, how much at a time by --jobs."
                raise RecipeInvalid(what=f"{self.recipe} takes no argument {name}.", fix=fix)
        return {**defaults, **self.arguments, **self.own, "BASE": self.base.reference or defaults["BASE"]}


def shared_key(key: str, mirror: str) -> str:
    """Return the key that a layer has in caches: of a Debian the mirror counts, which what is built on it asks."""
    return hashlib.sha256(f"{key} {mirror}".encode()).hexdigest() if mirror else key


def place_of(layers: Path, name: str, key: str) -> Path:
    """Return where a layer lies in the folder of layers."""
    return layers / f"{name}-{key[:20]}.sif"


def note_of(layer: Path) -> Path:
    """Return where it is noted which cache a layer was taken from."""
    return layer.with_suffix(".json")


def plan(wanted: ImageRecipe, layers: Path) -> ImagePlan:
    """Return the layers of an image; each lies in the folder ``layers``, under its key.

    A base with bootstrap "debootstrap" names a mirror of Debian, of which a layer is made; one without a reference is
    the image by digest that the recipe names. Raises RecipeInvalid.
    """
    folder, stages = wanted.folder, wanted.stages
    values = wanted.values(stages)
    base, planned = Base(bootstrap=wanted.base.bootstrap, reference=values["BASE"]), list[Layer]()
    parent = f"{base.bootstrap} {base.reference}"
    if base.bootstrap == "localimage":
        parent = content(Path(base.reference))
    if base.bootstrap == "debootstrap":
        planned.append(debian(base.reference, values["RELEASE"], wanted.machine, layers))
        base, parent = Base(bootstrap="localimage", reference=str(planned[0].image)), planned[0].key
        values["BASE"] = "Debian"  # where its mirror is concerns nobody who gets the image
    for stage in stages:
        below, key = base, parent
        for number, sections in enumerate(stage.layers, start=1):
            is_image = stage is stages[-1] and number == len(stage.layers)
            more = [layer.key for layer in planned] if is_image else [wanted.machine]
            key = key_of(key, sections, values, folder, more)
            name = IMAGE if is_image else f"{stage.name}-{number}"
            path = place_of(layers, wanted.name if is_image else name, key)
            header = {"Bootstrap": below.bootstrap, "From": below.reference, "Stage": stage.name or "final"}
            parts = [(header, fill(sections, values))]
            if is_image and any(section.words.startswith("from ") for section in sections):
                earlier = {"Bootstrap": "localimage", "From": str(planned[-1].image), "Stage": stages[0].name}
                parts.insert(0, (earlier, []))
            planned.append(Layer(name=name, recipe=definition_file.write(parts), key=key, image=path))
            below = Base(bootstrap="localimage", reference=str(path))
    taken = tuple(sources(values, wanted.machine, folder))
    dated = snapshot(wanted.base.reference) if wanted.base.bootstrap == "debootstrap" else ""
    return ImagePlan(layers=tuple(planned), sources=taken, folder=folder, snapshot=dated)


def sources(values: Mapping[str, str], machine: str, folder: Path) -> Iterator[Source]:
    """Yield every file that pip takes while an image is built. Raises RecipeInvalid."""
    lists = [values[argument] for argument in ("WHEELS", "NVCC") if argument in values]
    lists += [f"horovod-{values['HOROVOD']}.txt"] if "HOROVOD" in values else []
    for name in lists:
        yield from pinned(folder / name, machine)


def rendered(wanted: ImageRecipe) -> str:
    """Return the recipe as one definition file for plain Apptainer, with every argument filled in.

    Raises RecipeInvalid.
    """
    folder, stages = wanted.folder, wanted.stages
    values = wanted.values(stages)
    base = {"Bootstrap": wanted.base.bootstrap, "From": values["BASE"]}
    before: list[Section] = []
    if wanted.base.bootstrap == "debootstrap":
        [stage] = definition_file.read(recipes("containers") / "debian.def")
        own = {**stage.arguments, "MIRROR": wanted.base.reference, "RELEASE": values["RELEASE"]}
        base = {name: definition_file.filled(value, own) for name, value in stage.header.items()}
        before = fill(stage.layers[0], own)
        values["BASE"] = "Debian"
    parts = []
    for stage in stages:
        sections = [section for layer in stage.layers for section in layer]
        filled = fill([definition_file.absolute(section, values, folder) for section in sections], values)
        parts.append(({**base, "Stage": stage.name}, [*before, *filled]))
    return definition_file.write(parts)


def debian(mirror: str, release: str, machine: str, layers: Path) -> Layer:
    """Return the layer that is a release of Debian from a mirror."""
    folder = recipes("containers")
    [stage] = definition_file.read(folder / "debian.def")
    values = {**stage.arguments, "MIRROR": mirror, "RELEASE": release}
    sections = stage.layers[0]
    more = [machine, *stage.header.values(), values["RELEASE"], *filter(None, [snapshot(mirror)])]
    key = key_of("debootstrap", sections, values, folder, more)
    header = {name: definition_file.filled(value, values) for name, value in stage.header.items()}
    text = definition_file.write([(header, fill(sections, values))])
    return Layer(name=DEBIAN, recipe=text, key=key, image=place_of(layers, DEBIAN, key), mirror=mirror)


def fill(sections: Iterable[Section], values: Mapping[str, str]) -> list[Section]:
    """Return sections with their arguments filled in."""
    return [Section(name=s.name, words=s.words, text=definition_file.filled(s.text, values)) for s in sections]


def key_of(
    parent: str, sections: Sequence[Section], values: Mapping[str, str], folder: Path, more: Sequence[str]
) -> str:
    """Return a SHA-256 of all that a layer is made of: what is below it, its recipe, the files that it copies.

    Of the patches for Horovod that it copies, those count that PATCHES names: no other is applied.
    """
    neutral = {**values, **dict.fromkeys(OWN_ARGUMENTS, "")}
    digest = hashlib.sha256("\0".join([parent, *more, *map(str, fill(sections, neutral))]).encode())
    applied = [f"Horovod-{values.get('HOROVOD')}_{name}.patch" for name in values.get("PATCHES", "").split()]
    for path, target in definition_file.copied(sections, values, folder):
        if "PATCHES" in values and HOROVODS_PATCH.match(path.name) and path.name not in applied:
            continue
        digest.update(f"\0{target}\0".encode())
        files = (
            sorted(entry for entry in path.rglob("*") if entry.is_file() and entry.suffix != ".pyc")
            if path.is_dir()
            else [path]
        )
        for file in files:
            digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()


def content(image: Path) -> str:
    """Return the SHA-256 of an image, a file or a folder. Raises RecipeInvalid."""
    try:
        return tree_sha256(image) if image.is_dir() else sha256(image)
    except OSError as error:
        raise RecipeInvalid(
            what=f"What is in {image} cannot be told: {error.filename or image} may not be read.",
            why=f"{error.strerror or error}. An image is known by the SHA-256 of all that is in it.",
            fix=f"Make a file of it, and give that: apptainer build FILE.sif {quote(str(image))}",
        ) from error


def pinned(path: Path, machine: str) -> Iterator[Source]:
    """Yield the files that a list of pins names for a machine type. Raises RecipeInvalid for a line without a pin."""
    try:
        text = path.read_text()
    except OSError as error:
        raise RecipeInvalid(
            what=f"There is no list of pins {path.name}.",
            why=str(error),
            fix=f"There are: {', '.join(sorted(pins.name for pins in path.parent.glob('*.txt')))}.",
        ) from error
    indexes = tuple(EXTRA_INDEX.findall(text))
    for line in text.splitlines():
        if not line or line.startswith(("#", "--")):
            continue
        match = PIN.match(line)
        if match is None:
            raise RecipeInvalid(what=f"{path.name} has a line without a pin.", why=line)
        if match["machine"] in (None, machine):
            yield Source(
                filename=match["file"],
                sha256=match["sha256"],
                project=match["name"],
                urls=indexes,
                needed_by=path.name,
            )


def build(
    runtime: Path,
    words: Sequence[str],
    layer: Layer,
    *,
    folder: Path,
    target: Path,
    log: Path,
    env: Mapping[str, str],
    binds: Sequence[tuple[Path, str]],
    watch: Callable[[], None],
) -> int:
    """Build a layer into ``target``; return Apptainer's exit status. ``folder`` is what relative paths start from."""
    recipe = log.with_name(f"{layer.name}.def")
    recipe.write_text(layer.recipe)
    argv = [str(runtime), "build", *words]
    argv += [word for source, place in binds for word in ("--bind", f"{source}:{place}")]
    return process.supervise([*argv, str(target), str(recipe)], env=env, log=log, cwd=folder, watch=watch)


def mirror(sources: Iterable[Path] | None = None) -> str | None:
    """Return the mirror of Debian that this host's own apt uses, None if it uses none, or names it with a password.

    Where it is gets into the image.
    """
    files = sources if sources is not None else apt_sources()
    for file in files:
        for line in file.read_text(errors="replace").splitlines():
            match = re.search(rf"^(?:deb |URIs:).*?({MIRROR})/?(?:\s|$)", line)
            if match:
                return match[1]
    return None


def snapshot(mirror: str) -> str:
    """Return the date of a mirror that is as Debian was then; nothing of one that changes."""
    match = re.search(DATED + "$", mirror)
    return match[0].strip("/") if match else ""


def apt_sources() -> list[Path]:
    """Return the files in which apt is told where packages are."""
    folder = Path("/etc/apt/sources.list.d")
    candidates = [Path("/etc/apt/sources.list"), *sorted(folder.glob("*.sources")), *sorted(folder.glob("*.list"))]
    return [path for path in candidates if path.is_file() and os.access(path, os.R_OK)]
