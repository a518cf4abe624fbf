"""Horovod's PyTorch interface as far as the probe uses it, and the faults that a test asks for."""

from __future__ import annotations

import importlib
import json
import math
import os
import signal
import time
from pathlib import Path
from typing import Any

torch: Any = importlib.import_module("torch")
Sum, Average, Min, Max, Product = "sum", "average", "min", "max", "product"
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


def _exchange(values: list[Any]) -> list[list[Any]]:
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


def init(**options: str) -> None:
    assert options == ({} if "old" in FAULTS else {"process_sets": "dynamic"})
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


class ProcessSet:
    def __init__(self, ranks: list[int]) -> None:
        self.ranks = ranks

    def rank(self) -> int:
        return self.ranks.index(_RANK)

    def size(self) -> int:
        return len(self.ranks)


_WORLD = ProcessSet(list(range(_SIZE)))
_REDUCTIONS: dict[str, Any] = {Sum: sum, Average: sum, Min: min, Max: max, Product: math.prod}


def add_process_set(ranks: list[int]) -> ProcessSet:
    _fail("process-sets")
    return ProcessSet(ranks)


def remove_process_set(process_set: ProcessSet) -> bool:
    if "no-barrier" in FAULTS:
        time.sleep(0.3 * _RANK)
    return _SIZE > 1 and process_set is not _WORLD


def _of_set(values: list[Any], process_set: ProcessSet) -> list[list[Any]]:
    given = _exchange(values)
    if "one-process-set" in FAULTS:
        return given
    return [given[rank] for rank in process_set.ranks]


def _call(operation: str) -> None:
    """Do what the test asked to happen with an operation: it may be missing."""
    _fail(operation)
    if f"lacking-{operation}" in FAULTS:
        raise AttributeError(f"module 'horovod.torch' has no attribute '{operation}_async'")


def _result(name: str, elements: list[Any]) -> Any:
    """A tensor of these elements, the first of them wrong on the last rank if the test asked for that."""
    if _RANK == _SIZE - 1 and f"wrong-{name}" in FAULTS:
        elements = [elements[0] + 1, *elements[1:]]
    return torch.Tensor(elements)


def synchronize(handle: Any) -> Any:
    return handle


def broadcast_async(tensor: Any, root_rank: int, name: str, process_set: ProcessSet = _WORLD) -> Any:
    _call("broadcast")
    assert root_rank in process_set.ranks
    return _result(name, _exchange(tensor.rows)[root_rank])


def allreduce_async(tensor: Any, op: str, name: str, process_set: ProcessSet = _WORLD) -> Any:
    _call("allreduce")
    divided = op == Average and "wrong-average" not in FAULTS
    reduced = [_REDUCTIONS[op](column) for column in zip(*_of_set(tensor.rows, process_set), strict=True)]
    return _result(name, [value / process_set.size() for value in reduced] if divided else reduced)


allreduce = allreduce_ = allreduce_async_ = allreduce_async
broadcast_async_ = broadcast_async


def grouped_allreduce_async(tensors: list[Any], op: str, name: str) -> list[Any]:
    _call("grouped_allreduce")
    return [allreduce_async(tensor, op, name) for tensor in tensors]


def allgather_async(tensor: Any, name: str, process_set: ProcessSet = _WORLD) -> Any:
    _call("allgather")
    slowness = 1000 if name.endswith("largest") else 0  # what these ranks need would be too long for larger messages
    return _result(name, [value + slowness for values in _of_set(tensor.rows, process_set) for value in values])


def alltoall_async(tensor: Any, splits: list[int], name: str) -> Any:
    _call("alltoall")
    received, counts = [], []
    for values, of in _exchange([tensor.rows, splits]):
        begin = sum(of[:_RANK])
        counts.append(of[_RANK])
        received += values[begin : begin + of[_RANK]]
    return _result(name, received), torch.Tensor(counts)


def reducescatter_async(tensor: Any, op: str, name: str) -> Any:
    _call("reducescatter")
    sums = [sum(column) for column in zip(*_exchange(tensor.rows), strict=True)]
    least, more = divmod(len(sums), _SIZE)
    begin = _RANK * least + min(_RANK, more)
    return _result(name, sums[begin : begin + least + int(more > _RANK)])


def barrier() -> None:
    _fail("barrier")
    if "no-barrier" not in FAULTS:
        _exchange([])


def broadcast_parameters(parameters: dict[str, Any], root_rank: int) -> None:
    for tensor in parameters.values():
        given = _exchange(tensor.rows[0])
        tensor.rows = tensor.rows if "no-broadcast" in FAULTS else [given[root_rank]]


def broadcast_optimizer_state(optimizer: Any, root_rank: int) -> None:
    group = optimizer.param_groups[0]
    given = _exchange([group["rate"]])
    group["rate"] = group["rate"] if "no-state" in FAULTS else given[root_rank][0]


class DistributedOptimizer:
    def __init__(self, optimizer: Any, named_parameters: Any) -> None:
        self.optimizer, self.param_groups = optimizer, optimizer.param_groups

    def zero_grad(self) -> None:
        self.optimizer.zero_grad()

    def step(self) -> None:
        _fail("step")
        for parameter in self.param_groups[0]["params"]:
            if "no-allreduce" not in FAULTS:
                columns = zip(*_exchange(parameter.grad.rows[0]), strict=True)
                parameter.grad.rows = [[sum(column) / _SIZE for column in columns]]
        self.optimizer.step()


if "old" in FAULTS:
    del ProcessSet, add_process_set, remove_process_set, Min, Max, Product, reducescatter_async, barrier
