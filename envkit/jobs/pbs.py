"""PBS (OpenPBS, PBS Professional): a job as a batch script, submitted, asked for, explained and cancelled.

It is asked in plain text: not each of its versions has JSON, and values with quotes have made that invalid.
"""

import functools
import re
import signal
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from envkit.errors import JobRefused, UsageProblem
from envkit.jobs.job import Job, clock, heading, require_lines, require_shape, settings, span, steps
from envkit.jobs.scheduler import JobReason, JobStatus, NoAnswer
from envkit.jobs.submit import ANSWER_S, Submitted
from envkit.jobs.submit import submit as hand_over
from envkit.system import files, process, toml
from envkit.system.resources import data

if TYPE_CHECKING:
    from envkit.environments.receipt import Receipt
    from envkit.machine.site import Site

NAME, TITLE = "pbs", "PBS"
SUBMITS, CANCELS = "qsub", "qdel"
QUEUE, TASK = "queue", ""
HELP = """Write a batch script for PBS: envkit job pbs NAME --nodes 2 --gpus-per-node 4 --site polaris --
python train.py

Where the site says that its mpiexec is that of PALS, each rank enters the environment by itself; elsewhere the
environment's own launcher starts them. The job ends with the status of the command; with --follow so does envkit,
which writes the log to standard output, and why the job waits to standard error.
"""
HAS_FINISHED, UNKNOWN_JOB = 35, 153  # what qstat ends with: the numbers of PBS's errors, of which eight bits are left
TERMINATED = "91"  # the substate of a job that was deleted
SIGNALLED = 256  # an Exit_status from here on is that and a signal
LATE_S = 10.0  # a log that comes at the end may be seen late where file systems are shared
FIELD = re.compile(r"^ {4}([\w.]+) = (.*)$")
NAMED = re.compile(r"^#PBS -N (\S+)$", re.MULTILINE)
ROOM = re.compile(r" \(R: [^)]*\)$")
PALS_STARTS = ("MPICH", "Cray MPICH")
# For who follows it: PBS may forget a job with its end. A script that is killed leaves nothing.
LEAVING = (
    "# How it ended, for envkit, which removes this: PBS may not keep it.",
    'ended=".envkit-$PBS_JOBID.status"',
    """trap 'echo "$?" >"$ended"' ERR""",
    "",
)
LEFT = 'echo 0 >"$ended" || true'
WORD = re.compile(r"[\w.,:/+=@%^~-]+", re.ASCII)


def text(job: Job, environment: "Receipt", site: "Site | None", *, array: str, is_followed: bool) -> str:  # noqa: ARG001
    """Return the batch script of a job in an environment. Raises UsageProblem for what cannot be written into one."""
    needs = site.job if site else None
    speaks = environment.mpi is not None and environment.mpi.family in PALS_STARTS and job.model != "inside"
    return script(
        replace(job, words=needs.qsub if needs else ()),
        pals=needs.mpiexec if needs and speaks else None,
        select=needs.select if needs else (),
        is_followed=is_followed,
    )


def script(
    job: Job, *, pals: Sequence[str] | None = None, select: Sequence[str] = (), is_followed: bool = False
) -> str:
    """Return the batch script of a job.

    ``pals`` are the words for mpiexec where it is that of PALS and can start these ranks; ``select`` are resources of
    each chunk. One that is followed writes its log while it runs, if PBS can, and leaves its status in a file. Raises
    UsageProblem for what cannot be written into one.
    """
    require_shape(job.shape)
    chunk = chunk_words(job, select, whole_nodes=pals is not None)
    lines = ["#!/bin/bash", *heading(job, "qsub"), *(f"#PBS {line}" for line in directives(job, chunk, is_followed))]
    lines += ["set -euo pipefail", 'cd "$PBS_O_WORKDIR"', "", *(LEAVING if is_followed else ()), *settings(job)]
    if pals is not None and job.shape.cpus_per_rank:
        lines += [f"export OMP_NUM_THREADS={job.shape.cpus_per_rank}"]
    lines += ['echo "Job $PBS_JOBID on $(uniq "$PBS_NODEFILE" | xargs)"', ""]
    lines += steps(job, launcher(job, pals) if pals is not None else ())
    lines += [LEFT] if is_followed else []
    return "\n".join(lines) + "\n"


def launcher(job: Job, words: Sequence[str]) -> tuple[str, ...]:
    """Return PALS's mpiexec with its words; which CPUs a rank has is the site's to say, if it does."""
    shape = job.shape
    says = any(word.startswith(("--depth", "-d")) for word in words)
    own = ("--cpu-bind", "depth", f"--depth={shape.cpus_per_rank}") if shape.cpus_per_rank and not says else ()
    return ("mpiexec", "-n", str(shape.ranks), "--ppn", str(shape.ranks_per_node), *own, *words)


def chunk_words(job: Job, select: Sequence[str], *, whole_nodes: bool) -> list[str]:
    """Return what each node is asked for: nothing in particular where a job has whole nodes."""
    shape = job.shape
    if whole_nodes:
        return [*select]
    threads = shape.cpus_per_rank or 1  # else PBS has each rank start one for every CPU of the chunk
    cpus = shape.ranks_per_node * threads
    gpus = [f"ngpus={shape.gpus_per_node}"] if shape.gpus_per_node else []
    kind = [f"gpu_type={shape.gpu_type}"] if shape.gpu_type else []
    return [f"ncpus={cpus}", f"mpiprocs={shape.ranks_per_node}", f"ompthreads={threads}", *gpus, *kind, *select]


def directives(job: Job, chunk: Sequence[str], is_followed: bool) -> list[str]:
    """Return what stands after #PBS, line by line; the site's own come last."""
    options = {
        "-N": job.name,
        "-l select": "=" + ":".join([str(job.shape.nodes), *chunk]),
        "-l place": "=scatter",
        "-l walltime": f"={clock(job.time_s)}" if job.time_s else "",
        "-A": job.account,
        "-q": job.partition,
    }
    require_words({**options, **{f"--site ({line})": word for line in job.words for word in line.split(" ")}})
    # PBS gives the script to the login shell, whatever its first line says
    own = ["-S /bin/bash", "-j oe", *(["-k oed"] if is_followed else [])]
    given = [name + (value if value.startswith("=") else f" {value}") for name, value in options.items() if value]
    return [*own, *given, *job.words]


def require_words(values: dict[str, str]) -> None:
    """Raise UsageProblem for values that would not reach PBS as one word, for it has no sure way to quote them."""
    require_lines(values)
    for what, value in values.items():
        if value and not WORD.fullmatch(value):
            raise UsageProblem(
                what=f"{what}: {value!r} cannot be written on a line of #PBS.",
                why="Only letters, digits and . , : / + = @ % ^ ~ _ - are sure to be read as they are.",
                fix="Use another name, or give it to qsub on its command line.",
            )


def submit(script: bytes) -> Submitted:
    """Submit a batch script. Raises JobRefused."""
    number = hand_over([SUBMITS], script, table()["refusal"])
    name = NAMED.search(script.decode(errors="surrogateescape"))
    log = f"{name[1]}.o{number.partition('.')[0]}" if name else ""  # where PBS has it, if nothing says otherwise
    return Submitted(number=number, scheduler=NAME, log=str(Path(log).absolute()) if log else "")


def poll(job: Submitted, last: Sequence[JobStatus] = ()) -> Sequence[JobStatus] | NoAnswer:
    """Ask PBS for a job; of one that it has forgotten, what its script has left counts."""
    done = process.capture(["qstat", "-f", job.number], timeout_s=ANSWER_S)
    if done.status == HAS_FINISHED:
        done = process.capture(["qstat", "-x", "-f", job.number], timeout_s=ANSWER_S)
    complaint = done.stderr.strip()
    if done.status == 0 and (values := fields(done.stdout)):
        return [at_end(job, record(values))]
    if done.status in {0, UNKNOWN_JOB}:  # with 0 and no more qstat -x says that no history is kept
        return forgotten(job, last[0] if last else JobStatus(state="PENDING", log=job.log), complaint)
    problem = JobRefused(
        what=f"PBS does not say any more how job {job.number} is.",
        why=complaint,
        fix=f"See with 'qstat -xf {job.number}', and in its log.",
    )
    return NoAnswer(outcome=problem)


def fields(text: str) -> dict[str, str]:
    """Read what ``qstat -f`` prints of a job. A line that begins with a tab goes on with the one above."""
    values = dict[str, str]()
    for line in text.replace("\n\t", "").splitlines():
        if match := FIELD.match(line):
            values.setdefault(match[1], match[2])
    return values


def record(found: Mapping[str, str]) -> JobStatus:
    """Return what is said of a job in the words that all schedulers share."""
    letter = found.get("job_state", "")
    state, number = table()["state"].get(letter, letter), 0
    reason = waits_for(found) if state == "PENDING" else found.get("comment", f"job_state = {letter}")
    if state == "ENDED":
        state, number, reason = ended(found)
    chunks = found.get("exec_host", "").split("+")
    return JobStatus(
        state=state,
        reason=reason,
        status=number,
        log=found.get("Output_Path", "").partition(":")[2],
        partition=found.get("queue", ""),
        nodes=", ".join(dict.fromkeys(chunk.partition("/")[0] for chunk in chunks)),
    )


def waits_for(found: Mapping[str, str]) -> str:
    """Return why a job waits, without how much is free at present: that changes from look to look."""
    letter, comment = found["job_state"], found.get("comment", "").rstrip(".")
    if letter == "H" and "held" not in comment.lower():
        return f"Hold_Types = {found.get('Hold_Types', 'unknown')}"
    if letter == "W" and "Execution_Time" in found:
        return f"Execution_Time = {found['Execution_Time']}"
    if letter in "QH" and comment:
        return ROOM.sub("", comment) if comment.startswith("Not Running") else comment
    return f"job_state = {letter}"


def ended(found: Mapping[str, str]) -> tuple[str, int, str]:
    """Return state, status and reason of a job that has ended. Torque writes exit_status."""
    code = found.get("Exit_status", found.get("exit_status", ""))
    comment = found.get("comment", "")
    if found.get("substate") == TERMINATED:
        return "CANCELLED", 0, comment or f"substate = {TERMINATED}"
    if not re.fullmatch(r"-?\d+", code):
        return "FORGOTTEN", 0, f"{comment or 'job_state = F'}, and no Exit_status"
    number = int(code)
    if number < 0:
        row = table()["exit"].get(code, {"state": "KILLED", "name": "unknown"})
        return row["state"], number, f"Exit_status = {code} ({row['name']})"
    if number >= SIGNALLED:
        state = "TIMEOUT" if is_over_time(found) else "KILLED"
        return state, number, f"Exit_status = {code} ({signal_name(number - SIGNALLED)})"
    return ("FAILED" if number else "COMPLETED"), number, comment


def is_over_time(found: Mapping[str, str]) -> bool:
    """Say whether a job has run for all of its time: not each PBS says that this is why it was killed."""
    used, given = (span(found.get(f"{kind}.walltime", "")) for kind in ("resources_used", "Resource_List"))
    return 0 < given <= used


def signal_name(number: int) -> str:
    """Return what a signal is called."""
    return signal.Signals(number).name if number in signal.valid_signals() else f"signal {number}"


def at_end(job: Submitted, status: JobStatus) -> JobStatus:
    """Return what is said of a job; of one that has ended, when its log is there, or has not come for a while."""
    if status.has_ended:
        status_file(job).unlink(missing_ok=True)
        end = time.monotonic() + LATE_S
        while status.nodes and status.log and not Path(status.log).exists() and time.monotonic() < end:
            time.sleep(0.2)
    return status


def forgotten(job: Submitted, last: JobStatus, said: str) -> Sequence[JobStatus] | NoAnswer:
    """Return how a job ended that PBS has forgotten, by the status that its script has left."""
    path = status_file(job)
    content = ""
    with suppress(OSError):
        content = files.read(path, 100).decode(errors="replace").strip()
    if not (content.isascii() and content.isdigit()):
        return NoAnswer(outcome=replace(last, state="FORGOTTEN", reason=said.rstrip(".")))
    number = int(content)
    return [at_end(job, replace(last, state="FAILED" if number else "COMPLETED", status=number))]


def status_file(job: Submitted) -> Path:
    """Return where the script of a job leaves its status: in the folder that it was submitted from."""
    return Path(f".envkit-{job.number}.status")


def explain(number: str, job_status: JobStatus) -> JobReason:
    """Say why a job waits, or how one ended that is lost."""
    if job_status.is_lost:
        row = {**table()["ended"][job_status.state], **table()["exit"].get(str(job_status.status), {})}
        return JobReason(said=job_status.reason, cause=row["what"], remedy=row["fix"].replace("{job}", number))
    row = next((row for row in table()["reason"] if re.match(row["match"], job_status.reason)), {})
    cause, remedy = (row.get(key, "").replace("{job}", number) for key in ("cause", "remedy"))
    return JobReason(said=job_status.reason, cause=cause, remedy=remedy, never_starts=bool(row.get("never_starts")))


def position(job: Submitted, job_status: JobStatus) -> str | None:  # noqa: ARG001
    """Return nothing: PBS does not tell the order in which it starts jobs."""
    return None


def cancel(job: Submitted) -> str | None:
    """Cancel a job; return what PBS says if it did not, None if it did."""
    done = process.capture([CANCELS, job.number], timeout_s=ANSWER_S)
    return done.stderr.strip() if done.status else None


@functools.cache
def table() -> Mapping[str, Any]:
    """Return pbs.toml."""
    return toml.read(data("jobs/pbs.toml"), toml.Tables)
