"""Horovod's PyTorch interface as far as the probe uses it, and the faults that a test asks for."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from torch import SGD, Tensor

if TYPE_CHECKING:
    from collections.abc import Callable

Sum, Average = "sum", "average"
FAULTS = os.environ.get("FAKE_FAULTS", "").split()
_RANK, _SIZE = int(os.environ.get("HOROVOD_RANK", "0")), int(os.environ.get("HOROVOD_SIZE", "1"))
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
    global _steps  # noqa: PLW0603
    _steps += 1
    folder = Path(os.environ["FAKE_MEETING"])
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


def _flag(name: str, value: int) -> Callable[[], int | bool]:
    return lambda: value if name == "nccl" else bool(value)


rocm_built, cuda_built, nccl_built = _flag("rocm", 0), _flag("cuda", 0), _flag("nccl", 0)
mpi_built, gloo_built, ddl_built, ccl_built = (_flag(n, n in {"mpi", "gloo"}) for n in ("mpi", "gloo", "ddl", "ccl"))


def mpi_threads_supported() -> bool:
    if "no-mpi" in FAULTS:
        raise ValueError("Horovod MPI is not enabled; Please make sure it's installed and enabled.")
    return True


def broadcast(tensor: Tensor, root_rank: int, name: str) -> Tensor:
    _fail("broadcast")
    return Tensor(_exchange(tensor.rows)[root_rank])


def allreduce(tensor: Tensor, op: str, name: str) -> Tensor:
    _fail("allreduce")
    divisor = _SIZE if op == Average else 1
    if "wrong-average" in FAULTS:
        divisor = 1
    return Tensor([sum(column) / divisor for column in zip(*_exchange(tensor.rows), strict=True)])


def allgather(tensor: Tensor, name: str) -> Tensor:
    return Tensor([value for values in _exchange(tensor.rows) for value in values])


def broadcast_parameters(parameters: dict[str, Tensor], root_rank: int) -> None:
    for tensor in parameters.values():
        tensor.rows = [_exchange(tensor.rows[0])[root_rank]]


class DistributedOptimizer:
    def __init__(self, optimizer: SGD, named_parameters: Any) -> None:
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
