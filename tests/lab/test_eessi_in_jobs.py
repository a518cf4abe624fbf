"""EESSI in jobs: the ranks that srun starts share one mount per node."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from .. import eessi_tree
from ..eessi_tree import write
from ..integration.site import SYSTEM_PATH, needs, until
from .cluster import Cluster

pytestmark = pytest.mark.integration
CLIENT = """\
#!/bin/sh
for last; do :; done
hostname >>{folder}/starts
exec fuse-overlayfs -f -o lowerdir={folder}/repository "$last"
"""
RANK = 'echo "$(hostname) $EESSI_VERSION $(readlink /proc/self/ns/mnt)"; sleep 2'


def test_one_mount_per_node(cluster: Cluster) -> None:
    needs("lmod", "fuse-overlayfs")
    folder = cluster.folder / "eessi"
    tree = eessi_tree.make(folder / "repository")
    write(folder / "bin" / "cvmfs2", CLIENT.format(folder=folder), program=True)
    (folder / "kept" / "00").mkdir(parents=True)
    (folder / "kept" / "cvmfschecksum.software.eessi.io").touch()  # it was filled before: no server is asked
    env = {
        "PATH": f"{folder}/bin:{Path(sys.executable).parent}:{SYSTEM_PATH}",
        "HOME": str(folder),
        "TMPDIR": str(cluster.unshared),
        "ENVKIT_EESSI_CACHE": str(folder / "kept"),
    }
    command = ["envkit", "run", "eessi", "--access", "userns", "--", "sh", "-c", RANK]
    done = cluster.run(["srun", "--nodes=2", "--ntasks-per-node=2", *command], env=env)
    assert done.returncode == 0, done.stderr
    lines = sorted(done.stdout.splitlines())
    assert [line.split()[:2] for line in lines] == [[f"node{number // 2}", "2023.06"] for number in range(4)]
    assert len(set(lines)) == 2  # the ranks of a node are in the same namespace
    assert sorted((folder / "starts").read_text().split()) == ["node0", "node1"]
    until(lambda: not cluster.processes(str(tree)), "the clients to end", 20)
