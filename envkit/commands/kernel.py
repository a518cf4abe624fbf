"""``envkit kernel``."""

from typing import TYPE_CHECKING

import click

from envkit.cli import echo
from envkit.commands import options

if TYPE_CHECKING:
    from envkit.environments.receipt import Receipt


@click.command()
@options.name
@click.option("--name", "kernel", metavar="KERNEL", help="What Jupyter calls it. Default: as the environment, or DIR.")
@click.option("--remove", is_flag=True, help="Remove the kernel again.")
@options.prefix
def kernel(name: str | None, kernel: str | None, remove: bool, prefix: str | None) -> None:
    """Make a Jupyter kernel that runs in the environment NAME, or in a virtual environment DIR on top of one.

    It needs ipykernel there: make a DIR by 'envkit venv', and install it with DIR's pip. The kernel is a file in
    $JUPYTER_DATA_DIR/kernels, else ~/.local/share/jupyter/kernels, where any Jupyter of yours finds it.
    """
    from pathlib import Path

    from envkit.commands import batch
    from envkit.environments import kernel as kernels
    from envkit.environments import prefix as place
    from envkit.methods import installed

    if name == "eessi":
        options.refuse_eessi("be a kernel")
    if remove and kernel:
        echo(f"Removed {kernels.remove(kernels.name_of(kernel, ''))}.")
        return
    receipt = installed.find(place.locate(prefix), name)
    called = kernels.name_of(kernel, receipt.called)
    if remove:
        echo(f"Removed {kernels.remove(called)}.")
        return
    require_ipykernel(receipt)
    where = ["--prefix", str(Path(receipt.tree).parent)]
    path = kernels.write(
        called, f"envkit: {receipt.called}", [*batch.this_envkit(), "run", receipt.called, *where, "--"]
    )
    echo(f"Made the kernel {called}: {path}")
    echo(f"Choose 'envkit: {receipt.called}' in Jupyter. To remove it: envkit kernel --remove --name {called}")


def require_ipykernel(receipt: "Receipt") -> None:
    """Require that ipykernel is there. Raises HostProblem."""
    from pathlib import Path

    from envkit.errors import HostProblem
    from envkit.install import venv_creation

    if "ipykernel" in venv_creation.versions(receipt.environment):
        return
    own = receipt.called if receipt.called != receipt.name else "DIR"
    make = (
        ""
        if receipt.called != receipt.name
        else f"envkit venv {receipt.name} DIR --prefix {Path(receipt.tree).parent}\n"
    )
    fix = f"{make}{own}/bin/pip install ipykernel\nenvkit kernel {own}"
    if receipt.is_image:
        fix = "Have it built into the image: 'envkit export' writes the recipe to add it to."
    raise HostProblem(
        what=f"{receipt.called} has no ipykernel, which a kernel of Jupyter is.",
        why="Python finds no package of that name inside.",
        fix=fix,
    )
