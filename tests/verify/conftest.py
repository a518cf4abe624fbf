from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from envkit.verify.facts import RankFacts, load

FAKES = Path(__file__).with_name("fakes")
PROBE = Path(__file__).parents[2] / "envkit" / "verify" / "probe.py"
Probe = Callable[..., "Ran"]


class Ran:
    """What a run of the probe left: a status and standard output by process, and the records."""

    def __init__(self, statuses: Sequence[int], outputs: Sequence[str], output: Path) -> None:
        self.statuses = tuple(statuses)
        self.outputs = tuple(outputs)
        self.output = output

    @property
    def facts(self) -> tuple[RankFacts, ...]:
        return load(self.output)


def start_probe(
    folder: Path, rank: int, size: int, *, faults: str = "", timeout: float = 30.0
) -> subprocess.Popen[str]:
    """One rank of the probe, with the fake PyTorch and Horovod on its search path."""
    site = folder / "site"
    if not site.exists():
        shutil.copytree(FAKES, site)
        (site / "horovod" / "metadata.json").write_text('{"pytorch": "2.1.0", "dummy": "none"}')
        if "absent" not in faults:
            (site / "horovod" / "torch" / "mpi_lib_v2.fake.so").touch()
    (folder / "meeting").mkdir(exist_ok=True)
    env = {
        "PATH": os.environ["PATH"],
        "PYTHONPATH": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FAKE_MEETING": str(folder / "meeting"),
        "FAKE_FAULTS": faults,
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_SECRET_KEY": "s3cret",
    }
    argv = [sys.executable, str(PROBE), "--framework", "torch", "--output", str(folder / "facts")]
    argv += ["--timeout", str(timeout)]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    """Run the probe on `size` ranks with the faults that the fake Horovod knows."""

    def run(size: int = 2, *, faults: str = "", timeout: float = 30.0) -> Ran:
        started = [start_probe(tmp_path, rank, size, faults=faults, timeout=timeout) for rank in range(size)]
        outputs = [process.communicate()[0] for process in started]
        return Ran([process.returncode for process in started], outputs, tmp_path / "facts")

    return run
