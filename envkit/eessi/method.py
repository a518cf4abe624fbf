"""Installing on top of a release of EESSI: its own EasyBuild builds what it lacks, by EESSI-extend."""

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import cache, partial
from pathlib import Path

from envkit import __version__
from envkit.easybuild import eb_command, removal
from envkit.easybuild import method as easybuild
from envkit.easybuild.eb_command import Eb
from envkit.easybuild.installation import ModulesInstallation
from envkit.eessi import access, entry, injected
from envkit.eessi.receipt import EessiReceipt
from envkit.environments.environment import Environment
from envkit.environments.lockfile import LockedMachine
from envkit.environments.prefix import Prefix
from envkit.environments.receipt import Receipt
from envkit.errors import Problem
from envkit.knowledge.eessi import known
from envkit.machine import host
from envkit.planning import preflight
from envkit.planning.plan import Plan
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.system.resources import recipes

STEERS = re.compile(
    r"EESSI_((ARCHDETECT_OPTIONS|ACCELERATOR_TARGET|ACCEL_SOFTWARE_SUBDIR)_OVERRIDE|SITE_SOFTWARE_PREFIX)"
    r"|(APPTAINER|SINGULARITY|CVMFS)_\w+|XDG_RUNTIME_DIR"
)
PATIENCE_S = 4.0
ROOT_IN_NAMESPACE = {"TAR_OPTIONS": "--no-same-owner"}  # where there are no owners but root


def prepare(request: Request, machine: host.Host, stack: Stack) -> ModulesInstallation:
    """Enter the release and resolve a stack there; changes nothing. Raises HostProblem, UsageProblem, PlanFailed."""
    tree = request.prefix.tree(machine.platform, stack.release)
    visible = (host.writable_parent(request.prefix.root), *map(Path, robot(stack)))
    asked = entry.EntryOptions(version=stack.release, access=request.access, visible=visible)
    entered = entry.enter(asked, keep=False)
    env = {**machine.env, **{name: value for name, value in os.environ.items() if STEERS.fullmatch(name)}}
    extend = replace(entered, modules=(known().extend.format(version=stack.release),))
    eb = Eb(
        words=tuple(extend.command(["eb"])),
        env=extend.variables(
            eb_command.without_passwords(env)
            | eb_command.AS_PIP_COMES
            | eb_command.AS_ONE_UNPACKS
            | eb_command.as_root()
            | ROOT_IN_NAMESPACE
        ),
        robot=robot(stack),
        options=eb_command.as_read_by_all(),
        folders=(*Eb.folders, "EESSI_USER_INSTALL"),
    )
    plan = eb_command.plan(eb, stack)
    lacking = [
        *preflight.machine_problems(machine, stack),
        *preflight.known_problems(machine, stack, plan.modules, force=request.force),
        *gpu_problems(stack, machine.machine, plan, entered, env),
    ]
    return ModulesInstallation(
        request=request,
        stack=stack,
        host=machine,
        eb=eb,
        plan=plan,
        tree=tree,
        inside=replace(entered, name=stack.name, modulepath=tree.modulepath, modules=(stack.module,)),
        env=env,
        lacking=tuple(lacking),
        uses=(f"EESSI:    {stack.release} on {machine.machine} ({entered.cpu}); what it has is not built again",),
        counts=LockedMachine(type=machine.machine, cpu=entered.cpu),
        tools={"envkit": __version__},
        described=partial(EessiReceipt, release=stack.release, copy=str(entry.copy_of(asked) or "")),
    )


def unfit(request: Request, machine: host.Host, stack: Stack) -> Iterator[Problem]:  # noqa: ARG001
    """Yield what is wrong with each way to the repository, if none fits; of a way that is forced, its plan tells."""
    if request.access in (None, "auto"):
        yield from refusals(tuple(os.environ.items()))


@cache
def refusals(settings: tuple[tuple[str, str], ...]) -> tuple[Problem, ...]:
    """Return what is wrong with each way to the repository, none if one fits; servers are asked once for all stacks."""
    env = dict(settings)
    problems = list[Problem]()
    for way, probe in access.PROBES.items():
        asked = access.AccessRequest(
            version=known().default, copy=entry.copy_named(env), env=env, patience_s=PATIENCE_S
        )
        found = probe(asked).problem
        if found is None:
            return ()
        why = f" ({found.why})" if found.why else ""
        problems.append(Problem(what=f"{way}: {found.what}{why}.", fix=found.fix))
    return tuple(problems)


def lacking(request: Request, machine: host.Host, stack: Stack) -> list[Problem]:
    """Return what is lacking for a stack on top of EESSI."""
    return [
        *preflight.machine_problems(machine, stack),
        *preflight.prefix_problems(request.prefix, stack, 1.0),
        *unfit(request, machine, stack),
    ]


def is_other(request: Request, stack: Stack, environment: Receipt) -> bool:  # noqa: ARG001
    """Say whether what is asked for is another environment than what was installed."""
    return not isinstance(environment, EessiReceipt)


def request_of(prefix: Prefix, environment: Receipt) -> Request:
    """Return the request that installs what a receipt describes, on the same release, by the same copy of it."""
    assert isinstance(environment, EessiReceipt)  # noqa: S101  (the registry says so)
    access = f"dir:{environment.copy}" if environment.copy else None
    return replace(easybuild.request_of(prefix, environment), release=environment.release, access=access)


removable, remove = removal.removable, removal.remove


def gpu_problems(
    stack: Stack, machine: str, plan: Plan, inside: Environment, env: Mapping[str, str]
) -> Iterator[Problem]:
    """Yield what the site has not added to the release for GPUs."""
    if stack.accelerator is not host.Accelerator.CUDA:
        return
    wanted = injected.needed(stack.release, machine, plan.modules)
    for found in injected.problems(stack.release, wanted, injected.find(inside, wanted, env)):
        yield Problem(what=f"{found.what}.", fix=found.fix)


def robot(stack: Stack) -> tuple[str, ...]:
    """Return the recipe folders that go before those of EESSI's EasyBuild."""
    named = Path(stack.easyconfig)
    return (*((str(named.parent),) if named.is_absolute() else ()), str(recipes("easyconfigs")))
