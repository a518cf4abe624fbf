"""What a job has to start ranks in: its hosts, its nodes, and how many ranks there is room for."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from envkit.errors import HostProblem, UsageProblem
from envkit.inside.probe.started import counts, whole
from envkit.knowledge.known import known
from envkit.launch.table import table
from envkit.system import files, process

Hosts = tuple[tuple[str, int], ...]  # names with slots


def parse(text: str) -> Hosts:
    """Read "node1:2,node2" as hosts with slots (1 if left out). Raises UsageProblem."""
    hosts = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        match = re.fullmatch(r"([A-Za-z0-9][\w.-]*)(?::([1-9]\d*))?", word)
        if match is None:
            raise UsageProblem(what=f"--hosts: {word!r} is no host.", fix="Write them as node1:2,node2:2")
        hosts.append((match[1], int(match[2] or 1)))
    return tuple(hosts)


def spread(ranks: int, names: Sequence[str]) -> Hosts:
    """Share ranks out evenly, the first hosts having one more; a host that gets none is left out."""
    each, rest = divmod(ranks, max(len(names), 1))
    return tuple((name, each + (number < rest)) for number, name in enumerate(names) if each or number < rest)


def slotted(ranks: int, names: Sequence[str], slots: Sequence[int]) -> Hosts:
    """Give hosts the slots that a scheduler has for each, where these are as many as the ranks; else even ones."""
    is_all = len(slots) == len(names) and sum(slots) == ranks
    return tuple(zip(names, slots, strict=True)) if is_all else spread(ranks, names)


def of_slurm(ranks: int, nodes: int | None, env: Mapping[str, str]) -> Hosts:
    """Return the hosts of a Slurm allocation, so many at most; none where it has but one.

    They have the slots that Slurm gives them, where these are as many as the ranks, else even ones.
    """
    if not env.get("SLURM_JOB_NODELIST") or whole(env.get("SLURM_JOB_NUM_NODES", "1")) == 1:
        return ()
    names = names_of_slurm(env)[: nodes or None]
    return slotted(ranks, names, counts(env.get("SLURM_TASKS_PER_NODE", "")))


def names_of_slurm(env: Mapping[str, str]) -> list[str]:
    """Return the names of the nodes of a Slurm job; none outside of one, or where Slurm does not tell."""
    if not (nodes := env.get("SLURM_JOB_NODELIST")):
        return []
    return process.capture(["scontrol", "show", "hostnames", nodes], env=env, timeout_s=20).stdout.split()


def outside(named: Hosts, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return which of these hosts, by their names, a Slurm job does not have, as far as Slurm tells."""
    granted = {name.partition(".")[0] for name in names_of_slurm(env)} if named else set()
    names = (host for host, _ in named if re.match("[0-9.]+$", host) is None)
    return tuple(name for name in dict.fromkeys(names) if granted and name.partition(".")[0] not in granted)


def in_file(ranks: int, nodes: int | None, env: Mapping[str, str]) -> Hosts:
    """Return the hosts of a job whose scheduler lists them in a file that launchers do not read; none for only one.

    They have the slots that the file gives them, where these are as many as the ranks, else even ones. Raises
    HostProblem where the file cannot be read.
    """
    jobs = [row for row in rows(env) if env.get(row.get("hosts", ""))]
    if not jobs or jobs[0].get("asked"):
        return ()
    words = jobs[0]
    try:
        slots = listed(words, env)
    except OSError as error:
        raise HostProblem(
            what=f"The hosts of this {words['title']} job are not known.",
            why=f"{words['hosts']} names {env[words['hosts']]}: {error.strerror}.",
            fix=f"Outside of a job: 'unset {words['job']} {words['hosts']}'. In one: name the hosts "
            "(--hosts node1:2,node2:2).",
        ) from error
    names = list(slots)[: nodes or None]
    if len(names) < 2:
        return ()
    return slotted(ranks, names, [slots[name] for name in names])


def rows(env: Mapping[str, str]) -> list[Mapping[str, Any]]:
    """Return what is known of the schedulers whose job this is."""
    return [row for row in known("schedulers").values() if env.get(row["job"])]


def listed(row: Mapping[str, Any], env: Mapping[str, str]) -> Counter[str]:
    """Return the hosts in the file of a scheduler, in its order, with how often each is in it.

    Raises OSError, and KeyError where it has none.
    """
    return Counter(files.read(Path(env[row["hosts"]])).decode(errors="replace").split())


def nodes(env: Mapping[str, str]) -> int:
    """Return how many nodes this job has, as far as its scheduler tells; 0 outside of one."""
    for row in rows(env):
        if number := whole(env.get(row.get("nodes", ""), "")):
            return number
        with suppress(OSError, KeyError):
            return len(listed(row, env))
    return 0


def ranks(env: Mapping[str, str], default: int = 2, on: int | None = None) -> int:
    """Return how many ranks a scheduler has granted to this job; the default outside of one, or where it does not tell.

    Where it does not tell the tasks, these are the lines of its file of hosts; else the GPUs, if there is room for so
    many ranks, or one for each node. ``on`` so many of its nodes there are fewer: their share, where all are alike.
    """
    for row in rows(env):
        every = nodes(env)
        count = min(on or every, every)
        if number := whole(env.get(row["tasks"], "")):
            return number * count // every if every and not number % every else number
        each, gpus = (whole(env.get(row.get(name, ""), "")) or 0 for name in ("tasks_per_node", "gpus"))
        lines = 0
        with suppress(OSError, KeyError):
            lines = sum([*listed(row, env).values()][:on])
        granted = lines or count * each or (count * gpus if count * gpus <= slurm_slots(env) else 0) or count
        return granted if granted > 1 else default
    return default


def slurm_slots(env: Mapping[str, str]) -> int:
    """Return how many ranks a Slurm job has room for: its tasks, or its CPUs if more; 0 outside of one."""
    tasks = env.get("SLURM_NTASKS", "") if env.get("SLURM_JOB_ID") else ""
    return max(whole(tasks) or 0, sum(granted_cpus(env)))


def granted_cpus(env: Mapping[str, str]) -> list[int]:
    """Return how many CPUs a Slurm job has on each of its nodes; nothing outside of one."""
    return counts(env.get("SLURM_JOB_CPUS_PER_NODE", "")) if env.get("SLURM_JOB_ID") else []


def in_job(env: Mapping[str, str]) -> bool:
    """Say whether this process belongs to a job of a scheduler."""
    every = (*known("schedulers").values(), *table()["launcher"].values())
    return any(env.get(row.get("job", "")) for row in every)
