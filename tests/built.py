"""What is built and verified when what it is made of has changed; containers/ and easyconfigs/verified.toml keep that.

    python -m tests.built [STACK]...

builds those that have changed since, or those named, in $ENVKIT_PREFIX, and writes down what it found. Without a GPU
all that is compiled for one is read, and allreduce and training run on CPU tensors. "STACK with FAMILY" is a stack that
is compiled with another MPI than the machine's own, which is put first on PATH while it is built, and then no more;
FAMILY may end in a version, as in "MPICH 3.4".
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from envkit.apptainer.image_plan import Base, ImageRecipe, plan
from envkit.easybuild import mpi
from envkit.easybuild.eb_command import rules
from envkit.environments.prefix import locate
from envkit.machine.host import Accelerator
from envkit.planning.stack import Stack, stacks
from envkit.system.files import discard
from envkit.system.resources import recipes

from . import mpis
from .stacks import Site

RECORDS = {"apptainer": recipes("containers") / "verified.toml", "easybuild": recipes("easyconfigs") / "verified.toml"}
FLAGS = {
    "tensorflow-2.15-cpu": {"mpi", "gloo"},
    "pytorch-2.13-cpu with Open MPI 5.0": {"mpi", "gloo"},
    "pytorch-2.13-cpu with MPICH": {"mpi", "gloo"},
    "pytorch-2.13-cpu with MPICH 3.4": {"mpi", "gloo"},
    "pytorch-2.13-cpu with MPICH 5.0": {"mpi", "gloo"},
    "pytorch-2.13-cpu with Intel MPI": {"mpi", "gloo"},
    "pytorch-2.13-cpu with Cray MPICH": {"mpi", "gloo"},
    "pytorch-2.13-cuda": {"cuda", "nccl", "mpi", "gloo"},
    "tensorflow-2.21-cpu-image": {"mpi", "gloo"},
    "pytorch-2.13-cuda-image": {"cuda", "nccl", "mpi", "gloo"},
    "tensorflow-2.13-rocm-image": {"rocm", "nccl", "mpi", "gloo"},
}
USED_AGAIN = ("MPICH", "Intel MPI")  # test_mpi_families.py in the lab
IN_ITS_PLACE = {"Cray MPICH": "cray/MPICH-system.eb", "Open MPI": "wrapped/OpenMPI-system.eb"}
BUILD_S = 3000
NEEDED = re.compile(r"\('([\w-]+)', '([\w.]+)'|'name': '([\w-]+)', 'version': '([\w.]+)'")


def stack_of(name: str) -> Stack:
    """The stack of a name."""
    [stack] = [stack for stack in stacks() if stack.name == name.partition(" with ")[0]]
    return stack


def family_of(name: str) -> str:
    """The family of MPI that a name asks for; nothing for the machine's own."""
    return name.partition(" with ")[2]


def unversioned(family: str) -> str:
    """A family of MPI without the version that may be named with it."""
    return family.rstrip("0123456789. ")


def made_of(name: str) -> str:
    """A SHA-256 of all that a stack is made of; of an image but for the probe, which says what is true of it."""
    stack = stack_of(name)
    if family := family_of(name):
        made = mpi.variants(stack)[rules()["toolchains"][unversioned(family)]]
        recipe = made_of_recipes(recipes("easyconfigs") / made.easyconfig)
        stands_in = IN_ITS_PLACE.get(unversioned(family))
        in_its_place = [(recipes("easyconfigs") / stands_in).read_bytes()] if stands_in else []
        return hashlib.sha256(repr((recipe, mpis.WHEELS[family], *in_its_place)).encode()).hexdigest()
    if stack.method == "easybuild":
        return made_of_recipes(recipes("easyconfigs") / stack.easyconfig)
    base = Base(bootstrap="debootstrap", reference="http://mirror.invalid/debian")
    wanted = ImageRecipe(name=name, recipe=stack.recipe, arguments=stack.arguments, own={}, base=base, machine="x86_64")
    *_, built, _ = plan(wanted, Path("/")).layers
    recipe = re.sub(r"(?m)^ *PROBE=.*\n", "", (recipes("containers") / stack.recipe).read_text())
    return hashlib.sha256(f"{built.key}\n{recipe}".encode()).hexdigest()


def made_of_recipes(recipe: Path) -> str:
    """A SHA-256 of a recipe of our own, of its patches, and of the recipes that it needs."""
    beside = {path.name: path for path in Path(recipes("easyconfigs")).glob("*.*")}
    found, left = set[Path](), [recipe]
    while left:
        path = left.pop()
        found.add(path)
        text = path.read_text() if path.suffix == ".eb" else ""
        needed = [(one or other, first or second) for one, first, other, second in NEEDED.findall(text)]
        named = re.findall(r"[\w.-]+\.patch", text)
        named += [f"{name}-{version}{end}.eb" for name, version in needed for end in ("", "-gompi-system")]
        left += [beside[name] for name in named if name in beside and beside[name] not in found]
    return hashlib.sha256(repr([(path.name, path.read_bytes()) for path in sorted(found)]).encode()).hexdigest()


def recorded(method: str) -> dict[str, dict[str, Any]]:
    """What has been built and verified by a method."""
    return tomllib.loads(RECORDS[method].read_text()) if RECORDS[method].is_file() else {}


def found(name: str) -> dict[str, Any]:
    """What was found when a stack was built and verified last."""
    return recorded(stack_of(name).method).get(name, {})


def has_changed(name: str) -> bool:
    """Whether a stack is made of something else than what was built and verified last."""
    return found(name).get("made_of") != made_of(name)


def installed(name: str, site: Site) -> Site:
    """Build what of a stack is not there as its recipes have it, and return where: each family of MPI apart."""
    env, words = dict[str, str](), tuple[str, ...]()
    if family := family_of(name):
        own = site.prefix / f"with-{family.replace(' ', '-')}"
        own.mkdir(parents=True, exist_ok=True)
        (site.prefix / "sources").mkdir(parents=True, exist_ok=True)
        if not (own / "sources").is_symlink():
            (own / "sources").symlink_to(site.prefix / "sources")
        env, words = mpis.put(family, of_family(own)), mpis.asked(family)
        site = Site(own)
    done = site.envkit("install", stack_of(name).name, "--rebuild", *words, timeout_s=BUILD_S, env=env)
    assert done.returncode == 0, done.stdout + done.stderr
    return site


def of_family(prefix: Path) -> Path:
    """Return where the MPI lies that a prefix was built with."""
    return prefix.with_name(f"{prefix.name}-mpi")


def build(name: str, site: Site) -> dict[str, Any]:
    """Build a stack from its recipe, and verify it on two ranks; return what to write down."""
    stack, family = stack_of(name).name, family_of(name)
    site = installed(name, site)
    told = site.envkit("verify", stack, "-n", "2", "--json", env=mpis.modules(family, of_family(site.prefix)))
    report = json.loads(told.stdout)
    assert (told.returncode, report["verdict"]) == (0, "pass"), told.stdout + told.stderr
    passed = {result["id"] for result in report["results"] if result["status"] == "pass"}
    assert {"allreduce", "broadcast", "allgather", "flags-agree", "extension-loads", "world-size"} <= passed
    assert unversioned(family) in json.dumps(report["started"]), report["started"]
    stated = report["facts"][0]["common"]["flags"]
    flags = {flag for flag, value in stated.items() if value}
    assert flags == FLAGS[name], flags
    shown = json.loads(site.envkit("show", stack, "--json").stdout)
    version = family.removeprefix(unversioned(family)).strip()
    assert not version or shown["mpi"]["version"].startswith(version), shown["mpi"]
    size = {"size_mb": round(shown["size"] / 1e6)} if "size" in shown else {}
    return {
        "made_of": made_of(name),
        "verified": time.strftime("%Y-%m-%d"),
        "flags": sorted(flags),
        "nccl": stated["nccl"] or 0,
        **size,
    }


def make_room(name: str, site: Site) -> None:
    """Remove what was built of a stack that no other test needs: a disk has room for one image with CUDA or ROCm."""
    family = family_of(name)
    if family and family not in USED_AGAIN:
        discard(site.prefix / f"with-{family.replace(' ', '-')}")
    elif stack_of(name).accelerator is not Accelerator.CPU:
        done = site.envkit("remove", name, "--dependencies")
        assert done.returncode == 0, done.stdout + done.stderr


def write(name: str, facts: dict[str, Any]) -> None:
    """Write down what was built and verified."""
    method = stack_of(name).method
    text = "# What was built and verified; what is for GPUs, on CPU tensors. Written by scripts/images.sh.\n"
    for one, told in sorted({**recorded(method), name: facts}.items()):
        text += f"\n[{json.dumps(one)}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in told.items())
    RECORDS[method].write_text(text)


def main() -> None:
    """Build what is named, or has changed."""
    site = Site(locate(None).root)
    for name in sys.argv[1:] or [name for name in FLAGS if has_changed(name)]:
        print(f"{name}: building in {site.prefix}", flush=True)
        facts = build(name, site)
        write(name, facts)
        print(f"{name}: {facts}", flush=True)
    print("What was verified is written down.")


if __name__ == "__main__":
    main()
