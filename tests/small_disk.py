"""File systems that are as full as a test wants them."""

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

PAGE = 4096


@contextmanager
def small_disk(folder: Path, pages: int) -> Iterator[Path]:
    """Mount a file system of so many pages; skips the test where mounting is not allowed."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={pages * PAGE},mode=700", "none", str(folder)]
    if os.geteuid() or subprocess.run(mount, check=False, capture_output=True).returncode:
        pytest.skip("mounting is not allowed here")
    try:
        yield folder
    finally:
        subprocess.run(["umount", "--lazy", str(folder)], check=True)


def leave(folder: Path, free: int) -> None:
    """Leave so many pages free."""
    filler = folder / "filler"
    filler.unlink(missing_ok=True)
    filler.write_bytes(bytes((os.statvfs(folder).f_bavail - free) * PAGE))
    assert os.statvfs(folder).f_bavail == free
