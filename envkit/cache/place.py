"""The place of a cache: a folder, a bucket of S3, a registry, or behind an HTTP(S) server, which can only be read.

What lies where in it is the same in each (``layout.py``). Nothing in a place is believed: manifests are signed, and
objects have the SHA-256 that their manifest says.
"""

import hashlib
import os
import re
import time
from collections.abc import Container, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from itertools import islice
from shlex import quote
from urllib.parse import urlsplit

import msgspec

from envkit.cache import bucket, folder, manifest, oci, server
from envkit.cache.layout import NAME, Store, Writable, source_of
from envkit.cache.manifest import Manifest, Signed
from envkit.config import configuration
from envkit.environments import trust
from envkit.errors import CacheInvalid, OpensslMissing, SignatureInvalid, UsageProblem, of_storage
from envkit.sources import signature
from envkit.system import record, temporary
from envkit.system.files import at_home

MOST_BUILDS = 20_000
MOST_IN_ALL = 100_000_000  # bytes of the manifests that are looked at in a place
LOOKING_S = 120.0  # for them
SCHEME = re.compile(r"[a-z][a-z0-9+.-]*://", re.ASCII | re.IGNORECASE)
FORMS = (("s3://", bucket.NAMED, bucket.FORM), ("oci://", oci.NAMED, oci.FORM))
KINDS = "Name a folder, https://HOST/FOLDER, s3://BUCKET/FOLDER or oci://HOST/NAME."


@dataclass(frozen=True, kw_only=True)
class Caches:
    """The places that builds are taken from, in order; the public keys that sign them; whether unsigned ones count."""

    places: tuple[str, ...]
    keys: tuple[str, ...]
    unsigned: bool = False

    @property
    def kept(self) -> "tuple[Place, ...]":
        """The places, from which sources are taken as well."""
        return tuple(Place(named=named) for named in self.places)


NOWHERE = Caches(places=(), keys=())


@dataclass(frozen=True, kw_only=True)
class SignedManifest:
    """A manifest in a place, with what was signed of it."""

    place: "Place"
    manifest: Manifest
    signed: Signed

    @property
    def id(self) -> str:
        """The name that it is called by."""
        return self.manifest.key

    @property
    def without_files(self) -> "SignedManifest":
        """It, with nothing of its files and its verdict but what was signed, so that many take little memory.

        What its id is made of stays.
        """
        provenance = msgspec.structs.replace(self.manifest.provenance, verdict=msgspec.Raw(b"null"))
        links = self.manifest.links if self.manifest.counts_links else {}
        return replace(self, manifest=msgspec.structs.replace(self.manifest, files=links, provenance=provenance))

    @property
    def with_files(self) -> "SignedManifest":
        """It, with all that was signed of it."""
        return replace(self, manifest=record.decode(bytes(self.signed.manifest), Manifest))


@dataclass(frozen=True, kw_only=True)
class Place:
    """A place, as it was named: a folder, or a URL."""

    named: str

    def __post_init__(self) -> None:
        """Refuse what can be no place, and say nothing of a password. Raises UsageProblem."""
        why = "" if self.named.strip() else "It is empty."
        if not self.is_remote and SCHEME.match(self.named):
            why = "Caches are not reached that way."
        if why or self.is_remote:
            try:
                _ = (parts := urlsplit(self.named)).port
                why = why or ("It names no host." if parts.scheme.startswith("http") and not parts.netloc else "")
            except ValueError as error:
                why = f"{error}." if "@" not in self.named else "It is no address."
        if not why:
            of_kind = ((form, says) for start, form, says in FORMS if self.named.startswith(start))
            why = next((says for form, says in of_kind if not form.fullmatch(self.named)), "")
        if why:
            shown = self.shown if self.named.strip() else self.named
            raise UsageProblem(what=f"{shown!a} is no place of a cache.", why=why, fix=KINDS)

    @property
    def is_remote(self) -> bool:
        """Whether it is behind a server."""
        return self.named.startswith(("http://", "https://", "s3://", "oci://"))

    @property
    def is_listed(self) -> bool:
        """Whether it tells which files it has, which a web server does not."""
        return not self.named.startswith(("http://", "https://"))

    @property
    def is_registry(self) -> bool:
        """Whether it is in a registry of images, whose tags name its manifests, and which keeps blobs for a while."""
        return self.named.startswith("oci://")

    @property
    def store(self) -> Store:
        """The module that reads it."""
        return self.writable if self.is_listed else server

    @property
    def writable(self) -> Writable:
        """The module that writes it as well. Raises UsageProblem for one that can only be read."""
        if self.named.startswith("s3://"):
            return bucket
        if self.is_registry:
            return oci
        if self.is_remote:
            raise UsageProblem(
                what=f"{self.shown} can only be read.",
                why="A web server gives what is in the folder that it serves, and takes nothing.",
                fix="Name the folder itself, on a machine that has it.",
            )
        return folder

    @property
    def shown(self) -> str:
        """It, as it may be shown: a URL without its password."""
        from envkit.system import addresses

        if self.is_remote or SCHEME.match(self.named):
            return addresses.shown(self.named)
        if ":" in addresses.login(self.named):  # a URL that was misspelt
            return addresses.without_login(self.named)
        return os.fsencode(folder.path_of(self.named)).decode(errors="backslashreplace")

    @property
    def itself(self) -> str:
        """What is the same for each of its names: of a folder its path without links."""
        if self.is_remote:
            return self.named.rstrip("/")
        path = folder.path_of(self.named)
        return str(path.resolve() if path.is_dir() else path)

    @property
    def log_in(self) -> str:
        """How to become somebody who may read or write it."""
        if self.is_registry:
            host = urlsplit(self.named).netloc
            others = f"docker login {host} and podman login {host} do as well"
            return f"Log in as somebody who may: apptainer registry login --username NAME oci://{host} ({others})."
        if self.named.startswith("s3://"):
            return (
                "Set the credentials of somebody who may: AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, AWS_PROFILE, or "
                "~/.aws/credentials."
            )
        return "Ask its owner for access."

    def names(self, wrong: list[CacheInvalid] | None = None) -> list[str]:
        """Return the names of its manifests; to ``wrong``, if it is given, goes what keeps others from being read.

        Raises CacheInvalid.
        """
        from envkit.sources.answers import RefusedError

        listed = list[str]()
        try:
            listed.extend(islice(self.store.names(self.named), MOST_BUILDS + 1))
        except RefusedError as error:
            if wrong is None or not listed:
                raise self.refused(error) from error
            wrong.append(self.invalid(sentence(error), self.remedy(error, "read"), is_build=True))
        if len(listed) > MOST_BUILDS:
            raise self.invalid(f"It has more than {MOST_BUILDS} builds.")
        return [name for name in dict.fromkeys(listed) if NAME.fullmatch(name)]

    def entry(self, name: str) -> SignedManifest:
        """Return a manifest by its name. Raises CacheInvalid for one that is not what its name says."""
        try:
            build, signed = manifest.read(self.read(f"manifests/{name}", manifest.MOST))
        except ValueError as error:
            raise self.invalid(f"The manifest {name} cannot be read: {error}", is_build=True) from error
        if name != f"{manifest.folder_of(build.module)}/{build.key}.json":
            raise self.invalid(f"The manifest {name} is that of something else, or was changed.", is_build=True)
        return SignedManifest(place=self, manifest=build, signed=signed)

    def entries(self, names: Sequence[str], wrong: list[CacheInvalid]) -> Iterator[SignedManifest]:
        """Yield manifests by their names; to ``wrong`` goes why others cannot be used.

        A place that is too slow for one of them, takes too long for all, or has more than memory is for, is left.
        """
        began, size = time.monotonic(), 0
        for number, name in enumerate(names):
            why = f"it took more than {LOOKING_S:.0f} s" if time.monotonic() - began > LOOKING_S else ""
            why = why or (f"they have more than {MOST_IN_ALL // 1_000_000} MB" if size > MOST_IN_ALL else "")
            if why:
                left = f"Of {len(names)} builds {number} were looked at: {why}."
                wrong.append(CacheInvalid(what=f"Not all of the cache {self.shown} was read.", why=left))
                return
            try:
                entry = self.entry(name)
            except CacheInvalid as error:
                wrong.append(error)
                if is_of_server(error):
                    return
                error.build = name.rpartition("/")[2].removesuffix(".json")
                continue
            size += len(entry.signed.manifest)
            yield entry

    def read(self, name: str, most: int) -> bytes:
        """Return a file of it. Raises CacheInvalid."""
        with self.opened(name, most) as chunks:
            return b"".join(chunks)

    @contextmanager
    def opened(self, name: str, most: int) -> Iterator[Iterable[bytes]]:
        """Give a file of it in pieces, at most so many bytes. Raises CacheInvalid, also while it is read."""
        from envkit.sources.answers import (
            AbsentError,
            DamagedError,
            LoginError,
            RefusedError,
            SlowError,
            UnreachableError,
        )

        try:
            with self.store.opened(self.named, name, most) as chunks:
                yield chunks
        except (SlowError, UnreachableError) as error:  # it is the server that fails
            fix = "See that you can reach it, then run the same command again."
            raise self.invalid(f"{name}: {sentence(error)}", fix) from error
        except LoginError as error:
            raise self.invalid(f"{name}: {sentence(error)}", self.log_in) from error
        except (AbsentError, DamagedError) as error:
            raise self.invalid(f"{name}: {sentence(error)}", is_build=True) from error
        except RefusedError as error:  # it may be as it should be
            raise self.invalid(f"{name}: {sentence(error)}", self.remedy(error, "read"), is_build=True) from error

    @contextmanager
    def source(self, sha256: str) -> Iterator[Iterable[bytes]]:
        """Give a file that an installation fetches in pieces. Raises RefusedError, also while it is read.

        One in a folder is read twice, so that none that is another fills a disk.
        """
        from envkit.sources.answers import RefusedError
        from envkit.sources.connection import LIMIT_BYTES

        most = LIMIT_BYTES
        if not self.is_remote:
            digest, size = hashlib.sha256(), 0
            with self.store.opened(self.named, source_of(sha256), most) as chunks:
                for chunk in chunks:
                    digest.update(chunk)
                    size += len(chunk)
            most = size
            if digest.hexdigest() != sha256:
                raise RefusedError(f"its SHA-256 is {digest.hexdigest()}, but the recipe pins {sha256}")
        with self.store.opened(self.named, source_of(sha256), most) as chunks:
            yield chunks

    def refused(self, error: Exception) -> CacheInvalid:
        """Say that the place cannot be read at all."""
        return self.invalid(sentence(error), self.remedy(error, "read"))

    def remedy(self, error: Exception, verb: str) -> str:
        """Return what to do where a place cannot be read or written."""
        from envkit.sources.answers import AbsentError, LoginError

        if isinstance(error, LoginError):
            return self.log_in
        if self.is_remote and isinstance(error, AbsentError):
            return "Check its name: there is nothing of that name."
        if self.is_remote:
            return f"Check its name, your settings for it, the network and your right to {verb} it."
        return f"Check its name, and ask its owner for the right to {verb} it."

    def invalid(self, why: str, fix: str = "", *, is_build: bool = False) -> CacheInvalid:
        """Say that the place, or only a build in it, cannot be used."""
        at = quote(self.shown)
        return CacheInvalid(
            what=f"{'A build in the' if is_build else 'The'} cache {self.shown} cannot be used.",
            why=why,
            fix=fix or f"All that is wrong with it: envkit cache verify {at}\nTo remove that: envkit cache prune {at}",
        )


class Looking:
    """A look at the builds of some places, in order, of some folders of manifests or all; it is gone through once.

    Afterwards it says what is ``wrong``, by which ``errors``, which places have ``none`` of these builds, and whose
    servers have ``failed``.
    """

    def __init__(self, places: Iterable[Place], folders: Container[str] | None = None) -> None:
        self.places, self.folders = places, folders
        self.errors, self.none, self.failed = list[CacheInvalid](), list[Place](), set[Place]()

    def __iter__(self) -> Iterator[SignedManifest]:
        for place in self.places:
            wrong, names = list[CacheInvalid](), list[str]()
            try:
                every = place.names(wrong)
            except CacheInvalid as error:
                wrong.append(error)
            else:
                names = [name for name in every if self.folders is None or name.partition("/")[0] in self.folders]
                self.none += [] if names else [place]
            yield from place.entries(names, wrong)
            self.errors += wrong
            self.failed |= {place for error in wrong if is_of_server(error)}

    @property
    def wrong(self) -> list[str]:
        """What is wrong, in words."""
        return [f"{error.what} {error.why}" for error in self.errors]


def is_of_server(error: CacheInvalid) -> bool:
    """Say whether it is the server that fails, and so for every file of it."""
    from envkit.sources.answers import SlowError, UnreachableError

    return isinstance(error.__cause__, SlowError | UnreachableError)


def is_unread(error: CacheInvalid) -> bool:
    """Say whether something may be as it should be, and could only not be read now."""
    from envkit.sources.answers import AbsentError, DamagedError, RefusedError

    return isinstance(error.__cause__, RefusedError) and not isinstance(error.__cause__, AbsentError | DamagedError)


def configured(*, unsigned: bool = False) -> Caches:
    """Return the caches that the configuration names."""
    settings = configuration.read()
    places, keys = (tuple(settings.get(name) or ()) for name in ("cache.from", "cache.keys"))
    return Caches(places=places, keys=keys, unsigned=unsigned)


def signer(entry: SignedManifest, keys: Iterable[str]) -> str:
    """Return the first of some public keys that verifies a manifest; nothing where none does, or openssl is missing.

    Raises HostProblem for a key that somebody else can change.
    """
    if not entry.signed.signature:
        return ""
    with temporary.folder("cache") as folder:
        path = folder / "manifest"
        try:
            path.write_bytes(bytes(entry.signed.manifest))
            signature.place(path).write_bytes(entry.signed.signature_bytes)
        except ValueError:
            return ""
        except OSError as error:
            what = f"The signature of a build of {entry.place.shown} could not be checked."
            raise of_storage(OSError(error.errno, error.strerror, str(path)), what) or error from error
        for key in (key for key in keys if at_home(key).is_file()):  # of others a plan says that they are none
            with suppress(SignatureInvalid, OpensslMissing):
                signature.require(path, at_home(key), trust.trusted())
                return key
    return ""


def sentence(error: Exception) -> str:
    """Return what an error says, with one full stop."""
    return f"{str(error).rstrip('.')}."
