"""Images that are built and verified when what they are made of has changed; containers/verified.toml keeps that.

    python -m tests.built_images [STACK]...

builds those that have changed since, or those named, in $ENVKIT_PREFIX, and writes down what it found. Without a GPU
all that is compiled for one is read, and allreduce and training run on CPU tensors.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import time
import tomllib
from pathlib import Path
from typing import Any

from envkit.methods.apptainer import Base, Wanted, plan
from envkit.prefix import locate
from envkit.resources import recipes
from envkit.stack import stacks

from .stacks import Site

RECORD = recipes("containers") / "verified.toml"
FLAGS = {
    "tensorflow-2.21-cpu-image": {"mpi", "gloo"},
    "pytorch-2.13-cuda-image": {"cuda", "nccl", "mpi", "gloo"},
    "tensorflow-2.13-rocm-image": {"rocm", "nccl", "mpi", "gloo"},
}
BUILD_S = 3000


def made_of(name: str) -> str:
    """A SHA-256 of all that an image is made of but for the probe, which says what is true of it."""
    [stack] = [stack for stack in stacks() if stack.name == name]
    base = Base(bootstrap="debootstrap", reference="http://mirror.invalid/debian")
    wanted = Wanted(name=name, recipe=stack.recipe, arguments=stack.arguments, own={}, base=base, machine="x86_64")
    *_, built, _ = plan(wanted, Path("/")).layers
    recipe = (recipes("containers") / stack.recipe).read_text()
    return hashlib.sha256(f"{built.key}\n{recipe}".encode()).hexdigest()


def recorded() -> dict[str, dict[str, Any]]:
    """What has been built and verified."""
    return tomllib.loads(RECORD.read_text()) if RECORD.is_file() else {}


def has_changed(name: str) -> bool:
    """Whether an image is made of something else than the one that was built and verified last."""
    return recorded().get(name, {}).get("made_of") != made_of(name)


def build(name: str, site: Site) -> dict[str, Any]:
    """Build an image from its recipe, and verify it on two ranks; return what to write down."""
    done = site.envkit("install", name, "--rebuild", timeout_s=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    told = site.envkit("verify", name, "-n", "2", "--json")
    report = json.loads(told.stdout)
    assert (told.returncode, report["verdict"]) == (0, "pass"), told.stdout + told.stderr
    passed = {result["id"] for result in report["results"] if result["status"] == "pass"}
    assert {"allreduce", "broadcast", "allgather", "flags-agree", "extension-loads", "world-size"} <= passed
    stated = report["facts"][0]["common"]["flags"]
    flags = {flag for flag, value in stated.items() if value}
    assert flags == FLAGS[name], flags
    shown = json.loads(site.envkit("show", name, "--json").stdout)
    return {
        "made_of": made_of(name),
        "verified": time.strftime("%Y-%m-%d"),
        "flags": sorted(flags),
        "nccl": stated["nccl"] or 0,
        "size_mb": round(shown["size"] / 1e6),
    }


def write(found: dict[str, dict[str, Any]]) -> None:
    """Write down what was built and verified."""
    text = "# The images that were built and verified, those for GPUs on CPU tensors. Written by scripts/images.sh.\n"
    for name, facts in sorted(found.items()):
        text += f"\n[{json.dumps(name)}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in facts.items())
    RECORD.write_text(text)


def main() -> None:
    """Build the images that are named, or have changed."""
    site = Site(locate(None).root)
    for name in sys.argv[1:] or [name for name in FLAGS if has_changed(name)]:
        print(f"{name}: building in {site.prefix}", flush=True)
        facts = build(name, site)
        write({**recorded(), name: facts})
        print(f"{name}: {facts}", flush=True)
    print(f"{os.path.relpath(RECORD)} is up to date.")


if __name__ == "__main__":
    main()
