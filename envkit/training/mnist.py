"""MNIST in a folder: fetched once and checked, taken from a site's folder, or a stand-in that is generated."""

import gzip
import os
import random
import struct
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from envkit.errors import NotWritable, SourcesMissing
from envkit.sources import fetch
from envkit.system import files, process, toml, umask
from envkit.system.resources import data

PLACES = ("", "mnist", "MNIST", "MNIST/raw", "raw")
LABEL = "GENERATED.txt"
SAID = "generated stand-in, not MNIST"
SIDE = 28
SHIFT = 2
TRAIN, TEST = 6000, 1000
# Seven lines make up a digit: top, upper left, upper right, middle, lower left, lower right, bottom.
LINES = ((8, 4, 12, 3), (8, 4, 3, 10), (17, 4, 3, 10), (8, 12, 12, 3), (8, 12, 3, 11), (17, 12, 3, 11), (8, 20, 12, 3))
DIGITS = ("1110111", "0010010", "1011101", "1011011", "0111010", "1101011", "1101111", "1010010", "1111111", "1111011")


@dataclass(frozen=True, kw_only=True)
class Pinned:
    """The files of a set of data by name, each with its SHA-256, and the folders that they are fetched from."""

    files: Mapping[str, str]
    urls: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class DataFolder:
    """A folder with the files, and whether they are a stand-in. ``why`` it is one, if that was not asked for.

    ``absent`` is what to do where they are not there yet.
    """

    folder: Path
    generated: bool = False
    why: str = ""
    absent: str = ""

    @property
    def said(self) -> str:
        """The line that the user is told."""
        if self.absent:
            return f"{self.folder}: not there yet; {self.absent}"
        kind = SAID if self.generated else "MNIST, checked"
        return f"{self.folder}: {kind}" + (f" ({self.why})" if self.why else "")


def pinned() -> Pinned:
    """Return what is known of MNIST."""
    table = toml.read(data("training/mnist.toml"), toml.Tables)
    return Pinned(files=table["files"], urls=tuple(table["urls"]))


def at_site(places: Sequence[str], wanted: Pinned) -> Path | None:
    """Return the first of a site's folders, or of those below it, that has every file, each with the right SHA-256."""
    for folder in (files.at_home(place) / below for place in places if place for below in PLACES):
        if holds(folder, wanted):
            return folder.absolute()
    return None


def holds(folder: Path, wanted: Pinned) -> bool:
    """Say whether a folder has every file with the right SHA-256."""
    with suppress(OSError):
        return all(files.sha256(folder / name) == digest for name, digest in wanted.files.items())
    return False


def get(
    folder: Path,
    wanted: Pinned,
    *,
    places: Sequence[str] = (),
    anew: bool = False,
    env: Mapping[str, str] = os.environ,
) -> DataFolder:
    """Return where the files are: at $ENVKIT_DATA or in a site's folders, else in ``folder``/mnist, fetched if need be.

    Without a network it is the stand-in; once it has been made, the network is asked again only ``anew``. Safe
    for several processes at once. Raises ChecksumMismatch, NotWritable, DiskFull.
    """
    if (site := at_site([env.get("ENVKIT_DATA", ""), *places], wanted)) is not None:
        return DataFolder(folder=site)
    target = folder / "mnist"
    if fetch.missing(sources(wanted), target) and not anew and (substitute := stand_in(folder)).is_dir():
        return DataFolder(folder=substitute, generated=True, why="'envkit data mnist' tries to fetch MNIST again")
    with alone(folder), process.interruptible():
        target.mkdir(exist_ok=True)
        try:
            with own(target):
                pass
            fetch.fetch(sources(wanted), target, offline=False, progress=lambda _: None)
        except SourcesMissing:
            return DataFolder(folder=generate(folder), generated=True, why="MNIST could not be fetched")
    return DataFolder(folder=target)


def there(
    folder: Path, wanted: Pinned, *, places: Sequence[str] = (), env: Mapping[str, str] = os.environ
) -> DataFolder:
    """Return where ``get`` would have the files, and change nothing."""
    if (site := at_site([env.get("ENVKIT_DATA", ""), *places], wanted)) is not None:
        return DataFolder(folder=site)
    target = folder / "mnist"
    if not fetch.missing(sources(wanted), target):
        return DataFolder(folder=target)
    if stand_in(folder).is_dir():
        return DataFolder(folder=stand_in(folder), generated=True)
    return DataFolder(
        folder=target, absent=f"have them there, or a stand-in beside it: envkit data mnist --to {folder}"
    )


def take(source: Path, folder: Path, wanted: Pinned) -> DataFolder:
    """Copy the files from a site's folder. Raises SourcesMissing where not all are there, with the right SHA-256."""
    import hashlib

    site = at_site([str(source)], wanted)
    if site is None:
        raise SourcesMissing(
            what=f"{source} does not have MNIST.",
            why=f"Wanted, there or in {', '.join(PLACES[1:])} below it, each with the SHA-256 that is published: "
            f"{', '.join(wanted.files)}.",
            fix="Name the folder of these four files; they are compressed (.gz).",
        )
    target = folder / "mnist"
    with alone(folder):
        target.mkdir(exist_ok=True)
        with own(target) as at:
            for name, digest in wanted.files.items():
                part, content = f".{name}.{os.getpid()}", files.read(site / name)
                if hashlib.sha256(content).hexdigest() != digest:
                    raise SourcesMissing(
                        what=f"{site / name} has changed meanwhile.", fix="Run the same command again."
                    )
                with created(at, part) as new:
                    new.write(content)
                os.replace(part, name, src_dir_fd=at, dst_dir_fd=at)
    return DataFolder(folder=target)


def sources(wanted: Pinned) -> list[fetch.Source]:
    """Return the files as sources that can be fetched."""
    urls = wanted.urls
    return [
        fetch.Source(filename=name, sha256=digest, urls=urls, needed_by="mnist")
        for name, digest in wanted.files.items()
    ]


@contextmanager
def alone(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of data, which is made if need be. Raises NotWritable."""
    from filelock import FileLock

    lock = FileLock(folder / "mnist.lock")
    try:
        with umask.like(folder.parent):
            folder.mkdir(parents=True, exist_ok=True)
            lock.acquire()
    except OSError as error:
        raise NotWritable(
            what=f"{folder} cannot be written to.",
            why=str(error.strerror),
            fix="Name another folder with 'envkit data mnist --to', or one that has MNIST with ENVKIT_DATA.",
        ) from error
    with umask.like(folder), lock:
        yield


def stand_in(folder: Path) -> Path:
    """Return where the stand-in lies, or would lie."""
    return folder / "mnist-generated"


def made(folder: Path) -> DataFolder:
    """Return the stand-in, made if need be. Raises NotWritable."""
    with alone(folder):
        return DataFolder(folder=generate(folder), generated=True)


def generate(folder: Path, *, train: int = TRAIN, test: int = TEST) -> Path:
    """Make the stand-in, if it is not there, under the lock: drawn digits with noise, in files like those of MNIST."""
    target = stand_in(folder)
    if target.is_dir():
        return target
    part = target.with_name(f"{target.name}.part")
    files.discard(part)
    part.mkdir(parents=True)
    with own(part) as at:
        fill(at, train, test)
    part.replace(target)
    return target


def fill(at: int, train: int, test: int) -> None:
    """Write the files of the stand-in into an open folder."""
    note = f"{SAID}: {train} + {test} drawn digits with noise, made by envkit.\nAn accuracy on them says nothing.\n"
    with created(at, LABEL) as stream:
        stream.write(note.encode())
    chance = random.Random(28)  # noqa: S311  (the same digits everywhere)
    for name, number in (("train", train), ("t10k", test)):
        labels = bytes(chance.choices(range(10), k=number))
        images = b"".join(drawn(digit, chance) for digit in labels)
        write(at, f"{name}-images-idx3-ubyte.gz", struct.pack(">4i", 2051, number, SIDE, SIDE) + images)
        write(at, f"{name}-labels-idx1-ubyte.gz", struct.pack(">2i", 2049, number) + labels)


@contextmanager
def own(folder: Path) -> Iterator[int]:
    """Yield the descriptor of a folder, be it put elsewhere meanwhile. Raises NotWritable for a link."""
    try:
        with files.opened(folder.parent, folder.name) as at:
            yield at
    except NotADirectoryError as error:
        raise NotWritable(
            what=f"{folder} cannot be written to.", why="It is a link.", fix="Remove it, or name another folder."
        ) from error


def created(at: int, name: str) -> BinaryIO:
    """Open a new file in an open folder, in the place of what there is, and through no link.

    Nobody else may write to it, whatever the umask or a list of the folder says of new files.
    """
    with suppress(FileNotFoundError):
        os.unlink(name, dir_fd=at)
    return os.fdopen(os.open(name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644, dir_fd=at), "wb")


def write(at: int, name: str, content: bytes) -> None:
    """Write a compressed file, the same each time."""
    with created(at, name) as stream:
        stream.write(gzip.compress(content, compresslevel=1, mtime=0))


def drawn(digit: int, chance: random.Random) -> bytes:
    """Return the image of a digit near the middle, in noise: one in sixteen of the upper two bits is wrong."""
    right, down = chance.randint(-SHIFT, SHIFT), chance.randint(-SHIFT, SHIFT)
    image = bytearray(SIDE * SIDE)
    for lit, (x, y, width, height) in zip(DIGITS[digit], LINES, strict=True):
        for row in range(y + down, y + down + height) if lit == "1" else ():
            first = row * SIDE + x + right
            image[first : first + width] = b"\xc0" * width
    bits = 8 * len(image)
    wrong = upper = int.from_bytes(b"\xc0" * len(image))
    for _ in range(4):
        wrong &= chance.getrandbits(bits)
    lower = chance.getrandbits(bits) & ~upper
    return (int.from_bytes(image) ^ wrong | lower).to_bytes(len(image))
