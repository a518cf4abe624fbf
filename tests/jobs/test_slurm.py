import os
import shutil
import subprocess
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import pytest

from envkit import __version__
from envkit.errors import EnvkitError, UsageProblem
from envkit.jobs import job, slurm
from envkit.jobs.job import Job, Shape

Fake = Callable[..., Path]
GOLDEN = Path(__file__).with_name("golden")
HOSTILE = [
    "a b",
    "'",
    '"',
    "$HOME",
    "`id`",
    "$(id)",
    ";",
    "&&",
    "\\",
    "*",
    "é☃",
    "line\n#SBATCH --nodes=9\nend",
    "",
    "-x",
]
PLAIN = Job(
    environment="pytorch-cpu",
    prefix="/home/me/envs",
    envkit=("/opt/envkit/bin/envkit",),
    shape=Shape(nodes=2, ranks_per_node=2),
    command=("python", "train.py"),
)
GPUS = replace(
    PLAIN,
    environment="pytorch-cuda",
    shape=Shape(nodes=4, ranks_per_node=4, gpus_per_node=4, gpu_type="a100", cpus_per_rank=16),
    command=("python", "train.py", "--data", "/data/my files"),
    time_s=100000,
    account="project 1",
    partition="gpu",
    words=("--exclusive", "--comment=a # b"),
    notes=("A site.\nTwo lines.",),
)
SCRIPTS = {
    "slurm-cpus": slurm.script(PLAIN, speaks="pmix"),
    "slurm-cpus-bound": slurm.script(replace(PLAIN, shape=replace(PLAIN.shape, cpus_per_rank=4)), speaks="pmix"),
    "slurm-gpus": slurm.script(GPUS, speaks="pmix_v4", srun=["--cpu-bind=map_cpu:1,2"], array="0-7%2"),
    "slurm-own-launcher": slurm.script(PLAIN, speaks="", srun=["--cpu-bind=cores"]),
    "slurm-no-verify": slurm.script(replace(PLAIN, verify=False), speaks="pmi2"),
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_the_whole_script(name: str) -> None:
    assert SCRIPTS[name] == (GOLDEN / f"{name}.sh").read_text().replace("VERSION", __version__)


@pytest.mark.parametrize("name", SCRIPTS)
def test_bash_and_shellcheck_accept_it(name: str, tmp_path: Path) -> None:
    path = tmp_path / "job.sh"
    path.write_text(SCRIPTS[name])
    subprocess.run(["bash", "-n", str(path)], check=True)
    subprocess.run(["shellcheck", str(path)], check=True)


def recorded(
    script: str, fake: Fake, tmp_path: Path, body: str = "", given: Mapping[str, str] = MappingProxyType({})
) -> tuple[int, list[list[str]]]:
    """Run a script with an srun that keeps its words; return its status and those."""
    kept = tmp_path / "kept"
    srun = fake("srun", f"printf '%s\\0' \"$@\" >> {kept}; printf '\\1' >> {kept}; {body}")
    path = tmp_path / "job.sh"
    path.write_text(script)
    env = {"PATH": f"{srun.parent}:{os.environ['PATH']}", "SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]"}
    env |= {"SLURM_CPUS_ON_NODE": "9", **given}
    done = subprocess.run(["bash", str(path)], env=env, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "Job 7 on n[1-2], restarts: 0\n"
    calls = kept.read_bytes().decode().split("\1")[:-1]
    return done.returncode, [call.split("\0")[:-1] for call in calls]


def test_hostile_words_reach_the_command_as_they_are(fake: Fake, tmp_path: Path) -> None:
    hostile = replace(PLAIN, command=tuple(HOSTILE), environment="an env;$x", envkit=("/opt/my envkit",))
    status, (verify, run) = recorded(slurm.script(hostile, speaks="pmix"), fake, tmp_path)
    assert status == 0
    assert verify[-3:] == ["/opt/my envkit", "verify", "an env;$x"]
    assert run[-len(HOSTILE) - 4 :] == ["/opt/my envkit", "run", "an env;$x", "--", *HOSTILE]


def test_a_hostile_prefix_is_one_value(tmp_path: Path) -> None:
    script = slurm.script(replace(PLAIN, prefix="/a b'$(touch x)\n"), speaks="pmix")
    line = script.partition("export ")[2].partition("\necho")[0]
    done = subprocess.run(
        ["bash", "-c", f'export {line}\nprintf %s "$ENVKIT_PREFIX"'],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout == "/a b'$(touch x)\n"
    assert not (tmp_path / "x").exists()


def test_a_failing_verdict_ends_the_job_before_the_command(fake: Fake, tmp_path: Path) -> None:
    status, calls = recorded(SCRIPTS["slurm-cpus"], fake, tmp_path, "exit 1")
    assert status == 1
    assert len(calls) == 1 and "verify" in calls[0]


def test_the_status_of_the_command_is_that_of_the_job(fake: Fake, tmp_path: Path) -> None:
    status, calls = recorded(SCRIPTS["slurm-cpus"], fake, tmp_path, 'case "$*" in *" run "*) exit 5 ;; esac')
    assert (status, len(calls)) == (5, 2)


@pytest.mark.parametrize(
    ("name", "given", "threads"),
    [
        ("slurm-cpus", {}, "4"),  # the share of two ranks of nine CPUs
        ("slurm-cpus-bound", {}, "4"),
        ("slurm-gpus", {}, "16"),
        ("slurm-cpus", {"OMP_NUM_THREADS": "3"}, "3"),
        ("slurm-gpus", {"OMP_NUM_THREADS": "3"}, "3"),
    ],
)
def test_a_rank_starts_as_many_threads_as_it_has_cpus(
    name: str, given: dict[str, str], threads: str, fake: Fake, tmp_path: Path
) -> None:
    recorded(SCRIPTS[name], fake, tmp_path, f'echo "$OMP_NUM_THREADS" >> {tmp_path}/threads', given)
    assert (tmp_path / "threads").read_text().split() == [threads, threads]


@pytest.mark.parametrize("value", ["a b", '"', "'", "\\", "a # b", "$x", "é☃", "all \"of\" \\ 'them' # $(id)"])
def test_slurm_reads_what_was_quoted(value: str, tmp_path: Path) -> None:
    if not shutil.which("sbatch"):
        pytest.skip("sbatch is missing")
    (tmp_path / "slurm.conf").write_text(
        "ClusterName=x\nSlurmctldHost=localhost(127.0.0.1)\nSlurmctldPort=1\nMessageTimeout=1\n"
        "NodeName=n CPUs=1\nPartitionName=p Nodes=n\n"
    )
    path = tmp_path / "job.sh"
    path.write_text(slurm.script(replace(PLAIN, account=value, words=(f"--comment={value}",)), speaks="pmix"))
    env = {**os.environ, "SLURM_CONF": str(tmp_path / "slurm.conf"), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(["sbatch", "-v", str(path)], env=env, capture_output=True, text=True, check=False, timeout=30)
    read = dict(line[8:].split(": ", 1) for line in done.stderr.splitlines() if " : " in line)
    read = {name.strip(): text for name, text in read.items()}
    assert (read["account"], read["comment"]) == (value, value)
    assert (read["nodes"], read["ntasks-per-node"], read["job-name"]) == ("2", "2", "pytorch-cpu")


@pytest.mark.parametrize(
    ("changed", "array", "what"),
    [
        ({"account": "a\nb"}, "", "--account: 'a\\nb' has a line break"),
        ({"partition": "a\x00"}, "", "--partition: "),
        ({"environment": "a\n#SBATCH --nodes=9"}, "", "--job-name: "),
        ({"words": ("--mem=1\n",)}, "", "--site: "),
        ({}, "1;2", "--array: '1;2' names no tasks."),
        ({}, "0-3\n", "--array: "),
        (
            {"shape": Shape(nodes=1, ranks_per_node=4, gpus_per_node=2)},
            "",
            "4 ranks per node do not fit 2 GPUs per node.",
        ),
    ],
)
def test_what_cannot_be_written_is_refused(changed: dict[str, object], array: str, what: str) -> None:
    with pytest.raises(EnvkitError) as refused:
        slurm.script(replace(PLAIN, **changed), speaks="pmix", array=array)  # type: ignore[arg-type]
    assert refused.value.what.startswith(what)
    assert refused.value.exit_code == 2
    assert refused.value.fix


@pytest.mark.parametrize("array", ["0", "0-15", "0-15%4", "1,3,5", "0-10:2,20%1"])
def test_arrays(array: str) -> None:
    assert slurm.checked_array(array) == array


@pytest.mark.parametrize(
    ("text", "seconds", "limit"),
    [
        ("30", 1800, "00:30:00"),
        ("1:30", 90, "00:01:30"),
        ("2:30:00", 9000, "02:30:00"),
        ("1-12", 129600, "1-12:00:00"),
        ("2-00:30", 174600, "2-00:30:00"),
        ("1-01:02:03", 90123, "1-01:02:03"),
        ("100:00:00", 360000, "4-04:00:00"),
    ],
)
def test_times_are_those_of_slurm(text: str, seconds: int, limit: str) -> None:
    assert job.seconds(text) == seconds
    assert slurm.limit(seconds) == limit


@pytest.mark.parametrize(
    "text", ["", "0", "0:00", "x", "1h", "-5", "1-", "1:2:3:4", "10 ", "10\n", pytest.param("9" * 5000, id="endless")]
)
def test_what_is_no_time(text: str) -> None:
    with pytest.raises(UsageProblem, match="is no time"):
        job.seconds(text)
