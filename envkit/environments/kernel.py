"""Kernels of Jupyter: a file in the user's own Jupyter folder which starts ipykernel inside an environment."""

import json
import os
import re
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path

import platformdirs

from envkit.errors import EnvironmentMissing, NotReadable, NotWritable, UsageProblem
from envkit.system import files

SPEC = "kernel.json"
NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,99}")  # as Jupyter takes them
JUPYTERS = {"python", "python2", "python3"}
OWN = "envkit"  # a key of the metadata, by which a kernel is known to be of this program


def folder(env: Mapping[str, str] = os.environ) -> Path:
    """Return where Jupyter looks for the kernels of this user."""
    named = env.get("JUPYTER_DATA_DIR")
    return (files.at_home(named).absolute() if named else platformdirs.user_data_path("jupyter")) / "kernels"


def name_of(word: str | None, called: str) -> str:
    """Return the name of a kernel: the one asked for, else that of the environment. Raises UsageProblem."""
    name = word if word is not None else re.sub(r"[^a-z0-9._-]+", "-", Path(called).name.lower()).strip("-._")
    if not NAME.fullmatch(name):
        raise UsageProblem(
            what=f"--name {name!r}: that cannot be a kernel.",
            why="Jupyter takes small letters, digits and . _ - in the name of one.",
            fix="Choose another --name.",
        )
    return name


def write(name: str, title: str, argv: Sequence[str]) -> Path:
    """Write a kernel that runs ``argv``, and return its folder; one of envkit's own is written anew.

    Raises UsageProblem where there is one of somebody else's, or Jupyter has one of its own of that name, NotWritable.
    """
    place = folder() / name
    if os.path.lexists(place) and not is_own(place):
        raise UsageProblem(
            what=f"There is a kernel {name} already, which envkit did not make.",
            why=f"It is {place}.",
            fix="Choose another --name, or remove it: jupyter kernelspec remove " + name,
        )
    if name in JUPYTERS:
        raise UsageProblem(
            what=f"--name {name}: that is the kernel of Jupyter's own Python.",
            why="One of that name in your own folder takes its place in every notebook.",
            fix="Choose another --name.",
        )
    spec = {
        "argv": [*argv, "python", "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": title,
        "language": "python",
        "interrupt_mode": "signal",
        "metadata": {OWN: title},
    }
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise NotWritable(
            what=f"{place} cannot be made.", why=f"{error.strerror or error}.", fix="Set JUPYTER_DATA_DIR to another."
        ) from error
    files.deliver(place / SPEC, json.dumps(spec, indent=2).encode() + b"\n", "The kernel")
    return place


def remove(name: str) -> Path:
    """Remove a kernel that envkit has made, and return where it was. Raises EnvironmentMissing, UsageProblem."""
    place = folder() / name
    if not os.path.lexists(place):
        raise EnvironmentMissing(
            what=f"There is no kernel {name}.",
            why=f"It would be {place}.",
            fix="See which there are: jupyter kernelspec list",
        )
    if not is_own(place):
        raise UsageProblem(
            what=f"envkit did not make the kernel {name}, and leaves it.",
            why=f"It is {place}.",
            fix=f"Remove it with: jupyter kernelspec remove {name}",
        )
    try:
        shutil.rmtree(place)
    except OSError as error:
        raise NotWritable(what=f"{place} cannot be removed.", why=f"{error.strerror or error}.") from error
    return place


def is_own(place: Path) -> bool:
    """Say whether envkit has made a kernel. Raises NotReadable for one that cannot be looked at."""
    try:
        content = json.loads(files.read(place / SPEC))
    except PermissionError as error:
        raise NotReadable(what=f"{place} cannot be read.", why=f"{error.strerror}.") from error
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and isinstance(content.get("metadata"), dict) and OWN in content["metadata"]
