"""Whether the loaded MPI takes addresses of GPU memory, as the library itself tells."""

import ctypes
import re
from typing import Any, Dict, List

# Of Open MPI, MPICH from 4.0 on, Intel MPI and MVAPICH.
QUESTIONS = (
    ("cuda", "MPIX_Query_cuda_support"),
    ("rocm", "MPIX_Query_rocm_support"),
    ("rocm", "MPIX_Query_hip_support"),  # MPICH's word for it
)


def mpi_gpu(libraries: Dict[str, List[str]]) -> Dict[str, bool]:
    """Return whether MPI is running, and by runtime (cuda, rocm) what it then tells, if it can be asked about that."""
    told = {}  # type: Dict[str, bool]
    for path in libraries.get("libmpi", []) + libraries.get("libmpich", []):
        library = ctypes.CDLL(path)
        if not hasattr(library, "MPI_Initialized") or not is_running(library):
            continue
        told["running"] = True
        dies = dies_of_questions(library)
        for runtime, question in QUESTIONS:
            if hasattr(library, question) and not dies:
                told[runtime] = told.get(runtime, False) or bool(getattr(library, question)())
    return told


def is_running(library: Any) -> bool:
    """Say whether MPI is initialised, and not ended: MPICH and Intel MPI end the process that asks before or after."""
    begun, ended = ctypes.c_int(0), ctypes.c_int(0)
    library.MPI_Initialized(ctypes.byref(begun))
    library.MPI_Finalized(ctypes.byref(ended))
    return bool(begun.value and not ended.value)


def dies_of_questions(library: Any) -> bool:
    """Say whether it is MPICH before 4.0, in which an assertion fails where it was built without GPUs."""
    if not hasattr(library, "MPI_Get_library_version"):
        return False
    text, length = ctypes.create_string_buffer(8192), ctypes.c_int(0)
    library.MPI_Get_library_version(text, ctypes.byref(length))
    return bool(re.match(rb"MPICH Version:\s*[0-3]\.", text.value))
