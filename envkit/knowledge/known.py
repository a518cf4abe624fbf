"""The knowledge of libraries, drivers, fabrics and faults: versions, patterns and thresholds, in TOML files here."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from typing import Any

from envkit.system import resources, toml


@functools.cache
def known(topic: str) -> Mapping[str, Any]:
    """The contents of TOPIC.toml."""
    contents: Mapping[str, Any] = toml.read(resources.data(f"knowledge/{topic}.toml"), toml.Tables)
    return contents


def owner(kind: str, name: str) -> Mapping[str, str]:
    """Whose one of the "files" or "symbols" is, which is missing: `library`, `remedy`, and `family` if it has one."""
    library: Mapping[str, str] = next(
        (entry for entry in known("libraries")[kind] if re.search(entry["pattern"], name)), known("libraries")["other"]
    )
    return library


@functools.cache
def catalogue() -> Mapping[str, Mapping[str, Mapping[str, Any]]]:
    """Status, message, cause and remedy by check and case, as the TOML files beside the checks have them."""
    files = sorted(resources.data("verify/checks").glob("*.toml"))
    return {name: cases for file in files for name, cases in toml.read(file, toml.Tables).items()}
