"""Which launcher started this process, as which rank, from the environment alone; `launchers.json` says how."""

import json
import os
import re
from typing import Any, Dict, List, Mapping, NamedTuple, Optional

LAUNCHERS = os.path.join(os.path.dirname(os.path.abspath(__file__)), "launchers.json")
PROXY = re.compile(r"hydra_pmi_proxy|hydra_bstrap_proxy")


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
    with open(LAUNCHERS) as stream:
        rows = json.load(stream)  # type: List[Dict[str, Any]]
    return next((started(row, env) for row in rows if fits(row, env)), None)


def fits(row: Dict[str, Any], env: Mapping[str, str]) -> bool:
    needed = [row["rank"]] + row.get("needs", [])
    return all(env.get(name) for name in needed) and not any(env.get(name) for name in row.get("unless", []))


def started(row: Dict[str, Any], env: Mapping[str, str]) -> Started:
    def number(key: str) -> Optional[int]:
        text = env.get(row.get(key, ""), "")
        return int(text) if text.isdigit() else None

    local_size = number("local_size")
    if "local_sizes" in row:
        sizes = counts(env.get(row["local_sizes"], ""))
        node = number("node") or 0
        local_size = sizes[node] if node < len(sizes) else None
    job = "-".join(env.get(name, "") for name in row["job"]) or proxy() or str(os.getppid())
    rank = number("rank") or 0
    return Started(row["name"], row["title"], rank, number("size"), number("local_rank"), local_size, job)


def counts(text: str) -> List[int]:
    """Slurm's short form of numbers by node: "2(x3),1" is 2, 2, 2, 1."""
    found = re.findall(r"(\d+)(?:\(x(\d+)\))?", text)
    return [int(number) for number, times in found for _ in range(int(times or 1))]


def proxy() -> str:
    """Where MPICH's launcher listens, from the command line of the proxy above this process: the same on all nodes."""
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
