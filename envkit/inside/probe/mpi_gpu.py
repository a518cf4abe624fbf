"""Whether the loaded MPI takes addresses of GPU memory, as the library itself tells."""

import ctypes
from typing import Dict, List

# Of Open MPI, MPICH from 4.0 on, and MVAPICH; Intel MPI and Cray MPICH have no such function.
QUESTIONS = {"cuda": "MPIX_Query_cuda_support", "rocm": "MPIX_Query_rocm_support"}


def mpi_gpu(libraries: Dict[str, List[str]]) -> Dict[str, bool]:
    """Return by runtime (cuda, rocm) what the loaded MPI tells; a runtime that it cannot be asked about is left out."""
    told = {}  # type: Dict[str, bool]
    for path in libraries.get("libmpi", []) + libraries.get("libmpich", []):
        library = ctypes.CDLL(path)
        for runtime, question in QUESTIONS.items():
            if hasattr(library, question):
                told[runtime] = told.get(runtime, False) or bool(getattr(library, question)())
    return told
