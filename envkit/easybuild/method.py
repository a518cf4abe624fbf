"""Installing by EasyBuild: the one beside envkit, or that of a release of EESSI (eessi/method.py)."""

import os
import shlex
from collections.abc import Iterator, Sequence
from functools import partial
from importlib import metadata
from pathlib import Path

from envkit.cache.place import configured
from envkit.easybuild import eb_command, mpi, removal, trial_compiles, uses
from envkit.easybuild.installation import ModulesInstallation, modules_of
from envkit.easybuild.receipt import ModuleReceipt, ModulesReceipt
from envkit.environments import receipt
from envkit.environments.environment import ModuleEnvironment
from envkit.environments.prefix import Prefix
from envkit.environments.receipt import Receipt
from envkit.errors import EnvironmentDamaged, EnvkitError, Problem
from envkit.machine import host
from envkit.planning import chosen_mpi, extras, preflight
from envkit.planning.plan import current_recipe
from envkit.planning.request import Request
from envkit.planning.stack import Stack, find_easyconfig, from_recipe, is_stack


def prepare(request: Request, machine: host.Host, stack: Stack) -> ModulesInstallation:
    """Resolve a stack; changes nothing. Raises HostProblem, PlanFailed."""
    if machine.modules_tool is None or not stack.runs_on(machine.platform):
        preflight.require(lacking(request, machine, stack), stack)
    tree = request.prefix.tree(machine.platform)
    present = [name for name in receipt.extras(tree, stack.name) if name in extras.of_stack(stack.name)]
    stack = extras.added(stack, [*present, *request.extras])
    stack, machine = mpi.fitted(request, machine, stack, tree)
    eb = eb_command.bundled_eb(machine, stack, tree)
    plan = eb_command.plan(eb, stack)
    offered = chosen_mpi.unloaded(machine) if mpi.module_of(plan) else None
    assert machine.modules_tool is not None  # noqa: S101  (demanded above)
    tool = machine.modules_tool
    site = {"MODULEPATH": os.environ.get("MODULEPATH", "")} if request.load else {}
    return ModulesInstallation(
        request=request,
        stack=stack,
        host=machine,
        eb=eb,
        plan=plan,
        tree=tree,
        inside=ModuleEnvironment(
            name=stack.name,
            tool=tool,
            modulepath=tree.modulepath,
            modules=(stack.module, *modules_of(plan, stack).values()),
            load=request.load,
        ),
        env={**machine.env, **site},
        lacking=(
            *preflight.host_problems(machine, stack),
            *preflight.known_problems(machine, stack, plan.modules, force=request.force),
            *preflight.patch_problems(plan, request.prefix),
            *mpi.problems(machine, stack, tree, force=request.force),
            *trial_compiles.problems(machine, stack, plan),
        ),
        uses=tuple(uses.lines(machine, plan, stack, offered)),
        mpi=uses.planned_mpi(machine, plan, offered),
        counts=uses.counts(machine, plan),
        tools={name: metadata.version(name) for name in TOOLS},
        described=partial(
            ModuleReceipt,
            modules_tool=tool.kind,
            modules_command=str(tool.command),
            load=request.load,
            easybuild=metadata.version("easybuild-framework"),
        ),
        caches=configured(unsigned=request.unsigned_cache),
    )


def unfit(request: Request, machine: host.Host, stack: Stack) -> Iterator[Problem]:
    """Yield what this machine lacks for a stack, and what is known to fail."""
    yield from preflight.host_problems(machine, stack)
    yield from preflight.known_problems(machine, stack, force=request.force)


def lacking(request: Request, machine: host.Host, stack: Stack) -> list[Problem]:
    """Return what is lacking for any installation of a stack, as far as it is known without its plan."""
    tree = request.prefix.tree(machine.platform)
    try:
        stack, machine = mpi.fitted(request, machine, stack, tree)
        of_mpi = list(mpi.problems(machine, stack, tree, force=request.force))
    except EnvkitError as refused:
        of_mpi = [refused.problem()]
    return [
        *preflight.host_problems(machine, stack),
        *preflight.known_problems(machine, stack, force=request.force),
        *of_mpi,
        *preflight.prefix_problems(request.prefix, stack, 1.0),
    ]


def is_other(request: Request, stack: Stack, environment: Receipt) -> bool:
    """Say whether what is asked for is another environment than what was installed: modules, MPI, recipe, an extra."""
    if (
        not isinstance(environment, ModuleReceipt)
        or environment.load != request.load
        or not {*request.extras} <= {*environment.extras}
        or (stack.of_site and (environment.module, environment.framework) != (stack.module, stack.framework))
    ):
        return True
    return bool(mpi.asked(request, stack)) and (
        environment.mpi is None or environment.mpi.family != request.mpi or environment.mpi.embedded
    )


def request_of(prefix: Prefix, environment: Receipt) -> Request:
    """Return the request that installs what a receipt describes. Raises EnvironmentDamaged: its recipe has gone."""
    assert isinstance(environment, ModulesReceipt)  # noqa: S101  (the registry says so)
    load = environment.load if isinstance(environment, ModuleReceipt) else ()
    wanted = environment.name if is_stack(environment.name) else own_recipe(environment)
    if wanted != environment.name and from_recipe(wanted, environment.method).name != environment.name:
        raise EnvironmentDamaged(
            what=f"{environment.name} cannot be built again: there is no stack of that name any more.",
            why=f"It was made by {wanted}, which was offered under that name. It is left as it is.",
            fix="Have the stack offered again, or build it under another name: "
            f"envkit install {shlex.quote(wanted)} --prefix {shlex.quote(str(prefix.root))}",
        )
    return Request(prefix=prefix, wanted=wanted, method=environment.method, load=load, extras=tuple(environment.extras))


def own_recipe(environment: ModulesReceipt) -> str:
    """Return the recipe of an environment, as an installation takes it. Raises EnvironmentDamaged."""
    recipe = next(
        (current_recipe(module.easyconfig) for module in environment.modules if module.name == environment.module),
        Path(),
    )
    if not recipe.is_file():
        raise EnvironmentDamaged(
            what=f"{environment.name} cannot be built again: its recipe has gone.",
            why=f"It was {recipe}.",
            fix="Put the recipe back, or remove the environment: "
            f"envkit remove {environment.name} --prefix {Path(environment.tree).parent}",
        )
    return recipe.name if find_easyconfig(recipe.name) == recipe else str(recipe)


def refused(request: Request, machine: host.Host, stack: Stack) -> Sequence[Problem] | None:
    """Return what is wrong with the sources where they are sought; None of a stack that eb has to resolve first."""
    tree = request.prefix.tree(machine.platform)
    fitted, seen = mpi.fitted(request, machine, stack, tree)
    if not eb_command.is_planned(eb_command.bundled_eb(seen, fitted, tree), fitted):
        return None
    installation = prepare(request, machine, stack)
    return list(preflight.refused_sources(installation.answers, installation.stack, installation.host))


removable, remove = removal.removable, removal.remove
TOOLS = ("envkit", "easybuild-framework", "easybuild-easyblocks", "easybuild-easyconfigs")
