"""What an image says of itself."""

import os

import msgspec

from envkit.binary.build_flags import BuildFlags
from envkit.environments.environment import ContainerEnvironment
from envkit.environments.receipt import Mpi
from envkit.errors import BuildFailed
from envkit.system import process, record
from envkit.system.resources import PACKAGE, data


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What image_facts.py says."""

    interpreter: str
    python: str
    machine: str
    libc: str
    horovod: str
    built_for: dict[str, str]
    site_packages: tuple[str, ...]
    library_path: tuple[str, ...]
    built: BuildFlags | None
    mpi: Mpi | None
    pmix: str
    system: str
    packages: dict[str, str]


def ask(inside: ContainerEnvironment) -> ImageFacts:
    """Ask an image what it has. Raises BuildFailed, HostProblem."""
    script = str(data("inside/image_facts.py"))
    said = ""
    for python in ("python", "python3"):
        argv = inside.command([python, script], visible=[PACKAGE])
        told = process.capture(argv, env=inside.variables(os.environ), timeout_s=300)
        said = said or told.stderr.strip()
        if told.status == 0:
            found = record.decode(told.stdout.splitlines()[-1], ImageFacts)
            if found.horovod or python == "python3":
                return found
    raise BuildFailed(
        what=f"The image {inside.image} cannot be entered, or has no Python.",
        why=said[-600:],
        fix="Try it by hand: apptainer exec IMAGE python3 --version",
    )
