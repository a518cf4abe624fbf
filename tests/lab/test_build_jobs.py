"""A job for each module: eb --job against real Slurm, followed to the end, resumed, failed and cancelled."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from envkit.host import Platform

from ..integration.site import SYSTEM_PATH, Site, make_site, needs, until
from .cluster import Cluster

pytestmark = pytest.mark.integration
TOYS = Path(__file__).parents[1] / "integration" / "toys"
BOTH = """
easyblock = 'Bundle'

name = 'toy-both'
version = '1.0'

homepage = 'https://example.org/'
description = "What needs two that do not need each other."

toolchain = SYSTEM

dependencies = [('toy-top', '1.0'), ('toy-other', '1.0')]

moduleclass = 'devel'
"""


class User:
    """A person on the login host, with recipes of toys of his own."""

    def __init__(self, cluster: Cluster, site: Site) -> None:
        self.cluster, self.site = cluster, site

    def words(self, *words: str, prefix: Path | None = None) -> list[str]:
        """The command line that installs all toys in jobs."""
        submit = ["--submit", "--job-per-module", "--jobs", "1", "--time", "5", "--partition", "gpu"]
        where = ["--prefix", str(prefix or self.site.prefix)]
        return ["envkit", "install", str(self.site.recipe("toy-both")), *where, *submit, *words]
