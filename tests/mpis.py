"""MPI libraries of other families than the machine's own, as the package index has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

WHEELS = {
    "MPICH": ("mpich==4.3.2",),
    "Intel MPI": ("impi-rt==2021.18.1", "impi-devel==2021.18.1"),
}


def put(family: str, folder: Path) -> dict[str, str]:
    """Install an MPI into a folder, and return the variables of a person who has it on PATH, and nothing else of it."""
    if not (folder / "bin" / "mpirun").is_file():
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--ignore-installed"]
        subprocess.run([*pip, f"--prefix={folder}", *WHEELS[family]], check=True, stdin=subprocess.DEVNULL)
    return {"PATH": f"{folder}/bin:{os.environ['PATH']}"}
