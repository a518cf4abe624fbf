"""The facts that the doctor arranges. One that could not be had is None, and named among ``missing``."""

from __future__ import annotations

import msgspec

from envkit.errors import Problem


class Struct(msgspec.Struct, frozen=True, kw_only=True):
    """The base of every fact."""


LOAD = "load"  # the probe that is missing where the modules of --load cannot be loaded


class Missing(Struct, frozen=True, kw_only=True):
    """A probe that gave nothing: why, whether it was cut off, and whether the configuration is to blame, as it says."""

    probe: str
    why: str
    hung: bool = False
    by_configuration: bool = False


class Tool(Struct, frozen=True, kw_only=True):
    """A program: where it is, which one, its version; nothing where it does not tell."""

    path: str
    family: str = ""
    version: str = ""


class Builder(Struct, frozen=True, kw_only=True):
    """What a build would take of this machine, with the modules of --load and nothing else of the caller's.

    ``refused_mpis`` are MPIs on PATH that it cannot take, each with the reason.
    """

    python: Tool
    compiler: Tool | None
    mpi: Tool | None
    cmake: Tool | None
    accelerator: str
    load: tuple[str, ...]
    refused_mpis: tuple[str, ...] = ()


class Cpu(Struct, frozen=True, kw_only=True):
    """The machine type, the microarchitecture by archspec, the cores that this process may use."""

    machine: str
    target: str
    cores: int


class KernelGpus(Struct, frozen=True, kw_only=True):
    """The GPUs that the kernel knows: models or architectures, device files, kernel drivers; ``mig``: in slices."""

    nvidia: tuple[str, ...]
    nvidia_files: int
    nvidia_driver: str | None
    mig: bool
    amd: tuple[str, ...]
    amd_files: bool
    amd_driver: str | None


class Driver(Struct, frozen=True, kw_only=True):
    """What NVIDIA's driver library answers: the newest CUDA it takes, such as "12.4", its devices, its problem."""

    cuda: str
    devices: tuple[str, ...]
    problem: str


class Networks(Struct, frozen=True, kw_only=True):
    """Networks: interfaces that are up with their address, RDMA devices with the link layers of their active ports.

    ``slingshot`` are HPE's devices, ``libraries`` tells where the loader finds what uses a fabric.
    """

    interfaces: dict[str, str | None]
    rdma: dict[str, tuple[str, ...]]
    slingshot: tuple[str, ...]
    libraries: dict[str, str | None]


class NodeFacts(Struct, frozen=True, kw_only=True):
    """What the probe of ``verify`` states of a node; /dev/shm in bytes, ``container`` its kind inside of one."""

    hostname: str
    kernel: str
    libc: str
    container: str | None
    shm_size: int
    shm_free: int
    fabric: Networks
    gpus: KernelGpus


class MpiLibrary(Struct, frozen=True, kw_only=True):
    """An MPI library.

    ``launcher`` is its mpirun, nothing without one; ``library`` the file of the name that programs of its ABI are
    linked with (``abi``); ``pmi`` is what it speaks, ``srun`` what srun here speaks with it.
    """

    family: str
    version: str
    launcher: str
    abi: str
    library: str
    pmi: tuple[str, ...]
    srun: str


class SessionMpi(Struct, frozen=True, kw_only=True):
    """An MPI that the caller's modules bring, which a build does not see: ``what`` is so, how to ``fix``.

    ``load`` are the modules to name with --load; none where those that it needs could not be told.
    """

    family: str
    version: str
    path: str
    load: tuple[str, ...]
    what: str
    fix: str


class Container(Struct, frozen=True, kw_only=True):
    """The container runtime; ``setuid``: it needs no user namespace to run an image; what keeps it from building."""

    runtime: Tool
    setuid: bool
    building: tuple[Problem, ...]


class RepositoryAccess(Struct, frozen=True, kw_only=True):
    """A way to EESSI's repository: why it fits, or what stands in its way."""

    access: str
    why: str
    refusal: Problem | None


class SchedulerClient(Struct, frozen=True, kw_only=True):
    """A scheduler whose client is here; ``job``: this process is in one; ``mpi`` is what ``srun --mpi=list`` names."""

    name: str
    version: str
    job: bool
    mpi: tuple[str, ...]
    attempt: str


class Limits(Struct, frozen=True, kw_only=True):
    """What a process may have: bytes of locked memory and stack, processes of this user; None is unlimited."""

    memlock: int | None
    stack: int | None
    nproc: int | None


class Room(Struct, frozen=True, kw_only=True):
    """The prefix, and what is free there; ``inodes`` is None where the file system does not count them."""

    prefix: str
    writable: bool
    free_mb: int
    inodes: int | None


class PackageIndex(Struct, frozen=True, kw_only=True):
    """A place that pip takes packages from, without its password; ``problem`` is nothing where it answers."""

    url: str
    problem: str = ""


class Preflight(Struct, frozen=True, kw_only=True):
    """What the preflight of ``envkit install`` says of a stack."""

    stack: str
    accelerator: str
    problems: tuple[Problem, ...]


class Facts(Struct, frozen=True, kw_only=True):
    """What this machine offers.

    ``nvidia_smi`` says why nvidia-smi shows no GPU, "" if it shows one; ``namespaces`` why this user can make no user
    namespace. ``mounts`` are CernVM-FS's. ``preflights`` are by method. ``sources`` is
    what is said of those of EasyBuild's where they are sought. ``configuration`` are the mistakes in it, and why a file
    of it is not used. ``session_mpi`` is what the caller's modules have, and a build has not.
    """

    user: str
    uid: int
    cpu: Cpu | None = None
    builder: Builder | None = None
    node: NodeFacts | None = None
    gpu_driver: Driver | None = None
    nvidia_smi: str | None = None
    toolkits: tuple[Tool, ...] | None = None
    mpi: tuple[MpiLibrary, ...] | None = None
    session_mpi: SessionMpi | None = None
    modules: Tool | None = None
    container: Container | None = None
    namespaces: str | None = None
    mounts: tuple[str, ...] | None = None
    ways: tuple[RepositoryAccess, ...] = ()
    schedulers: tuple[SchedulerClient, ...] | None = None
    limits: Limits | None = None
    room: Room | None = None
    indexes: tuple[PackageIndex, ...] | None = None
    sources: tuple[Problem, ...] | None = None
    preflights: dict[str, Preflight] = {}
    configuration: tuple[str, ...] = ()
    missing: tuple[Missing, ...] = ()
