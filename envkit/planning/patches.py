"""The patches that a stack's Horovod is built with: in which order, and what their headers say; and as a series."""

import os
import re
import stat
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from envkit import __version__
from envkit.errors import NotWritable, UsageProblem
from envkit.planning.stack import Stack, find_easyconfig, own_stacks, stacks
from envkit.system import toml
from envkit.system.files import destination, discard_in, state_in
from envkit.system.resources import data, recipes

NAME = re.compile(r"Horovod-(?P<version>\d[\d.]*)_(?P<name>[\w-]+)\.patch")
OF_AN_IMAGE = re.compile(r"^ *PATCHES=(.*)$", re.MULTILINE)
PINNED = re.compile(r"--hash=sha256:(?P<sha256>[0-9a-f]{64})\s+# (?P<file>\S+)")
OF_ENTRIES = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
FRAMEWORKS = {"pytorch": ("PyTorch", "torch"), "tensorflow": ("TensorFlow", "tensorflow")}  # title, package


class Tested(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a patch is tested (easyconfigs/patch_tests.toml)."""

    tests: tuple[str, ...]
    by_hand: str = ""


class HorovodPatch(msgspec.Struct, frozen=True, kw_only=True):
    """A patch: its header's first line, why there is one, and what upstream says; and how it is tested."""

    name: str
    version: str
    text: str
    title: str
    why: tuple[str, ...]
    upstream: str
    tested: Tested


def of_stack(stack: Stack) -> tuple[HorovodPatch, ...]:
    """Return those of envkit's patches that a stack's recipe applies to Horovod, in its order."""
    if stack.recipe:
        own = OF_AN_IMAGE.findall((recipes("containers") / stack.recipe).read_text())
        version, applied = horovod_of_images(), stack.arguments.get("PATCHES", own[0] if own else "")
        names = [f"Horovod-{version}_{name}.patch" for name in applied.split()]
    else:
        path = find_easyconfig(stack.easyconfig) or Path(stack.easyconfig)
        names = [match[0] for match in NAME.finditer(path.read_text(errors="replace"))]
    paths = [recipes("easyconfigs") / name for name in dict.fromkeys(names)]
    return tuple(read(path) for path in paths if path.is_file())


def horovod_of_images() -> str:
    """Return the version of Horovod that images are built with."""
    [pin] = recipes("containers").glob("horovod-*.txt")
    return pin.stem.removeprefix("horovod-")


def every() -> tuple[HorovodPatch, ...]:
    """Return each patch of envkit's own that some stack is built with, in the order of the stacks."""
    by_name = {patch.name: patch for stack in stacks() for patch in of_stack(stack)}
    return tuple(by_name.values())


@cache
def tests() -> dict[str, Tested]:
    """Return how each patch is tested."""
    return toml.read(recipes("easyconfigs") / "patch_tests.toml", dict[str, Tested])


def read(path: Path) -> HorovodPatch:
    """Read a patch and its header: a title, paragraphs, and last what upstream says."""
    text = path.read_text()
    match = NAME.fullmatch(path.name)
    assert match  # noqa: S101
    header = re.split(r"^(?:diff|---) ", text, maxsplit=1, flags=re.MULTILINE)[0]
    title, *parts = [" ".join(part.split()) for part in header.strip().split("\n\n")]
    return HorovodPatch(
        name=match["name"], version=match["version"], text=text, title=title, why=tuple(parts[:-1]),
        upstream=parts[-1], tested=tests()[match["name"]],
    )  # fmt: skip


def table() -> str:
    """Return which patches go together, as a table in Markdown."""
    lines = ["| stack | framework | patches, in this order | state |", "|---|---|---|---|"]
    for stack in stacks():
        names = ", ".join(patch.name for patch in of_stack(stack))
        lines.append(f"| `{stack.name}` | {FRAMEWORKS[stack.framework][0]} | {names} | {stack.status} |")
    return "\n".join(lines)


def described(patch: HorovodPatch) -> list[str]:
    """Return what a patch's header says, and how it is tested, as paragraphs."""
    why = [re.sub(r"<\w+>", r"`\g<0>`", part) for part in patch.why]  # a header of C++
    upstream = re.sub(r"https://\S+", r"<\g<0>>", patch.upstream)
    tests = ", ".join(f"`{name}`" for name in patch.tested.tests)
    return [patch.title, *why, f"Upstream: {upstream}", f"Tested by {tests}. {patch.tested.by_hand}".strip()]


def series(stack: Stack) -> dict[str, str]:
    """Return the files of a series: the patches by number, ``series``, ``README.md``. Raises UsageProblem for none."""
    patches = of_stack(stack)
    if not patches or stack.framework not in FRAMEWORKS:
        raise UsageProblem(
            what=f"There is no series of patches for {stack.name}.",
            why="Its recipe names none of envkit's patches for Horovod with PyTorch or TensorFlow.",
            fix=f"Name another stack of 'envkit list', such as {own_stacks()[0].name}.",
        )
    files = {f"{number:04}-{patch.name}.patch": patch for number, patch in enumerate(patches, 1)}
    texts = {"series": "".join(f"{name}\n" for name in files), "README.md": readme(stack, files)}
    return {name: patch.text for name, patch in files.items()} | texts


def readme(stack: Stack, files: dict[str, HorovodPatch]) -> str:
    """Return what says how the patches of a stack are applied, what each is for, and which go together."""
    [version] = {patch.version for patch in files.values()}
    pin = PINNED.search((recipes("containers") / f"horovod-{version}.txt").read_text())
    assert pin  # noqa: S101
    title, package = FRAMEWORKS[stack.framework]
    other = next(name for name in FRAMEWORKS if name != stack.framework)
    parts = [part for name, patch in files.items() for part in (f"### {name}", *described(patch))]
    template = data("planning/patches.md").read_text()
    return template.format(
        envkit=__version__, stack=stack.name, status=stack.status, version=version, sdist=pin["file"],
        sha256=pin["sha256"], framework=title, package=package, wanted=stack.framework.upper(), other=other.upper(),
        patches="\n\n".join(parts), table=table(),
    )  # fmt: skip


def write(folder: Path, files: dict[str, str]) -> None:
    """Write files into a folder that is new or empty, all or none. Raises UsageProblem, NotWritable."""
    try:
        with destination(folder if folder.name else folder.absolute(), makes=True) as (at, name):
            if not is_free(at, name):
                raise UsageProblem(what=f"{folder} is there already, and no empty folder.", fix="Name a new folder.")
            put(at, name, files.items())
    except OSError as error:
        raise NotWritable(
            what=f"The series could not be written to {folder}.",
            why=f"{error.strerror or error}.",
            fix="Free some room there, or name a folder where you may write.",
        ) from error


def is_free(at: int, name: str) -> bool:
    """Say whether an open folder has nothing of a name, or an empty folder. Raises OSError."""
    state = state_in(at, name)
    if state is None:
        return True
    if not stat.S_ISDIR(state.st_mode):
        return False
    inner = os.open(name, OF_ENTRIES, dir_fd=at)
    try:
        with os.scandir(inner) as entries:
            return not any(entries)
    finally:
        os.close(inner)


def put(at: int, name: str, files: Iterable[tuple[str, str]]) -> None:
    """Fill a new folder in an open one, and have it take the place of another, which is empty. Raises OSError."""
    staged = f".envkit-{os.getpid()}-{os.urandom(4).hex()}"
    os.mkdir(staged, dir_fd=at)
    try:
        inner = os.open(staged, OF_ENTRIES, dir_fd=at)
        try:
            for filename, text in files:
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
                with os.fdopen(os.open(filename, flags, 0o644, dir_fd=inner), "w") as stream:
                    stream.write(text)
        finally:
            os.close(inner)
        os.replace(staged, name, src_dir_fd=at, dst_dir_fd=at)
    finally:
        discard_in(at, staged)
