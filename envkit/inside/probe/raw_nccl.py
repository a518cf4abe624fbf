"""The NCCL or RCCL that a rank has loaded, called directly: the yardstick for Horovod's collectives on GPUs."""

import ctypes
from typing import Any, Callable, Dict, List

from .bench import Message

FLOAT32, SUM = 7, 0
FLOAT_BYTES = 4
UNIQUE_ID_BYTES = 128


class UniqueId(ctypes.Structure):
    """ncclUniqueId: what the ranks of one communicator have in common; it is passed by value."""

    _fields_ = [("internal", ctypes.c_ubyte * UNIQUE_ID_BYTES)]


class RawNccl:
    """A communicator over all ranks, and the CUDA or HIP runtime that owns its memory; raises OSError.

    `libraries` are the loaded libraries by name; `tell(numbers)` gives every rank the numbers of rank 0.
    """

    def __init__(
        self,
        libraries: Dict[str, List[str]],
        rank: int,
        size: int,
        local_rank: int,
        tell: Callable[[List[int]], List[int]],
    ) -> None:
        names = ("librccl", "libamdhip64") if "librccl" in libraries else ("libnccl", "libcudart")
        missing = [name for name in names if name not in libraries]
        if missing:
            raise OSError("%s is not loaded" % missing[0])
        self.name = libraries[names[0]][0]
        self.nccl, self.runtime = (ctypes.CDLL(libraries[name][0]) for name in names)
        self.prefix = "hip" if names[0] == "librccl" else "cuda"
        self.choose_device(local_rank)
        self.communicator = ctypes.c_void_p()
        self.begin(rank, size, tell)

    def choose_device(self, local_rank: int) -> None:
        count = ctypes.c_int(0)
        self.on_device("GetDeviceCount", ctypes.byref(count))
        self.on_device("SetDevice", ctypes.c_int(local_rank % count.value))

    def begin(self, rank: int, size: int, tell: Callable[[List[int]], List[int]]) -> None:
        own = UniqueId()
        if rank == 0:
            self.call("ncclGetUniqueId", ctypes.byref(own))
        common = UniqueId((ctypes.c_ubyte * UNIQUE_ID_BYTES)(*tell(list(own.internal))))
        self.call("ncclCommInitRank", ctypes.byref(self.communicator), ctypes.c_int(size), common, ctypes.c_int(rank))

    def call(self, function: str, *arguments: Any) -> None:
        status = getattr(self.nccl, function)(*arguments)
        if status:
            raise OSError("%s of %s returned %d" % (function, self.name, status))

    def on_device(self, function: str, *arguments: Any) -> None:
        status = getattr(self.runtime, self.prefix + function)(*arguments)
        if status:
            raise OSError("%s%s returned %d" % (self.prefix, function, status))

    def prepare(self, size: int) -> Message:
        """A sum of `size` bytes of float32 over all ranks, in place; the call waits for the GPU."""
        buffer = ctypes.c_void_p()
        self.on_device("Malloc", ctypes.byref(buffer), ctypes.c_size_t(size))
        self.on_device("Memset", buffer, ctypes.c_int(0), ctypes.c_size_t(size))
        count, kind, operation = ctypes.c_size_t(size // FLOAT_BYTES), ctypes.c_int(FLOAT32), ctypes.c_int(SUM)

        def call() -> None:
            self.call("ncclAllReduce", buffer, buffer, count, kind, operation, self.communicator, ctypes.c_void_p())
            self.on_device("DeviceSynchronize")

        return Message(call)

    def end(self) -> None:
        self.call("ncclCommDestroy", self.communicator)
