"""What is known of libraries, drivers, fabrics and faults: versions, patterns and thresholds, in known/*.toml."""

from __future__ import annotations

import functools
import re
import tomllib
from collections.abc import Mapping
from typing import Any

from envkit.system import resources


@functools.cache
def known(topic: str) -> Mapping[str, Any]:
    """The contents of known/TOPIC.toml."""
    contents: Mapping[str, Any] = tomllib.loads(resources.data(f"verify/known/{topic}.toml").read_text())
    return contents


def owner(kind: str, name: str) -> Mapping[str, str]:
    """Whose one of the "files" or "symbols" is, which is missing: `library`, `remedy`, and `family` if it has one."""
    found: Mapping[str, str] = next(
        (one for one in known("libraries")[kind] if re.search(one["pattern"], name)), known("libraries")["other"]
    )
    return found
