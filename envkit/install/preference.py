"""Which stack an installation takes where nobody names it: the first of preference.toml that can be had. Pure."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec

from envkit.doctor.facts import Driver
from envkit.errors import HostProblem, Problem, UnknownStack, UsageProblem
from envkit.knowledge import methods
from envkit.knowledge.methods import AUTO
from envkit.machine import site
from envkit.machine.host import Accelerator, Host
from envkit.planning.compatibility import versions
from envkit.planning.request import Request
from envkit.planning.stack import FRAMEWORKS, Stack, contradiction, stacks
from envkit.system import toml
from envkit.system.resources import data

TOLD = 2  # problems of a stack that is not taken, in one line


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """preference.toml."""

    order: dict[Accelerator, tuple[str, ...]]
    problem: dict[str, dict[str, str]]


@dataclass(frozen=True, kw_only=True)
class Option:
    """An option that only one method has."""

    method: str
    words: str


@dataclass(frozen=True, kw_only=True)
class Refused:
    """A stack that this machine cannot have, and what stands in its way."""

    stack: Stack
    problems: tuple[Problem, ...]


@dataclass(frozen=True, kw_only=True)
class Choice:
    """The stack that is taken, and those before it that cannot be had; ``after`` names the methods that come later."""

    stack: Stack
    refused: tuple[Refused, ...]
    after: str


@cache
def table() -> Table:
    """Return preference.toml."""
    return toml.read(data("install/preference.toml"), Table)


def is_open(request: Request) -> bool:
    """Say whether a request leaves open by which method, so that this is to be found out."""
    taken_over = request.source is not None or request.dockerfile is not None
    return request.method == AUTO and not taken_over and request.wanted in (None, *FRAMEWORKS)


def candidates(request: Request, devices: Sequence[Accelerator]) -> list[Stack]:
    """Return the stacks that agree with what was asked for, in the order of preference.toml, for each device in turn.

    Raises UnknownStack where there is none, UsageProblem for options that no method has together.
    """
    if request.wanted and request.framework and request.wanted != request.framework:
        raise contradiction(request.wanted, f"--framework {request.framework}")
    matching = list[Stack]()
    for device in devices:
        agreeing = fitting(request, device)
        framework = asked_framework(request) or next((stack.framework for stack in agreeing), None)
        matching += [stack for stack in agreeing if stack.framework == framework]
    if request.release:
        matching = [stack for stack in matching if stack.release == request.release]
    return matching or no_stack(request, devices[0])


def others(request: Request, devices: Sequence[Accelerator]) -> list[Stack]:
    """Return the stacks that come after the candidates where no framework was asked for: those of the other ones."""
    if asked_framework(request):
        return []
    before = candidates(request, devices)
    agreeing = [stack for device in devices for stack in fitting(request, device) if stack not in before]
    return [stack for stack in agreeing if request.release in (None, stack.release)]


def fitting(request: Request, device: Accelerator) -> list[Stack]:
    """Return the stacks for a device whose method has the options that were given. Raises UsageProblem."""
    method = only(request)
    return [stack for stack in ordered(device) if method in (None, stack.method)]


def ordered(device: Accelerator) -> list[Stack]:
    """Return the stacks for a device: the site's defaults, then as preference.toml orders them, the others last."""
    order = {name: place for place, name in enumerate(table().order[device])}
    fitting = [stack for stack in stacks() if stack.accelerator is device]
    return sorted(fitting, key=lambda s: -1 if s.of_site and s.default else order.get(s.name, len(order)))


def asked_framework(request: Request) -> str | None:
    """Return the framework that was asked for."""
    return request.framework or request.wanted


def only(request: Request) -> str | None:
    """Return the one method that has the options that were given. Raises UsageProblem where two have."""
    given = options(request)
    if len({option.method for option in given}) > 1:
        names = ", ".join(f"{option.words} of {option.method}" for option in given)
        raise UsageProblem(what=f"No method has all of these options: {names}.", fix="Leave some of them out.")
    return given[0].method if given else None


def refused_option(stack: Stack, request: Request) -> Problem | None:
    """Return what is wrong with an option that the method of a stack cannot honour, if one was given."""
    without = methods.known()[stack.method].without
    refused = (name for name in without if getattr(request, name) and name not in request.configured)
    return next(map(problem, refused), None)


def options(request: Request) -> list[Option]:
    """Return the options that were given and that only one method has."""
    default = Request(prefix=request.prefix)
    return [
        Option(method=method, words=words)
        for method, of in methods.known().items()
        for name, words in of.options.items()
        if name not in request.configured and getattr(request, name) not in (getattr(default, name), "")
        if name != "site" or of_images(request.site or "")
    ]


def of_images(name: str) -> bool:
    """Say whether a site is described as one for images, and not for jobs alone."""
    profile = site.find(name)
    return bool(profile.binds or profile.settings)


def no_stack(request: Request, device: Accelerator) -> list[Stack]:
    """Raise UnknownStack for what no stack is for."""
    named = "".join(f" with {option.words}" for option in options(request))
    raise UnknownStack(
        what=f"There is no stack for {asked_framework(request) or 'any framework'} on {device.value}{named}.",
        why=f"envkit can install: {', '.join(stack.name for stack in stacks())}.",
        fix="See 'envkit list'; a recipe of EasyBuild's collection is named by its file (.eb).",
    )


def driver_problems(stack: Stack, machine: Host, driver: Driver | None, kernel: str) -> list[Problem]:
    """Return what NVIDIA's driver lacks for a stack; ``kernel`` is its version, where that is known."""
    from envkit.verify.checks.gpu import driver_suits

    if driver is None or stack.accelerator is not Accelerator.CUDA:
        return []
    if driver.problem:
        return [problem("driver-fails", problem=driver.problem)]
    cuda = versions(stack, machine)[0].get("cuda")
    if not cuda or not driver.cuda or driver_suits(cuda, driver.cuda, kernel):
        return []
    return [problem("driver", kernel=kernel, newest=driver.cuda, stack=stack.name, cuda=cuda)]


def first(request: Request, usable: Sequence[Stack], lacking: Callable[[Stack], Sequence[Problem]]) -> Choice:
    """Return the first stack that lacks nothing; those after it are not looked at. Raises HostProblem without any."""
    refused = list[Refused]()
    for number, stack in enumerate(usable, start=1):
        problems = lacking(stack)
        if not problems:
            later = (other.method for other in usable[number:] if other.accelerator == stack.accelerator)
            after = " and ".join(dict.fromkeys(method for method in later if method != stack.method))
            return Choice(stack=stack, refused=tuple(refused), after=after)
        refused.append(Refused(stack=stack, problems=tuple(problems)))
    raise nothing(request, refused)


def lines(stack: Stack, why: str) -> tuple[str, str, str]:
    """Return what is said before an installation begins: the method, the stack, and why."""
    return (
        f"method   {stack.method}: {methods.known()[stack.method].what}",
        f"stack    {stack.name}: {stack.status}",
        f"because  {one_line(why)}",
    )


def because(choice: Choice, request: Request, accelerator: Accelerator) -> str:
    """Say why a stack is taken: what was asked for, what the machine has, and what those before it lack."""
    reasons = [f"{option.words} is only for {option.method}" for option in options(request)]
    if request.accelerator == AUTO:
        reasons.append("there is no GPU" if accelerator is Accelerator.CPU else f"there is a GPU ({accelerator})")
    alike = dict[str, list[str]]()
    for refusal in choice.refused:
        alike.setdefault(f"({refusal.stack.method}): {shortly(refusal.problems)}", []).append(refusal.stack.name)
    reasons += [f"not {', '.join(names)} {text}" for text, names in alike.items()]
    if not choice.refused:
        reasons.append(f"it comes first{f', before {choice.after}' if choice.after else ''}, and nothing is lacking")
    return "; ".join(reasons)


def shortly(problems: Sequence[Problem]) -> str:
    """Return the first problems in some words."""
    reasons = ", ".join(lack.what.rstrip(".") for lack in problems[:TOLD])
    return f"{reasons}, and {len(problems) - TOLD} more" if len(problems) > TOLD else reasons


def one_line(text: str) -> str:
    """Return a text without line ends and what else a terminal would take for more than text."""
    return "".join(letter for letter in " ".join(text.split()) if letter.isprintable())


def nothing(request: Request, refused: Sequence[Refused]) -> HostProblem:
    """Return what to say where no method works: of each, what is missing, and the remedy."""
    listed = [line for method in methods.names() for line in of_method(method, request, refused)]
    wanted = asked_framework(request)
    return HostProblem(
        what=f"No method can give an environment{f' for {wanted}' if wanted else ''} on this machine as it is.",
        why="\n".join(listed),
        fix="One method is enough: do what its arrows say, and run the same command again. Nothing has been changed.",
    )


def of_method(method: str, request: Request, refused: Sequence[Refused]) -> Iterator[str]:
    """Yield what a method lacks, each thing once, with its remedy."""
    own = [
        (refusal.stack.name, problem)
        for refusal in refused
        if refusal.stack.method == method
        for problem in refusal.problems
    ]
    distinct = {problem.what: (name, problem) for name, problem in reversed(own)}
    for name, problem in reversed(distinct.values()):
        yield f"{method} ({name}): {problem.what}\n   -> {problem.fix}"
    if not own and (given := options(request)):
        yield f"{method}: it has no {given[0].words}, which is only for {given[0].method}.\n   -> Leave it out."
    elif not own:
        devices = " or ".join(dict.fromkeys(refusal.stack.accelerator.value for refusal in refused))
        frameworks = " or ".join(dict.fromkeys(refusal.stack.framework for refusal in refused))
        what = table().problem["no-stack"]["what"].format(framework=frameworks, accelerator=devices)
        yield f"{method}: {what}\n   -> {methods.known()[method].otherwise}"


def problem(name: str, **values: object) -> Problem:
    """Return words of preference.toml as a problem."""
    words = table().problem[name]
    return Problem(what=words["what"].format_map(values), fix=words["fix"].format_map(values))
