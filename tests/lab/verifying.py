"""Verifying on the cluster as a person would: what came out, in every rank, and what was left behind."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .cluster import Cluster
from .conftest import STACK

FAULTS = Path(__file__).with_name("faults")
FIRST_ALONE = Path(__file__).with_name("first_alone.sh")
KEPT = Path(__file__).with_name("kept.sh")
SHARED_CORES = {  # by both nodes: ranks neither stay on one core nor wait without giving it up
    "OMPI_MCA_hwloc_base_binding_policy": "none",
    "OMPI_MCA_mpi_yield_when_idle": "1",
    "I_MPI_PIN": "off",  # Hydra on each node would pin its ranks to the same cores as that on the other
    "I_MPI_WAIT_MODE": "1",
    "SLURM_PMIX_FENCE": "ring",  # the other kind lets ranks through early on busy nodes: rank-died.early-message
}
TIMED_OUT = 124  # timeout(1)
GONE_S = 8.0


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """How the launcher ended, and each rank that ended by itself; what was printed; the time it took."""

    status: int
    ranks: dict[int, int]
    out: str
    err: str
    seconds: float

    @property
    def report(self) -> dict[str, Any]:
        """The one JSON report; anything else on stdout is an error."""
        try:
            read: dict[str, Any] = json.loads(self.out)
        except ValueError:
            raise AssertionError(f"{self.status} {self.ranks}\n{self.out[:500]}\n{self.err[-1500:]}") from None
        return read

    @property
    def results(self) -> dict[str, dict[str, Any]]:
        """The worst result of each check, by its id."""
        order = ("fail", "warn", "skip", "pass")
        ordered = sorted(self.report["results"], key=lambda result: -order.index(result["status"]))
        return {result["id"]: result for result in ordered}

    @property
    def failed(self) -> set[str]:
        """The checks that failed."""
        return {name for name, result in self.results.items() if result["status"] == "fail"}

    def words(self, check: str) -> str:
        """Message, cause and remedy of a check."""
        return " | ".join(self.results[check][key] for key in ("message", "cause", "remedy"))


class Verifying:
    """Verifies on a cluster as a user with a home and a TMPDIR of his own, which must be empty afterwards."""

    def __init__(self, cluster: Cluster, env: Mapping[str, str], folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        shutil.rmtree(folder, ignore_errors=True)
        for name in ("home", "tmp", "kept"):
            (folder / name).mkdir(parents=True)
        places = {"HOME": str(folder / "home"), "TMPDIR": str(folder / "tmp"), "KEPT": str(folder / "kept")}
        self.env = {**env, **SHARED_CORES, **places, "NO_COLOR": "1"}

    def ranks(self, *words: str) -> list[str]:
        """The argv of a rank, which leaves its status."""
        return [str(KEPT), "envkit", "verify", STACK, "--json", *words]

    def mpirun(self, *words: str) -> list[str]:
        """Open MPI's mpirun, which passes the variables on to other hosts."""
        passed = [name for name in (*self.env, "PYTHONPATH", "LAB_FAULT") if not name.startswith("OMPI_")]
        return ["mpirun", *words, *(word for name in passed for word in ("-x", name))]

    def run(
        self,
        argv: Sequence[str],
        *,
        fault: str = "",
        changes: Mapping[str, str] | None = None,
        meanwhile: Callable[[], object] = lambda: None,
        timeout: float = 120,
    ) -> Outcome:
        """Run a command on the login host, and return what came of it.

        ``fault`` is as faults/sitecustomize.py reads it; ``meanwhile`` is called when it has begun.
        """
        began = time.monotonic()
        env = {**self.env, "LAB_FAULT": fault, "PYTHONPATH": str(FAULTS) if fault else "", **(changes or {})}
        running = self.cluster.start(["timeout", "--foreground", "--kill-after=20", str(timeout), *argv], env=env)
        meanwhile()
        try:
            out, err = running.communicate(timeout=timeout + 30)
        finally:
            running.kill()
        assert running.returncode != TIMED_OUT, f"it ran past {timeout} s: {err}"
        seconds = time.monotonic() - began
        return Outcome(status=running.returncode, ranks=self.statuses(), out=out, err=err, seconds=seconds)

    def await_rank(self, host: str, phase: str) -> None:
        """Wait until a rank on that host has come to a step of the probe."""
        end = time.monotonic() + 60
        begun = f'"phase": "{phase}"'
        while not any(begun in path.read_text() for path in (self.folder / "tmp").glob(f"envkit-*-{host}/*.jsonl")):
            assert time.monotonic() < end, f"no rank in {phase}"
            time.sleep(0.05)

    def batch(self, *lines: str, options: Sequence[str], submitting: Sequence[str] = ()) -> Outcome:
        """Have Slurm run a script, and return what came of it; ``submitting`` are the words before sbatch."""
        began = time.monotonic()
        script, out, err, end = (self.folder / name for name in ("job.sh", "job.out", "job.err", "job.end"))
        script.write_text("\n".join(["#!/bin/bash", *lines, f"echo $? >{end}.partial; mv {end}.partial {end}", ""]))
        submit = [*submitting, "sbatch", "--parsable", f"--output={out}", f"--error={err}", *options, str(script)]
        submitted = self.cluster.run(submit, env=self.env)
        assert submitted.returncode == 0, submitted.stderr
        while not end.exists():
            assert time.monotonic() - began < 120, self.cluster.run(["squeue", "--long"]).stdout
            time.sleep(0.1)
        return Outcome(
            status=int(end.read_text()), ranks=self.statuses(), out=out.read_text(), err=err.read_text(),
            seconds=time.monotonic() - began,
        )  # fmt: skip

    def statuses(self) -> dict[int, int]:
        """The status of each rank that ended by itself."""
        kept = {int(path.name): int(path.read_text()) for path in (self.folder / "kept").iterdir()}
        return dict(sorted(kept.items()))

    def left(self) -> list[str]:
        """Processes and files that are still there some seconds later; Open MPI's own files do not count."""
        end = time.monotonic() + GONE_S
        while (found := [*self.processes(), *self.files()]) and time.monotonic() < end:
            time.sleep(0.2)
        return found

    def processes(self) -> list[str]:
        """The processes of a verification."""
        return [line for name in ("verify", "horovodrun") for line in self.cluster.processes(name)]

    def files(self) -> list[str]:
        """What is in the places where envkit leaves facts."""
        places = [self.folder / "home" / ".cache" / "envkit", self.folder / "tmp", self.cluster.unshared]
        return [str(path) for place in places for path in place.glob("envkit*")]
