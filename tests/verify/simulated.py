"""Node files of a world of any size, made from a recording of two ranks: what many nodes would have left.

python -m tests.verify.simulated FOLDER RANKS RANKS_PER_HOST    reports on such files and prints what that took
"""

from __future__ import annotations

import json
import re
import sys
import time
from pathlib import Path
from typing import Any

from envkit.verify.checks import check
from envkit.verify.facts import VERSION, load
from envkit.verify.outcome import Expected
from envkit.verify.report import Report, make_report, render, to_json

from . import recorded

GPU = "NVIDIA H200"


def write(folder: Path, ranks: int, per_host: int, *, killed: int | None = None, late: int | None = None) -> None:
    """Leave a node file per host; one rank may have been killed in its training, one begun 5 s late."""
    case = json.loads((recorded.FOLDER / "pytorch-2ranks.json").read_bytes())
    shared = {name: fact for name, fact in case["facts"][0].items() if name not in ("version", "pid")}
    for number, first in enumerate(range(0, ranks, per_host), 1):
        own = [_rank(shared, rank, ranks, per_host) for rank in range(first, min(first + per_host, ranks))]
        for facts in own:
            if facts["world"]["rank"] == killed:
                facts["phase"], facts["phases"] = "training_torch", _cut(facts["phases"], "training_torch")
                facts["ended"] = {"how": "signal", "signal": "SIGKILL"}
                facts["training_torch"] = None
            if facts["world"]["rank"] == late:
                facts["phases"] = [{**phase, "at": phase["at"] + 5} for phase in facts["phases"]]
        common = {name: fact for name, fact in shared.items() if all(facts[name] == fact for facts in own)}
        host = f"n{number:04}"
        content = {
            "version": VERSION,
            "node": host,
            "written": 0.0,
            "complete": True,
            "common": {**common, "host": host},
            "ranks": [{name: fact for name, fact in facts.items() if name not in common} for facts in own],
        }
        (folder / f"{host}.json").write_text(json.dumps(content))


def _rank(shared: dict[str, Any], rank: int, ranks: int, per_host: int) -> dict[str, Any]:
    local = rank % per_host
    uuids = [f"GPU-{rank // per_host:08x}-{number:04x}" for number in range(per_host)]
    inputs = [[value + rank for value in sample] for sample in shared["training_torch"]["inputs"]]
    return {
        **shared,
        "pid": 1000 + rank,
        "phases": [{**phase, "at": phase["at"] + rank % 7 / 100} for phase in shared["phases"]],
        "environment": {**shared["environment"], "OMPI_COMM_WORLD_RANK": str(rank), "PMIX_RANK": str(rank)},
        "world": {"rank": rank, "size": ranks, "local_rank": local, "local_size": per_host},
        "gpus": {"count": per_host, "names": [GPU] * per_host, "uuids": uuids},
        "device": {"index": local, "uuid": uuids[local], "name": GPU},
        "training_torch": {**shared["training_torch"], "inputs": inputs, "own": [rank / 2, -rank / 3]},
    }


def _cut(phases: list[dict[str, Any]], name: str) -> list[dict[str, Any]]:
    number = next(number for number, phase in enumerate(phases) if phase["name"] == name)
    return [*phases[:number], {**phases[number], "seconds": None}]


def report(folder: Path, ranks: int) -> Report:
    """The report on node files."""
    facts = load(folder)
    expected = Expected(size=ranks, frameworks=("torch",), required=frozenset({"mpi"}))
    return make_report("demo", facts, check(facts, expected), expected=expected, seconds=42.0)


def main() -> None:
    """Print seconds of CPU, the peak of memory in MiB, and the sizes of the JSON and of the text, in bytes."""
    folder, ranks, per_host = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    write(folder, ranks, per_host)
    began = time.process_time()
    made = report(folder, ranks)
    sizes = len(to_json(made)), len(render(made))
    taken = time.process_time() - began
    peak = int(re.findall(r"^VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)[0]) / 1024
    print(json.dumps({"seconds": taken, "peak_mib": peak, "json_bytes": sizes[0], "text_bytes": sizes[1]}))


if __name__ == "__main__":
    main()
