"""What can be installed: the stacks, as data in stacks.toml, and any recipe of EasyBuild's own collection."""

import difflib
import re
import tomllib
from functools import cache
from pathlib import Path

import msgspec

from envkit.errors import UnknownStack
from envkit.host import Accelerator, Platform
from envkit.resources import data, easybuild_collection, recipes


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be installed.

    ``requires`` are build flags that its Horovod must have. ``disk_mb``, ``inodes`` and ``seconds`` were
    measured on the machine named in stacks.toml; 0 means not known.
    """

    name: str
    method: str
    framework: str
    accelerator: Accelerator
    easyconfig: str
    module: str
    requires: tuple[str, ...] = ()
    pythons: tuple[str, ...] = ()
    machines: tuple[str, ...] = ()
    default: bool = False
    status: str = "planned only"
    disk_mb: int = 0
    inodes: int = 0
    seconds: dict[str, int] = {}


@cache
def stacks() -> tuple[Stack, ...]:
    """Return every stack that envkit knows by name."""
    tables = tomllib.loads(data("stacks.toml").read_text())
    return tuple(msgspec.convert({"name": name, **table}, Stack) for name, table in tables.items())


def select(wanted: str | None, *, framework: str | None = None, accelerator: str = "auto", platform: Platform) -> Stack:
    """Choose the stack that the user asked for, by name or by what it should contain.

    Raises UnknownStack, with the nearest names, when none fits.
    """
    if wanted is not None and wanted.endswith(".eb"):
        return from_recipe(wanted)
    if wanted is not None and wanted not in FRAMEWORKS:
        found = {stack.name: stack for stack in stacks()}
        if wanted in found:
            return found[wanted]
        near = difflib.get_close_matches(wanted, list(found), 3, 0.4) or sorted(found)
        raise UnknownStack(
            what=f"There is no stack named {wanted!r}.",
            why=f"Nearest: {', '.join(near)}. A file name ending in .eb means a recipe of EasyBuild's own collection.",
            fix="See 'envkit list' for what can be installed.",
        )
    framework = framework or wanted or "pytorch"
    device = Accelerator.CPU if accelerator == "auto" else Accelerator(accelerator)
    fitting = [s for s in stacks() if s.framework == framework and s.accelerator == device]
    usable = [s for s in fitting if platform.python in s.pythons and platform.machine in s.machines]
    chosen = next((s for s in usable if s.default), usable[0] if usable else None)
    return chosen or nothing_fits(framework, device, fitting, platform)


FRAMEWORKS = ("pytorch", "tensorflow")


def nothing_fits(framework: str, device: Accelerator, fitting: list[Stack], platform: Platform) -> Stack:
    """Raise UnknownStack, saying what rules each candidate out; when one fits but for the host, return it."""
    if fitting:
        return fitting[0]
    raise UnknownStack(
        what=f"There is no stack for {framework} on {device.value}.",
        why=f"On {platform.machine} envkit can install: {', '.join(s.name for s in stacks())}.",
        fix=f"Use --accelerator cpu, or name a recipe of EasyBuild's own collection, such as {REFERENCE}.",
    )


REFERENCE = "Horovod-0.28.1-foss-2022a-CUDA-11.7.0-TensorFlow-2.11.0.eb"


def from_recipe(easyconfig: str) -> Stack:
    """Return a stack for a recipe: a file, or a file name of envkit's or EasyBuild's own collection.

    Raises UnknownStack when there is none.
    """
    for stack in stacks():
        if stack.easyconfig == easyconfig:
            return stack
    if Path(easyconfig).is_file():
        easyconfig = str(Path(easyconfig).resolve())
    elif find_easyconfig(easyconfig) is None:
        folder = easybuild_collection() / easyconfig[0].lower()
        names = [path.name for path in folder.rglob("*.eb")] if folder.is_dir() else []
        near = difflib.get_close_matches(easyconfig, names, 3, 0.6)
        raise UnknownStack(
            what=f"There is no recipe {easyconfig}.",
            why=f"Nearest in EasyBuild's own collection: {', '.join(near)}." if near else "",
            fix="Give the path of a recipe of your own, or a file name of the collection.",
        )
    stem = Path(easyconfig).stem
    cuda = "CUDA" in stem
    match = re.match(r"(?P<name>.+?)-(?P<version>\d.*)$", stem)
    return Stack(
        name=stem,
        method="easybuild",
        framework="pytorch" if "PyTorch" in stem else "tensorflow" if "TensorFlow" in stem else "none",
        accelerator=Accelerator.CUDA if cuda else Accelerator.CPU,
        easyconfig=easyconfig,
        module=f"{match['name']}/{match['version']}" if match else stem,
        requires=("cuda", "nccl") if cuda and stem.startswith("Horovod") else (),
    )


def find_easyconfig(name: str) -> Path | None:
    """Return the path of a recipe by its file name: envkit's own first, then EasyBuild's collection."""
    own = recipes("easyconfigs") / name
    if own.is_file():
        return own
    software = re.split(r"-(?=\d)", name, maxsplit=1)[0]
    found = easybuild_collection() / name[0].lower() / software / name
    return found if found.is_file() else None
