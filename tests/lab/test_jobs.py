"""envkit job slurm against real Slurm: submitted from the login host, followed, and ended in every way there is."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from envkit.training import mnist

from ..integration.site import until
from ..stacks import Site
from .cluster import Cluster
from .conftest import NODES, STACK
from .verifying import SHARED_CORES

pytestmark = pytest.mark.integration
HOSTILE = ["a b", "'", '"', "$HOME", "`id`", ";", "\\", "*", "é☃", "line\n#SBATCH --nodes=9\nend", "", "-x"]
TRAIN = """
import torch, horovod.torch as hvd
hvd.init()
print(f"rank {hvd.rank()} of {hvd.size()}: {hvd.allreduce(torch.ones(1), op=hvd.Sum).item()}")
"""


class Jobs:
    """A user with a home of his own, who submits jobs and follows them."""

    def __init__(self, cluster: Cluster, env: Mapping[str, str], folder: Path) -> None:
        folder.mkdir()
        self.cluster, self.folder = cluster, folder
        self.env = {**env, **SHARED_CORES, "HOME": str(folder), "NO_COLOR": "1"}

    def follow(
        self, *command: str, words: tuple[str, ...] = (), nodes: int = 1, ranks: int = 1, stop_at: str = ""
    ) -> subprocess.CompletedProcess[str]:
        """Submit a job and follow it; press Ctrl-C when ``stop_at`` is said."""
        shape = ["--nodes", str(nodes), "--ranks-per-node", str(ranks), "--submit", "--follow"]
        return self.envkit("job", "slurm", STACK, *shape, *words, "--", *command, stop_at=stop_at)

    def envkit(self, *words: str, stop_at: str = "") -> subprocess.CompletedProcess[str]:
        """Call envkit on the login host; press Ctrl-C when ``stop_at`` is said."""
        argv = ["env", f"--chdir={self.folder}", "envkit", *words]
        if not stop_at:
            return self.cluster.run(argv, env=self.env, timeout=400)
        running = self.begin(*argv)
        said = self.folder / "said"
        until(lambda: (said.exists() and stop_at in said.read_text()) or running.poll() is not None, stop_at)
        self.press(running)
        out, _ = running.communicate()
        return subprocess.CompletedProcess(argv, running.returncode, out, said.read_text())

    def begin(self, *argv: str) -> subprocess.Popen[str]:
        """Start a command on the login host that can be stopped; what it says goes to a file."""
        (self.folder / "said").unlink(missing_ok=True)
        begin = ["sh", "-c", 'echo $$ >"$HOME/pid"; exec "$@" 2>"$HOME/said"', "sh", *argv]
        return self.cluster.start(begin, env=self.env)

    def press(self, running: subprocess.Popen[str]) -> None:
        """Press Ctrl-C, if it is running still."""
        if running.poll() is None:
            self.cluster.run(["kill", "-INT", (self.folder / "pid").read_text().strip()])

    def verify(self, *words: str, stop_at: str = "") -> subprocess.CompletedProcess[str]:
        """Verify in a job, and see that nothing of it stays behind."""
        done = self.envkit("verify", STACK, "--submit", *words, stop_at=stop_at)
        assert list(self.folder.glob(".cache/envkit/*")) == []
        return done

    def site(self, *words: str) -> tuple[str, str]:
        """The option for a site with words for sbatch."""
        path = self.folder / f"site{len(list(self.folder.glob('site*')))}.toml"
        listed = ", ".join(f"'{word}'" for word in words)
        path.write_text(f'title = "Lab"\nstatus = "tried"\nsource = "here"\n[job]\nsbatch = [{listed}]\n')
        return "--site", str(path)

    def left(self) -> str:
        """The jobs that are there still."""
        return self.cluster.run(["squeue", "--noheader", "--states=PENDING,RUNNING"]).stdout


@pytest.fixture
def jobs(cluster: Cluster, env: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Jobs]:
    made = Jobs(cluster, env, cluster.folder / tmp_path_factory.mktemp("jobs").name)
    yield made
    left = made.left()
    made.cluster.run(["scancel", "--user", "root"])
    assert left == ""


QUICK = ("--no-verify",)


def test_the_verdict_and_then_the_command_on_two_nodes(jobs: Jobs) -> None:
    done = jobs.follow("python", "-c", TRAIN, nodes=2, ranks=2)
    assert done.returncode == 0, done.stderr + done.stdout
    assert f"PASS  {STACK}: 4 ranks in one world on 2 hosts" in done.stdout
    verdict, _, rest = done.stdout.partition("PASS")
    assert verdict.startswith("Job ") and "restarts: 0" in verdict
    assert sorted(line for line in rest.splitlines() if line.startswith("rank ")) == [
        f"rank {number} of 4: 4.0" for number in range(4)
    ]
    assert "runs on node" in done.stderr and done.stderr.endswith(" is done\n")


def test_the_status_of_the_command(jobs: Jobs) -> None:
    done = jobs.follow("sh", "-c", "echo said; exit 5", words=QUICK)
    assert done.returncode == 5, done.stderr
    assert "said" in done.stdout.splitlines()[1:]  # before or after what srun says of the status


def test_hostile_words(jobs: Jobs) -> None:
    done = jobs.follow("python", "-c", "import sys; print(sys.argv[1:])", *HOSTILE, words=QUICK)
    assert done.returncode == 0, done.stderr
    assert str(HOSTILE) in done.stdout


def test_ctrl_c_cancels(jobs: Jobs) -> None:
    done = jobs.follow("sleep", "100", words=QUICK, stop_at="runs on node")
    assert done.returncode == 130, done.stderr
    assert "runs on node" in done.stderr
    assert "Stopped by Ctrl-C. Slurm was asked to cancel job" in done.stderr


def test_a_job_that_is_held_says_so(jobs: Jobs) -> None:
    done = jobs.follow("true", words=(*QUICK, *jobs.site("--hold")), stop_at="waits: JobHeldUser")
    assert done.returncode == 130, done.stderr
    assert "waits: JobHeldUser. It is held back, by you or by an administrator. Release it: scontrol" in done.stderr


def test_a_job_that_waits_for_others(jobs: Jobs) -> None:
    full = ["--exclusive", f"--nodes={NODES}", "--output=/dev/null", "--wrap", "srun sleep 5"]
    assert jobs.cluster.run(["sbatch", *full]).returncode == 0
    while "PENDING" in jobs.cluster.run(["squeue", "--noheader", "--format=%T"]).stdout:
        time.sleep(0.1)
    done = jobs.follow("true", words=QUICK)
    assert done.returncode == 0, done.stderr
    assert "waits: Resources. It is next" in done.stderr or "waits: Priority. Jobs of" in done.stderr
    assert "is 1 of 1 in the queue of gpu" in done.stderr


def test_an_array(jobs: Jobs) -> None:
    done = jobs.follow("sh", "-c", "exit $SLURM_ARRAY_TASK_ID", words=(*QUICK, "--array", "0-2%2"))
    assert done.returncode in (1, 2), done.stderr
    assert "has 1 COMPLETED, 2 FAILED" in done.stderr
    assert len(list(jobs.folder.glob(f"{STACK}-*_[012].out"))) == 3


def test_a_job_that_is_cancelled_by_another(jobs: Jobs) -> None:
    done = jobs.follow("sh", "-c", "scancel $SLURM_JOB_ID; sleep 100", words=QUICK)
    assert done.returncode == 8, done.stderr
    assert " was cancelled." in done.stderr and "Slurm says: CANCELLED" in done.stderr


def test_a_job_that_runs_out_of_time_and_one_whose_node_dies(jobs: Jobs) -> None:
    host = jobs.cluster.hosts[-1]
    kill = f"kill -9 {jobs.cluster.slurmd(host)}; sleep 100"
    site, other = jobs.site("--no-requeue", f"--nodelist={host}"), jobs.site(f"--exclude={host}")
    with ThreadPoolExecutor() as pool:
        words = (*QUICK, *other, "--time", "1", "--output", "late.sh")
        late = pool.submit(jobs.follow, "sleep", "300", words=words)
        try:
            dead = jobs.follow("sh", "-c", kill, words=(*QUICK, *site))
        finally:
            jobs.cluster.restore_slurmd(host)
    assert late.result().returncode == 8, late.result().stderr
    assert " ran into its time limit." in late.result().stderr and "Its log is " in late.result().stderr
    assert dead.returncode == 8, dead.stderr
    assert " lost a node that it ran on." in dead.stderr and host in dead.stderr


def test_what_slurm_does_not_take(jobs: Jobs) -> None:
    done = jobs.follow("true", words=(*QUICK, "--partition", "none"))
    assert done.returncode == 3, done.stderr
    assert "invalid partition specified: none" in done.stderr
    assert "What to do: Name one of the partitions that 'sinfo -s' lists: --partition" in done.stderr
    done = jobs.follow("true", words=QUICK, nodes=NODES + 1)
    assert done.returncode == 3, done.stderr
    assert " would never start. It was cancelled." in done.stderr
    assert "What to do: Ask for what 'sinfo" in done.stderr


def test_the_verdict_of_a_whole_allocation(jobs: Jobs) -> None:
    done = jobs.verify("--nodes", "2", "-n", "4", "--html", "report.html", "--junit", "report.xml")
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stdout.startswith(f"PASS  {STACK}: 4 ranks in one world on 2 hosts")
    assert "runs on node" in done.stderr and done.stderr.endswith(" is done\n")
    assert "<html" in (jobs.folder / "report.html").read_text()
    assert "<testsuite" in (jobs.folder / "report.xml").read_text()


def test_a_verdict_that_is_fail(jobs: Jobs) -> None:
    done = jobs.verify("--ranks-per-node", "2", "--require", "nccl", "--json", "--cpus-per-rank", "2")
    assert done.returncode == 1, done.stderr
    report = json.loads(done.stdout)
    assert (report["verdict"], report["world_size"], report["started"]["launcher"]) == ("fail", 2, "srun")
    assert " ended with status 1\n" in done.stderr


def test_a_verdict_that_never_comes(jobs: Jobs) -> None:
    done = jobs.verify("-n", "2", "--timeout", "0")
    assert done.returncode == 2 and "Invalid value for '--timeout'" in done.stderr
    done = jobs.verify("-n", "2", "--framework", "tensorflow")
    assert done.returncode not in (0, 1) and not done.stdout, done.stderr
    assert "tensorflow" in done.stderr
    done = jobs.verify("-n", "2", *jobs.site("--hold"), stop_at="waits: JobHeldUser")
    assert done.returncode == 130 and not done.stdout, done.stderr
    assert "Slurm was asked to cancel job" in done.stderr


def test_an_environment_is_installed_by_a_job_that_is_stopped_and_resumed(jobs: Jobs, stacks: Site) -> None:
    """Its modules are there already; what is left is the verification."""
    there, own = next(stacks.prefix.glob("*-py*")), jobs.folder / "prefix"
    for name in ("software", "modules", "built"):
        (own / there.name).mkdir(parents=True, exist_ok=True)
        subprocess.run(["cp", "-a", "--reflink=auto", str(there / name), str(own / there.name / name)], check=True)
    install = ("install", STACK, "--submit", "--prefix", str(own), "--jobs", "4", "--time", "10")
    running = jobs.begin("envkit", *install)
    note = own / there.name / "unfinished" / f"{STACK}.json"
    until(lambda: (note.exists() and "verifying" in note.read_text()) or running.poll() is not None, "the verification")
    jobs.press(running)
    out, said = running.communicate()[0], (jobs.folder / "said").read_text()
    assert running.returncode == 130, out + said
    assert "Slurm was asked to cancel job" in said and "Run the same command again: it resumes." in said
    until(lambda: not jobs.cluster.processes("envkit install"), "the end of the job")
    done = jobs.envkit(*install)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "Resuming what began" in done.stdout and "and ended while verifying" in done.stdout
    assert f"PASS  {STACK}: 2 ranks in one world on 1 host" in done.stdout
    assert "runs on node" in done.stderr and done.stderr.endswith(" is done\n")
    again = jobs.envkit(*install)
    assert (again.returncode, again.stderr) == (0, "") and "Nothing to do." in again.stdout


def test_an_example_on_two_nodes(jobs: Jobs) -> None:
    data = mnist.generate(jobs.folder, train=512, test=100)
    words = (*QUICK, "--example", "pytorch-mnist")
    done = jobs.follow("--data", str(data), "--epochs", "2", words=words, nodes=2, ranks=1)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "data: generated stand-in, not MNIST: 512 + 100" in done.stdout
    assert "2 ranks, 512 images, batch 64 x 2, on cpu" in done.stdout
    assert "epoch 2: loss " in done.stdout


def test_ddp_meets_across_nodes(jobs: Jobs) -> None:
    data = mnist.generate(jobs.folder, train=256, test=100)
    words = (*QUICK, "--example", "pytorch-ddp-mnist")
    done = jobs.follow("--data", str(data), "--epochs", "1", words=words, nodes=2, ranks=2)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "4 ranks, 256 images, batch 64 x 4, on cpu" in done.stdout
