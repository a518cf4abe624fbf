"""The receipt of an image."""

import re
import shlex
from contextlib import suppress
from pathlib import Path
from typing import Self

import msgspec

from envkit.environments.environment import ContainerEnvironment
from envkit.environments.manifest import Damage, Measure
from envkit.environments.prefix import Tree
from envkit.environments.receipt import BuiltLayer, Cached, Receipt, kept_path, odd_text, write
from envkit.system import record
from envkit.system.files import identity, read, sha256


class SeenImage(msgspec.Struct, frozen=True, kw_only=True):
    """The file of an image as it was (``files.identity``) when it was last read, and its SHA-256 then."""

    identity: tuple[int, int, int, int]
    sha256: str


class ImageReceipt(Receipt, frozen=True, kw_only=True, tag_field="method", tag="apptainer"):
    """An image that Apptainer made, or took over from ``source``.

    ``sha256``, ``size`` (bytes) and ``changed`` (time in ns) are those of the file; of a sandbox they are empty.
    ``interpreter`` is its Python, ``built`` are the build flags, read when it was made.
    ``binds``, ``settings`` (variables inside) and ``srun`` (words for it) are what the site needs.
    ``pmix`` is the version of the image's PMIx library, ``libc`` that of its C library, as in "2.36".
    ``cached`` is the cache that it was taken from; null where it was built. ``arguments`` are those of its recipe that
    were given (--build-arg).
    """

    image: str
    sha256: str
    size: int
    changed: int
    runtime: str
    interpreter: str
    source: str
    layers: tuple[BuiltLayer, ...]
    built: msgspec.Raw
    pmix: str
    libc: str
    apptainer: str
    binds: tuple[str, ...] = ()
    settings: dict[str, str] = {}  # noqa: RUF012  (msgspec copies it)
    srun: tuple[str, ...] = ()
    cached: Cached | None = None
    arguments: dict[str, str] = {}  # noqa: RUF012

    @property
    def origins(self) -> dict[str, str]:
        """The caches that it, or layers below it, were taken from, in words."""
        taken = {layer.name: layer.cached for layer in self.layers} | {self.last_layer: self.cached}
        return {name: origin.shown for name, origin in taken.items() if origin}

    @property
    def origin(self) -> str:
        """The caches that something of it was taken from, in words; nothing where all was built."""
        return "; ".join(
            f"{'the image' if name == self.last_layer else f'the layer {name}'} {origin}"
            for name, origin in self.origins.items()
        )

    @property
    def last_layer(self) -> str:
        """The name of the layer that is the image itself."""
        return self.layers[-1].name if self.layers else ""

    @property
    def environment(self) -> ContainerEnvironment:
        """The way in."""
        return ContainerEnvironment(
            name=self.name,
            runtime=Path(self.runtime),
            image=Path(self.image),
            accelerator=self.accelerator,
            binds=self.binds,
            settings=tuple(self.settings.items()),
            srun=self.srun,
        )

    @property
    def names(self) -> tuple[str, ...]:
        """The names that the user may call it by."""
        return self.name, self.image

    @property
    def flags(self) -> bytes | None:
        """The build flags as JSON."""
        return bytes(self.built)

    @property
    def venv_refusal(self) -> str:
        """Why it can be used only by what is started in it."""
        seen = "its Python is seen only by what is started in it"
        return f"It is an image: {seen}, and what is added to it is part of it."

    @property
    def venv_alternative(self) -> str:
        """The advice where a virtual environment is wanted."""
        built_in = "Have the packages built into an image: 'envkit export' writes the recipe to add them to."
        other = "Or install an environment by EasyBuild ('envkit install --method easybuild'), which can."
        return f"{built_in} {other}"

    @property
    def is_image(self) -> bool:
        """Whether it is an image: yes."""
        return True

    def damage(self) -> str:
        """Say in what it is not what was installed; nothing if it is. The file is hashed only if it may have changed.

        That is where anything of it is another than when it was last hashed, the time that the kernel keeps included.
        """
        try:
            state = identity(Path(self.image).stat())
        except OSError:
            return f"its image {self.image} has gone"
        if not self.sha256 or self.seen() == SeenImage(identity=state, sha256=self.sha256):
            return ""
        if state[0] == self.size and sha256(Path(self.image)) == self.sha256:
            self.keep(state)
            return ""
        return f"its image {self.image} is not the one that was installed (SHA-256 {self.sha256})"

    def seen(self) -> SeenImage | None:
        """Return what its file was when it was last hashed, None if that was not kept."""
        with suppress(OSError, msgspec.DecodeError):
            return record.decode(read(kept_path(Tree(root=Path(self.tree)), self.name)), SeenImage)
        return None

    def keep(self, now: tuple[int, int, int, int]) -> None:
        """Keep what its file was before it was hashed, and found right; where that cannot be, it is hashed again."""
        with suppress(OSError):
            write(kept_path(Tree(root=Path(self.tree)), self.name), SeenImage(identity=now, sha256=self.sha256))

    def damaged(self, *, is_quick: bool = False) -> list[Damage]:
        """Return the image if it is not the one that was installed: read, or if quick only if its time differs."""
        if (lost := self.broken()) or not self.sha256:
            return [lost] if lost else []
        with suppress(OSError):
            if not self.damage() if is_quick else sha256(Path(self.image)) == self.sha256:
                return []
        return [Damage(module=self.name, path=self.image, how="changed")]

    def broken(self) -> Damage | None:
        """Return the image if it has gone or has another size."""
        with suppress(OSError):
            size = Path(self.image).stat().st_size
            fits = not self.sha256 or size == self.size
            return None if fits else Damage(module=self.name, path=self.image, how="changed")
        return Damage(module=self.name, path=self.image, how="gone")

    def measure(self) -> Measure:
        """Return that it is one file; a folder, which can be changed, is not compared."""
        is_file = int(bool(self.sha256))
        unlisted = () if is_file else (self.name,)
        return Measure(modules=is_file, files=is_file, size=self.size, unlisted=unlisted, behind=())

    def validation_error(self) -> str:
        """Say what in it cannot be."""
        places = [str(Path(self.tree) / "images" / f"{self.name}{kind}") for kind in ("", ".sif")]
        if self.image not in places:
            return f"Its image is {self.image!r}, which is not {places[1]}."
        odd = [layer.key for layer in self.layers if not re.fullmatch("[0-9a-f]{64}", layer.key)]
        return f"It names {odd[0]!r}." if odd else odd_text(self, [layer.name for layer in self.layers])

    def here(self, tree: Tree) -> Self:
        """Return it as one that lies in another tree than it was installed in."""
        return msgspec.structs.replace(super().here(tree), image=str(tree.images / Path(self.image).name))

    def described(self) -> dict[str, str]:
        """Return how it is called by hand, what the image is, and the cache that it was taken from."""
        from_cache = {"Taken": self.origin} if self.origin else {}
        return from_cache | {
            "By hand": shlex.join(self.environment.command(["python", "train.py"])),
            "Image": self.image,
            "Digest": f"sha256:{self.sha256}" if self.sha256 else "none, since it is a folder that can be changed",
            "Size": f"{self.size // 1_000_000} MB",
            "Made from": ", ".join([self.source, *(f"{name}={value}" for name, value in self.arguments.items())]),
            "PMIx": self.pmix or "none",
            "C library": f"glibc {self.libc}",
        }


RECEIPT = ImageReceipt
