"""The manifest of an object in a cache: what it was made from, what it needs, who has built it, and its files.

A manifest lies in one file together with its signature, so that one is never there without the other. Its name is a
digest of what counts (``key``), so that the same build is there once.
"""

import base64
import hashlib
import re
from collections.abc import Mapping
from functools import cache
from typing import Annotated, Any, Literal

import msgspec

from envkit.cache.layout import object_of
from envkit.environments.lockfile import Lock, LockedPart
from envkit.environments.name_syntax import is_module, is_name
from envkit.environments.receipt import Mpi
from envkit.system import record, toml
from envkit.system.resources import data

MOST = 8_000_000  # bytes of the file of a manifest
Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$")]
VERSION = re.compile(r"\d{1,9}(\.\d{1,9}){0,5}", re.ASCII)
PREFIX = b"@ENVKIT_PREFIX@"  # stands in packed texts and links for the prefix


@cache
def rules() -> dict[str, Any]:
    """Return what is known of objects."""
    return toml.read(data("cache/cache.toml"), toml.Tables)


class PackedFile(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A file as it is packed; of a link, where it leads. ``places``: how often the prefix stands in it."""

    size: int = 0
    sha256: str = ""
    is_program: bool = False
    link: str = ""
    places: int = 0


class WheelFiles(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The files of a wheel: all but some of them lie below a ``folder``, as they are in it."""

    folder: str
    without: tuple[str, ...] = ()


class Needs(msgspec.Struct, frozen=True, kw_only=True):
    """The needs that a machine must meet: ``versions`` of symbols by name (GLIBC), ``cpu`` as /proc/cpuinfo names it.

    ``mpi_library`` is the library of MPI that is loaded, ``syntax`` that of the module file, ``recipes`` the SHA-256 of
    the recipe of each module that it was linked with, ``load`` the site modules that were loaded. What is made of
    wheels has no MPI. An image needs its type of machine and the device; its Python and MPI are those inside.
    ``tools`` are those of the machine that a module stands for: "PATH VERSION" by name.
    """

    machine: str
    python: str
    suffix: str
    accelerator: str
    mpi: Mpi
    mpi_library: str
    versions: dict[str, str]
    cpu: tuple[str, ...]
    syntax: str
    recipes: dict[str, str]
    load: tuple[str, ...] = ()
    tools: dict[str, str] = {}


class Ci(msgspec.Struct, frozen=True, kw_only=True):
    """The job of a CI that pushed it: GitHub or GitLab, the repository and the run by their URLs, the commit."""

    kind: str
    repository: str
    commit: str
    run: str


class Provenance(msgspec.Struct, frozen=True, kw_only=True):
    """Who built it: the host, when, with which envkit, from which lock; the report of the verification that passed.

    ``ci`` is the job that it was pushed from by ``--from-ci``. ``arguments`` are those that the recipe of an image was
    given.
    """

    host: str
    built: str
    envkit: str
    easybuild: str
    environment: str
    lock: Lock
    verdict: msgspec.Raw
    ci: Ci | None = None
    arguments: dict[str, str] = {}


class Manifest(msgspec.Struct, frozen=True, kw_only=True):
    """The facts about an object, a tar file under zstd; ``size`` is that of the file, ``unpacked`` of what is in it.

    ``wheels`` are the rest of a module, by their SHA-256: what is from them is not in the object. Of an image it is the
    image itself. Its ``part`` has the name of the stack, and as SHA-256 the key of its last layer, which stands for all
    that it is made of. The same holds for a layer below an image (``layer_name``); of a Debian the mirror counts, too.
    """

    version: Literal[1] = 1
    part: LockedPart
    needs: Needs
    sha256: Sha256
    size: int
    unpacked: int
    provenance: Provenance
    files: dict[str, PackedFile]
    wheels: dict[Sha256, WheelFiles] = {}

    @property
    def module(self) -> str:
        """The module that it is; of an image the stack."""
        return self.part.name

    @property
    def is_image(self) -> bool:
        """Whether it is an image, and no module."""
        return "/" not in self.part.name

    @property
    def is_layer(self) -> bool:
        """Whether it is a layer that an image was built on."""
        return self.is_image and self.part.name != self.provenance.lock.name

    @property
    def object_name(self) -> str:
        """Where its object lies in a place."""
        return object_of(self.sha256, is_image=self.is_image)

    @property
    def links(self) -> dict[str, PackedFile]:
        """Those of its files that are links, which its object does not have."""
        return {name: file for name, file in self.files.items() if file.link}

    @property
    def counts_links(self) -> bool:
        """Whether its ``key`` is also made of its links; keys of a module without wheels and tools are older."""
        return bool(self.wheels or self.needs.tools)

    @property
    def tools(self) -> set[str]:
        """The paths of the machine's tools that it stands for, which its links may lead to."""
        return tools_in(self.needs.tools)

    @property
    def key(self) -> str:
        """A digest of what counts: the same build has the same, whenever and by whomever it was pushed."""
        needs: dict[str, object] = msgspec.to_builtins(self.needs)
        if not self.needs.tools:
            del needs["tools"]  # keys are older than that
        facts: tuple[object, ...] = self.part, needs, self.sha256
        if self.counts_links:
            facts += self.wheels, self.links
        return hashlib.sha256(msgspec.json.encode(facts, order="sorted")).hexdigest()


class Signed(msgspec.Struct, frozen=True, kw_only=True):
    """The file of a manifest: what was signed, byte for byte, and the signature (base64), "" without one."""

    manifest: msgspec.Raw
    signature: str = ""

    @property
    def signature_bytes(self) -> bytes:
        """The signature. Raises ValueError."""
        return base64.b64decode(self.signature, validate=True)


def packed(manifest: Manifest, signature: bytes) -> bytes:
    """Return the file of a manifest."""
    signed = Signed(manifest=msgspec.Raw(msgspec.json.encode(manifest)), signature=base64.b64encode(signature).decode())
    return msgspec.json.encode(signed)


def read(content: bytes) -> tuple[Manifest, Signed]:
    """Return a manifest and what was signed of it. Raises ValueError for what cannot be one."""
    try:
        signed = record.decode(content, Signed)
        manifest = record.decode(bytes(signed.manifest), Manifest)
    except msgspec.DecodeError as error:
        raise ValueError(str(error)) from error
    is_right = is_whole_image(manifest) if manifest.is_image else is_module(manifest.module) and manifest.files
    if not is_right or min(manifest.size, manifest.unpacked) < 0:
        raise ValueError("It is no manifest of a module or an image.")
    if not all(map(VERSION.fullmatch, manifest.needs.versions.values())):
        raise ValueError("It needs a version that is none.")
    shown = msgspec.structs.replace(manifest.provenance, verdict=msgspec.Raw(b"null"))
    texts = msgspec.json.decode(msgspec.json.encode((manifest.part, manifest.needs, shown)))
    if not all(text.isprintable() for text in record.texts(texts)):
        raise ValueError("It has text in it that a terminal would obey.")
    return manifest, signed


def tools_in(tools: Mapping[str, str]) -> set[str]:
    """Return the paths of tools that are named with their versions."""
    return {tool.split(" ")[0] for tool in tools.values()}


def is_whole_image(manifest: Manifest) -> bool:
    """Say whether a manifest is one of an image, or of a layer below it: that file, and nothing besides."""
    same = PackedFile(size=manifest.size, sha256=manifest.sha256, is_program=True)
    files, image = {f"{manifest.module}.sif": same}, manifest.provenance.lock.name
    is_own = manifest.module == image or manifest.module.startswith(layer_name(image, ""))
    return is_own and is_name(manifest.module) and manifest.files == files and not manifest.wheels


def layer_name(image: str, layer: str) -> str:
    """Return what a layer below an image is called in a cache."""
    return f"{image}.{layer}"


def folder_of(module: str) -> str:
    """Return the name of the folder that the manifests of a module, an image or a layer lie in."""
    return module.replace("/", "--")
