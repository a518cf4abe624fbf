"""Compose the cases gpu-*.json of tests/facts from a recording of four ranks on two nodes without GPUs.

    python -m tests.verify.compose_gpu FOLDER

FOLDER holds the node files that the probe left. What the ranks would have stated of GPUs, NCCL and the fabric is put
in by hand; each case says so. Read the verdict and the checks that did not pass before a case is kept.
"""

from __future__ import annotations

import argparse
import copy
import json
import re
from pathlib import Path
from typing import Any

import msgspec

from envkit.verify.checks import Expected, check, verdict
from envkit.verify.facts import RankFacts, ordered

from .recorded import FOLDER

Record = dict[str, Any]
NCCL = "/opt/software/NCCL/2.18.3/lib/libnccl.so.2.18.3"
COMPOSED = "Composed by hand from a recording without GPUs, not recorded on GPUs"


def devices(node: int) -> list[Record]:
    """The two GPUs of a node, as its driver shows them."""
    return [
        {"name": "NVIDIA A100-SXM4-40GB", "uuid": f"GPU-{node}{n}", "capability": "8.0", "mig": False} for n in (0, 1)
    ]


def with_gpus(record: Record) -> Record:
    """The same rank on a node with two GPUs and InfiniBand, with a Horovod built with NCCL, using its own GPU."""
    node, local = int(record["host"][-1]), record["world"]["local_rank"]
    shown = devices(node)
    known = [{"name": "NVIDIA A100-SXM4-40GB", "uuid": device["uuid"]} for device in shown]
    driver = {"nvidia": known, "nvidia_files": 2, "nvidia_driver": "535.54.03"}
    libraries = {"libibverbs.so.1": "/usr/lib64", "libcxi.so.1": None, "libnccl-net.so": None}
    uuids = [device["uuid"].removeprefix("GPU-") for device in shown]
    return {
        **record,
        "node_gpus": driver,
        "gpu_driver": {"present": True, "cuda": 12020, "status": 0, "devices": shown},
        "compiled": {"cuda": "12.1", "architectures": ["sm_80", "sm_90"], "nccl": "2.18.3", "cxx11_abi": 1},
        "flags": {**record["flags"], "cuda": True, "nccl": 21803},
        "libraries": {**record["libraries"], "libnccl": [NCCL]},
        "nccl": {NCCL: 21803},
        "nccl_network": ["[0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB", "[0] NCCL INFO Using network IB"],
        "gpus": {"count": 2, "names": [device["name"] for device in shown], "uuids": uuids},
        "device": {"index": local, "uuid": uuids[local], "name": shown[local]["name"]},
        "collectives_gpu": record["collectives_cpu"],
        "exchanges_gpu": record["exchanges_cpu"],
        "values_gpu": record["values_cpu"],
        "fabric": {
            **record["fabric"],
            "infiniband": [{"name": "mlx5_0", "active": ["InfiniBand"]}],
            "libraries": libraries,
        },
    }


def good(record: Record) -> Record:
    return record


def shared(record: Record) -> Record:
    """Every rank took the first GPU it saw."""
    first = {"index": 0, "uuid": record["gpus"]["uuids"][0], "name": record["gpus"]["names"][0]}
    return {**record, "device": first}


def hidden(record: Record) -> Record:
    """The job was given no GPUs, and the variable says so."""
    bare = {
        name: record[name]
        for name in record
        if name not in {"device", "collectives_gpu", "exchanges_gpu", "values_gpu"}
    }
    environment = {**record["environment"], "CUDA_VISIBLE_DEVICES": ""}
    driver = {"present": True, "cuda": 12020, "status": 100, "devices": []}
    unheard = {"gpu_driver": driver, "gpus": {"count": 0}, "nccl_network": []}
    return {**bare, "environment": environment, **unheard}


def sockets(record: Record) -> Record:
    """A Slingshot machine without aws-ofi-nccl."""
    libraries = {"libcxi.so.1": "/usr/lib64", "libnccl-net.so": None}
    fabric = {**record["fabric"], "infiniband": [], "cxi": ["cxi0"], "libraries": libraries}
    said = ["[0] NCCL INFO NET/Plugin : No plugin found (libnccl-net.so)", "[0] NCCL INFO Using network Socket"]
    return {**record, "fabric": fabric, "nccl_network": said}


def old_driver(record: Record) -> Record:
    """A framework with CUDA 13 on a driver for CUDA 12.2, as NCCL meets it."""
    error = "HorovodInternalError: ncclCommInitRank failed: unhandled cuda error"
    compiled = {**record["compiled"], "cuda": "13.0"}
    return {**record, "compiled": compiled, "collectives_gpu": {"error": error}, "nccl_network": []}


CASES = {
    "gpu-2nodes": (good, "four ranks on two nodes with two GPUs each, over InfiniBand"),
    "gpu-shared": (shared, "two ranks on one GPU, on each of two nodes; a GPU is left over"),
    "gpu-hidden": (hidden, "GPUs are asked for, and CUDA_VISIBLE_DEVICES hides them"),
    "gpu-sockets": (sockets, "NCCL over sockets on Slingshot, since aws-ofi-nccl is missing"),
    "gpu-driver-old": (old_driver, "a framework with CUDA 13 on a driver that supports 12.2"),
}


def read(folder: Path) -> list[Record]:
    """The ranks' records, without the names of machines and folders."""
    records = []
    for number, path in enumerate(sorted(folder.glob("*.json")), 1):
        file = json.loads(path.read_text())
        records += [{**file["common"], **rank, "host": f"node{number}"} for rank in file["ranks"]]
    for number, record in enumerate(records, 1):
        record["pid"] = number
        record["machine"]["hostname"] = record["host"]
        record["machine"]["container"] = None
        record["fabric"]["interfaces"] = [
            one for one in record["fabric"]["interfaces"] if one["name"] in {"lo", "eth0"}
        ]
        record["environment"] = {
            n: v for n, v in record["environment"].items() if re.match("PMIX_RANK|SLURM_(P|S|L)", n)
        }
        record["machine"]["shm"] = {"size": 2**34, "free": 2**34}
        record["search_path"] = {"preload": [], "preload_file": [], "folders": {}}
    text = re.sub(r'/[^"]*?/(software|lib/x86_64-linux-gnu)/', r"/opt/\1/", json.dumps(records))
    read: list[Record] = json.loads(text)
    return read


def main() -> None:
    """Write the cases."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    records = read(parser.parse_args().folder)
    for name, (change, about) in CASES.items():
        facts = [change(with_gpus(copy.deepcopy(record))) for record in records]
        wanted: Record = {"size": len(facts), "frameworks": ["torch"], "required": ["mpi", "nccl"], "gpus": True}
        results = check(ordered(msgspec.convert(facts, tuple[RankFacts, ...])), msgspec.convert(wanted, Expected))
        not_passed = {result.id: str(result.status) for result in results if result.status != "pass"}
        case: Record = {"about": f"{COMPOSED}: {about}", "expected": wanted, "verdict": str(verdict(results))}
        case |= {"not_passed": not_passed, "facts": facts}
        (FOLDER / f"{name}.json").write_text(json.dumps(case, indent=1) + "\n")
        print(name, case["verdict"], not_passed)


if __name__ == "__main__":
    main()
