from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from envkit.verify.probe.started import LAUNCHERS, Started, counts, detect


def told(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


STEP = "SLURM_JOB_ID=9 SLURM_STEP_ID=1 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1"
STEP += " SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_NTASKS=4"
HOROVODRUN = "HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2"
FLUX = "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_ID=f"
JOBID = "OMPI_MCA_ess_base_jobid=5"
OMPI = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2"
HYDRA = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2"
BATCH = "SLURM_JOB_ID=9 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0"


@pytest.mark.parametrize(
    ("env", "launcher", "title", "numbers", "job"),
    [
        (
            f"{HOROVODRUN} HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1 HOROVOD_GLOO_RENDEZVOUS_PORT=7",
            "horovodrun", "horovodrun", (1, 2, 1, 2), "10.0.0.1-7",
        ),
        (f"{OMPI} {JOBID} OMPI_MCA_orte_hnp_uri=u", "mpirun", "mpirun of Open MPI", (2, 4, 0, 2), "5-u"),
        (f"{OMPI} PRTE_LAUNCHED=1 PMIX_NAMESPACE=p@1", "mpirun", "mpirun of Open MPI 5", (2, 4, 0, 2), "p@1"),
        (f"{OMPI} {BATCH} {JOBID}", "mpirun", "mpirun of Open MPI", (2, 4, 0, 2), "5-"),
        (STEP, "srun", "srun", (3, 4, 1, 2), "9-1"),
        (f"{STEP} PMIX_RANK=3", "srun", "srun", (3, 4, 1, 2), "9-1"),
        (f"{STEP} PMI_RANK=3 PMI_SIZE=4", "srun", "srun", (3, 4, 1, 2), "9-1"),
        (f"{STEP} PALS_RANKID=3 PALS_APID=a", "srun", "srun", (3, 4, 1, 2), "9-1"),
        (f"{HYDRA} I_MPI_HYDRA_UUID=u", "mpiexec", "mpiexec of Intel MPI", (1, 2, 1, 2), "u"),
        (f"{HYDRA} {STEP}", "mpiexec", "mpiexec of MPICH", (1, 2, 1, 2), str(os.getppid())),
        (
            "JSM_NAMESPACE_RANK=1 JSM_NAMESPACE_SIZE=2 JSM_NAMESPACE_LOCAL_RANK=0 LSB_JOBID=3 OMPI_COMM_WORLD_RANK=1",
            "jsrun", "jsrun", (1, 2, 0, None), "3-",
        ),
        (
            "PALS_RANKID=1 PALS_LOCAL_RANKID=1 PALS_LOCAL_SIZE=2 PMI_RANK=1 PMI_SIZE=4 PALS_APID=a",
            "mpiexec", "mpiexec of PALS", (1, 4, 1, 2), "a",
        ),
        (FLUX, "flux", "flux run", (1, 2, 1, None), "f"),
        ("PMI_RANK=1 PMI_SIZE=2", "pmi", "a launcher that speaks PMI", (1, 2, None, None), str(os.getppid())),
    ],
)  # fmt: skip
def test_the_launcher_is_told_by_the_variables(
    env: str, launcher: str, title: str, numbers: tuple[int, int | None, int | None, int | None], job: str
) -> None:
    assert detect(told(env)) == Started(launcher, title, *numbers, job)


@pytest.mark.parametrize(
    "env", ["", BATCH, f"{STEP} SLURM_PTY_PORT=1", "HOROVOD_CONTROLLER=gloo", "PBS_JOBID=1", "OMPI_COMM_WORLD_RANK="]
)
def test_a_login_shell_a_batch_script_and_an_interactive_step_are_no_ranks(env: str) -> None:
    assert detect(told(env)) is None


def test_every_row_is_whole() -> None:
    rows = json.loads(Path(LAUNCHERS).read_text())
    assert len(rows) == 10
    for row in rows:
        assert {"name", "title", "rank", "size", "local_rank", "job"} <= set(row) | {"local_rank"}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,2,3", [1, 2, 3]), ("", []), ("8(x2)", [8, 8])],
)
def test_slurms_short_form(text: str, numbers: list[int]) -> None:
    assert counts(text) == numbers
