"""The schedulers that "envkit job" has a command for: those of knowledge/schedulers.toml that have a module here."""

from collections.abc import Mapping
from importlib import import_module
from typing import cast

from envkit.jobs.scheduler import Scheduler
from envkit.knowledge.known import known
from envkit.system.resources import data

KNOWN: tuple[Scheduler, ...] = tuple(
    cast("Scheduler", import_module(f"envkit.jobs.{name}"))
    for name in known("schedulers")
    if data(f"jobs/{name}.toml").is_file()
)
SCHEDULERS: Mapping[str, Scheduler] = {scheduler.NAME: scheduler for scheduler in KNOWN}
