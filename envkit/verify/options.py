"""What may be asked of a verification."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envkit.environments.environment import MpiModel


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the user may ask for: flags that must hold, seconds that any one step may take, the shared folder; sizes of
    messages (bytes) to time, worlds (ranks) to train in, DDP beside them; a file to hold the bandwidth against; how the
    ranks in an image become one world; ``quick``: nothing is tried where ranks fail.
    """

    require: tuple[str, ...] = ()
    limit_s: float | None = None
    shared: Path | None = None
    bench: tuple[int, ...] = ()
    scale: tuple[int, ...] = ()
    ddp: bool = False
    baseline: Path | None = None
    tolerance: float = 0.0
    mpi_model: MpiModel | None = None
    quick: bool = False

    @property
    def measures(self) -> frozenset[str]:
        """The facts that are asked for beyond those of every verification."""
        asked = {"bandwidth": self.bench, "throughput": self.scale, "ddp_throughput": self.scale and self.ddp}
        return frozenset(name for name, wanted in asked.items() if wanted)
