"""A job of ``envkit job slurm --submit`` against a batch script by hand that does the same: until its program speaks.

    python benchmarks/jobs.py [STACK]

As root, with Slurm installed: the cluster is that of the tests. The stack must be installed in $ENVKIT_PREFIX, by
modules. The script loads the modules once and starts the program with srun; with a verification, a line before that
starts ``envkit verify`` in the same way. From the call that submits to the first line of the program, on two nodes
with a rank each. Ends with 1 if a claim does not hold.
"""

import os
import re
import shlex
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from timing import ENVKIT, side_by_side

from envkit.environments import prefix
from envkit.environments.environment import ModuleEnvironment
from envkit.environments.receipt import Mpi
from envkit.launch import srun_mpi
from envkit.methods import installed
from tests.lab.cluster import Cluster

RUNS, MORE_S, PATIENCE_S = 5, 1.5, 120.0
SHAPE = ("--nodes=2", "--ntasks-per-node=1")
PROGRAM = ("python", "-c", "import time; print('said at', time.time(), flush=True)")
SAID = re.compile(r"^said at ([\d.]+)$", re.MULTILINE)
SHARED_CORES = {"OMPI_MCA_hwloc_base_binding_policy": "none", "OMPI_MCA_mpi_yield_when_idle": "1"}


def main() -> int:
    """Measure without a verification, then with one."""
    stack = sys.argv[1] if len(sys.argv) > 1 else "pytorch-2.13-cpu"
    place = prefix.locate(None)
    inside = installed.find(place, stack).environment
    if not isinstance(inside, ModuleEnvironment):
        sys.exit(f"{stack} is no environment of modules")
    with tempfile.TemporaryDirectory(prefix="lab-") as name:
        folder = Path(name)
        folder.chmod(0o755)
        cluster = Cluster(folder, 2)
        cluster.up()
        try:
            env = {**SHARED_CORES, "ENVKIT_PREFIX": str(place.root), "HOME": name, "PATH": os.environ["PATH"]}
            return measure(Jobs(cluster, env), stack, inside)
        finally:
            cluster.down()


class Jobs:
    """A user of the cluster, one job after the other."""

    def __init__(self, cluster: Cluster, env: dict[str, str]) -> None:
        self.cluster, self.env = cluster, env

    def seconds(self, *argv: str) -> float:
        """Submit a job; return the time (s) until the first line of its program."""
        began = time.time()
        done = self.cluster.run(argv, env=self.env)
        number = done.stdout.strip().rpartition(" ")[2]
        if done.returncode:
            raise RuntimeError(done.stderr)
        end = began + PATIENCE_S
        while self.cluster.run(["squeue", "--noheader", f"--jobs={number}"]).stdout:
            if time.time() > end:
                raise RuntimeError(f"job {number} does not end")
            time.sleep(0.1)
        (log,) = self.cluster.folder.glob(f"*-{number}.out")
        said = [float(when) for when in SAID.findall(log.read_text())]
        if len(said) != 2:
            raise RuntimeError(log.read_text())
        return min(said) - began


def measure(jobs: Jobs, stack: str, inside: ModuleEnvironment) -> int:
    """Time both kinds of job in turn."""
    speaks = srun_mpi.chosen_for_job(Mpi(family="Open MPI", version="4.1"))
    asked = [ENVKIT, "job", "slurm", stack, "--nodes", "2", "--ranks-per-node", "1", "--submit"]
    failed = 0
    for title, words, verify in (("without", ["--no-verify"], ()), ("with", [], (ENVKIT, "verify", stack))):
        script = jobs.cluster.folder / f"{title}.sh"
        script.write_text(by_hand(inside, speaks, verify))
        ours, theirs, _ = side_by_side(
            partial(jobs.seconds, *asked, *words, "--", *PROGRAM),
            partial(jobs.seconds, "sbatch", str(script)),
            RUNS,
        )
        holds = ours - theirs <= MORE_S
        failed += not holds
        print(
            f"job slurm {title} a verification, until its program speaks: {ours:.3f} s against {theirs:.3f} s, "
            f"{ours - theirs:.3f} s more (at most {MORE_S}): {'holds' if holds else 'FAILS'}"
        )
    return failed


def by_hand(inside: ModuleEnvironment, speaks: str, verify: tuple[str, ...]) -> str:
    """Return a batch script as people write them."""
    srun = ["srun", f"--mpi={speaks}"]
    return "\n".join(
        [
            "#!/bin/bash",
            *(f"#SBATCH {word}" for word in (*SHAPE, "--output=job-%j.out")),
            *([shlex.join([*srun, *verify])] if verify else []),
            f". {inside.tool.command.parents[1]}/init/bash",
            f"module use {inside.modulepath}",
            f"module load {shlex.join(inside.modules)}",
            shlex.join([*srun, *PROGRAM]),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main())
