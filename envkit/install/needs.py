"""Finding out what this machine lacks for each stack, as far as that goes without a plan, and quickly."""

from collections.abc import Mapping, Sequence
from concurrent.futures import Future
from dataclasses import replace
from functools import partial

from envkit.config import configuration
from envkit.doctor.parallel import Question, ask
from envkit.environments.prefix import Prefix
from envkit.errors import EnvkitError, Problem
from envkit.install import preference
from envkit.machine.host import Host
from envkit.methods import registry
from envkit.planning import chosen_mpi, preflight
from envkit.planning.request import Request
from envkit.planning.stack import Stack

LIMIT_S = 5.0
Found = Mapping[str, Sequence[Problem]]  # by the name of the stack


def lacking(prefix: Prefix, stacks: Sequence[Stack]) -> Mapping[str, Sequence[Problem] | None]:
    """Return what this machine lacks for stacks, by name; None for those of which it could not be found out in time.

    As ``install``, it looks at the machine with the site modules loaded that the configuration names.
    """
    preference.table()
    methods = sorted({stack.method for stack in stacks})
    for name in methods:
        registry.method(name)  # is imported before threads begin
    load = tuple(configuration.read().get("load") or ())
    asked = chosen_mpi.as_configured(Request(prefix=prefix, load=load))
    questions: dict[str, Question] = {"host": lambda _: chosen_mpi.detect(asked)}
    questions |= {
        name: partial(by_method, asked, [stack for stack in stacks if stack.method == name]) for name in methods
    }
    answers = ask(questions, LIMIT_S)
    problems = dict[str, Sequence[Problem]]()
    for stack in stacks:
        found, error = answers.values.get(stack.method, {}), answers.errors.get(stack.method)
        problems |= {stack.name: [error.problem()]} if error else {}  # as of a module that cannot be loaded
        problems |= {stack.name: found[stack.name]} if stack.name in found else {}
    return {stack.name: problems.get(stack.name) for stack in stacks}


def by_method(request: Request, stacks: Sequence[Stack], asked: Mapping[str, Future[Host]]) -> Found:
    """Return what is lacking for the stacks of one method."""
    machine = asked["host"].result()
    return {stack.name: of_stack(replace(request, method=stack.method), machine, stack) for stack in stacks}


def of_stack(request: Request, machine: Host, stack: Stack) -> Sequence[Problem]:
    """Return what is lacking for one stack."""
    try:
        absent = preflight.missing_programs(machine, stack)
        return [*absent, *registry.method(stack.method).lacking(request, machine, stack)]
    except EnvkitError as error:
        return [error.problem()]
