"""Be a rank of an MPI program that has nothing of Horovod or a framework: does MPI itself work here?

    python -I -S mpi_alone.py LIBRARY SIZE

Loads an MPI library, has each rank agree with all others on a number, and ends with 0 in a world of that size, with 1
where the ranks are no such world, in whatever way where MPI fails. Without -I and -S, what somebody has put among the
packages could fail as well. Standard library only, Python 3.6 or later.
"""

import ctypes
import importlib
import os
import sys

sys.path[0] = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120


def main(library: str, size: int) -> int:
    """Initialise, share a number, finalise."""
    ctypes.CDLL(library, mode=ctypes.RTLD_GLOBAL)
    mpi = importlib.import_module("probe.raw_mpi").RawMpi(library)
    mpi.initialise()
    is_world = mpi.size() == size and mpi.share(float(size)) == size
    mpi.finalise()
    return 0 if is_world else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
