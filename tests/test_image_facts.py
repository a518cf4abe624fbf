"""What an image says of the MPI in it."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from .verify.compile_c import shared_object

ASK = "import json, sys\nfrom envkit.inside import image_facts\nprint(json.dumps(image_facts.mpi(sys.argv[1:])))"


def mpi(*libraries: Path) -> Any:
    """Ask for the MPI in a process of its own: a library that was loaded once stays."""
    argv = [sys.executable, "-c", ASK, *map(str, libraries)]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


@pytest.mark.parametrize(
    ("says", "family", "version"),
    [
        ("Open MPI v4.1.4, package: Debian OpenMPI, ident: 4.1.4, May 26, 2022", "Open MPI", "4.1.4"),
        ("MPICH Version:\\t4.0.2\\nMPICH Release date:\\tThu Apr  7 12:34:45 CDT 2022", "MPICH", "4.0.2"),
        ("MPI VERSION    : CRAY MPICH version 8.1.29.26 (ANL base 3.4a2)", "MPICH", "8.1.29.26"),
        ("Intel(R) MPI Library 2021.18 for Linux* OS\\n", "Intel MPI", "2021.18"),
        ("MVAPICH2 Version      :\\t2.3.7\\nMVAPICH2 Release date :\\tWed March 02", "MVAPICH", "2.3.7"),
        ("MVAPICH2-GDR Version      :\\t2.3.7\\n", "MVAPICH", "2.3.7"),
        ("MVAPICH Version:\\t3.0\\nMVAPICH Release date:\\tThu Feb 22", "MVAPICH", "3.0"),
        ("MVAPICH-Plus Version:\\t4.0\\n", "MVAPICH", "4.0"),
    ],
)
def test_the_mpi_says_itself_what_it_is(says: str, family: str, version: str, tmp_path: Path) -> None:
    code = (
        f'#include <string.h>\nint MPI_Get_library_version(char *text, int *n) {{ strcpy(text, "{says}"); return 0; }}'
    )
    library = shared_object(tmp_path / "libmpi.so.12", code)
    assert mpi(library) == {"family": family, "version": version}


def test_without_an_mpi(tmp_path: Path) -> None:
    no_mpi = shared_object(tmp_path / "libmpi.so.40", "int nothing(void) { return 0; }")
    assert mpi(tmp_path / "missing.so", no_mpi) is None
