"""The MPI library that Horovod's extension links, called directly: the yardstick for Horovod's collectives.

`mpi_abi.json` holds the handles of both binary interfaces: Open MPI's are addresses of symbols, those of MPICH, Intel
MPI, MVAPICH and Cray MPI are numbers. Nothing is compiled. MPI is initialised here, before Horovod, which then uses it
as it finds it and leaves MPI_Finalize to whoever called MPI_Init.
"""

import ctypes
import json
import os
import re
from typing import Any, Optional

from .bench import Message
from .shared_object import shared_object

ABI = os.path.join(os.path.dirname(os.path.abspath(__file__)), "mpi_abi.json")
NAME = re.compile(r"lib(mpi|mpich|mpi_(gnu|cray|intel|nvidia|amd|aocc)(_\w+)?)\.so(\.\d+)*")
THREAD_MULTIPLE = 3
FLOAT_BYTES = 4


class RawMpi:
    """An MPI library that is already loaded, by its name; raises OSError where it is not loaded."""

    def __init__(self, name: str) -> None:
        self.name = name
        try:
            self.library = ctypes.CDLL(name, mode=os.RTLD_NOLOAD | ctypes.RTLD_GLOBAL)
        except OSError:
            raise OSError("%s is not loaded" % name)
        self.abi = "Open MPI" if hasattr(self.library, "ompi_mpi_comm_world") else "MPICH"
        with open(ABI) as stream:
            self.words = json.load(stream)[self.abi]
        self.in_place = ctypes.c_void_p(self.words["in_place"])
        self.world = self.handle("world")

    def handle(self, name: str) -> Any:
        """One of MPI's predefined handles, as an argument for its functions."""
        word = self.words[name]
        if self.words["symbols"]:
            return ctypes.c_void_p(ctypes.addressof(ctypes.c_char.in_dll(self.library, word)))
        return ctypes.c_int(int(word, 16))

    def call(self, function: str, *arguments: Any) -> None:
        status = getattr(self.library, function)(*arguments)
        if status:
            raise OSError("%s of %s returned %d" % (function, self.name, status))

    def initialise(self) -> bool:
        """Call MPI_Init_thread unless somebody has; whether it was done here."""
        done, provided = ctypes.c_int(0), ctypes.c_int(0)
        self.call("MPI_Initialized", ctypes.byref(done))
        if not done.value:
            self.call("MPI_Init_thread", None, None, ctypes.c_int(THREAD_MULTIPLE), ctypes.byref(provided))
        return not done.value

    def finalise(self) -> None:
        self.call("MPI_Finalize")

    def size(self) -> int:
        ranks = ctypes.c_int(0)
        self.call("MPI_Comm_size", self.world, ctypes.byref(ranks))
        return ranks.value

    def share(self, value: float) -> float:
        """The largest value that any rank gives."""
        largest = ctypes.c_double(value)
        arguments = (ctypes.byref(largest), ctypes.c_int(1), self.handle("double"), self.handle("max"), self.world)
        self.call("MPI_Allreduce", self.in_place, *arguments)
        return largest.value

    def prepare(self, size: int) -> Message:
        """A sum of `size` bytes of float32 over all ranks, in place."""
        count = size // FLOAT_BYTES
        buffer = (ctypes.c_float * count)()
        arguments = (buffer, ctypes.c_int(count), self.handle("float"), self.handle("sum"), self.world)
        function = self.library.MPI_Allreduce
        return Message(lambda: function(self.in_place, *arguments))


def linked(extension: str) -> Optional[str]:
    """The name of the MPI library that a compiled extension needs, or None."""
    needed = shared_object(extension)["needed"] or []
    return next((name for name in needed if NAME.fullmatch(name)), None)
