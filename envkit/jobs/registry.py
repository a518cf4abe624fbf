"""The schedulers that envkit knows: the one place that names all of them."""

from collections.abc import Mapping

from envkit.jobs import pbs, slurm
from envkit.jobs.scheduler import Scheduler

KNOWN: tuple[Scheduler, ...] = (slurm, pbs)
SCHEDULERS: Mapping[str, Scheduler] = {one.NAME: one for one in KNOWN}
