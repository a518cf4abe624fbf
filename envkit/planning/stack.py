"""The stacks that can be installed: envkit's own (stacks.toml), a site's, and any recipe of EasyBuild's collection."""

import difflib
import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

import msgspec

from envkit.environments.name_syntax import is_name
from envkit.errors import UnknownStack
from envkit.knowledge import foreign, methods
from envkit.knowledge.eessi import known
from envkit.machine.host import Accelerator, Platform
from envkit.planning import site_stacks
from envkit.system import record, toml
from envkit.system.resources import data, easybuild_collection, recipes


class Tried(msgspec.Struct, frozen=True, kw_only=True):
    """A place where a stack was built and verified on two ranks, and by what that is done again.

    ``on`` is the system with its compiler, ``by`` a test or a script. What is for GPUs was verified on CPU
    tensors. ``emulated``: the machine was not there, and its programs were run by an emulator.
    """

    machine: str
    python: str
    mpi: str
    on: str
    by: str
    emulated: bool = False


class Stack(msgspec.Struct, frozen=True, kw_only=True):
    """One thing that can be installed: an ``easyconfig`` and its ``module``, or a ``recipe`` of an image.

    ``release`` is that of EESSI which it is built on top of.
    ``arguments`` are those of a recipe that differ from its own defaults, ``machines`` what it can be built for.
    ``programs`` are those of the host that its recipes demand, besides a compiler and MPI.
    ``requires`` are build flags that its Horovod must have; ``pythons`` are the ones it has wheels for, by machine
    type (none named: not known, as of a recipe of EasyBuild's own collection). ``disk_mb``, ``inodes`` and
    ``seconds`` were measured on the machine named in stacks.toml; 0 means not known. ``tried`` is where it was
    built and verified, ``note`` what else there is to say of that. ``extras`` are what is added to it: easyconfigs,
    by the names in extras.toml. ``of_site``: the site offers it, not envkit.
    """

    name: str
    method: str
    framework: str
    accelerator: Accelerator
    easyconfig: str = ""
    module: str = ""
    recipe: str = ""
    release: str = ""
    arguments: dict[str, str] = {}
    requires: tuple[str, ...] = ()
    pythons: dict[str, tuple[str, ...]] = {}
    machines: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    default: bool = False
    tried: tuple[Tried, ...] = ()
    note: str = ""
    disk_mb: int = 0
    inodes: int = 0
    seconds: dict[str, int] = {}
    extras: dict[str, str] = {}
    of_site: bool = False

    @property
    def status(self) -> str:
        """The extent to which it was tried, in words."""
        note = f"; {self.note}" if self.note else ""
        if self.of_site:
            return f"offered by your site{note}"
        if not self.tried:
            return self.note or "planned only"
        how = "built and verified" if self.accelerator is Accelerator.CPU else "built, and verified on CPU tensors,"
        pythons: dict[str, dict[str, None]] = {}
        for trial in self.tried:
            machine = f"{trial.machine}, emulated," if trial.emulated else trial.machine
            pythons.setdefault(machine, {})[trial.python] = None
        where = ", and ".join(f"on {machine} with Python {together(own)}" for machine, own in pythons.items())
        gpu = "" if self.accelerator is Accelerator.CPU else "; not tried on a GPU"
        return f"{how} {where}{gpu}{note}"

    def runs_on(self, platform: Platform) -> bool:
        """Say whether there are wheels for a platform; of a recipe that names none, assume so."""
        if self.machines:
            return platform.machine in self.machines
        return not self.pythons or platform.python in self.pythons.get(platform.machine, ())


def together(names: Iterable[str]) -> str:
    """Return some names as "A, B and C"."""
    *first, last = names
    return f"{', '.join(first)} and {last}" if first else last


def stacks() -> tuple[Stack, ...]:
    """Return every stack that has a name: envkit's own, and those of the site. Raises ConfigInvalid.

    A default of the site takes the place of envkit's own one of the same kind.
    """
    own = own_stacks()
    offers = site_stacks.offered(tuple(stack.name for stack in own))
    if not offers:
        return own
    of_site = tuple(of_offer(name, offer) for name, offer in offers)
    defaults = {kind(stack) for stack in of_site if stack.default}
    displaced = (msgspec.structs.replace(stack, default=stack.default and kind(stack) not in defaults) for stack in own)
    return (*displaced, *of_site)


@cache
def own_stacks() -> tuple[Stack, ...]:
    """Return every stack of envkit's own."""
    tables = toml.read(data("planning/stacks.toml"), toml.Tables)
    return tuple(record.convert({"name": name, **table}, Stack) for name, table in tables.items())


def kind(stack: Stack) -> tuple[str, str, Accelerator]:
    """Return what one stack is the default of."""
    return stack.method, stack.framework, stack.accelerator


def of_offer(name: str, offer: site_stacks.Offer) -> Stack:
    """Return a stack that the site offers."""
    stack = of_recipe(offer.easyconfig, offer.method)
    accelerator = Accelerator(offer.device)
    flags = () if accelerator is Accelerator.CPU else (accelerator.value, "nccl")
    release = offer.release or (known().default if methods.takes(stack.method, "release") else "")
    return msgspec.structs.replace(
        stack,
        name=name,
        framework=offer.framework,
        accelerator=accelerator,
        release=release,
        requires=offer.requires or flags,
        machines=offer.machines,
        default=offer.default,
        note=offer.note,
        disk_mb=offer.disk_mb,
        of_site=True,
    )


def is_stack(name: str) -> bool:
    """Say whether envkit knows a stack by name."""
    return any(stack.name == name for stack in stacks())


def with_flag(flag: str, framework: str, method: str, name: str) -> str:
    """Return the stack with a build flag that is nearest to one of a name; nothing where there is none.

    Of the same method first, then those that were built, of these the one whose name begins most alike.
    """
    fitting = [stack for stack in stacks() if stack.framework == framework and flag in stack.requires]

    def nearness(stack: Stack) -> tuple[bool, bool, int]:
        alike = next((at for at, pair in enumerate(zip(stack.name, name, strict=False)) if len({*pair}) > 1), 0)
        return stack.method == method, bool(stack.tried), alike

    return max(fitting, key=nearness).name if fitting else ""


def select(
    wanted: str | None,
    *,
    method: str | None = None,
    framework: str | None = None,
    accelerator: str = "auto",
    release: str | None = None,
    platform: Platform,
) -> Stack:
    """Choose the stack that the user asked for, by name or by what it should contain.

    Raises UnknownStack, with the nearest names, when none fits.
    """
    if wanted is not None and wanted.endswith(".eb"):
        recipe = from_recipe(wanted, method)
        if method and methods.takes(method, "release"):
            return on_release(recipe, method, release)
        return agreeing(recipe, method, None, "auto")
    if wanted is not None and wanted not in FRAMEWORKS:
        by_name = {stack.name: stack for stack in stacks()}
        if wanted in by_name:
            return of_release(agreeing(by_name[wanted], method, framework, accelerator), release)
        raise no_such(wanted, list(by_name))
    if wanted and framework and wanted != framework:
        raise contradiction(wanted, f"--framework {framework}")
    device = Accelerator.CPU if accelerator == "auto" else Accelerator(accelerator)
    method = method or methods.usual()
    available = [s for s in stacks() if (s.method, s.accelerator) == (method, device)]
    framework = framework or wanted or next((s.framework for s in available), FRAMEWORKS[0])
    fitting = [s for s in available if s.framework == framework]
    usable = [s for s in fitting if s.runs_on(platform)]
    chosen = next((s for s in usable if s.default), usable[0] if usable else None)
    return of_release(chosen or nothing_fits(method, framework, device, fitting, platform), release)


FRAMEWORKS = ("pytorch", "tensorflow")


def no_such(wanted: str, names: list[str]) -> UnknownStack:
    """Say that there is no stack of a name, and what may be meant."""
    called = foreign.as_stack(wanted)
    near = [name for name in (*FRAMEWORKS, *names) if name == called] or [
        name for name in names if name.startswith(called)
    ]
    near = near or difflib.get_close_matches(called, [*FRAMEWORKS, *names], 3, 0.4) or sorted(names)
    return UnknownStack(
        what=f"There is no stack named {wanted!r}.",
        why=foreign.stack(wanted)
        or f"Nearest: {', '.join(near)}. A file name ending in .eb means a recipe of EasyBuild's own collection.",
        fix="See 'envkit list' for what can be installed.",
    )


def agreeing(stack: Stack, method: str | None, framework: str | None, accelerator: str) -> Stack:
    """Return a stack that was named, if the options say nothing else of it. Raises UnknownStack."""
    if method not in (None, stack.method):
        raise contradiction(stack.name, f"--method {method}")
    if framework not in (None, stack.framework):
        raise contradiction(stack.name, f"--framework {framework}")
    if accelerator not in ("auto", stack.accelerator.value):
        raise contradiction(stack.name, f"--accelerator {accelerator}")
    return stack


def on_release(stack: Stack, method: str, release: str | None) -> Stack:
    """Return a recipe as one that a method builds on top of a release of EESSI."""
    if stack.release:
        return of_release(stack, release)
    return msgspec.structs.replace(stack, method=method, release=release or known().default, pythons={})


def of_release(stack: Stack, release: str | None) -> Stack:
    """Return a stack if it is for a release that was asked for. Raises UnknownStack."""
    if stack.release and release not in (None, stack.release):
        raise contradiction(stack.name, f"--release {release}")
    return stack


def contradiction(name: str, option: str) -> UnknownStack:
    """Say that a name and an option do not go together."""
    return UnknownStack(
        what=f"{name} and {option} contradict each other.",
        fix=f"Leave one of them out; 'envkit list' shows what {name} is for.",
    )


def nothing_fits(method: str, framework: str, device: Accelerator, fitting: list[Stack], platform: Platform) -> Stack:
    """Return the stack that fits but for this machine, to say why not later. Raises UnknownStack without one."""
    if fitting:
        return fitting[0]
    others = [stack for stack in stacks() if (stack.framework, stack.accelerator) == (framework, device)]
    recipe = f"name a recipe of EasyBuild's own collection, such as {REFERENCE}"
    raise UnknownStack(
        what=f"There is no stack for {framework} on {device.value} by --method {method}.",
        why=f"On {platform.machine} envkit can install: {', '.join(s.name for s in stacks())}.",
        fix=f"Use --method {others[0].method}." if others else f"Use --accelerator cpu, or {recipe}.",
    )


REFERENCE = "Horovod-0.28.1-foss-2022a-CUDA-11.7.0-TensorFlow-2.11.0.eb"


def from_recipe(easyconfig: str, method: str | None = None) -> Stack:
    """Return a stack for a recipe: a file by its path, or a file name of envkit's or EasyBuild's own collection.

    A name without a / is never that of a file in the current folder. Where stacks of two methods have the same recipe,
    it is that of ``method``. Raises UnknownStack without any.
    """
    matching = [stack for stack in own_stacks() if stack.easyconfig == easyconfig]
    if matching:
        return next((stack for stack in matching if stack.method == method), matching[0])
    if "/" in easyconfig and Path(easyconfig).is_file():
        easyconfig = str(Path(easyconfig).resolve())
    elif find_easyconfig(easyconfig) is None:
        raise no_recipe(easyconfig)
    stem = Path(easyconfig).stem
    if not is_name(stem):
        raise UnknownStack(
            what=f"{stem + '.eb'!r} cannot be the name of a recipe here.",
            why="The environment is called as the recipe is, in file names, module names and shells.",
            fix="Rename the file, with letters, digits and _ . + - only, not more than 150, none of . + - in front.",
        )
    return of_recipe(easyconfig, methods.usual())


def of_recipe(easyconfig: str, method: str) -> Stack:
    """Return a stack of which only the recipe is known, called as that is."""
    stem = Path(easyconfig).stem
    device = site_stacks.device_in(stem)
    match = re.match(r"(?P<name>.+?)-(?P<version>(\d|system).*)$", stem)
    return Stack(
        name=stem,
        method=method,
        framework="pytorch" if "PyTorch" in stem else "tensorflow" if "TensorFlow" in stem else "none",
        accelerator=device,
        easyconfig=easyconfig,
        module=f"{match['name']}/{match['version']}" if match else stem,
        requires=(device.value, "nccl") if device is not Accelerator.CPU and stem.startswith("Horovod") else (),
    )


def no_recipe(easyconfig: str) -> UnknownStack:
    """Say that there is no recipe of a name, and which are near; a file in the current folder needs a path."""
    names = [path.name for path in shelf(Path(easyconfig).name).rglob("*.eb")]
    near = difflib.get_close_matches(easyconfig, names, 3, 0.6)
    here = f"For the file in the current folder, which is run: ./{easyconfig}\n" if Path(easyconfig).is_file() else ""
    return UnknownStack(
        what=f"There is no recipe {easyconfig}.",
        why=f"Nearest in EasyBuild's own collection: {', '.join(near)}." if near else "",
        fix=f"{here}Give the path of a recipe of your own (./NAME.eb), or a file name of the collection.",
    )


def find_easyconfig(name: str) -> Path | None:
    """Return the path of a recipe by its file name: envkit's own first, then EasyBuild's collection.

    An absolute path is its own. Of what lies in the current folder nothing is looked at.
    """
    own = recipes("easyconfigs") / name
    if own.is_file():
        return own
    folders = shelf(name).glob("*/") if Path(name).name == name else ()
    return next((folder / name for folder in folders if (folder / name).is_file()), None)


def shelf(name: str) -> Path:
    """Return the folder of EasyBuild's collection that recipes of a first letter lie in."""
    return easybuild_collection() / (name[0].lower() if name[0].isalpha() else "0")
