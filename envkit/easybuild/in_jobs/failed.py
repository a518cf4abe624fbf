"""What is said of modules that were not built in their jobs: which failed first and why, and what was cancelled."""

from collections.abc import Sequence
from pathlib import Path

from envkit.easybuild import eb_command
from envkit.easybuild.build import cause
from envkit.easybuild.in_jobs.progress import ModuleJob
from envkit.errors import BuildFailed, DiskFull, EnvkitError, HostProblem, JobLost
from envkit.jobs import slurm
from envkit.jobs.follow import lost

UNSEEN = "ModuleNotSeen"  # a reason of ours: the job is done, and its module is not here


def failure(jobs: Sequence[ModuleJob], job: eb_command.Build) -> EnvkitError:
    """Say what failed, the first to fail first, why, and what was cancelled because of it."""
    failed = sorted((one for one in jobs if one.culprit == one.module), key=lambda one: one.ended)
    told = [explained(one, job) for one in failed]
    done = sum(one.is_done for one in jobs)
    rows = [row(number, one, error, jobs) for number, (one, error) in enumerate(zip(failed, told, strict=True), 1)]
    needing = len(jobs) - done - len(failed)
    return type(told[0])(
        what=f"{len(failed)} of {len(jobs)} jobs failed; {needing} cancelled because of that, {done} done. "
        f"The first to fail: {failed[0].module}.",
        why="\n".join(rows),
        fix="Do what the arrows say, and run the same command again: it resumes with what is missing.",
    )


def row(number: int, job: ModuleJob, error: EnvkitError, jobs: Sequence[ModuleJob]) -> str:
    """Return what is said of a job that failed."""
    lines = [error.what, *error.why.splitlines(), *(f"-> {line}" for line in error.fix.splitlines())]
    because = [f"{o.module} (job {o.number})" for o in jobs if o.culprit == job.module and o is not job]
    lines += [f"Cancelled because of it: {', '.join(because)}"] if because else []
    return f"{number}. " + "\n   ".join(lines)


def explained(module_job: ModuleJob, job: eb_command.Build) -> EnvkitError:
    """Return why a job failed: by Slurm, on a node that sees other files, or in its build."""
    where = f"job {module_job.number}{f' on {module_job.record.nodes}' if module_job.record.nodes else ''}"
    printed = next(job.told.glob(f"*-{module_job.number}.out"), None)
    if module_job.record.is_lost:
        end = lost(slurm, module_job.number, module_job.record)
        log = f"\nLog: {printed}" if printed else ""
        return JobLost(what=f"{module_job.module}: {end.what}", why=end.why + log, fix=end.fix)
    if printed is None or module_job.record.reason == UNSEEN:
        place = job.told if printed is None else job.tree.modulepath
        return HostProblem(
            what=f"{module_job.module}: {where} left nothing in {place}.",
            why=f"A node that does not see {job.prefix.root} cannot build into it.",
            fix="Choose a --prefix on a file system that the nodes share with this machine.",
        )
    logs = tuple(log for log in (module_job.log, printed) if log and log.is_file())
    found = cause(logs, module_job.said or tail(printed), job.prefix)
    kind = DiskFull if found.is_full else BuildFailed
    step = f" in step {module_job.doing}" if module_job.doing else ""
    return kind(
        what=f"{module_job.module} failed{step} ({where}).", why=f"{found.why}\nLog: {found.log}", fix=found.fix
    )


def tail(log: Path) -> str:
    """Return the last lines of a log."""
    return "\n".join(log.read_text(errors="replace").splitlines()[-5:])
