"""The facts that the probe states, one record per rank. A fact that could not be had carries `error`."""

from __future__ import annotations

import functools
import operator
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from envkit.errors import EnvkitError
from envkit.system import record

VERSION = 2
LARGEST = 256 << 20  # bytes of what a node left
WRONG = (msgspec.MsgspecError, ValueError, RecursionError, OverflowError)  # with JSON, or what it says


class Fact(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
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


class Space(Fact, frozen=True, kw_only=True):
    """A file system: bytes in all, and free, and whether the rank may write there."""

    size: int = 0
    free: int = 0
    writable: bool = True


class Machine(Fact, frozen=True, kw_only=True):
    """What the ranks of a node have in common. `granted` is the number of cores that the control group allows."""

    hostname: str = ""
    kernel: str = ""
    architecture: str = ""
    libc: str = ""
    cores: int | None = None
    granted: int | Fact | None = None
    shm: Space | None = None
    container: str | None = None


class SearchPath(Fact, frozen=True, kw_only=True):
    """Preloaded libraries, and the folders of LD_LIBRARY_PATH with the libraries by which they may shadow others.

    `mpirun` is the first on PATH.
    """

    preload: tuple[str, ...] = ()
    preload_file: tuple[str, ...] = ()
    folders: dict[str, dict[str, str]] = msgspec.field(default_factory=dict)
    mpirun: str = ""


class Interface(msgspec.Struct, frozen=True, kw_only=True):
    """A network interface; kind is physical, virtual, bridge or loopback; address and mask are IPv4's."""

    name: str
    kind: str = ""
    up: bool = False
    address: str | None = None
    mask: str | None = None


class RdmaDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device of /sys/class/infiniband: the link layer of each active port."""

    name: str
    active: tuple[str, ...] = ()


class Fabric(Fact, frozen=True, kw_only=True):
    """Interfaces and fast fabrics of a node, and where the loader would find the libraries that use them."""

    interfaces: tuple[Interface, ...] = ()
    infiniband: tuple[RdmaDevice, ...] = ()
    cxi: tuple[str, ...] = ()
    libraries: dict[str, str | None] = msgspec.field(default_factory=dict)


class NodeGpu(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU that the kernel driver knows; name is NVIDIA's model, or AMD's architecture (gfx90a)."""

    name: str = ""
    uuid: str | None = None


class NodeGpus(Fact, frozen=True, kw_only=True):
    """The GPUs of a node, whether or not a rank may use them: devices, device files, kernel driver."""

    nvidia: tuple[NodeGpu, ...] = ()
    nvidia_files: int = 0
    nvidia_driver: str | None = None
    mig: bool = False
    amd: tuple[NodeGpu, ...] = ()
    amd_files: bool = False
    amd_driver: str | None = None


class DriverDevice(msgspec.Struct, frozen=True, kw_only=True):
    """A device that NVIDIA's driver shows to a rank; capability such as 9.0; mig: a slice of a GPU."""

    name: str = ""
    uuid: str | None = None
    capability: str = ""
    mig: bool = False


class GpuDriver(Fact, frozen=True, kw_only=True):
    """What libcuda.so.1 answers: CUDA version (12040 is 12.4), status of cuInit, devices; absent without NVIDIA."""

    present: bool = False
    cuda: int = 0
    status: int = 0
    devices: tuple[DriverDevice, ...] = ()


class ExtensionFile(Fact, frozen=True, kw_only=True):
    """An extension's file: size and the size that its headers ask for (bytes), libraries needed, folders named."""

    size: int = 0
    wanted: int = 0
    needed: tuple[str, ...] | None = None
    folders: tuple[str, ...] = ()


class Compiled(Fact, frozen=True, kw_only=True):
    """What the framework was compiled for: CUDA or ROCm version, architectures (sm_90), NCCL version, string ABI."""

    cuda: str | None = None
    rocm: str | None = None
    architectures: tuple[str, ...] | Fact = ()
    nccl: str | Fact | None = None
    cxx11_abi: int | None = None


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


Results = dict[str, tuple[float | str, ...] | Fact]


class Collectives(Fact, frozen=True, kw_only=True):
    """What came back from the operations that give every rank the same: elements by reduction and type."""

    allreduce: Results = msgspec.field(default_factory=dict)
    broadcast: Results = msgspec.field(default_factory=dict)
    allgather: Results = msgspec.field(default_factory=dict)


class Exchanges(Fact, frozen=True, kw_only=True):
    """What came back from the operations that give each rank its own; alltoall ends with the counts from each rank."""

    alltoall: Results = msgspec.field(default_factory=dict)
    reducescatter: Results = msgspec.field(default_factory=dict)


class ProcessSets(Fact, frozen=True, kw_only=True):
    """What came back within the even, or within the odd, ranks."""

    results: Results = msgspec.field(default_factory=dict)


class Compared(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A larger message that did not come, or not as it should; `size` is in bytes.

    `operation` is sum, average or grouped (allreduces), broadcast, allgather, alltoall or reducescatter. So many
    elements are `wrong`; of the first: its index in what the rank received, what was found there and what is right,
    with each bit.
    """

    operation: str
    kind: str
    size: int
    wrong: int = 0
    index: int | None = None
    found: str = ""
    right: str = ""
    error: str | None = None


class Values(Fact, frozen=True, kw_only=True):
    """How many larger messages were compared on cpu or gpu, element by element, up to how many bytes, and the bad ones.

    `left_out` are the sizes for which there was no time, or no memory on a node.
    """

    where: str = ""
    messages: int = 0
    largest: int = 0
    bad: tuple[Compared, ...] = ()
    left_out: tuple[int, ...] = ()


class Barrier(Fact, frozen=True, kw_only=True):
    """When the rank came to a barrier and when it left (s, one clock per node)."""

    entered: float = 0.0
    left: float = 0.0


class Training(Fact, frozen=True, kw_only=True):
    """A least-squares problem of this rank (inputs: samples x features) and its weights before and after.

    `rate` is the learning rate that the optimizer had after rank 0's state was broadcast, where that was tried.
    """

    inputs: tuple[tuple[float, ...], ...] = ()
    targets: tuple[float, ...] = ()
    own: tuple[float, ...] = ()
    started: tuple[float, ...] = ()
    weights: tuple[float, ...] = ()
    learning_rate: float = 0.0
    steps: int = 0
    digest: str = ""
    rate: float | None = None
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


class Started(msgspec.Struct, frozen=True, kw_only=True):
    """The launcher that started a rank, and what it tells of it; `job` is the same in every rank of one start."""

    launcher: str
    title: str
    rank: int
    size: int | None = None
    local_rank: int | None = None
    local_size: int | None = None
    job: str = ""


class Timed(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The allreduce of one size of message in bytes: seconds of a call (median, slowest rank), calls timed.

    How many elements of the last call's result were wrong in this rank, and the first of them, as in Compared.
    """

    size: int
    seconds: float
    calls: int
    wrong: int = 0
    index: int | None = None
    found: str = ""
    right: str = ""


class Sweep(Fact, frozen=True, kw_only=True):
    """The allreduce over message sizes, on cpu or gpu; `left_out` are the sizes for which there was no time."""

    where: str = ""
    ranks: int = 0
    library: str | None = None
    rows: tuple[Timed, ...] = ()
    left_out: tuple[int, ...] = ()


class Trained(msgspec.Struct, frozen=True, kw_only=True):
    """Samples per second of all ranks together; `batch` is each rank's."""

    samples_per_s: float
    steps: int
    batch: int


class Throughput(Fact, frozen=True, kw_only=True):
    """How fast all ranks together trained, by model, on cpu or gpu."""

    where: str = ""
    ranks: int = 0
    models: dict[str, Trained] = msgspec.field(default_factory=dict)


class Imported(Fact, frozen=True, kw_only=True):
    """A module of what was added to the stack, and its file; of mpi4py also MPI's library, and this rank's place."""

    extra: str = ""
    path: str = ""
    library: str = ""
    rank: int | None = None
    size: int | None = None


class Phase(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A step of the probe: when it began (seconds since 1970) and how long it took, if it ended."""

    name: str
    at: float
    seconds: float | None = None


class Ended(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """How the measuring process ended (exit, signal, aborted by MPI, timeout, terminated from outside, stopped because
    of another rank), with its Python stack and the end of what it said.

    `state` is what the kernel said of one that did not go on (T: stopped, D: waits for a device), `waits` where in the
    kernel it waited, `pid` its number, also of one that a signal ended; `memory_kills` is how many processes of its
    control group were killed for lack of memory.
    """

    how: str
    status: int | None = None
    signal: str | None = None
    limit: float | None = None
    stack: str | None = None
    said: str | None = None
    state: str | None = None
    waits: str | None = None
    pid: int | None = None
    memory_kills: int = 0


class RankFacts(msgspec.Struct, frozen=True, kw_only=True):
    """One rank's record. What is None was not reached."""

    framework: str
    host: str
    pid: int
    phase: str
    phases: tuple[Phase, ...] = ()
    state: str | None = None
    started: Started | None = None
    python: Python | None = None
    environment: dict[str, str] = msgspec.field(default_factory=dict)
    installed: dict[str, str] = msgspec.field(default_factory=dict)
    horovod: Horovod | None = None
    machine: Machine | None = None
    affinity: tuple[int, ...] | Fact | None = None
    limits: dict[str, int | str] = msgspec.field(default_factory=dict)
    search_path: SearchPath | None = None
    fabric: Fabric | None = None
    node_gpus: NodeGpus | None = None
    gpu_driver: GpuDriver | None = None
    extension_file: ExtensionFile | None = None
    imported: Import | None = msgspec.field(default=None, name="import")
    compiled: Compiled | None = None
    load: Fact | None = None
    flags: Flags | None = None
    init: Fact | None = None
    world: World | None = None
    mpi_threads: bool | Fact | None = None
    libraries: dict[str, tuple[str, ...] | str] = msgspec.field(default_factory=dict)
    nccl: dict[str, int | Fact | str] = msgspec.field(default_factory=dict)
    mpi_gpu: dict[str, bool | str] = msgspec.field(default_factory=dict)
    nccl_network: tuple[str, ...] | Fact | None = None
    gpus: Gpus | None = None
    device: Device | None = None
    collectives_cpu: Collectives | None = None
    exchanges_cpu: Exchanges | None = None
    values_cpu: Values | None = None
    process_sets: ProcessSets | None = None
    barrier: Barrier | None = None
    collectives_gpu: Collectives | None = None
    exchanges_gpu: Exchanges | None = None
    values_gpu: Values | None = None
    training_torch: Training | None = None
    training_tensorflow: Training | None = None
    training_keras: Training | None = None
    keras: Keras | None = None
    broadcast_callback: Training | None = None
    metric_callback: Training | None = None
    warmup_callback: Warmup | None = None
    raw_bandwidth: Sweep | None = None
    bandwidth: Sweep | None = None
    values_bench: Values | None = None
    throughput: Throughput | None = None
    extras: dict[str, Imported | str] | None = None
    ddp_meeting: Fact | None = None
    shutdown: Fact | None = None
    ddp_throughput: Throughput | None = None
    ended: Ended | None = None

    @property
    def rank(self) -> int | None:
        """The rank that Horovod told, or None."""
        return self.world.rank if self.world and isinstance(self.world.rank, int) else None

    @property
    def size(self) -> int | None:
        """The world size that Horovod told, or None."""
        return self.world.size if self.world and isinstance(self.world.size, int) else None

    def number(self, name: str) -> int | None:
        """A variable of this rank that is a number, or None."""
        text = self.environment.get(name, "")
        return int(text) if re.fullmatch("[0-9]{1,9}", text) else None

    @property
    def failed(self) -> bool:
        """Whether a step of it ended in an error, after which it had nothing to go on with."""
        return any(fact is not None and fact.error for fact in (self.horovod, self.imported, self.load, self.init))

    @property
    def launcher_rank(self) -> int | None:
        """The rank that the launcher told, or None."""
        return self.started.rank if self.started else None

    @property
    def label(self) -> str:
        """The name of this rank in a message."""
        rank = self.launcher_rank if self.rank is None else self.rank
        where = f"{self.host}, pid {self.pid}"
        return f"a process ({where})" if rank is None else f"rank {rank} ({where})"

    @property
    def finished(self) -> bool:
        """Whether the probe came to its end."""
        ended = self.ended
        return ended is not None and ended.how == "exit" and not ended.status and self.phase == "exit"


class NodeFile(msgspec.Struct, frozen=True, kw_only=True):
    """The file that one node left: the facts that its ranks have in common, and each rank's own."""

    version: int
    node: str
    written: float
    complete: bool
    common: dict[str, msgspec.Raw]
    ranks: tuple[dict[str, msgspec.Raw], ...]


class Gathered(msgspec.Struct, frozen=True, kw_only=True):
    """Everything found in a shared folder; `complete` and `written` (s since 1970) by node."""

    facts: tuple[RankFacts, ...]
    complete: dict[str, bool]
    written: dict[str, float]


def load(directory: Path) -> tuple[RankFacts, ...]:
    """Every record in a folder, by framework and rank; raises EnvkitError for a file that cannot be read."""
    return gather(directory).facts


def gather(directory: Path, since: float = 0.0) -> Gathered:
    """Every record in a folder written `since` then (s since 1970), and how the nodes stand.

    Equal facts are one object, however many ranks have them. Raises EnvkitError for a file that cannot be read.
    """
    read = [read_file(path) for path in sorted(directory.glob("*.json"))]
    files = [file for file in read if file.written >= since]
    decoders = decoders_by_fact()
    seen: dict[tuple[str, bytes], object] = {}

    def decoded(name: str, raw: msgspec.Raw) -> Any:
        key = (name, bytes(raw))
        if key not in seen:
            try:
                seen[key] = decoders[name].decode(raw)
            except WRONG as error:
                raise unreadable(directory, f"{name}: {error}") from error
        return seen[key]

    facts = []
    for file in files:
        common = {name: decoded(name, raw) for name, raw in file.common.items() if name in decoders}
        for rank in file.ranks:
            own = {name: decoded(name, raw) for name, raw in rank.items() if name in decoders}
            given = {FIELDS[name]: fact for name, fact in {**common, **own}.items()}
            if absent := REQUIRED - given.keys():
                raise unreadable(directory, f"A rank has no {', '.join(sorted(absent))}.")
            facts.append(RankFacts(**given))
    return Gathered(
        facts=ordered(facts),
        complete={file.node: file.complete for file in files},
        written={file.node: file.written for file in files},
    )


REQUIRED = {"framework", "host", "pid", "phase"}
FIELDS = {field.encode_name: field.name for field in msgspec.structs.fields(RankFacts)}


@functools.cache
def decoders_by_fact() -> dict[str, msgspec.json.Decoder[Any]]:
    """Return what reads each fact, by its name in a record."""
    return {field.encode_name: record.decoder(field.type) for field in msgspec.structs.fields(RankFacts)}


def ordered(facts: Sequence[RankFacts]) -> tuple[RankFacts, ...]:
    """The same records by framework, rank (Horovod's, else the launcher's), host and process."""
    keyed = [((f.framework, order(f), f.host, f.pid), f) for f in facts]
    return tuple(facts for _, facts in sorted(keyed, key=operator.itemgetter(0)))


def order(facts: RankFacts) -> float:
    """Return the rank to sort by: Horovod's, else the launcher's; those without any come last."""
    rank = facts.launcher_rank if facts.rank is None else facts.rank
    return float("inf") if rank is None else rank


def read_file(path: Path) -> NodeFile:
    """Return what a node left in a file. Raises EnvkitError where it cannot be read."""
    try:
        with path.open("rb") as stream:
            text = stream.read(LARGEST + 1)
        if len(text) > LARGEST:
            raise ValueError(f"The file has more than {LARGEST >> 20} MiB.")
        file = record.decode(text, NodeFile)
    except (*WRONG, OSError) as error:
        raise unreadable(path, str(error)) from error
    if file.version != VERSION:
        raise unreadable(path, f"They are of version {file.version}; this envkit reads version {VERSION}.")
    return file


def unreadable(path: Path, why: str) -> EnvkitError:
    """Return the error for facts that cannot be read."""
    fix = "Remove it and verify again with the same version of envkit."
    return EnvkitError(what=f"The facts in {path} cannot be read.", why=why, fix=fix)
