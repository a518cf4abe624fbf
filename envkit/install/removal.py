"""Removing environments: the receipt first, so that nothing half-removed is ever offered."""

from collections.abc import Sequence

from rich.console import Console

from envkit.easybuild.removal import remove_module
from envkit.environments import filelocks, receipt, trust
from envkit.environments.discard import discarded, say_left
from envkit.environments.prefix import Prefix, Tree, listed, not_writable
from envkit.environments.receipt import Parts, Receipt
from envkit.errors import EnvironmentDamaged, EnvironmentMissing, NotWritable
from envkit.install import cleaning, listing
from envkit.methods import installed, registry
from envkit.report.progress import say
from envkit.system import umask

Outcome = tuple[str, tuple[str, ...], tuple[str, ...]]  # the name of what was removed, its modules that went, or stay


def remove(prefix: Prefix, name: str, *, dependencies: bool, console: Console, dry_run: bool = False) -> Outcome:
    """Remove an environment and its own module; with ``dependencies`` all that no other one uses.

    Nothing outside of the tree that its receipt lies in is touched, not through a link either; what lies behind one is
    told. It also removes what an interrupted installation has left. With ``dry_run`` all that is told, and nothing is
    removed. Raises EnvironmentMissing, EnvironmentDamaged where its receipt cannot be read, NotReadable, NotWritable,
    HostProblem for a prefix that somebody who is not trusted can change, and while the same is being built again.
    """
    try:
        tree, environment = installed.placed(prefix, name)
    except EnvironmentMissing:
        if (begun := begun_named(prefix, name)) is None:
            raise
        note = receipt.unfinished_path(begun[0], begun[1])
        trust.require(begun[0].root.parent, begun[0], note, use="removed")
        return remove_begun(*begun, dependencies=dependencies, console=console, dry_run=dry_run)
    trust.require(tree.root.parent, tree, receipt.path_of(tree, environment.name), use="removed")
    installed.require_idle(tree, environment.name)
    if dry_run:
        return foreseen(tree, environment, dependencies=dependencies, console=console)
    before = [module.name for module in environment.recipes if is_there(tree, module.name)]
    lock, message = f"stack-{environment.name}", receipt.waiting(tree, environment.name)
    try:
        with umask.like(tree.root.parent), filelocks.held(tree, lock, console, message):
            installed.require_unchanged(tree, environment)
            remove_from(tree, environment, dependencies=dependencies, console=console)
            receipt.end(tree, environment.name)
    except PermissionError as error:
        raise not_writable(tree.root, error) from error
    return outcome(tree, environment.name, before)


def outcome(tree: Tree, name: str, before: Sequence[str]) -> Outcome:
    """Return what has become of the modules that were there before."""
    remaining = [module for module in before if is_there(tree, module)]
    return name, tuple(module for module in before if module not in remaining), tuple(remaining)


def is_there(tree: Tree, module: str) -> bool:
    """Say whether there is anything of a module."""
    return tree.has(module) or (tree.software / module).is_dir()


def begun_named(prefix: Prefix, name: str) -> tuple[Tree, str] | None:
    """Return the one installation that has begun, not ended, and that a name or the beginning of one can mean."""
    places = reversed(listing.begun_at(prefix))  # the first of a name is meant
    begun = {called: tree for tree, called, _ in places if name and called.startswith(name)}
    names = [name] if name in begun else [*begun]
    return (begun[names[0]], names[0]) if len(names) == 1 else None


def remove_begun(tree: Tree, name: str, *, dependencies: bool, console: Console, dry_run: bool) -> Outcome:
    """Remove what an installation has made that has ended early: what is half built, and its own module.

    With ``dependencies`` all its modules that nothing else uses. Raises HostProblem where it has come to a good end.
    """
    message = receipt.waiting(tree, name)
    try:
        with umask.like(tree.root.parent), filelocks.held(tree, f"stack-{name}", console, message):
            if installed.there(tree, name):
                raise installed.changed(name)
            busy = filelocks.in_use(tree, name)
            parts = list(receipt.parts_in(tree))
            used = {module.name for part in parts for module in part.modules}
            own = [
                module
                for module in planned(tree, name)
                if not any(f"{other}/".startswith(f"{module}/") for other in used)
            ]
            wanted = (
                [] if busy else [module for module in own if dependencies or not tree.has(module) or module == own[-1]]
            )
            if dry_run:
                say(console, f"Would remove what has begun of {name}: {', '.join(wanted) or 'its note'}.")
                return name, tuple(wanted), tuple(module for module in own if module not in wanted)
            say_left(tree, [path for module in wanted for path in remove_module(tree, module)], console)
            for kind in ("old", "new"):
                discarded(tree, tree.replaced / kind / name)
            receipt.end(tree, name)
    except PermissionError as error:
        raise not_writable(tree.root, error) from error
    say(console, f"Removed what had begun of {name}: {', '.join(wanted) or 'its note'}.")
    if busy:
        say(console, f"What other installations may use is kept: another process is at work in {tree.root}.")
    if remaining := [module for module in own if module not in wanted and tree.has(module)]:
        say(console, f"Kept for the next installation: {', '.join(remaining)}. 'envkit clean modules' removes them.")
    return outcome(tree, name, own)


def planned(tree: Tree, name: str) -> list[str]:
    """Return the modules that installations of a name have planned and that there is something of, by their logs."""
    prefix = Prefix(root=tree.root.parent)
    logs = [prefix.logs / log for log in listed(prefix.logs) if cleaning.LOG.fullmatch(log) and log.startswith(name)]
    modules = dict.fromkeys(module for folder in logs for module in cleaning.of_log(folder, "plan"))
    return [module for module in modules if is_there(tree, module)]


def remove_from(tree: Tree, environment: Receipt, *, dependencies: bool, console: Console) -> None:
    """Remove an environment from its tree."""
    own, kept = receipt.path_of(tree, environment.name), receipt.kept_path(tree, environment.name)
    if not discarded(tree, own):
        raise NotWritable(
            what=f"{environment.name} is not removed: {own} cannot be.",
            why=f"{own.parent} is a link, and nothing outside of {tree.root} is removed.",
            fix="Make it a folder of the tree again, or remove what it leads to by hand.",
        )
    say_left(tree, [] if discarded(tree, kept) else [kept], console)
    parts, dependencies = shared(tree, environment, dependencies=dependencies, console=console)
    for kind in ("old", "new"):
        discarded(tree, tree.replaced / kind / environment.name)
    registry.method(environment.method).remove(tree, environment, parts, dependencies=dependencies, console=console)


def foreseen(tree: Tree, environment: Receipt, *, dependencies: bool, console: Console) -> Outcome:
    """Tell what would be removed of an environment, and what would stay; remove nothing."""
    parts, dependencies = shared(tree, environment, dependencies=dependencies, console=console)
    wanted = registry.method(environment.method).removable(tree, environment, parts, dependencies=dependencies)
    modules = [module.name for module in environment.recipes if is_there(tree, module.name)]
    remaining = [module for module in modules if module not in wanted]
    say(console, f"Would remove {environment.name}: {', '.join(wanted) or 'its receipt'}.")
    if remaining:
        say(console, f"Would keep: {', '.join(remaining)}.")
    return environment.name, tuple(module for module in modules if module in wanted), tuple(remaining)


def shared(
    tree: Tree, installed_environment: Receipt, *, dependencies: bool, console: Console
) -> tuple[list[Parts], bool]:
    """Return the parts of other environments, and whether the modules that none uses are known and may be removed."""
    everything = [
        (name, environment) for name, environment in installed.all_in(tree) if name != installed_environment.name
    ]
    parts = [part for part in receipt.parts_in(tree) if part.name != installed_environment.name]
    unknown = [
        str(receipt.path_of(tree, name))
        for name, environment in everything
        if isinstance(environment, EnvironmentDamaged)
    ]
    if unknown and dependencies:
        say(console, f"What other environments may use is kept: {', '.join(unknown)} cannot be read.")
    busy = dependencies and filelocks.in_use(tree, installed_environment.name)
    if busy:
        say(console, f"What other environments may use is kept: another process is at work in {tree.root}.")
    return parts, dependencies and not unknown and not busy
