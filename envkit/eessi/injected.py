"""What a site has to add to EESSI for GPUs, in host_injections: the driver's libraries, and what EESSI may not have."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from envkit.environments.environment import Environment
from envkit.errors import HostProblem, Problem
from envkit.knowledge.eessi import known, symptom
from envkit.machine.modules_tool import require_entered
from envkit.system import process
from envkit.system.resources import data


@dataclass(frozen=True, kw_only=True)
class Needed:
    """The paths that a release looks at: one of those of the driver, and one for each module of a licensed library."""

    driver: tuple[str, ...]
    libraries: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class Injected:
    """What there is inside: the GPU target ("accel/nvidia/cc80"), and the paths of those that are needed."""

    target: str
    there: frozenset[str]


def needed(version: str, machine: str, modules: Sequence[str]) -> Needed:
    """Return the paths for a release, a type of machine, and the modules that are built or used."""
    words = {"mount": known().mount, "version": version, "machine": machine}
    licensed = (module for module in modules if module.partition("/")[0] in known().licensed)
    return Needed(
        driver=tuple(path.format_map(words) for path in known().driver),
        libraries={module: known().library.format_map({**words, "module": module}) for module in licensed},
    )


def find(inside: Environment, wanted: Needed, env: Mapping[str, str] = os.environ) -> Injected:
    """Look inside for what is needed. Raises HostProblem if it cannot be entered."""
    paths = (*wanted.driver, *wanted.libraries.values())
    argv = inside.command(["sh", str(data("environments/shell/injected.sh")), *paths])
    told = require_entered(process.capture(argv, env=inside.variables(env)))
    if told.status or not told.stdout:
        raise HostProblem(what="EESSI could not be entered.", why=told.stderr.strip())
    target, *there = told.stdout.splitlines()
    return Injected(target=target, there=frozenset(there))


def problems(version: str, wanted: Needed, injected: Injected) -> Iterator[Problem]:
    """Yield what is missing, with the commands that add it."""
    scripts = f"{known().mount}/versions/{version}/{known().gpu_scripts}"
    if not injected.target:
        yield symptom("no-gpu-target")
    if not injected.there.intersection(wanted.driver):
        yield symptom("no-driver", path=wanted.driver[0], version=version, scripts=scripts)
    for module, path in wanted.libraries.items():
        if path not in injected.there:
            yield symptom("no-library", module=module, path=path, version=version, scripts=scripts)
