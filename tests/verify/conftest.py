from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest
from msgspec import _core as _msgspec

from envkit.verify.facts import RankFacts, load

FAKES = Path(__file__).with_name("fakes")
PROBE = Path(__file__).parents[2] / "envkit" / "inside" / "probe"
A_LIBRARY = Path(_msgspec.__file__)
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


def make_site(folder: Path, faults: str) -> Path:
    """A folder with the fake PyTorch and Horovod."""
    site = folder / "site"
    if not site.exists():
        shutil.copytree(FAKES, site)
        (site / "horovod" / "metadata.json").write_text('{"pytorch": "2.1.0", "dummy": "none"}')
        if "absent" not in faults:
            shutil.copy(A_LIBRARY, site / "horovod" / "torch" / f"mpi_lib_v2{EXTENSION_SUFFIXES[0]}")
    return site


def start_probe(
    folder: Path,
    rank: int,
    size: int,
    *,
    faults: str = "",
    timeout: float = 30.0,
    limits: Sequence[str] = (),
) -> subprocess.Popen[str]:
    """One rank of the probe, with the fake PyTorch and Horovod on its search path."""
    site = make_site(folder, faults)
    (folder / "meeting").mkdir(exist_ok=True)
    env = {
        "PATH": os.environ["PATH"],
        "TMPDIR": str(folder),
        "PYTHONPATH": str(site),
        "PYTHONDONTWRITEBYTECODE": "1",
        "FAKE_MEETING": str(folder / "meeting"),
        "FAKE_FAULTS": faults,
        "HOROVOD_RANK": str(rank),
        "HOROVOD_SIZE": str(size),
        "HOROVOD_SECRET_KEY": "s3cret",
    }
    (folder / "facts").mkdir(exist_ok=True)
    argv = [sys.executable, str(PROBE), "--framework", "torch", "--shared", str(folder / "facts")]
    argv += ["--session", folder.name, "--node-ranks", str(size)]
    argv += [word for limit in limits or [f"*={timeout}"] for word in ("--limit", limit)]
    return subprocess.Popen(argv, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture
def probe(tmp_path: Path) -> Probe:
    """Run the probe on `size` ranks with the faults that the fake Horovod knows."""

    def run(size: int = 2, *, faults: str = "", timeout: float = 30.0) -> Ran:
        started = [start_probe(tmp_path, rank, size, faults=faults, timeout=timeout) for rank in range(size)]
        outputs = [process.communicate()[0] for process in started]
        return Ran([process.returncode for process in started], outputs, tmp_path / "facts")

    return run
