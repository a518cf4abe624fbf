"""The target of a verification: an environment that envkit installed, or the one that the caller stands in."""

from __future__ import annotations

import functools
import json
import os
import shlex
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from envkit.environments import prefix as place
from envkit.environments.eessi import EessiEnvironment
from envkit.environments.environment import ContainerEnvironment, CurrentEnvironment, Environment
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Mpi, Receipt
from envkit.errors import EnvironmentDamaged, EnvironmentMissing, UsageProblem
from envkit.launch import launcher
from envkit.machine.modules_tool import require_entered
from envkit.methods import installed as receipts
from envkit.system import process, record
from envkit.system.resources import data

if TYPE_CHECKING:
    from envkit.binary.build_flags import BuildFlags
    from envkit.environments.manifest import Damage
    from envkit.verify.outcome import FileChange

PACKAGES = {"pytorch": "torch", "tensorflow": "tensorflow"}  # what people say: the Python package


@dataclass(frozen=True, kw_only=True)
class Target:
    """An environment with Horovod, the way in, and the flags it must have.

    ``framework`` is torch or tensorflow; ``others`` are those that this Horovod is for, too; ``words`` are what names
    it on envkit's command line, where envkit has installed it.
    """

    name: str
    framework: str
    others: tuple[str, ...]
    inside: Environment
    python: str
    requires: frozenset[str]
    horovod: Path
    library_path: tuple[Path, ...]
    site_packages: tuple[Path, ...]
    suffix: str
    known_mpi: Mpi | None = None
    known_built: bytes | None = None
    receipt: Receipt | None = None
    words: str = ""

    @functools.cached_property
    def built(self) -> BuildFlags | None:
        """The build flags, read from the compiled extensions; an image's are what was read when it was made.

        They are read inside where what the extensions load is seen only there.
        """
        if isinstance(self.inside, ContainerEnvironment):
            return read_built(self.known_built or b"null")
        if isinstance(self.inside, EessiEnvironment) and self.inside.way:
            return read_inside(self.inside)
        from envkit.binary.build_flags import read_extensions

        return read_extensions(self.horovod, self.library_path, self.site_packages, suffix=self.suffix)

    @functools.cached_property
    def drift(self) -> tuple[FileChange, ...] | None:
        """The files that have changed since the installation, None where that is not known."""
        from envkit.verify.drift import changes

        return changes(self.receipt, self.built) if self.receipt is not None else None

    @functools.cached_property
    def broken(self) -> Damage | None:
        """The first library, program or module file of its modules that has gone or has another size."""
        return self.receipt.broken() if self.receipt is not None and self.receipt.recipes else None

    def stacks_with(self, flags: Iterable[str]) -> dict[str, str]:
        """The stack that has a build flag, for each of some that no installation of this environment would have."""
        if self.receipt is None or not (lacking := frozenset(flags) - self.requires):
            return {}
        from envkit.planning.stack import with_flag

        receipt = self.receipt
        return {flag: with_flag(flag, receipt.framework, receipt.method, receipt.name) for flag in lacking}

    @property
    def wheel_mpi(self) -> str:
        """The MPI of a wheel that stands in for the machine's own; nothing without one."""
        return self.receipt.wheel_mpi if self.receipt is not None else ""

    @functools.cached_property
    def origin(self) -> str:
        """The cache that its Horovod was taken from, in words; nothing where it was built."""
        receipt = self.receipt or receipts.holding(self.horovod)
        return receipt.origin if receipt is not None else ""

    @functools.cached_property
    def shadows(self) -> tuple[str, ...]:
        """The files of the working folder that have the name of a package of the environment, and stand before it."""
        names = {path.name for folder in self.site_packages if folder.is_dir() for path in folder.iterdir()}
        packages = {"horovod", self.framework, *others_of(names)}
        return tuple(
            path for name in sorted(packages) for path in (f"{name}.py", f"{name}/__init__.py") if is_file(path)
        )

    @property
    def venv(self) -> str:
        """The folder of the virtual environment that was named in the place of an environment; nothing without one."""
        return self.name if self.receipt is not None and self.name != self.receipt.name else ""

    @functools.cached_property
    def in_venv(self) -> tuple[str, ...]:
        """The packages in that virtual environment that the environment has, too, or that would replace its MPI."""
        from envkit.environments import venv

        return tuple(venv.shadowing(Path(self.venv))) if self.venv else ()

    @functools.cached_property
    def fixed(self) -> dict[str, str]:
        """The versions that packages have below that virtual environment, by their normalized names."""
        from envkit.environments import venv

        return venv.read(Path(self.venv)).fixed if self.venv else {}

    @functools.cached_property
    def added(self) -> tuple[tuple[str, str], ...]:
        """The modules that every rank is to import of what was added to the stack, each after its extra's name."""
        if not self.software:
            return ()
        from envkit.planning.extras import known

        names = [name for name in self.software if name in known()]
        return tuple((name, module) for name in names for module in known()[name].imports)

    @functools.cached_property
    def software(self) -> dict[str, str]:
        """The folder of each extra."""
        if self.receipt is None:
            return {}
        software = Tree(root=Path(self.receipt.tree)).software
        return {name: str(software / module) for name, module in self.receipt.extras.items()}

    @functools.cached_property
    def replaced(self) -> tuple[str, ...]:
        """The packages that extras have in another version than the rest of the environment."""
        from envkit.environments import venv

        def is_of(folder: Path, name: str) -> bool:
            return folder.is_relative_to(self.software[name])

        own = {
            name: venv.in_folders(folder for folder in self.site_packages if is_of(folder, name))
            for name in self.software
        }
        rest = {
            name: venv.in_folders(folder for folder in self.site_packages if not is_of(folder, name))
            for name in self.software
        }
        return tuple(
            f"{package} {version} of {name} (elsewhere {rest[name][package]})"
            for name, packages in own.items()
            for package, version in packages.items()
            if rest[name].get(package, version) != version
        )

    def noexec(self) -> Iterator[str]:
        """Yield the folders of the environment that lie on a file system from which nothing may be run."""
        for folder in dict.fromkeys((*self.site_packages, self.horovod.parent, Path(self.python).parent)):
            with suppress(OSError):
                if os.statvfs(folder).f_flag & os.ST_NOEXEC:
                    yield str(folder)

    def damage(self, *, every: bool = False) -> list[Damage]:
        """The files of its modules that are not as they were built; with ``every`` each is read to the end."""
        if self.receipt is None or not self.receipt.recipes:
            return []
        from envkit.environments import manifest

        tree = Tree(root=Path(self.receipt.tree))
        return manifest.damage(tree, [module.name for module in self.receipt.recipes], every=every)

    def mpi(self, env: Mapping[str, str]) -> Mpi | None:
        """The MPI that the extension was built with, if any."""
        if self.known_mpi is None and self.built is not None and self.built.flag("mpi"):
            return launcher.mpi_of(self.inside, env)
        return self.known_mpi


def others_of(names: Iterable[str]) -> Iterator[str]:
    """Yield the packages and modules among the names of what lies in site-packages."""
    for name in names:
        if name.removesuffix(".py").isidentifier() and not name.startswith("_"):
            yield name.removesuffix(".py")


def is_file(path: str) -> bool:
    """Whether there is such a file in the working folder, which may have gone."""
    try:
        return Path(path).is_file()
    except OSError:
        return False


def find(name: str | None, prefix: str | None = None, framework: str | None = None) -> Target:
    """Return the target: the environment of that name, else that which is entered, the default, or the only one.

    Raises EnvironmentMissing, EnvironmentDamaged, HostProblem, UsageProblem.
    """
    if name is None and (here := current(os.environ, framework)) is not None:
        return here
    try:
        receipt = with_horovod(name, prefix)
    except EnvironmentMissing as error:
        if name is not None:
            raise
        raise EnvironmentMissing(
            what="There is no Horovod here: neither python nor python3 on PATH has it.",
            why=f"{error.what} {error.why}",
            fix="Name an installed environment ('envkit list'), or enter the one to verify first "
            "(module load, conda activate).",
        ) from error
    return installed(receipt, receipt.environment, framework, prefix)


def with_horovod(name: str | None, prefix: str | None) -> Receipt:
    """The receipt of an environment. Raises UsageProblem if it has no Horovod, and what finding it does."""
    receipt = receipts.find(place.locate(prefix), name)
    if not receipt.horovod:
        raise UsageProblem(
            what=f"{receipt.name} has no Horovod, so there is nothing to verify.",
            fix="Name an environment that has it: envkit list",
        )
    return receipt


def installed(receipt: Receipt, inside: Environment, framework: str | None = None, prefix: str | None = None) -> Target:
    """The target that a receipt describes, entered by ``inside``; ``prefix`` is what was said of where it lies.

    Raises UsageProblem for another framework.
    """
    package = PACKAGES[receipt.framework]
    return Target(
        name=receipt.called,
        framework=chosen([package], framework, receipt.called),
        others=(),
        inside=inside,
        python=receipt.interpreter,
        requires=frozenset(receipt.requires),
        horovod=Path(receipt.horovod),
        library_path=tuple(map(Path, receipt.library_path)),
        site_packages=tuple(map(Path, receipt.site_packages)),
        suffix=receipt.suffix or suffix_of(receipt.python),
        known_mpi=receipt.mpi,
        known_built=receipt.flags,
        receipt=receipt,
        words=shlex.join([receipt.name, *(["--prefix", prefix] if prefix else [])]),
    )


def suffix_of(python: str) -> str:
    """How a Python of that version names compiled extensions, where it was not asked: as envkit's own does."""
    own, wanted = "".join(map(str, sys.version_info[:2])), "".join(python.split(".")[:2])
    return EXTENSION_SUFFIXES[0].replace(f"cpython-{own}", f"cpython-{wanted}")


def read_built(text: bytes) -> BuildFlags | None:
    """The build flags that a receipt holds."""
    from envkit.binary.build_flags import BuildFlags

    try:
        flags: BuildFlags | None = record.decode(text, cast("Any", BuildFlags | None))
    except record.RecordInvalid as error:
        raise EnvironmentDamaged(
            what="The build flags that are noted of this environment cannot be read.",
            why=str(error),
            fix="Install it again with --rebuild.",
        ) from error
    return flags


def read_inside(inside: EessiEnvironment) -> BuildFlags | None:
    """The build flags, read inside; None where that cannot be done. Raises ModuleNotLoaded."""
    argv = inside.command(["python", str(data("inside/image_facts.py"))])
    answer = require_entered(process.capture(argv, env=inside.variables(os.environ), timeout_s=300))
    return None if answer.status else read_built(json.dumps(json.loads(answer.stdout)["built"]).encode())


def current(env: Mapping[str, str] = os.environ, framework: str | None = None) -> Target | None:
    """The target that the caller stands in: the first of python and python3 on PATH that has Horovod; else None."""
    for python in ("python", "python3"):
        answer = process.capture([python, str(data("inside/probe/inside.py"))], env=env)
        if answer.status == 0:
            return read_standing(answer.stdout, env, framework)
    return None


def read_standing(text: str, env: Mapping[str, str], framework: str | None) -> Target:
    """Make a target of what inside.py says."""
    facts = json.loads(text)
    name = env.get("ENVKIT_NAME") or env.get("CONDA_DEFAULT_ENV") or env.get("VIRTUAL_ENV") or facts["executable"]
    return Target(
        name=name,
        framework=chosen(facts["frameworks"], framework, name),
        others=tuple(facts["frameworks"][1:]) if framework is None else (),
        inside=CurrentEnvironment(name=name),
        python=facts["executable"],
        requires=frozenset(),
        horovod=Path(facts["horovod"]),
        library_path=tuple(map(Path, facts["library_path"])),
        site_packages=tuple(map(Path, facts["site_packages"])),
        suffix=facts["suffix"],
    )


def chosen(offered: Sequence[str], wanted: str | None, name: str) -> str:
    """The framework to verify. Raises UsageProblem, or EnvironmentDamaged where there is none at all."""
    package = PACKAGES.get(wanted, wanted) if wanted else None
    if package in offered or (package is None and offered):
        return package or offered[0]
    if package is not None:
        raise UsageProblem(
            what=f"{name} has no Horovod for {wanted}.",
            why=f"It has it for: {', '.join(offered) or 'no framework'}.",
            fix="Leave --framework out, or name another environment.",
        )
    raise EnvironmentDamaged(
        what=f"{name} has Horovod, but neither PyTorch nor TensorFlow.",
        why="Horovod was installed where no framework was: such a build holds nothing.",
        fix="Install the framework first, then build Horovod with HOROVOD_WITH_PYTORCH=1 or HOROVOD_WITH_TENSORFLOW=1.",
    )
