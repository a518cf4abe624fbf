"""Environments: how to get inside one, and what of the caller's own settings is left outside."""

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from envkit.errors import HostProblem, ModuleNotLoaded
from envkit.system import process
from envkit.system.resources import data

KEPT = re.compile(
    r"HOME|USER|LOGNAME|SHELL|TERM|TZ|LANG|LC_\w+|PATH|TMPDIR|MODULEPATH|MODULEPATH_ROOT|MODULESHOME"
    r"|LMOD_\w+|MODULES_CMD|LOADEDMODULES|_LMFILES_|__LMOD_\w+|_ModuleTable\w*"
    r"|SSL_CERT_(FILE|DIR)|REQUESTS_CA_BUNDLE|CURL_CA_BUNDLE|(https?|no|all|ftp)_proxy|(HTTPS?|NO|ALL|FTP)_PROXY"
)
MODULES_STATE = re.compile(
    r"LOADEDMODULES|_LMFILES_|__LMOD_\w+|_ModuleTable\w*|MODULEPATH|MODULEPATH_ROOT|__MODULES_\w+"
)


class Environment(Protocol):
    """A place where Horovod is, and the way in."""

    @property
    def name(self) -> str:
        """What the user calls it."""

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
class ModulesTool:
    """The program that loads modules; ``kind`` as EasyBuild names it: Lmod or EnvironmentModules."""

    kind: str
    command: Path


@dataclass(frozen=True, kw_only=True)
class ModuleEnvironment:
    """Modules in a folder, loaded by a modules tool after the site modules in ``load``."""

    name: str
    tool: ModulesTool
    modulepath: Path
    modules: tuple[str, ...]
    load: tuple[str, ...] = ()

    @property
    def words(self) -> list[str]:
        """What enters, and its arguments."""
        return ["load.sh", str(self.tool.command), str(self.modulepath), *self.load, "--", *self.modules]

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
class StandingEnvironment:
    """What the caller stands in already: a loaded module, an activated conda or virtual environment."""

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
            changed.setdefault("MIOPEN_USER_DB_PATH", f"/tmp/miopen-{os.getuid()}")  # noqa: S108
        if os.geteuid() and self.model is not MpiModel.INSIDE:  # a user namespace per rank: none reads another's memory
            changed.setdefault("OMPI_MCA_btl_vader_single_copy_mechanism", "none")
        return changed

    def _words(self, verb: str, visible: Sequence[Path]) -> list[str]:
        demand_sources(self.binds)
        gpu = {"cuda": ["--nv"], "rocm": ["--rocm"]}.get(self.accelerator, [])
        binds = [*self.binds, *dict.fromkeys(f"{path}:{path}" for path in visible)]
        words = [str(self.runtime), "--silent", verb, *gpu]
        words += [word for bind in binds for word in ("--bind", bind)]
        return words + [word for name, value in self.settings for word in ("--env", f"{name}={value}")]


def demand_sources(binds: Sequence[str]) -> None:
    """Raise HostProblem for binds whose source is not there."""
    gone = [source for bind in binds if not Path(source := bind.partition(":")[0]).exists()]
    if gone:
        raise HostProblem(
            what=f"This machine does not have what is to be bound into the image: {', '.join(gone)}.",
            why="It was asked for by --bind or --site when the image was installed.",
            fix="Install it again with the --site or --bind of this machine, or without.",
        )


FOREIGN = {"BASH_ENV", "ENV", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP"}
SYS_RESOURCE = 24


def lacks_capability(number: int) -> bool:
    """Say whether this process lacks a capability of Linux (capabilities(7)), as root may in a virtual machine."""
    effective = re.search(r"^CapEff:\s*(\w+)", Path("/proc/self/status").read_text(), re.MULTILINE)
    return effective is not None and not int(effective[1], 16) >> number & 1


def find_modules_tool(env: Mapping[str, str] = os.environ) -> ModulesTool | None:
    """Find Lmod or Environment Modules: by the variables they set, then by the usual places."""
    for kind, candidates in (
        ("Lmod", (env.get("LMOD_CMD"), *LMOD_PLACES)),
        ("EnvironmentModules", (env.get("MODULES_CMD"), *ENVIRONMENT_MODULES_PLACES)),
    ):
        for command in existing(filter(None, candidates)):
            return ModulesTool(kind=kind, command=command)
    return None


LMOD_PLACES = (
    "/usr/share/lmod/lmod/libexec/lmod",
    "/opt/apps/lmod/lmod/libexec/lmod",
    "/usr/local/lmod/lmod/libexec/lmod",
    "/opt/cray/pe/lmod/lmod/libexec/lmod",
)
ENVIRONMENT_MODULES_PLACES = (
    "/usr/lib/x86_64-linux-gnu/modulecmd.tcl",
    "/usr/lib/aarch64-linux-gnu/modulecmd.tcl",
    "/usr/share/Modules/libexec/modulecmd.tcl",
    "/usr/local/Modules/libexec/modulecmd.tcl",
)


def existing(candidates: Iterable[str]) -> Iterable[Path]:
    """Yield the candidates that are files this user may run."""
    return (Path(path) for path in candidates if Path(path).is_file() and os.access(path, os.X_OK))


def clean(env: Mapping[str, str], tool: ModulesTool | None, load: Sequence[str]) -> dict[str, str]:
    """Return the settings a build starts from: nothing of the caller's modules, virtual environment or paths
    to libraries; the modules in ``load`` are loaded on top.

    Raises HostProblem when one of these cannot be loaded.
    """
    kept = {key: value for key, value in env.items() if KEPT.fullmatch(key)}
    kept["PATH"] = without_private_folders(env)
    if tool is not None and (load or kept.get("LOADEDMODULES")):
        kept = loaded(kept, tool, load)
    elif load:
        raise HostProblem(
            what=f"The modules {', '.join(load)} cannot be loaded.",
            why="Neither Lmod nor Environment Modules was found on this machine.",
            fix="Leave --load out, or install Lmod (Debian, Ubuntu: apt install lmod).",
        )
    return {key: value for key, value in kept.items() if not MODULES_STATE.fullmatch(key)}


def loaded(env: Mapping[str, str], tool: ModulesTool, load: Sequence[str]) -> dict[str, str]:
    """Return ``env`` after unloading every module and loading those in ``load``."""
    words = ["load.sh", str(tool.command), "/nonexistent", *load, "--"]
    argv = ["bash", "--noprofile", "--norc", str(data("environments/shell/enter.sh")), *words, "--", "env", "-0"]
    try:
        done = entered(process.capture(argv, env={**env, "PATH": env["PATH"]}))
    except ModuleNotLoaded as failed:
        what = f"The modules {', '.join(load)} could not be loaded." if load else failed.what
        raise HostProblem(what=what, why=failed.why, fix=failed.fix) from failed
    if done.status:
        raise HostProblem(what="The modules tool does not come to an end.", why=done.stderr.strip())
    pairs = (entry.partition("=") for entry in done.stdout.split("\0") if "=" in entry)
    return {
        key: value
        for key, _, value in pairs
        if not key.startswith("BASH_FUNC_") and key not in {"_", "SHLVL", "PWD", "OLDPWD"}
    }


def entered(told: process.Completed) -> process.Completed:
    """Return what a command inside an environment left. Raises ModuleNotLoaded where it was not reached.

    What enters has then said why, in three parts as every error has them, after what the modules tool said.
    """
    if told.status != ModuleNotLoaded.exit_code:
        return told
    said, _, own = f"\n{told.stderr}".rpartition("\nenvkit: ")
    what, why, fix = (*own.strip().split("\n\n"), "", "")[:3]
    raise ModuleNotLoaded(
        what=what,
        why="\n".join(filter(None, (said.strip(), why.strip()))),
        fix=fix.removeprefix("What to do: "),
    )


def without_private_folders(env: Mapping[str, str]) -> str:
    """Return PATH without the folders of a virtual environment, of conda and of pyenv's stand-ins."""
    private = [env[key] for key in ("VIRTUAL_ENV", "CONDA_PREFIX", "PYENV_ROOT") if env.get(key)]
    own = str(Path(process.which("envkit") or "/").parent)
    folders = env.get("PATH", os.defpath).split(os.pathsep)
    kept = (
        f for f in folders if f.startswith("/") and f != own and not any(Path(f).is_relative_to(p) for p in private)
    )
    return os.pathsep.join(dict.fromkeys(kept))
