"""Jobs: a command in an environment, in a shape. Each engine has a module that turns one into its own text."""

import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from envkit import __version__
from envkit.errors import UsageProblem

TIME = re.compile(
    r"(?:(?P<days>\d{1,9})-(?P<hours>\d{1,9})(?::(?P<minutes>\d{1,9})(?::(?P<seconds>\d{1,9}))?)?)"
    r"|(?:(?P<h>\d{1,9}):(?P<m>\d{1,9}):(?P<s>\d{1,9}))|(?:(?P<min>\d{1,9})(?::(?P<sec>\d{1,9}))?)"
)
UNITS = {"days": 86400, "hours": 3600, "h": 3600, "minutes": 60, "m": 60, "min": 60, "seconds": 1, "s": 1, "sec": 1}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """How many nodes, and what is on each of them; what is 0 or empty is left to the engine."""

    nodes: int
    ranks_per_node: int
    gpus_per_node: int = 0
    gpu_type: str = ""
    cpus_per_rank: int = 0

    @property
    def ranks(self) -> int:
        """How many ranks there are in all."""
        return self.nodes * self.ranks_per_node


@dataclass(frozen=True, kw_only=True)
class Job:
    """A command that each rank runs inside an environment of a prefix, or an ``example`` with its arguments.

    ``envkit`` is the argv that calls envkit on a node, ``model`` the MPI model of an image, if it is not to be chosen
    there, ``time_s`` the limit (0: the engine's own), ``words`` are more options of the engine, ``notes`` are comments.
    ``log`` is the file of its log as the engine is told (empty: one in the folder that it is submitted from),
    ``trusted`` whose prefixes are used besides this user's and root's.
    """

    environment: str
    prefix: str
    envkit: tuple[str, ...]
    shape: Shape
    command: tuple[str, ...]
    example: str = ""
    model: str = ""
    verify: bool = True
    time_s: int = 0
    account: str = ""
    partition: str = ""
    words: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    log: str = ""
    trusted: str = ""

    @property
    def name(self) -> str:
        """The name that the engine has for it, which becomes a part of the name of its log."""
        return self.environment.replace("/", "-")


def heading(job: Job, submit: str) -> list[str]:
    """Return the comments at the top of a script."""
    shape = job.shape
    gpus = ", one per GPU" if shape.gpus_per_node == shape.ranks_per_node else ""
    shape_in_words = f"{counted(shape.nodes, 'node')} with {counted(shape.ranks_per_node, 'rank')} each{gpus}."
    lines = [f"{job.name} on {shape_in_words} Written by envkit {__version__}.", f"Submit it with: {submit} FILE"]
    return [f"# {line}" for line in (*lines, *(line for note in job.notes for line in note.splitlines()))]


def counted(number: int, thing: str) -> str:
    """Return "1 node" or "2 nodes"."""
    return f"{number} {thing}{'s' * (number != 1)}"


def steps(job: Job, start: Sequence[str], verifying: Sequence[str] = (), running: Sequence[str] = ()) -> list[str]:
    """Return the lines that verify, and that run the command.

    ``start`` is the launcher, with the words that it takes for either; each of its ranks enters the environment by
    itself. Without one the environment's own launcher starts the ranks, from inside.
    """
    verify = called("verify", job, start, verifying)
    what = ["--example", job.example] if job.example else []
    run = [*called("run", job, start, running), *what, "--", *job.command]
    verdict = "# Do these nodes work? If not, the job ends here, with the status of the verdict."
    own = "# The command, once per rank; its status is the job's."
    return [*((verdict, shlex.join(verify), "") if job.verify else ()), own, shlex.join(run)]


def called(command: str, job: Job, start: Sequence[str], words: Sequence[str] = ()) -> list[str]:
    """Return the argv that calls a command of envkit in each rank, or to start them; ``words`` are the launcher's."""
    ranks = [] if start else ["-n", str(job.shape.ranks), "--nodes", str(job.shape.nodes)]
    ranks += ["--mpi-model", job.model] if job.model else []
    return [*start, *(words if start else ()), *job.envkit, command, job.environment, *ranks]


def settings(job: Job) -> list[str]:
    """Return the lines that say where the environment is, and have the log show at once what Python prints."""
    trusted = [f"export ENVKIT_TRUST={shlex.quote(job.trusted)}"] if job.trusted else []
    return [f"export ENVKIT_PREFIX={shlex.quote(job.prefix)}", *trusted, "export PYTHONUNBUFFERED=1"]


def seconds(text: str) -> int:
    """Read a time as Slurm does: MINUTES[:SECONDS], HOURS:MINUTES:SECONDS or DAYS-HOURS[:MINUTES[:SECONDS]].

    Raises UsageProblem.
    """
    total = span(text)
    if not total:
        raise UsageProblem(what=f"--time: {text!r} is no time.", fix="Write it as 30 (minutes), 2:30:00 or 1-12:00:00.")
    return total


def span(text: str) -> int:
    """Read a time as schedulers write it; 0 where it is none."""
    match = TIME.fullmatch(text)
    return sum(int(number) * UNITS[unit] for unit, number in match.groupdict().items() if number) if match else 0


def clock(time_s: int) -> str:
    """Return a time as HOURS:MINUTES:SECONDS."""
    return f"{time_s // 3600:02}:{time_s // 60 % 60:02}:{time_s % 60:02}"


def require_lines(values: Mapping[str, str]) -> None:
    """Raise UsageProblem for values that do not fit on one line of a script."""
    for what, value in values.items():
        if any(ord(character) < 32 or ord(character) == 127 for character in value):
            raise UsageProblem(
                what=f"{what}: {value!r} has a line break or another control character in it.",
                why="It becomes part of a line that the scheduler reads, which has no way to write one.",
                fix="Leave it out.",
            )


def require_shape(shape: Shape) -> None:
    """Raise UsageProblem for a shape in which ranks would share a GPU."""
    if shape.gpus_per_node and shape.ranks_per_node > shape.gpus_per_node:
        raise UsageProblem(
            what=f"{shape.ranks_per_node} ranks per node do not fit {counted(shape.gpus_per_node, 'GPU')} per node.",
            why="Horovod gives each rank a GPU of its own.",
            fix="Ask for as many GPUs as ranks; --ranks-per-node left out is one rank per GPU.",
        )
