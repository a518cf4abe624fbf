"""What is installed and loaded here, now, of what envkit compat judges."""

import json
import re
from collections.abc import Iterator, Mapping

from envkit.compat.judge import names
from envkit.doctor.questions import toolkits
from envkit.machine import host
from envkit.planning.compatibility import MPIS, is_version
from envkit.system import process
from envkit.system.resources import data

BUILD_ONLY = {"pip", "cmake"}  # what is there now is not what an environment was built with


def words(env: Mapping[str, str]) -> list[str]:
    """Return what there is as words for compat: NAME=VERSION..., a component once."""
    found = {"machine": host.Platform.own().machine}
    for name, version in (*packages(env), *programs(env)):
        if is_version(version) and name not in BUILD_ONLY:
            found.setdefault(name, version)
    return [f"{name}={version}" for name, version in found.items()]


def packages(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield the first Python on PATH, and of its packages those that envkit compat knows."""
    for name in ("python", "python3"):
        told = process.capture([name, str(data("inside/packages.py"))], env=env)
        if told.status == 0:
            facts = json.loads(told.stdout)
            yield "python", facts["python"]
            for package, version_of in facts["versions"].items():
                if package in names():
                    yield names()[package], version_of
            return


def programs(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield compiler, MPI, CUDA, ROCm and GPU."""
    if compiler := host.compiler(env):
        yield "gcc", compiler.version
    mpi = next(iter(host.mpis(env)), None)
    if mpi and mpi.family in MPIS:
        yield MPIS[mpi.family], mpi.version
    for toolkit in toolkits(env):
        match = re.match(r"\d+(\.\d+)*", toolkit.version)
        yield toolkit.family.lower(), match[0] if match else ""
    if host.accelerator() is host.Accelerator.CUDA:
        yield "capability", host.capability(env)
