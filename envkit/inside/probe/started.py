"""Which launcher started this process, as which rank: by its variables, and where they may be left over, by itself.

`launchers.json` has of each launcher its variables, by which of them its job is known and how often that was started
again (`restarts`: the numbers of its steps then begin anew), what else it sets for a rank (`also`, a regular
expression), what it is called above a rank (`parents`, another one), what it opens for one: a socket, an address, a
PMIx server, and what it sets for a shell (`terminal`). It is believed where nothing is known of these.
"""

import ipaddress
import itertools
import json
import os
import re
import socket
import stat
from typing import Any, Dict, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

LAUNCHERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launchers.json")
PMIX = re.compile(r"PMIX_(RANK|NAMESPACE|ID|SERVER_\w+)$")
ANSWER_S = 2.0
NODES = 100000
PROXY = re.compile(r"hydra_pmi_proxy|hydra_bstrap_proxy")
OF_STEP = re.compile(r"SLURM_STEP(ID|_\w+)$")
CGROUP = "/proc/self/cgroup"


class Started(NamedTuple):
    """A rank as its launcher sees it; what it does not tell is None. `job` is the same in every rank of one start."""

    launcher: str
    title: str
    rank: int
    size: Optional[int]
    local_rank: Optional[int]
    local_size: Optional[int]
    job: str


def detect(env: Mapping[str, str]) -> Optional[Started]:
    """The launcher that started this process, or None: a login shell, or a bare batch script."""
    return recognise(env)[0]


def detect_unless_shell(env: Mapping[str, str], ranks: int) -> Optional[Started]:
    """The launcher that started this process, which is asked for so many ranks; None if that gave it but a shell."""
    found = detect(env)
    return None if found is None or is_shell(found, ranks) else found


def is_shell(launch: Started, ranks: int) -> bool:
    """Whether a process that is asked for so many ranks is none itself: in a step of one task, as a notebook's is."""
    return launch.launcher == "srun" and launch.size == 1 and ranks > 1


def leftovers(env: Mapping[str, str]) -> List[str]:
    """The variables by which launchers name a rank, of a launcher that did not start this process."""
    return recognise(env)[1]


def outlived(env: Mapping[str, str]) -> List[str]:
    """The variables of launchers that did not start this process, or have gone: nothing for ranks that it starts."""
    found, left = recognise(env)
    gone = variables_of(found, env) if found and is_unseen(found, env) else []
    return sorted(set(left + gone))


def told_rank(env: Mapping[str, str]) -> Optional[int]:
    """The rank that a process has by its variables, which are believed."""
    with open(LAUNCHERS) as stream:
        starts = [started(row, env) for row in json.load(stream) if fits(row, env)]
    return next((start.rank for start in starts if start), None)


def recognise(env: Mapping[str, str]) -> Tuple[Optional[Started], List[str]]:
    """Return what `detect` and `leftovers` say.

    Variables outlive their launcher: in a shell that a rank has opened, in a script that somebody has copied. Those
    that name one rank of several, and contradict no others, are believed, since ranks that are missing are noticed.
    One rank alone, one that lacks the size which its launcher tells, and launchers that contradict each other, have to
    be seen: a launcher above this process, or what it listens at. A launcher that an MPI starts within a step of Slurm
    does not contradict that step. What a batch script has of a step of Slurm is that of the step which submitted it.
    """
    with open(LAUNCHERS) as stream:
        rows = [row for row in json.load(stream) if fits(row, env)]  # type: List[Dict[str, Any]]
    pairs = [(row, start) for row, start in ((row, started(row, env)) for row in rows) if start]
    of_submitter = [start.size for row, start in pairs if row["name"] == "srun" and is_batch_script(env)]
    pairs = [(row, start) for row, start in pairs if start.size not in of_submitter or not is_of_slurm(row)]
    chosen = pairs[0][1] if pairs else None
    is_cut = bool(pairs and pairs[0][1].size is None and "size" in pairs[0][0])
    if chosen and (chosen.size == 1 or is_cut or not all(agree(start, chosen) for _, start in pairs)):
        above = launcher_above("|".join(row["parents"] for row in rows if "parents" in row))
        seen = [pair for pair in pairs if above and re.match(pair[0].get("parents", "$") + "$", above)]
        seen = seen or [pair for pair in pairs if "parents" not in pair[0] or listens(pair[0], env)]
        of_several = [pair for pair in pairs if pair[1].size != 1 and not is_cut]
        inner = [pair for pair in of_several if pair[0]["name"] != "srun"] or of_several
        seen = seen or (inner if all(agree(start, inner[0][1]) for _, start in inner) else [])
        chosen = seen[0][1] if seen else None
    believed = [row for row, start in pairs if chosen and agree(start, chosen)]
    alive = {name for row in believed for name in names(row, env)}
    dead = {name for row in rows if row not in believed for name in names(row, env)}
    if chosen is None and not any(answers(*place) for place in pmix_servers(env)):
        dead.update(name for name in env if PMIX.match(name))
    if of_submitter:
        dead.update(name for name in env if OF_STEP.match(name))
    return chosen, sorted(dead - alive)


def is_of_slurm(row: Dict[str, Any]) -> bool:
    """Whether srun sets a launcher's variables, by itself or for an MPI."""
    return bool(re.match("(?:%s)$" % row.get("parents", "$"), "slurmstepd"))


def is_batch_script(env: Mapping[str, str]) -> bool:
    """Whether this process is below the batch script of its job of Slurm, and not in a step: Slurm's daemon says it."""
    job = env.get("SLURM_JOB_ID", "")
    try:
        with open(CGROUP) as stream:
            if "/job_%s/step_batch" % job in stream.read():
                return True
        pid = next(pid for pid, name in processes_above() if name == "slurmstepd")
        with open("/proc/%d/cmdline" % pid) as stream:
            return "[%s.batch]" % job in stream.read()
    except (OSError, ValueError, IndexError, StopIteration):
        return False


def variables_of(launch: Started, env: Mapping[str, str]) -> List[str]:
    """The variables that say that this process is such a rank."""
    with open(LAUNCHERS) as stream:
        rows = [row for row in json.load(stream) if fits(row, env)]  # type: List[Dict[str, Any]]
    pairs = [(row, started(row, env)) for row in rows]
    return sorted({name for row, start in pairs if start and agree(start, launch) for name in names(row, env)})


def is_unseen(launch: Started, env: Mapping[str, str]) -> bool:
    """Whether nothing is there of the launcher that these variables tell of, so that they may be left over.

    It neither is above this process, whose ancestors can all be seen, nor listens. False where that is not known of it.
    """
    with open(LAUNCHERS) as stream:
        rows = [row for row in json.load(stream) if fits(row, env)]  # type: List[Dict[str, Any]]
    pairs = [(row, started(row, env)) for row in rows]
    rows = [row for row, start in pairs if start and agree(start, launch)]
    if not rows or any("parents" not in row or listens(row, env) for row in rows):
        return False
    names, is_all = ancestors()
    pattern = re.compile("(?:%s)$" % "|".join(row["parents"] for row in rows))
    return is_all and not any(map(pattern.match, names))


def fits(row: Dict[str, Any], env: Mapping[str, str]) -> bool:
    needed = [row["rank"]] + row.get("needs", [])
    return all(env.get(name) for name in needed) and not has_terminal(row, env)


def has_terminal(row: Dict[str, Any], env: Mapping[str, str]) -> bool:
    """Whether this is a shell that a launcher has given a terminal, as salloc does: alone, it is no rank.

    Ranks that are started in that shell have its variable, too.
    """
    return bool(env.get(row.get("terminal", ""))) and env.get(row["size"], "1") == "1"


def agree(launch: Started, other: Started) -> bool:
    return launch.rank == other.rank and (launch.size == other.size or None in (launch.size, other.size))


def names(row: Dict[str, Any], env: Mapping[str, str]) -> List[str]:
    """The variables of a launcher that are set here, but for a scheduler's: its job is still there."""
    own = [row.get(key, "") for key in ("rank", "size", "local_rank", "local_size", "socket")]
    own += row.get("needs", []) + row["job"] + row.get("address", [])
    own += [name for name in env if re.match("(?:%s)$" % row.get("also", "$"), name)]
    own += [name for name in env if row.get("pmix") and PMIX.match(name)]
    return list({name: 0 for name in own if name in env and not name.startswith(("SLURM_", "LSB_"))})


def started(row: Dict[str, Any], env: Mapping[str, str]) -> Optional[Started]:
    """Return what a launcher's variables say; None where they name no rank that can be."""

    def number(key: str) -> Optional[int]:
        return whole(env.get(row.get(key, ""), ""))

    rank, size = number("rank"), number("size")
    if rank is None or (env.get(row.get("size", "")) and (size is None or rank >= size)):
        return None
    local_size = number("local_size") or None
    if "local_sizes" in row:
        sizes = counts(env.get(row["local_sizes"], ""))
        node = number("node") or 0
        local_size = sizes[node] if node < len(sizes) else None
    again = env.get(row.get("restarts", ""))
    named = "-".join([env.get(name, "") for name in row["job"]] + ([again] if again else []))
    job = named if named.strip("-") else proxy() or str(os.getppid())
    return Started(row["name"], row["title"], rank, size, number("local_rank"), local_size, job)


def whole(text: str) -> Optional[int]:
    """A number that a launcher may count with, or None: no sign, no other script's digits, none that is absurd."""
    return int(text) if re.match("[0-9]{1,7}$", text) and text[-1:] != "\n" else None


def launcher_above(patterns: str) -> str:
    """The name of the nearest process above this one that is one of these launchers, or nothing."""
    names = ancestors()[0] if patterns else []
    return next((name for name in names if re.match("(?:%s)$" % patterns, name)), "")


def ancestors() -> Tuple[List[str], bool]:
    """The names of the processes above this one, the nearest first, and whether these are all."""
    programs = []  # type: List[str]
    try:
        for _, name in processes_above():
            programs.append(name)
    except (OSError, ValueError, IndexError):
        return programs, False
    return programs, True


def processes_above() -> Iterator[Tuple[int, str]]:
    """Yield the processes above this one, the nearest first, with names. Raises OSError for one that cannot be seen."""
    pid = os.getppid()
    while pid:
        with open("/proc/%d/stat" % pid) as stream:
            before, _, after = stream.read().rpartition(")")
        yield pid, before.partition("(")[2]
        pid = int(after.split()[1])


def listens(row: Dict[str, Any], env: Mapping[str, str]) -> bool:
    """Whether something is at the other end of what a launcher has opened for this rank."""
    places = list(pmix_servers(env)) if row.get("pmix") else []
    host, _, port = ":".join(env.get(name, "") for name in row.get("address", [])).rpartition(":")
    return is_socket(env.get(row.get("socket", ""), "")) or any(answers(*place) for place in places + [(host, port)])


def pmix_servers(env: Mapping[str, str]) -> Set[Tuple[str, str]]:
    """The addresses and ports of the PMIx servers that are named."""
    values = " ".join(value for name, value in env.items() if name.startswith("PMIX_SERVER_URI"))
    return set(re.findall(r"tcp\d?://\[?([0-9a-fA-F.:]+)\]?:([0-9]{1,5})\b", values))


def answers(host: str, port: str) -> bool:
    try:
        address = str(ipaddress.ip_address(host))
        socket.create_connection((address, int(port)), ANSWER_S).close()
    except (OSError, ValueError, OverflowError):
        return False
    return True


def is_socket(text: str) -> bool:
    """Whether this process has a socket as the descriptor of that number."""
    number = whole(text)
    try:
        return number is not None and stat.S_ISSOCK(os.fstat(number).st_mode)
    except (OSError, OverflowError):
        return False


def counts(text: str) -> List[int]:
    """Slurm's short form of numbers by node: "2(x3),1" is 2, 2, 2, 1."""
    matches = re.finditer(r"\b([0-9]{1,5})(?:\(x([0-9]{1,5})\))?(?![0-9])", text)
    each = (int(match.group(1)) for match in matches for _ in range(int(match.group(2) or 1)))
    return list(itertools.islice(each, NODES))


def proxy() -> str:
    """Return where MPICH's launcher listens, which the command line of the proxy above says: the same on all nodes."""
    pid = os.getppid()
    try:
        for _ in range(8):
            with open("/proc/%d/cmdline" % pid) as stream:
                words = stream.read().split("\0")
            if PROXY.search(words[0]) and "--control-port" in words:
                return words[words.index("--control-port") + 1]
            with open("/proc/%d/stat" % pid) as stream:
                pid = int(stream.read().rpartition(")")[2].split()[1])
    except (OSError, ValueError, IndexError):
        pass
    return ""
