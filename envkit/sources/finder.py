"""Finding one file on pages of indexes and find-links: of thousands of links, only those to it are looked at closely.

Apart from ``index.py``, since importing ``unearth`` takes a fifth of a second.
"""

import re
from typing import cast

from unearth import Link, Package, PackageFinder
from unearth.evaluator import Evaluator
from unearth.fetchers import Fetcher

STEM = re.compile(r"[\w.-]*", re.ASCII)  # what of a name is in its URL as it is


class LinksToFile(Evaluator):
    """Takes the links whose URL may be that of a file."""

    stem = ""

    def evaluate_link(self, link: Link) -> Package | None:
        """Return the package of a link, None of one to anything else."""
        return super().evaluate_link(link) if self.stem in link.url else None


class FileFinder(PackageFinder):
    """Finds the packages of a file of that name, whatever machine it is for, in the order of the places that it has."""

    def __init__(self, pages: object, filename: str) -> None:
        super().__init__(cast("Fetcher", pages), ignore_compatibility=True, respect_source_order=True)
        self.sources.clear()
        match = STEM.match(filename)
        self.stem = match[0] if match else ""

    def build_evaluator(self, package_name: str, allow_yanked: bool = False) -> Evaluator:
        """Return what looks at each link."""
        evaluator = LinksToFile(package_name, ignore_compatibility=True, allow_yanked=allow_yanked)
        evaluator.stem = self.stem
        return evaluator
