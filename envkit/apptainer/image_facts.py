"""The facts that an image tells of itself."""

import os

import msgspec

from envkit.binary.build_flags import BuildFlags
from envkit.environments.environment import ContainerEnvironment
from envkit.environments.receipt import Mpi
from envkit.errors import BuildFailed
from envkit.system import process, record
from envkit.system.resources import PACKAGE, data


class ImageFacts(msgspec.Struct, frozen=True, kw_only=True):
    """The facts that inside/image_facts.py tells of an image."""

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
    complaint = ""
    for python in ("python", "python3"):
        argv = inside.command([python, script], visible=[PACKAGE])
        answer = process.capture(argv, env=inside.variables(os.environ), timeout_s=300)
        complaint = complaint or answer.stderr.strip()
        if answer.status == 0:
            facts = record.decode(answer.stdout.splitlines()[-1], ImageFacts)
            if facts.horovod or python == "python3":
                return facts
    raise BuildFailed(
        what=f"The image {inside.image} cannot be entered, or has no Python.",
        why=complaint[-600:],
        fix="Try it by hand: apptainer exec IMAGE python3 --version",
    )
