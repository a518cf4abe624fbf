"""Everything that the doctor looks at, at the same time."""

import os
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from contextlib import suppress
from functools import partial
from typing import Any

from envkit.doctor import node, questions
from envkit.doctor.facts import LOAD, Facts, Missing, Preflight
from envkit.doctor.parallel import Question, ask
from envkit.easybuild import method as easybuild
from envkit.eessi.access import Access
from envkit.environments.prefix import Prefix
from envkit.errors import EnvkitError, Problem, UnknownStack
from envkit.knowledge import eessi
from envkit.machine import host, runtime
from envkit.methods import registry
from envkit.planning import chosen_mpi
from envkit.planning.request import Request
from envkit.planning.stack import Stack, select

LIMIT_S = 5.0
PATIENCE_S = 4
OF_HOST = ("preflight ", "session ")  # the probes that wait for what a build would take
IN_PARTS = ("eessi",)  # methods whose preflight is no question, since its parts are: of EESSI the ways to it
BUILDING = tuple(name for name in registry.NAMES if name not in IN_PARTS)
Settings = Mapping[str, str]


def gather(prefix: Prefix, load: tuple[str, ...], env: Settings, repository: eessi.Repository | None = None) -> Facts:
    """Look at this machine. Where a module in ``load`` cannot be loaded, look without them, and say so.

    ``repository`` is what ways are looked for to, where it is not EESSI's own.
    """
    for name in BUILDING:
        registry.method(name)  # is imported before threads begin
    answers = ask(all_questions(prefix, load, env, repository), LIMIT_S)
    unloaded = answers.errors.get("host")
    if unloaded:
        answers = ask(all_questions(prefix, (), env, repository), LIMIT_S)
    values = dict(answers.values)
    ways = tuple(values.pop(key) for access in Access if (key := f"eessi {access}") in values)
    preflights = {name: values.pop(key) for name in BUILDING if (key := f"preflight {name}") in values}
    builder = questions.builder(values.pop("host")) if "host" in values else None
    missing = tuple(entry for entry in answers.missing if builder or not entry.probe.startswith(OF_HOST))
    if unloaded:
        missing = (Missing(probe=LOAD, why=" ".join(f"{unloaded.what} {unloaded.why}".split()).rstrip(".")), *missing)
    return Facts(
        user=runtime.user_name(), uid=os.geteuid(), builder=builder, ways=ways, preflights=preflights, missing=missing,
        configuration=questions.configuration(env),
        **{name.replace(" ", "_"): value for name, value in values.items()},
    )  # fmt: skip


def all_questions(
    prefix: Prefix, load: tuple[str, ...], env: Settings, repository: eessi.Repository | None = None
) -> dict[str, Question]:
    """Return the questions by name: that of the fact, with a blank for an underscore."""
    alone: dict[str, Callable[[], Any]] = {
        "host": lambda: chosen_mpi.detect(chosen_mpi.as_configured(Request(prefix=prefix, load=load), env)),
        "indexes": partial(questions.indexes, time.monotonic() + PATIENCE_S),
        "cpu": questions.cpu,
        "node": node.node,
        "gpu driver": node.gpu_driver,
        "nvidia smi": partial(host.no_nvidia, env),
        "toolkits": lambda: tuple(questions.toolkits(env)),
        "modules": partial(questions.modules, env),
        "container": partial(questions.container, env),
        "namespaces": questions.namespaces,
        "mounts": questions.mounts,
        **{f"eessi {access}": partial(questions.way, access, env, PATIENCE_S, repository) for access in Access},
        "schedulers": lambda: tuple(questions.schedulers(env)),
        "limits": questions.limits,
        "room": partial(questions.room, prefix),
    }

    def mpi(asked: Mapping[str, Future[Any]]) -> Any:
        return tuple(questions.mpi(asked["host"].result().env if load else env))

    def session_mpi(asked: Mapping[str, Future[Any]]) -> Any:
        return questions.session_mpi(asked["host"].result(), env)

    by_name: dict[str, Question] = {name: partial(without, question) for name, question in alone.items()}
    by_name |= {f"preflight {name}": partial(preflight, name, prefix, load, env) for name in BUILDING}
    by_name["sources"] = partial(sources, prefix, load, env)
    return by_name | {"mpi": mpi, "session mpi": session_mpi}


def without(question: Callable[[], Any], _asked: Mapping[str, Future[Any]]) -> Any:
    """Ask what waits for no other answer."""
    return question()


def preflight(
    method: str, prefix: Prefix, load: tuple[str, ...], env: Settings, asked: Mapping[str, Future[Any]]
) -> Preflight:
    """Return what ``envkit install --method METHOD`` would refuse here."""
    machine: host.Host = asked["host"].result()
    stack = fitting(method, machine)
    request = chosen_mpi.as_configured(Request(prefix=prefix, method=method, load=load), env)
    try:
        problems = list(registry.method(method).lacking(request, machine, stack))
    except EnvkitError as error:
        problems = [error.problem()]
    return Preflight(stack=stack.name, accelerator=stack.accelerator.value, problems=tuple(problems))


def sources(
    prefix: Prefix, load: tuple[str, ...], env: Settings, asked: Mapping[str, Future[Any]]
) -> tuple[Problem, ...] | None:
    """Return which sources ``envkit install --method easybuild`` could not fetch; None if nothing is known of them.

    To have EasyBuild resolve a stack takes longer than there is time: it has to be done before.
    """
    machine: host.Host = asked["host"].result()
    if asked["preflight easybuild"].result().problems:
        return None
    request = chosen_mpi.as_configured(Request(prefix=prefix, method="easybuild", load=load), env)
    problems = easybuild.refused(request, machine, fitting("easybuild", machine))
    return None if problems is None else tuple(problems)


def fitting(method: str, machine: host.Host) -> Stack:
    """Return a method's stack for this machine's GPUs, or where there is none for its CPUs. Raises UnknownStack."""
    if machine.accelerator is not host.Accelerator.CPU:
        with suppress(UnknownStack):
            return select(None, method=method, accelerator=machine.accelerator.value, platform=machine.platform)
    return select(None, method=method, platform=machine.platform)
