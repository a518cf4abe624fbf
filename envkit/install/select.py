"""Choosing method and stack for this machine: each that comes into question is planned as an installation would be."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from envkit.doctor.facts import Driver, Facts, PackageIndex, Preflight
from envkit.errors import ConsentMissing, EnvkitError, Problem, SourceMissing, UsageProblem
from envkit.install import preference
from envkit.knowledge import methods
from envkit.machine.host import Accelerator, Host
from envkit.methods import registry
from envkit.planning import extras, preflight
from envkit.planning.method import Installation
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.sources import fetch

DRIVER_S, PATIENCE_S = 5.0, 4.0


@dataclass(frozen=True, kw_only=True)
class Look:
    """What is looked at of a machine while choosing for it: each thing once, and only when it counts."""

    request: Request
    machine: Host
    works: dict[str, Installation] = field(default_factory=dict)

    @cached_property
    def driver(self) -> tuple[Driver | None, str]:
        """NVIDIA's driver, where there is a GPU of theirs and it answers, and the version of its kernel module."""
        from envkit.doctor import node
        from envkit.doctor.parallel import ask

        if self.machine.accelerator is not Accelerator.CUDA:
            return None, ""
        told = ask({"driver": lambda _: node.gpu_driver(), "node": lambda _: node.node()}, DRIVER_S)
        silent = [one for one in told.missing if one.probe == "driver"]
        found = Driver(cuda="", devices=(), problem=silent[0].why) if silent else told.values["driver"]
        return found, (told.values["node"].gpus.nvidia_driver or "") if "node" in told.values else ""

    @cached_property
    def indexes(self) -> tuple[PackageIndex, ...]:
        """The places that pip takes packages from, and whether they answer."""
        from envkit.doctor import questions

        return questions.indexes(time.monotonic() + PATIENCE_S)

    def lacking(self, stack: Stack) -> Sequence[Problem]:
        """Return what keeps this machine from having a stack; what is cheap to find out, and enough, comes first."""
        if refused := preference.refused_option(stack, self.request):
            return [refused]
        quick = list(preference.driver_problems(stack, self.machine, *self.driver))
        quick += self.unfit(stack)
        return quick or self.planned(stack)

    def unfit(self, stack: Stack) -> Sequence[Problem]:
        """Return what the method of a stack finds out quickly."""
        return list(registry.method(stack.method).unfit(self.request, self.machine, stack))

    def planned(self, stack: Stack) -> list[Problem]:
        """Return what an installation of a stack would refuse, but for a licence to accept, and keep its plan."""
        try:
            work = registry.method(stack.method).prepare(settled(self.request, stack), self.machine, stack)
            problems = [one for one in work.problems() if not isinstance(one, ConsentMissing)]
        except EnvkitError as error:
            return [error.problem()]
        self.works[stack.name] = work
        if all(isinstance(one, SourceMissing) for one in problems):
            return self.network(work) or problems
        return problems

    def network(self, work: Installation) -> list[Problem]:
        """Return that nothing answers which sources can be fetched from, where some have to be."""
        from envkit.doctor import rules

        cache, wanted = self.request.prefix.sources, work.sources if work.missing else ()
        if self.request.offline or not wanted or (cache.is_dir() and not fetch.missing(wanted, cache)):
            return []
        known = Facts(user="", uid=0, indexes=self.indexes)
        of = Preflight(stack=work.stack.name, accelerator=work.stack.accelerator.value, problems=())
        found = rules.no_index(known, of)
        return [found] if found else []


def devices(request: Request, accelerator: Accelerator) -> list[Accelerator]:
    """Return what is to compute, the best first: what was asked for, or this machine's GPUs and then its CPUs."""
    if request.accelerator != methods.AUTO:
        return [Accelerator(request.accelerator)]
    return list(dict.fromkeys((accelerator, Accelerator.CPU)))


def settled(request: Request, stack: Stack) -> Request:
    """Return a request in which method and stack are named."""
    return replace(request, wanted=stack.name, method=stack.method)


def installed(request: Request, accelerator: Accelerator) -> list[Request]:
    """Return the requests for what would do if it were installed: any method's, for the best that computes here."""
    if not preference.is_open(request):
        return [request]
    found = preference.candidates(request, devices(request, accelerator))
    best = [stack for stack in found if stack.accelerator == found[0].accelerator]
    return [settled(request, stack) for stack in best if preference.refused_option(stack, request) is None]


def require_extras(request: Request, candidates: Sequence[Stack]) -> None:
    """Require that some stack has the extras that are asked for, whatever else is wrong here. Raises UsageProblem."""
    refused = list[UsageProblem]()
    for stack in candidates:
        if preference.refused_option(stack, request) is None:
            try:
                extras.added(stack, request.extras)
            except UsageProblem as error:
                refused.append(error)
            else:
                return
    if refused:
        raise refused[0]


def select(request: Request, machine: Host) -> Installation:
    """Return the plan of the first stack that this machine can have, and tell why that one.

    Raises HostProblem where there is none, with what each method lacks; NotWritable, UnknownStack, UsageProblem.
    """
    seen = Look(request=request, machine=machine)
    computing = devices(request, machine.accelerator)
    candidates = [*preference.candidates(request, computing), *preference.others(request, computing)]
    require_extras(request, candidates)
    preflight.require([*preflight.prefix_problems(request.prefix, candidates[0], 0.0)], candidates[0])
    found = preference.first(request, candidates, seen.lacking)
    why = preference.because(found, request, machine.accelerator)
    for line in preference.lines(found.stack, why):
        request.tell(line)
    return seen.works[found.stack.name]
