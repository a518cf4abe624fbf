"""The main job where there is neither MPI nor CMake, nor a network."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from ..stacks import BUILD_S, ENVKIT, Site

pytestmark = pytest.mark.integration


@pytest.mark.about("wheels")
@pytest.mark.builds(after=True)
def test_without_mpi_cmake_and_network(tmp_path: Path, stacks: Site, installed: Callable[[str], str]) -> None:
    """A machine without MPI and CMake gets both from wheels; sources come from a bundle, the rest is as locked."""
    installed("pytorch-2.13-cpu")
    lock = tmp_path / "pytorch.lock"
    lock.write_text(stacks.envkit("show", "pytorch-2.13-cpu", "--lock").stdout)
    programs = tmp_path / "bin"
    programs.mkdir()
    hidden = ("mpi", "orte", "ompi", "prte", "cmake", "ctest", "cpack", "opal", "shmem", "osh")
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if not program.name.startswith(hidden) and not link.exists():
                link.symlink_to(program)
    bare = Site(tmp_path / "bare")
    env = {"PATH": str(programs)}
    bundle = tmp_path / "bundle.tar"
    fetched = bare.envkit("fetch", "pytorch-2.13-cpu", "--bundle", str(bundle), env=env)
    assert fetched.returncode == 0, fetched.stderr
    shutil.rmtree(bare.prefix)
    lonely = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    done = subprocess.run(
        [*lonely, "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh",
         ENVKIT, "install", "--locked", str(lock), "--bundle", str(bundle)],
        env={**os.environ, **env, "ENVKIT_PREFIX": str(bare.prefix)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
    receipt = json.loads(bare.envkit("show", "--json", env=env).stdout)
    assert receipt["mpi"]["embedded"] is True
    assert re.search(r"Differs:  MPI: Open MPI \S+ in the lock, from a wheel here", done.stdout)
    there, here = json.loads(lock.read_text()), json.loads(bare.envkit("show", "--lock", env=env).stdout)
    same = {part["name"]: part for part in here["parts"] if "embedded" not in part["recipe"]}
    assert same == {part["name"]: part for part in there["parts"] if part["name"] in same}
    assert same.keys() == {part["name"] for part in there["parts"]} - {"CMake/system", "OpenMPI/system"}
    assert {**here["flags"], **there["flags"]} == there["flags"]
