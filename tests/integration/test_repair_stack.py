"""A stack that is damaged in a layer over the prefix, so that no other test sees it, and repaired there."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.environments.prefix import Prefix
from envkit.methods.installed import find

from ..stacks import ENVKIT, Site
from .site import needs

pytestmark = pytest.mark.integration

STACK = "pytorch-2.13-cpu"
# $1: the prefix, $2: a folder for the layer, $3: envkit, $4: a file of Horovod, $5: a file of a module that it needs
DAMAGE = """
mkdir "$2/upper" "$2/work"
mount -t overlay overlay -o "lowerdir=$1,upperdir=$2/upper,workdir=$2/work,redirect_dir=on" "$1"
"$3" repair pytorch-2.13-cpu
cp -p "$4" "$2/kept"
: > "$4"
"$3" repair pytorch-2.13-cpu --dry-run && exit 1
cat "$2/kept" > "$4"
"$3" repair pytorch-2.13-cpu --dry-run
rm "$5"
"$3" repair pytorch-2.13-cpu
"$3" repair pytorch-2.13-cpu --dry-run
"""


def test_what_is_damaged_of_a_stack_is_found_and_mended(
    installed: Callable[[str], str], stacks: Site, tmp_path: Path
) -> None:
    """A file of Horovod is found; what is built again and verified is the module of its toolchain, in seconds."""
    needs("mount")
    installed(STACK)
    found = find(Prefix(root=stacks.prefix), STACK)
    files = (Path(found.horovod) / "torch" / "mpi_ops.py", Path(found.tree) / "modules/all/gompi/system.lua")
    before = [path.read_bytes() for path in files]
    done = subprocess.run(
        ["unshare", "--mount", "sh", "-ec", DAMAGE, "sh", stacks.prefix, tmp_path, ENVKIT, *files],
        env={**os.environ, "ENVKIT_PREFIX": str(stacks.prefix)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    said = done.stdout
    if "unknown" in done.stderr or "wrong fs type" in done.stderr:
        pytest.skip("an overlay cannot be mounted here")
    assert done.returncode == 0, said + done.stderr
    assert said.count(f"Nothing of {STACK} is damaged: ") == 3
    assert f"    changed  {files[0]}\n" in said
    assert f"    gone     {files[1]}\n" in said
    assert "Building 1 of 7 modules" in said
    assert f"PASS  {STACK}: 2 ranks in one world" in said
    assert [path.read_bytes() for path in files] == before
