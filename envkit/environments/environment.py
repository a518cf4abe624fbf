"""Environments: the way into each kind."""

import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from envkit.errors import HostProblem
from envkit.machine.modules_tool import ModulesTool
from envkit.machine.runtime import SYS_RESOURCE, lacks_capability
from envkit.system import temporary
from envkit.system.resources import data


class Environment(Protocol):
    """A place where Horovod is, and the way in."""

    @property
    def name(self) -> str:
        """The name that the user calls it by."""

    def command(
        self,
        argv: Sequence[str],
        launcher: Sequence[str] = (),
        *,
        remote: bool = False,
        visible: Sequence[Path] = (),
    ) -> list[str]:
        """Return the argv that runs ``argv`` inside, started by ``launcher``.

        ``remote``: the launcher reaches other hosts, where nobody has entered yet. ``visible`` are folders of the host
        that the command must see.
        """

    def shell(self) -> list[str]:
        """Return the argv of an interactive shell inside."""

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return ``env`` as the commands above need it."""


@dataclass(frozen=True, kw_only=True)
class ModuleEnvironment:
    """Modules in a folder, loaded by a modules tool after the site modules in ``load``.

    ``venv`` is the folder of a virtual environment on top of them, "" without one.
    """

    name: str
    tool: ModulesTool
    modulepath: Path
    modules: tuple[str, ...]
    load: tuple[str, ...] = ()
    venv: str = ""

    @property
    def words(self) -> list[str]:
        """The script that enters, and its arguments."""
        loader = ["venv.sh", self.venv] if self.venv else ["load.sh"]
        return [*loader, str(self.tool.command), str(self.modulepath), *self.load, "--", *self.modules]

    def command(
        self,
        argv: Sequence[str],
        launcher: Sequence[str] = (),
        *,
        remote: bool = False,
        visible: Sequence[Path] = (),  # noqa: ARG002  (all of the host is)
    ) -> list[str]:
        """Return the argv that runs ``argv`` inside; the launcher belongs to the environment."""
        enter = ["bash", "--noprofile", "--norc", str(data("environments/shell/enter.sh")), *self.words, "--"]
        return [*enter, *launcher, *(enter if remote else ()), *argv]

    def shell(self) -> list[str]:
        """Return the argv of an interactive bash that reads ~/.bashrc and then enters."""
        return ["bash", "--noprofile", "--rcfile", str(data("environments/shell/rc.bash")), "-i"]

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return ``env`` so that nothing in it runs before the modules are loaded (BASH_ENV)."""
        return for_shell(env, self.name, self.words)


def for_shell(env: Mapping[str, str], name: str, words: Sequence[str]) -> dict[str, str]:
    """Return ``env`` as enter.sh and rc.bash need it: BASH_ENV is given back when they are done."""
    changed = {key: value for key, value in env.items() if key not in {"BASH_ENV", "ENV"}}
    if "BASH_ENV" in env:
        changed["ENVKIT_BASH_ENV"] = env["BASH_ENV"]
    return changed | {"ENVKIT_NAME": name, "ENVKIT_WORDS": "\n".join(words)}


@dataclass(frozen=True, kw_only=True)
class CurrentEnvironment:
    """The environment that the caller is in already: a loaded module, an activated conda or virtual environment."""

    name: str

    def command(
        self,
        argv: Sequence[str],
        launcher: Sequence[str] = (),
        *,
        remote: bool = False,  # noqa: ARG002
        visible: Sequence[Path] = (),  # noqa: ARG002
    ) -> list[str]:
        """Return the argv itself."""
        return [*launcher, *argv]

    def shell(self) -> list[str]:
        """Return the argv of another bash in it."""
        return ["bash", "-i"]

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return ``env`` as it is."""
        return dict(env)


class MpiModel(StrEnum):
    """How ranks in an image become one world.

    hybrid: the host's launcher starts the image's MPI. bind: the host's launcher and its MPI library, bound into the
    image. inside: the image's own launcher, on one node.
    """

    HYBRID = "hybrid"
    BIND = "bind"
    INSIDE = "inside"


@dataclass(frozen=True, kw_only=True)
class ContainerEnvironment:
    """An image, entered by Apptainer or Singularity.

    ``binds`` are PATH or SOURCE:TARGET, ``settings`` hold inside alone, ``srun`` are words for it at this site.
    """

    name: str
    runtime: Path
    image: Path
    accelerator: str = "cpu"
    model: MpiModel = MpiModel.HYBRID
    binds: tuple[str, ...] = ()
    settings: tuple[tuple[str, str], ...] = ()
    srun: tuple[str, ...] = ()

    def command(
        self,
        argv: Sequence[str],
        launcher: Sequence[str] = (),
        *,
        remote: bool = False,  # noqa: ARG002  (the launcher is outside of the image, as every rank's entry is)
        visible: Sequence[Path] = (),
    ) -> list[str]:
        """Return the argv that runs ``argv`` inside; the launcher is the host's, but for the model ``inside``."""
        enter = [*self._words("exec", visible), str(self.image)]
        return [*enter, *launcher, *argv] if self.model is MpiModel.INSIDE else [*launcher, *enter, *argv]

    def shell(self) -> list[str]:
        """Return the argv of an interactive shell inside."""
        return [*self._words("shell", ()), str(self.image)]

    def variables(self, env: Mapping[str, str]) -> dict[str, str]:
        """Return ``env`` without what would change the Python inside, and with what this user's rights ask for."""
        changed = {key: value for key, value in env.items() if key not in FOREIGN} | {"ENVKIT_NAME": self.name}
        if os.geteuid() == 0 and lacks_capability(SYS_RESOURCE):  # Apptainer asks for every one
            for family in ("APPTAINER", "SINGULARITY"):
                changed.setdefault(f"{family}_DROP_CAPS", "CAP_SYS_RESOURCE")
        if self.accelerator == "rocm":  # its cache is a data base, which shared file systems do not lock
            changed.setdefault("MIOPEN_USER_DB_PATH", kernels(env))
        if os.geteuid() and self.model is not MpiModel.INSIDE:  # a user namespace per rank: none reads another's memory
            changed.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
        return changed

    def _words(self, verb: str, visible: Sequence[Path]) -> list[str]:
        require_sources(self.binds)
        gpu = {"cuda": ["--nv"], "rocm": ["--rocm"]}.get(self.accelerator, [])
        binds = [*self.binds, *dict.fromkeys(f"{path}:{path}" for path in visible)]
        words = [str(self.runtime), "--silent", verb, *gpu]
        words += [word for bind in binds for word in ("--bind", bind)]
        return words + [word for name, value in self.settings for word in ("--env", f"{name}={value}")]


JOB = re.compile(r"(\w+_)?JOB_?ID")  # the variable of a job, whatever the scheduler


def kernels(env: Mapping[str, str]) -> str:
    """Return the folder of the kernels that MIOpen keeps, which nobody else can have made before.

    In another job it is another one: on its nodes the name may be known by then.
    """
    job = [env[name] for name in sorted(env) if JOB.fullmatch(name)] or [platform.node()]
    return f"/tmp/miopen-{os.getuid()}-{temporary.unguessable('miopen', *job)}"  # noqa: S108


def require_sources(binds: Sequence[str]) -> None:
    """Raise HostProblem for binds whose source is not there."""
    gone = [source for bind in binds if not Path(source := bind.partition(":")[0]).exists()]
    if gone:
        raise HostProblem(
            what=f"This machine does not have what is to be bound into the image: {', '.join(gone)}.",
            why="It was asked for by --bind or --site when the image was installed.",
            fix="Install it again with the --site or --bind of this machine, or without.",
        )


FOREIGN = {"BASH_ENV", "ENV", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"}
