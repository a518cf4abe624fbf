"""The facts that `probe.py` states, one record per rank. A fact that could not be had carries `error`."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path

import msgspec

from envkit.errors import EnvkitError

VERSION = 1
_LAUNCHER_RANKS = ("HOROVOD_RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "SLURM_PROCID", "PMI_RANK")


class Fact(msgspec.Struct, frozen=True, kw_only=True):
    """What any fact may be instead of a value: the exception's type and message, and its traceback's end."""

    error: str | None = None
    traceback: str | None = None


class Python(Fact, frozen=True, kw_only=True):
    """The interpreter."""

    executable: str = ""
    version: str = ""


class Horovod(Fact, frozen=True, kw_only=True):
    """Horovod's package, read and not imported: what it was built for, and each extension's path."""

    path: str = ""
    version: str | None = None
    metadata: dict[str, str] = msgspec.field(default_factory=dict)
    extensions: dict[str, str | None] = msgspec.field(default_factory=dict)


class Import(Fact, frozen=True, kw_only=True):
    """The framework as imported."""

    version: str = ""
    path: str | None = None


class Flags(Fact, frozen=True, kw_only=True):
    """What the loaded library says it was built with; nccl is NCCL's version code."""

    rocm: bool | Fact | None = None
    cuda: bool | Fact | None = None
    nccl: int | Fact | None = None
    mpi: bool | Fact | None = None
    gloo: bool | Fact | None = None
    ddl: bool | Fact | None = None
    ccl: bool | Fact | None = None

    def get(self, name: str) -> int | None:
        """A flag as a number, or None where it was not told."""
        value = getattr(self, name)
        return None if value is None or isinstance(value, Fact) else int(value)


class World(Fact, frozen=True, kw_only=True):
    """This rank's place, as Horovod tells it."""

    rank: int | Fact | None = None
    size: int | Fact | None = None
    local_rank: int | Fact | None = None
    local_size: int | Fact | None = None
    cross_rank: int | Fact | None = None
    cross_size: int | Fact | None = None


class Gpus(Fact, frozen=True, kw_only=True):
    """The GPUs that the framework sees; UUIDs where it tells them."""

    count: int = 0
    names: tuple[str, ...] = ()
    uuids: tuple[str | None, ...] = ()


class Device(Fact, frozen=True, kw_only=True):
    """The GPU that this rank used; `index` counts among the visible ones."""

    index: int = 0
    uuid: str | None = None
    name: str = ""


class Collectives(Fact, frozen=True, kw_only=True):
    """What was sent and what came back, in elements; lengths 3, 3, 3, 3 and the sum of 1 + rank % 3."""

    sent: tuple[float, ...] = ()
    broadcast: tuple[float, ...] | None = None
    sum: tuple[float, ...] | None = None
    average: tuple[float, ...] | None = None
    gathered: tuple[float, ...] | None = None


class Training(Fact, frozen=True, kw_only=True):
    """A least-squares problem of this rank (inputs: samples x features) and its weights before and after."""

    inputs: tuple[tuple[float, ...], ...] = ()
    targets: tuple[float, ...] = ()
    own: tuple[float, ...] = ()
    started: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    learning_rate: float = 0.0
    steps: int = 0
    digest: str = ""
    loss: float | None = None


class Keras(Fact, frozen=True, kw_only=True):
    """Which Keras `tensorflow.keras` is: `keras` or `tf_keras`, and its version."""

    implementation: str = ""
    version: str = ""
    module: str = ""


class Warmup(Fact, frozen=True, kw_only=True):
    """The learning rate asked for and the one reached."""

    asked: float = 0.0
    reached: float = 0.0


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """A step of the probe: when it began (seconds since 1970) and how long it took, if it ended."""

    name: str
    at: float
    seconds: float | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True):
    """How the measuring process ended (exit, signal, timeout, terminated), in which phase, with its stack."""

    how: str
    phase: str
    status: int | None = None
    signal: str | None = None
    limit: float | None = None
    stack: str | None = None


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's record. What is None was not reached."""

    version: int
    framework: str
    host: str
    pid: int
    phase: str
    phases: tuple[Phase, ...] = ()
    python: Python | None = None
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    installed: dict[str, str] = msgspec.field(default_factory=dict)
    horovod: Horovod | None = None
    imported: Import | None = msgspec.field(default=None, name="import")
    load: Fact | None = None
    flags: Flags | None = None
    init: Fact | None = None
    world: World | None = None
    mpi_threads: bool | Fact | None = None
    libraries: dict[str, tuple[str, ...] | str] = msgspec.field(default_factory=dict)
    gpus: Gpus | None = None
    device: Device | None = None
    collectives_cpu: Collectives | None = None
    collectives_gpu: Collectives | None = None
    training_torch: Training | None = None
    training_tensorflow: Training | None = None
    training_keras: Training | None = None
    keras: Keras | None = None
    broadcast_callback: Training | None = None
    metric_callback: Training | None = None
    warmup_callback: Warmup | None = None
    shutdown: Fact | None = None
    ended: Ended | None = None

    @property
    def rank(self) -> int | None:
        """The rank that Horovod told, or None."""
        return self.world.rank if self.world and isinstance(self.world.rank, int) else None

    @property
    def size(self) -> int | None:
        """The world size that Horovod told, or None."""
        return self.world.size if self.world and isinstance(self.world.size, int) else None

    @property
    def launcher_rank(self) -> int | None:
        """The rank that the launcher told in its variables, or None."""
        told = (self.environment.get(name, "") for name in _LAUNCHER_RANKS)
        return next((int(value) for value in told if value.isdigit()), None)

    @property
    def label(self) -> str:
        """What to call this rank in a message."""
        rank = self.launcher_rank if self.rank is None else self.rank
        where = f"{self.host}, pid {self.pid}"
        return f"a process ({where})" if rank is None else f"rank {rank} ({where})"

    @property
    def finished(self) -> bool:
        """Whether the probe came to its end."""
        ended = self.ended
        return ended is not None and ended.how == "exit" and not ended.status and self.phase == "exit"


def load(directory: Path) -> tuple[RankFacts, ...]:
    """Every record in a directory, by framework and rank; raises EnvkitError for one that cannot be read."""
    decoder = msgspec.json.Decoder(RankFacts)
    return ordered([_read(decoder, path) for path in sorted(directory.glob("*.json"))])


def ordered(facts: Sequence[RankFacts]) -> tuple[RankFacts, ...]:
    """The same records by framework, rank (Horovod's, else the launcher's), host and process."""
    keyed = [((f.framework, _order(f), f.host, f.pid), f) for f in facts]
    return tuple(facts for _, facts in sorted(keyed, key=operator.itemgetter(0)))


def _order(facts: RankFacts) -> float:
    rank = facts.launcher_rank if facts.rank is None else facts.rank
    return float("inf") if rank is None else rank


def _read(decoder: msgspec.json.Decoder[RankFacts], path: Path) -> RankFacts:
    fix = "Remove it and verify again with the same version of envkit."
    try:
        facts = decoder.decode(path.read_bytes())
    except (msgspec.DecodeError, OSError) as error:
        raise EnvkitError(what=f"The facts in {path} cannot be read.", why=str(error), fix=fix) from error
    if facts.version != VERSION:
        why = f"They are of version {facts.version}; this envkit reads version {VERSION}."
        raise EnvkitError(what=f"The facts in {path} cannot be read.", why=why, fix=fix)
    return facts
