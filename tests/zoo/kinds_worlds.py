"""Worlds of one, stray variables of launchers, other launchers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Sequence

from .kinds import Do, Kind, World
from .kinds_libraries import mpich


def hydra(world: World) -> str:
    """MPICH's launcher, by its path."""
    folder = world.folder / "mpich"
    folder.mkdir(exist_ok=True)
    for name in ("mpiexec.hydra", "hydra_pmi_proxy"):
        there = world.extras / "usr" / "bin" / name
        if there.exists():
            shutil.copy(there, folder / f".{name}")
            world.write(
                folder / name, f'#!/bin/bash\nLD_LIBRARY_PATH={mpich(world)} exec {folder}/.{name} "$@"\n', 0o755
            )
    return str(folder / "mpiexec.hydra")


def as_ranks(*words: str, size: int = 2) -> Do:
    """Have the ranks be started by somebody's launcher."""

    def do(world: World) -> None:
        world.env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
        world.prefixed = " ".join(words)
        world.options = []

    return do


def under_hydra(world: World) -> None:
    world.prefixed = f"{hydra(world)} -n 2"
    world.options = []


def settings(**given: str) -> Do:
    return lambda world: world.env.update(given)


def mpich_first(world: World) -> None:
    """Have MPICH's mpirun be found first."""
    launcher = hydra(world)
    for name in ("mpirun", "mpiexec"):
        world.program(name, f'exec {launcher} "$@"')


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """What starts the ranks, and what claims to have."""
    group = "worlds and launchers"
    yield Kind(
        name="worlds/mpich-mpirun-first",
        needs="usr/bin/mpiexec.hydra",
        group=group,
        did="MPICH's mpirun is first on PATH",
        do=mpich_first,
        true=r"MPICH|Hydra|first\b[^\n]*mpi(run|exec)|PATH",
    )
    yield Kind(
        name="worlds/under-mpich",
        needs="usr/bin/mpiexec.hydra",
        group=group,
        did="MPICH's mpiexec -n 2 envkit verify",
        do=under_hydra,
        true=r"MPICH|Hydra|mpiexec",
        mended="words",
        words=r"mpirun|Open MPI|launcher",
    )
    for name, given in (
        ("pmi", {"PMI_RANK": "0", "PMI_SIZE": "1"}),
        ("horovod", {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1"}),
        ("ompi", {"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_LOCAL_RANK": "0"}),
        (
            "ompi-uri",
            {
                "OMPI_MCA_ess_base_jobid": "1234",
                "OMPI_MCA_ess_base_vpid": "0",
                "OMPI_COMM_WORLD_RANK": "0",
                "OMPI_COMM_WORLD_SIZE": "1",
            },
        ),
        ("pmix", {"PMIX_RANK": "0", "PMIX_NAMESPACE": "1234", "PMIX_SERVER_URI2": "1.0;tcp4://127.0.0.1:1"}),
        ("slurm", {"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_LOCALID": "0"}),
        (
            "horovod-full",
            {
                "HOROVOD_RANK": "0",
                "HOROVOD_SIZE": "1",
                "HOROVOD_LOCAL_RANK": "0",
                "HOROVOD_LOCAL_SIZE": "1",
                "HOROVOD_CROSS_RANK": "0",
                "HOROVOD_CROSS_SIZE": "1",
                "HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1",
                "HOROVOD_GLOO_RENDEZVOUS_PORT": "9",
            },
        ),
    ):
        yield Kind(
            name=f"harmless/stray-{name}",
            group="harmless",
            did="left over from an earlier launch: " + " ".join(f"{key}={value}" for key, value in given.items()),
            do=settings(**given),
        )
    for name, given in (
        ("pbs-nodefile", {"PBS_JOBID": "77.server", "PBS_NODEFILE": "/nonexistent/nodes"}),
        (
            "slurm-job",
            {
                "SLURM_JOB_ID": "77",
                "SLURM_NTASKS": "2",
                "SLURM_JOB_NODELIST": "node[1-2]",
                "SLURM_NNODES": "2",
                "SLURM_TASKS_PER_NODE": "1(x2)",
                "SLURM_NODELIST": "node[1-2]",
            },
        ),
    ):
        yield Kind(
            name=f"worlds/stray-{name}",
            group=group,
            did="left over from a job that has ended: " + " ".join(f"{key}={value}" for key, value in given.items()),
            do=settings(**given),
            true=r"PBS_|SLURM_|job (77|of Slurm|of PBS)|Slurm|PBS",
        )
    for name, words in (
        ("mpirun", ("mpirun", "-np", "2", "--oversubscribe")),
        ("mpirun-3", ("mpirun", "-np", "3", "--oversubscribe")),
        ("mpirun-1", ("mpirun", "-np", "1")),
    ):
        yield Kind(
            name=f"harmless/under-{name}", group="harmless", did=" ".join(words) + " envkit verify", do=as_ranks(*words)
        )
    for name, options in (
        ("one", ("-n", "1")),
        ("three", ("-n", "3")),
        ("four", ("-n", "4")),
        ("horovodrun", ("-n", "2", "--launcher", "horovodrun")),
        ("mpiexec", ("-n", "2", "--launcher", "mpiexec")),
    ):
        yield Kind(
            name=f"harmless/n-{name}",
            group="harmless",
            did="envkit verify " + " ".join(options),
            do=lambda world: None,
            options=options,
        )
    yield Kind(
        name="worlds/too-many-slots",
        group=group,
        did="four ranks are asked for on two slots",
        do=lambda world: None,
        options=("-n", "4", "--hosts", "localhost:2"),
        true=r"slots|do not fit",
        mended="words",
        words=r"slots|-n|ranks",
    )
