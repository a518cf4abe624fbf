"""Variables of several launchers that are left over in a shell, where none of them runs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from .kinds import Kind, World

LEFT = {
    "pmi": {"PMI_RANK": "3", "PMI_SIZE": "8", "PMI_FD": "7"},
    "pmix": {
        "PMIX_RANK": "5",
        "PMIX_NAMESPACE": "prterun-node7-4242@1",
        "PMIX_SERVER_URI41": "prterun-node7-4242@0.0;tcp4://192.0.2.9:4455",
        "PMIX_SECURITY_MODE": "native",
    },
    "slurm": {
        "SLURM_JOB_ID": "4711",
        "SLURM_JOBID": "4711",
        "SLURM_STEP_ID": "0",
        "SLURM_PROCID": "2",
        "SLURM_LOCALID": "2",
        "SLURM_NTASKS": "16",
        "SLURM_NPROCS": "16",
        "SLURM_NNODES": "4",
        "SLURM_JOB_NODELIST": "node[1-4]",
        "SLURM_TASKS_PER_NODE": "4(x4)",
        "SLURM_LAUNCH_NODE_IPADDR": "192.0.2.1",
    },
    "ompi": {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_COMM_WORLD_LOCAL_RANK": "1",
        "OMPI_COMM_WORLD_LOCAL_SIZE": "4",
        "OMPI_MCA_ess_base_jobid": "1234",
        "OMPI_MCA_ess_base_vpid": "1",
        "OMPI_MCA_orte_hnp_uri": "80.0;tcp://192.0.2.9:4455",
        "OMPI_UNIVERSE_SIZE": "4",
    },
    "hydra": {"HYDRA_BOOTSTRAP": "ssh", "HYDRA_LAUNCHER": "slurm", "MPI_LOCALNRANKS": "4", "MPI_LOCALRANKID": "1"},
    "horovod": {
        "HOROVOD_RANK": "1",
        "HOROVOD_SIZE": "4",
        "HOROVOD_LOCAL_RANK": "1",
        "HOROVOD_LOCAL_SIZE": "4",
        "HOROVOD_CROSS_RANK": "0",
        "HOROVOD_CROSS_SIZE": "1",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "192.0.2.9",
        "HOROVOD_GLOO_RENDEZVOUS_PORT": "4444",
        "HOROVOD_CONTROLLER": "gloo",
        "HOROVOD_CPU_OPERATIONS": "gloo",
    },
}
TOGETHER = (
    ("pmi", "slurm"),
    ("pmix", "slurm"),
    ("ompi", "pmix"),
    ("pmi", "hydra"),
    ("ompi", "horovod"),
    ("slurm", "ompi", "pmix", "pmi"),
    ("slurm", "ompi", "pmix", "pmi", "hydra", "horovod"),
)


def kinds(used: Sequence[str], seed: int) -> Iterator[Kind]:
    """Each of some sets of launchers, as an own start and as a rank."""
    for names in TOGETHER:
        given = {name: value for one in names for name, value in LEFT[one].items()}
        for own in (True, False):

            def do(world: World, given: dict[str, str] = given, own: bool = own) -> None:
                world.env |= given
                world.options = ["-n", "2"] if own else []

            yield Kind(
                name=f"left-over/{'-'.join(names)}/{'own' if own else 'as-rank'}",
                group="left over of several launchers",
                did="left over of " + ", ".join(names) + ("" if own else "; envkit is not told a number of ranks"),
                do=do,
                true="|".join(sorted(given)) + r"|left over",
                either=True,
            )
