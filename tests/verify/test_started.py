from __future__ import annotations

import json
import os
import random
import shutil
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from envkit.inside.probe import started
from envkit.inside.probe.started import LAUNCHERS, Started, counts, detect, is_unseen, leftovers, recognise
from envkit.launch.hosts import ranks, slurm_slots
from envkit.launch.launcher import variables


def told(text: str) -> dict[str, str]:
    return dict(pair.split("=", 1) for pair in text.split())


STEP = "SLURM_JOB_ID=9 SLURM_STEP_ID=1 SLURM_PROCID=3 SLURM_STEP_NUM_TASKS=4 SLURM_LOCALID=1 SLURM_NODEID=1"
STEP += " SLURM_STEP_TASKS_PER_NODE=2(x2) SLURM_NTASKS=4"
HOROVODRUN = "HOROVOD_RANK=1 HOROVOD_SIZE=2 HOROVOD_LOCAL_RANK=1 HOROVOD_LOCAL_SIZE=2"
FLUX = "FLUX_TASK_RANK=1 FLUX_JOB_SIZE=2 FLUX_TASK_LOCAL_ID=1 FLUX_JOB_ID=f"
JOBID = "OMPI_MCA_ess_base_jobid=5"
OMPI = "OMPI_COMM_WORLD_RANK=2 OMPI_COMM_WORLD_SIZE=4 OMPI_COMM_WORLD_LOCAL_RANK=0 OMPI_COMM_WORLD_LOCAL_SIZE=2"
HYDRA = "PMI_RANK=1 PMI_SIZE=2 MPI_LOCALRANKID=1 MPI_LOCALNRANKS=2"
RSH = "MPIRUN_ID=77 MV2_COMM_WORLD_RANK=1 MV2_COMM_WORLD_SIZE=2 MV2_COMM_WORLD_LOCAL_RANK=1 MV2_COMM_WORLD_LOCAL_SIZE=2"
SHELL = "SLURM_JOB_ID=9 SLURM_STEP_ID=4294967290 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_LOCALID=0 SLURM_PTY_PORT=1"
BATCH = "SLURM_JOB_ID=9 SLURM_PROCID=0 SLURM_NTASKS=4 SLURM_LOCALID=0"


@pytest.mark.parametrize(
    ("env", "launcher", "title", "numbers", "job"),
    [
        (
            f"{HOROVODRUN} HOROVOD_GLOO_RENDEZVOUS_ADDR=10.0.0.1 HOROVOD_GLOO_RENDEZVOUS_PORT=7",
            "horovodrun", "horovodrun", (1, 2, 1, 2), "10.0.0.1-7",
        ),
        (f"{OMPI} {JOBID} OMPI_MCA_orte_hnp_uri=u", "mpirun", "mpirun of Open MPI", (2, 4, 0, 2), "5-u"),
        (f"{OMPI} PRTE_LAUNCHED=1 PMIX_NAMESPACE=p@1", "mpirun", "mpirun of Open MPI 5 or later", (2, 4, 0, 2), "p@1"),
        (f"{OMPI} {BATCH} {JOBID}", "mpirun", "mpirun of Open MPI", (2, 4, 0, 2), "5-"),
        (STEP, "srun", "srun", (3, 4, 1, 2), "9-1"),
        (f"{STEP} SLURM_RESTART_COUNT=2", "srun", "srun", (3, 4, 1, 2), "9-1-2"),
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
        (f"{HYDRA} {RSH}", "mpiexec", "mpiexec of MPICH", (1, 2, 1, 2), str(os.getppid())),
        (RSH, "mpirun_rsh", "mpirun_rsh of MVAPICH2", (1, 2, 1, 2), "77"),
        (RSH.replace("MV2", "MVP"), "mpirun_rsh", "mpirun_rsh of MVAPICH", (1, 2, 1, 2), "77"),
        ("PMI_RANK=1 PMI_SIZE=2", "pmi", "a launcher that speaks PMI", (1, 2, None, None), str(os.getppid())),
    ],
)  # fmt: skip
def test_the_launcher_is_told_by_the_variables(
    env: str, launcher: str, title: str, numbers: tuple[int, int | None, int | None, int | None], job: str
) -> None:
    assert detect(told(env)) == Started(launcher, title, *numbers, job)


@pytest.mark.parametrize(
    "env",
    [
        "",
        BATCH,
        SHELL,
        f"{SHELL} PMI_RANK=0 PMI_SIZE=1",
        "HOROVOD_CONTROLLER=gloo",
        "PBS_JOBID=1",
        "OMPI_COMM_WORLD_RANK=",
    ],
)
def test_a_login_shell_a_batch_script_and_an_interactive_step_are_no_ranks(env: str) -> None:
    assert detect(told(env)) is None


@pytest.mark.parametrize("of_mpi", ["", "PMIX_RANK=3 PMIX_NAMESPACE=s", "PMI_RANK=3 PMI_SIZE=4"])
def test_ranks_that_are_started_in_a_shell_of_salloc_are_ranks(of_mpi: str) -> None:
    """The shell has a terminal, of which srun tells its ranks as well."""
    env = told(f"{STEP} SLURM_PTY_PORT=1 {of_mpi}")
    assert detect(env) == Started("srun", "srun", 3, 4, 1, 2, "9-1")
    assert leftovers(env) == []


def test_every_row_is_whole() -> None:
    rows = json.loads(Path(LAUNCHERS).read_text())
    assert rows
    for row in rows:
        assert {"name", "title", "rank", "size", "local_rank", "job"} <= set(row) | {"local_rank"}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [("2(x3),1", [2, 2, 2, 1]), ("4", [4]), ("1,2,3", [1, 2, 3]), ("", []), ("8(x2)", [8, 8])],
)
def test_slurms_short_form(text: str, numbers: list[int]) -> None:
    assert counts(text) == numbers


STRAY = {
    "pmi": "PMI_RANK=0 PMI_SIZE=1",
    "hydra": "PMI_RANK=0 PMI_SIZE=1 MPI_LOCALRANKID=0 MPI_LOCALNRANKS=1 PMI_FD=987",
    "horovodrun": "HOROVOD_RANK=0 HOROVOD_SIZE=1 HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1 HOROVOD_GLOO_RENDEZVOUS_PORT=1",
    "mpirun": "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1",
    "mpirun-5": "OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PRTE_LAUNCHED=1 PMIX_NAMESPACE=n PMIX_RANK=0"
    " PMIX_SERVER_URI41=n.0;tcp4://127.0.0.1:1",
    "pmix": "PMIX_RANK=0",
    "srun": "SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_STEP_NUM_TASKS=1 SLURM_JOB_ID=1 PMI_RANK=0 PMI_SIZE=1",
}


@pytest.mark.parametrize("of", STRAY)
def test_variables_of_one_rank_without_their_launcher_are_left_over(of: str) -> None:
    env = told(STRAY[of])
    assert detect(env) is None
    assert leftovers(env) == sorted(name for name in env if not name.startswith("SLURM_"))


def test_one_rank_whose_launcher_listens_is_one() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        for text in (
            f"HOROVOD_RANK=0 HOROVOD_SIZE=1 HOROVOD_GLOO_RENDEZVOUS_ADDR=127.0.0.1 HOROVOD_GLOO_RENDEZVOUS_PORT={port}",
            f"OMPI_COMM_WORLD_RANK=0 OMPI_COMM_WORLD_SIZE=1 PMIX_SERVER_URI4=n.0;tcp4://127.0.0.1:{port}",
            f"PMI_RANK=0 PMI_SIZE=1 PMI_PORT=127.0.0.1:{port}",
            f"PMI_RANK=0 PMI_SIZE=1 PMI_FD={server.fileno()}",
            f"{STRAY['srun']} PMIX_SERVER_URI2=n.0;tcp4://127.0.0.1:{port}",
        ):
            found = detect(told(text))
            assert found is not None and (found.rank, found.size) == (0, 1), text


LOOK = f"""
import json, os, sys
sys.path.insert(0, {str(Path(LAUNCHERS).parents[3])!r})
from envkit.inside.probe.started import recognise
print(json.dumps(recognise(os.environ)), flush=True)
"""


@pytest.mark.integration
@pytest.mark.parametrize("size", [1, 2])
@pytest.mark.parametrize("of", ["", *STRAY])
def test_a_true_launcher_is_told_from_what_is_left_over(of: str, size: int) -> None:
    if shutil.which("mpirun") is None:
        pytest.skip("there is no mpirun")
    env = variables({"PATH": os.environ["PATH"], "HOME": os.environ.get("HOME", "/")}) | told(STRAY.get(of, ""))
    argv = ["mpirun", "--oversubscribe", "-np", str(size), sys.executable, "-I", "-c", LOOK]
    with tempfile.TemporaryDirectory() as own:  # one that ends may remove the folder that another has just begun in
        done = subprocess.run(argv, env={**env, "TMPDIR": own}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    ranks = [json.loads(line) for line in done.stdout.splitlines()]
    assert {found[0] for found, _ in ranks} == {"mpirun"}
    assert sorted(found[2:4] for found, _ in ranks) == [[rank, size] for rank in range(size)]
    if size == 2:  # one rank agrees with what is left over
        expected = [] if of in ("", "mpirun", "pmix", "mpirun-5") else sorted(told(STRAY[of]))
        assert all(set(left) <= set(expected) for _, left in ranks)
        assert any(left for _, left in ranks) == bool(expected)


NUMBERS = ("0", "1", "2", "3", "4", "-1", "+1", " 1", "1\n", "²", "٣", "1" * 5000, "0x1", "1e3", "", "None", "1.0")
COUNTS = ("1(x2)", "2(x99999999999999)", "2(x3),1", "\udcff", "a" * 10000)
NAMED = ("rank", "size", "local_rank", "local_size", "local_sizes", "node")
ADDRESSES = ("127.0.0.1", "::1", "256.1.1.1", "", "no host", "x" * 300, "0.0.0.0:1")
URIS = ("n.0;tcp4://127.0.0.1:1", "tcp://[::1]:99999", "tcp4://127.0.0.1:65536", "n", "", "tcp://:::1:1")


@pytest.mark.integration
def test_strange_variables_of_launchers() -> None:
    """Whatever launchers' variables say, an answer comes, and a rank is one of a world."""
    chance = random.Random(20261122)
    rows = json.loads(Path(LAUNCHERS).read_text())
    known = {str(row[key]) for row in rows for key in (*NAMED, "socket") if key in row}
    known |= {name for row in rows for key in ("needs", "unless", "job", "address") for name in row.get(key, [])}
    strange = sorted(known | {"PMIX_RANK", "SLURM_NTASKS", "SLURM_JOB_CPUS_PER_NODE", "PBS_JOBID", "PBS_NP"})
    believed = 0
    for _ in range(5000):
        env = {name: chance.choice(NUMBERS + COUNTS) for name in chance.sample(strange, chance.randint(1, 12))}
        for name in env:
            if name.endswith(("ADDR", "PORT")):
                env[name] = chance.choice(ADDRESSES + NUMBERS)
        if chance.random() < 0.3:
            env["PMIX_SERVER_URI4"] = chance.choice(URIS)
        found, left = recognise(env)
        assert set(left) <= set(env)
        assert ranks(env) >= 1 and slurm_slots(env) >= 0
        if found:
            believed += 1
            assert 0 <= found.rank < (found.size or 10**9) and (found.size is None or found.size > 0)
            assert not set(left) & {name for row in rows if row["title"] == found.title for name in [row["rank"]]}
        kept = variables(env)
        assert not set(left) & set(kept)
    assert believed > 300


def test_a_rank_that_lacks_the_size_its_launcher_tells_has_to_be_seen() -> None:
    env = {"OMPI_COMM_WORLD_RANK": "3"}
    assert (detect(env), leftovers(env)) == (None, ["OMPI_COMM_WORLD_RANK"])


def test_all_that_a_launcher_has_set_is_left_over_with_it() -> None:
    of_mpirun = {
        "OMPI_COMM_WORLD_RANK": "1",
        "OMPI_COMM_WORLD_SIZE": "4",
        "OMPI_UNIVERSE_SIZE": "4",
        "OMPI_MCA_ess_base_jobid": "1234",
        "OMPI_MCA_ess_base_vpid": "1",
        "OMPI_MCA_orte_hnp_uri": "80.0;tcp://192.0.2.9:4455",
    }
    of_hydra = {"PMI_RANK": "3", "PMI_SIZE": "8", "PMI_ID": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "4"}
    own = {"OMPI_MCA_btl": "tcp,self", "HOME": "/home/ada"}
    assert detect({**of_mpirun, **of_hydra, **own}) is None, "they contradict each other"
    assert leftovers({**of_mpirun, **of_hydra, **own}) == sorted({**of_mpirun, **of_hydra})
    of_mpirun["OMPI_COMM_WORLD_RANK"] = "0"
    of_mpirun["OMPI_COMM_WORLD_SIZE"] = "1"
    assert leftovers({**of_mpirun, **own}) == sorted(of_mpirun)


def test_variables_that_contradict_each_other_are_believed_only_of_a_launcher_that_is_seen(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_horovodrun = "HOROVOD_RANK=3 HOROVOD_SIZE=8 HOROVOD_LOCAL_RANK=3"
    env = told(f"{of_horovodrun} OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=5")
    assert (detect(env), leftovers(env)) == (None, sorted(env))
    monkeypatch.setattr(started, "ancestors", lambda: (["bash", "orted"], True))
    found = detect(env)
    assert found is not None and (found.rank, found.size) == (1, 5)
    assert leftovers(env) == sorted(told(of_horovodrun))
    env = told("HOROVOD_RANK=1 HOROVOD_SIZE=5 OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=5")
    monkeypatch.undo()
    assert detect(env) is not None, "horovodrun has called mpirun"


UNSEEN = (
    "import os; from envkit.inside.probe.started import detect, is_unseen; "
    "print(is_unseen(detect(os.environ), os.environ))"
)


@pytest.mark.parametrize(
    ("variables", "above", "unseen"),
    [
        (OMPI, "bash", True),
        (OMPI, "orted", False),
        (HYDRA, "bash", True),
        (HYDRA, "hydra_pmi_proxy", False),
        (HYDRA, "orted", True),
        (FLUX + "f1", "bash", False),  # of Flux nothing is known but its variables
    ],
)
def test_whether_anything_is_to_be_seen_of_a_launcher(variables: str, above: str, unseen: bool, tmp_path: Path) -> None:
    launcher = tmp_path / above
    shutil.copy(shutil.which("bash") or "", launcher)
    argv = [str(launcher), "-c", '"$@"; exit $?', "launcher", sys.executable, "-c", UNSEEN]
    done = subprocess.run(argv, env=told(variables) | {"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (str(unseen), "")


@pytest.mark.parametrize(("above", "kept"), [("bash", False), ("orted", True)])
def test_ranks_are_started_without_the_variables_of_a_launcher_that_has_gone(
    above: str, kept: bool, tmp_path: Path
) -> None:
    """With them, mpirun takes itself for a rank, and says that it does not support recursive calls."""
    launcher = tmp_path / above
    shutil.copy(shutil.which("bash") or "", launcher)
    show = "import os; from envkit.launch.launcher import variables; "
    show += "print('OMPI_COMM_WORLD_SIZE' in variables(os.environ))"
    argv = [str(launcher), "-c", '"$@"; exit $?', "launcher", sys.executable, "-c", show]
    done = subprocess.run(argv, env=told(OMPI) | {"PATH": os.environ["PATH"]}, capture_output=True, text=True)
    assert (done.stdout.strip(), done.stderr) == (str(kept), "")


def test_a_launcher_that_listens_is_not_gone() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        env = told(f"{HYDRA} PMI_PORT=127.0.0.1:{server.getsockname()[1]}")
        one = detect(env)
        assert one is not None
        assert not is_unseen(one, env)


SUBMITTER = "SLURM_JOB_ID=30 SLURM_STEP_ID=0 SLURM_PROCID=0 SLURM_NODEID=0 SLURM_LOCALID=0"


@pytest.mark.parametrize(
    ("size", "of_mpi"),
    [(1, ""), (3, ""), (3, "PMI_RANK=2 PMI_SIZE=3"), (3, "PMIX_RANK=2 PMIX_NAMESPACE=slurm.pmix.29.0")],
)
@pytest.mark.parametrize("job", ["30", "31"])
def test_a_batch_script_that_was_submitted_in_a_step_is_no_rank_of_that(
    job: str, size: int, of_mpi: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Slurm passes the variables of the step on; the cgroup says what this process is, of a job of that number."""
    (tmp_path / "cgroup").write_text(f"0::/system.slice/slurmstepd.scope/job_{job}/step_batch/user/task_0\n")
    monkeypatch.setattr(started, "CGROUP", str(tmp_path / "cgroup"))
    env = told(f"{SUBMITTER} SLURM_STEP_NUM_TASKS={size} {of_mpi}")
    if job == "30":
        left = {"SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", *told(of_mpi)}
        assert (detect(env), leftovers(env)) == (None, sorted(left))
    elif size == 3:
        assert detect(env) is not None


@pytest.mark.parametrize(("step", "launcher"), [("30.batch", ""), ("30.0", "srun"), ("3.batch", "srun")])
def test_the_title_of_slurms_daemon_says_whether_it_started_a_batch_script(
    step: str, launcher: str, tmp_path: Path
) -> None:
    daemon = tmp_path / "slurmstepd"
    shutil.copy(shutil.which("bash") or "", daemon)
    argv = [f"slurmstepd: [{step}]", "-c", '"$@"; exit $?', "rank", sys.executable, "-I", "-c", LOOK]
    env = told(f"{SUBMITTER} SLURM_STEP_NUM_TASKS=1") | {"PATH": os.environ["PATH"]}
    done = subprocess.run(argv, executable=daemon, env=env, capture_output=True, text=True, check=True)
    found, left = json.loads(done.stdout)
    assert (found[0] if found else "", bool(left)) == (launcher, not launcher)


@pytest.mark.parametrize("name", ["mpirun.openmpi", "mpiexec.openmpi", "mpirun"])
@pytest.mark.parametrize("told", [f"{OMPI} {JOBID}", f"{OMPI} PRTE_LAUNCHED=1 PMIX_NAMESPACE=p@1"])
def test_mpirun_is_known_above_a_rank_by_debians_name_for_it(
    told: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    env = dict(pair.split("=", 1) for pair in told.split())
    launch = detect(env)
    assert launch
    monkeypatch.setattr(f"{started.__name__}.ancestors", lambda: ([name, "bash"], True))
    assert not is_unseen(launch, env)
    monkeypatch.setattr(f"{started.__name__}.ancestors", lambda: (["mpirun.mpich", "bash"], True))
    assert is_unseen(launch, env)
