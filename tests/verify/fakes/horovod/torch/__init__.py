"""Horovod's PyTorch interface as far as the probe uses it, and the faults that a test asks for."""

from __future__ import annotations

import importlib
import json
import os
import signal
import time
from pathlib import Path
from typing import Any

torch: Any = importlib.import_module("torch")
Sum, Average = "sum", "average"
FAULTS = os.environ.get("FAKE_FAULTS", "").split()
_ALONE = "singletons" in FAULTS
_RANK = 0 if _ALONE else int(os.environ["HOROVOD_RANK"])
_SIZE = 1 if _ALONE else int(os.environ["HOROVOD_SIZE"])
_steps = 0

if "no-extension" in FAULTS:
    raise ImportError("libmpi.so.40: cannot open shared object file: No such file or directory")


def _fail(place: str) -> None:
    """Do what the test asked to happen in this place, on the last rank only."""
    if _RANK != _SIZE - 1:
        return
    if f"hang-{place}" in FAULTS:
        time.sleep(3600)
    if f"segfault-{place}" in FAULTS:
        os.kill(os.getpid(), signal.SIGSEGV)
    if f"exit-{place}" in FAULTS:
        os._exit(7)
    if f"raise-{place}" in FAULTS:
        raise RuntimeError(f"{place} failed")


def _exchange(values: list[float]) -> list[list[float]]:
    """What every rank gave to this step, by rank."""
    global _steps
    _steps += 1
    folder = Path(os.environ["FAKE_MEETING"])
    if _ALONE:
        return [values]
    own = folder / f"{_steps}-{_RANK}"
    own.with_suffix(".partial").write_text(json.dumps(values))
    own.with_suffix(".partial").rename(own)
    files = [folder / f"{_steps}-{rank}" for rank in range(_SIZE)]
    while not all(file.exists() for file in files):
        time.sleep(0.005)
    return [json.loads(file.read_text()) for file in files]


def init() -> None:
    print("a framework that prints to standard output")
    _fail("init")


def shutdown() -> None:
    _fail("shutdown")


def rank() -> int:
    return _RANK


def size() -> int:
    return _SIZE


local_rank, local_size = rank, size


def cross_rank() -> int:
    return 0


def cross_size() -> int:
    return 1


def _no() -> bool:
    return False


def gloo_built() -> bool:
    return True


def nccl_built() -> int:
    return 0


rocm_built = cuda_built = mpi_built = ddl_built = ccl_built = _no


def mpi_threads_supported() -> bool:
    raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")


def broadcast(tensor: Any, root_rank: int, name: str) -> Any:
    _fail("broadcast")
    return torch.Tensor(_exchange(tensor.rows)[root_rank])


def allreduce(tensor: Any, op: str, name: str) -> Any:
    _fail("allreduce")
    divisor = _SIZE if op == Average else 1
    if "wrong-average" in FAULTS:
        divisor = 1
    return torch.Tensor([sum(column) / divisor for column in zip(*_exchange(tensor.rows), strict=True)])


def allgather(tensor: Any, name: str) -> Any:
    return torch.Tensor([value for values in _exchange(tensor.rows) for value in values])


def broadcast_parameters(parameters: dict[str, Any], root_rank: int) -> None:
    for tensor in parameters.values():
        tensor.rows = [_exchange(tensor.rows[0])[root_rank]]


class DistributedOptimizer:
    def __init__(self, optimizer: Any, named_parameters: Any) -> None:
        self.optimizer = optimizer

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def step(self) -> None:
        _fail("step")
        for parameter in self.optimizer.parameters:
            if "no-allreduce" not in FAULTS:
                columns = zip(*_exchange(parameter.gradient), strict=True)
                parameter.gradient = [sum(column) / _SIZE for column in columns]
        self.optimizer.step()
