"""Build an image as envkit install does: build_image.py PREFIX BASE.sif RECIPE NAME=VALUE..."""

import sys
from pathlib import Path

from rich.console import Console

from envkit import cli
from envkit.apptainer.image_plan import Base, ImageRecipe, plan
from envkit.apptainer.installation import ImageInstallation
from envkit.environments.prefix import Prefix
from envkit.errors import EnvkitError
from envkit.install import install
from envkit.machine import host, runtime
from envkit.machine.host import Accelerator
from envkit.planning.request import Request
from envkit.planning.stack import Stack


def main() -> int:
    prefix, base, recipe = Prefix(root=Path(sys.argv[1])), sys.argv[2], Path(sys.argv[3])
    prefix.create()
    machine = host.detect()
    tree = prefix.tree(machine.platform)
    wanted = ImageRecipe(
        name=recipe.stem,
        recipe=recipe.name,
        arguments=dict(word.split("=", 1) for word in sys.argv[4:]),
        own={},
        base=Base(bootstrap="localimage", reference=base),
        machine=machine.machine,
        folder=recipe.parent,
    )
    stack = Stack(
        name=recipe.stem, method="apptainer", framework="none", accelerator=Accelerator.CPU, recipe=recipe.name
    )
    work = ImageInstallation(
        request=Request(prefix=prefix),
        stack=stack,
        host=machine,
        runtime=runtime.require(),
        plan=plan(wanted, tree.layers),
        tree=tree,
    )
    print("left: " + " ".join(work.missing), flush=True)
    with install.stoppable(), install.storage_explained(prefix):
        work.build(prefix.new_log_folder(stack.name), Console())
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except EnvkitError as error:
        cli.explain(error)
        sys.exit(error.exit_code)
