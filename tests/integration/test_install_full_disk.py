"""Installations on disks that fill up, at whatever step: told with status 7, nothing half-made offered, and resumed."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from ..small_disk import leave, small_disk
from .site import Site

pytestmark = pytest.mark.integration
PAGES = 8192


@pytest.fixture
def small(site: Site) -> Iterator[Path]:
    """The site's prefix, on a disk of its own."""
    with small_disk(site.prefix, PAGES) as made:
        yield made


def used(folder: Path) -> int:
    """Return the pages in use."""
    state = os.statvfs(folder)
    return state.f_blocks - state.f_bfree


def test_however_little_is_left(site: Site, small: Path) -> None:
    """The disk is made as full as it is after each step of an installation, and a bit more."""
    needed = used(small)
    site.installed("toy-base")
    needed = used(small) - needed
    assert site.is_offered("toy-base")
    statuses = set()
    for tenth in (0, 5, 9, 12, 20):
        for path in small.iterdir():
            subprocess.run(["rm", "-rf", str(path)], check=True)
        leave(small, needed * tenth // 10)
        done = site.install("toy-base")
        status = done.wait()
        statuses.add(status)
        assert status in {0, 7}, f"{tenth}: {status}\n{done.out}\n{done.err}"
        assert site.is_offered("toy-base") == (status == 0)
        assert "Traceback" not in done.out + done.err
        if status:
            assert done.err.startswith("envkit: ")
            assert "What to do: " in done.err
            (small / "filler").unlink()
            site.installed("toy-base")
        assert not [path for path in small.rglob(".envkit-*") if path.is_file()]
    assert statuses == {0, 7}
