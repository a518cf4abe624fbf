"""Removing environments: the receipt first, so that nothing half-removed is ever offered."""

from rich.console import Console

from envkit.environments import filelocks, receipt
from envkit.environments.discard import gone, say_left
from envkit.environments.prefix import Prefix, Tree, not_writable
from envkit.environments.receipt import Receipt
from envkit.errors import EnvironmentDamaged, NotWritable
from envkit.methods import installed, registry
from envkit.report.progress import say
from envkit.system import umask


def remove(prefix: Prefix, name: str, *, dependencies: bool, console: Console) -> None:
    """Remove an environment and its own module; with ``dependencies`` all that no other one uses.

    Nothing outside of the tree that its receipt lies in is touched, not through a link either; what lies behind one is
    told. Raises EnvironmentMissing, EnvironmentDamaged where its receipt cannot be read, NotReadable and NotWritable.
    """
    tree, found = installed.placed(prefix, name)
    lock, message = f"stack-{found.name}", f"Another process is installing {found.name}; waiting for it."
    try:
        with umask.of(tree.root.parent), filelocks.held(tree, lock, console, message):
            remove_from(tree, found, dependencies=dependencies, console=console)
    except PermissionError as error:
        raise not_writable(tree.root, error) from error


def remove_from(tree: Tree, found: Receipt, *, dependencies: bool, console: Console) -> None:
    """Remove an environment from its tree."""
    own, kept = receipt.path_of(tree, found.name), receipt.kept_path(tree, found.name)
    if not gone(tree, own):
        raise NotWritable(
            what=f"{found.name} is not removed: {own} cannot be.",
            why=f"{own.parent} is a link, and nothing outside of {tree.root} is removed.",
            fix="Make it a folder of the tree again, or remove what it leads to by hand.",
        )
    say_left(tree, [] if gone(tree, kept) else [kept], console)
    everything = list(installed.all_in(tree))
    parts = list(receipt.parts_in(tree))
    unknown = [str(receipt.path_of(tree, name)) for name, one in everything if isinstance(one, EnvironmentDamaged)]
    if unknown and dependencies:
        say(console, f"What other environments may use is kept: {', '.join(unknown)} cannot be read.")
    busy = dependencies and filelocks.in_use(tree, found.name)
    if busy:
        say(console, f"What other environments may use is kept: another process is at work in {tree.root}.")
    dependencies = dependencies and not unknown and not busy
    for kind in ("old", "new"):
        gone(tree, tree.replaced / kind / found.name)
    registry.method(found.method).remove(tree, found, parts, dependencies=dependencies, console=console)
