"""The launchers, and what srun has to be told for each MPI: launchers.toml."""

from functools import cache
from typing import Any

from envkit.system import toml
from envkit.system.resources import data


@cache
def table() -> dict[str, dict[str, Any]]:
    """Return launchers.toml."""
    return toml.read(data("launch/launchers.toml"), toml.Tables)
