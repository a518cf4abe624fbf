"""The modules of a release, listed fast: read from their folders, never by starting a modules tool."""

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
import platformdirs

from envkit.eessi import release
from envkit.eessi.release import Release
from envkit.eessi.time_limit import with_time_limit
from envkit.environments.environment import Environment
from envkit.errors import HostProblem
from envkit.machine.host import capability
from envkit.machine.modules_tool import require_entered
from envkit.system import process
from envkit.system.resources import data


class Modules(msgspec.Struct, frozen=True, kw_only=True):
    """The modules of a release for a CPU target, those for its GPU target among them."""

    release: str
    target: str
    modules: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Hardware:
    """What a target is chosen by: the CPU and its ancestors (archspec), and the GPU ("cc80")."""

    cpus: tuple[str, ...]
    gpu: str = ""


def machine(env: Mapping[str, str] = os.environ) -> Hardware:
    """Look at the CPU and the GPU of this machine."""
    import archspec.cpu

    host = archspec.cpu.host()
    names = (host.name, *(one.name for one in host.ancestors))
    return Hardware(cpus=names, gpu=gpu(env))


def gpu(env: Mapping[str, str]) -> str:
    """Return the compute capability of the first NVIDIA GPU as EESSI writes it, "cc80"; nothing without one."""
    found = capability(env)
    return f"cc{found.replace('.', '')}" if found else ""


def read(found: Release, here: Hardware, env: Mapping[str, str] = os.environ) -> Modules:
    """Read the modules of a release that can be read from here; what steers entering steers this, too.

    Raises HostProblem where it does not answer.
    """

    def work(see: Callable[[Path], None]) -> Modules:
        subdir = release.target(found, here.cpus, env, see)
        names = list[str]()
        for folder in release.module_folders(found, subdir, here.gpu, env, see):
            names += release.modules(folder, cache(folder), see)
        return Modules(release=found.version, target=subdir, modules=tuple(names))

    return with_time_limit(found.software, work)


def read_inside(inside: Environment, version: str) -> Modules:
    """Read the modules of a release that can be read inside alone, with what it chose as target there."""
    argv = inside.command(["sh", str(data("environments/shell/eessi_modules.sh"))])
    told = require_entered(process.capture(argv, env=inside.variables(os.environ), timeout_s=600))
    if told.status:
        raise HostProblem(what="EESSI could not be entered.", why=told.stderr.strip())
    path, *files = told.stdout.splitlines()
    names = (file.removesuffix(".lua") for file in files if not file.startswith("EESSI/"))
    return Modules(release=version, target=path.rpartition("/software/linux/")[2], modules=tuple(sorted(names)))


def matching(names: Sequence[str], pattern: str | None) -> list[str]:
    """Return the names that hold a pattern: a part of the name, in either case, or one with * and ?."""
    from fnmatch import fnmatch

    wanted = (pattern or "").lower()
    wanted = wanted if re.search(r"[*?[]", wanted) else f"*{wanted}*"
    return [name for name in names if fnmatch(name.lower(), wanted)]


def cache(folder: Path) -> Path:
    """Return the file in which is kept what a folder held."""
    key = hashlib.sha256(os.fsencode(folder)).hexdigest()[:20]
    return platformdirs.user_cache_path("envkit") / "eessi-modules" / f"{key}.json"
