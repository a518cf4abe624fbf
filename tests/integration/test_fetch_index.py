"""Fetches real files through whatever index the pip of this machine is configured for."""

from pathlib import Path

import pytest

from envkit.sources.fetch import FetchEvent, FetchState, Source, fetch, missing

pytestmark = pytest.mark.integration

WHEEL = Source(
    filename="six-1.17.0-py2.py3-none-any.whl",
    sha256="4721f391ed90541fddacab5acf947aa0d3dc7d27b2e1e8eda2be8970586c3274",
    project="six",
    needed_by="six-1.17.0.eb",
)
SDIST = Source(
    filename="horovod-0.28.1.tar.gz",
    sha256="92a43f5a94c43907a56805bad15f19700c62ffc83b7ca483f9e104e229f67ef0",
    project="horovod",
    needed_by="Horovod-0.28.1.eb",
)


def test_wheel_and_sdist_from_the_configured_index(tmp_path: Path) -> None:
    events: list[FetchEvent] = []
    fetch([WHEEL, SDIST], tmp_path, offline=False, progress=events.append)
    assert missing([WHEEL, SDIST], tmp_path) == []
    assert {event.filename for event in events if event.state == FetchState.DONE} == {
        WHEEL.filename,
        SDIST.filename,
    }
    assert {path.name for path in tmp_path.glob("[!.]*")} == {WHEEL.filename, SDIST.filename}
