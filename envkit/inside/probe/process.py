"""Reads what the kernel says of a process, and of the memory of all in its control group."""

import os
from typing import Dict, Optional


def state(pid: int) -> Dict[str, Optional[str]]:
    """Return what the kernel says of a process: its state (R, S, D, T, Z) and where in the kernel it waits."""
    facts = {"state": None, "waits": None}  # type: Dict[str, Optional[str]]
    try:
        with open("/proc/%d/stat" % pid) as stream:
            facts["state"] = stream.read().rpartition(")")[2].split()[0]
        with open("/proc/%d/wchan" % pid) as stream:
            facts["waits"] = stream.read().strip("0\n") or None
    except (OSError, IndexError):
        pass
    return facts


def command_line(pid: int) -> Optional[bytes]:
    """The words that a process was started with; None where it is not seen, or has ended."""
    try:
        with open("/proc/%d/cmdline" % pid, "rb") as stream:
            return stream.read() or None
    except OSError:
        return None


def memory_kills() -> int:
    """How many processes of this control group the kernel has killed for lack of memory; 0 where that is not told."""
    try:
        with open("/proc/self/cgroup") as stream:
            paths = [line.rstrip("\n").split(":", 2)[1:] for line in stream]
        for controllers, path in paths:
            if controllers in ("", "memory"):
                folder = os.path.join("/sys/fs/cgroup", controllers, path.lstrip("/"))
                for name in ("memory.events", "memory.oom_control"):
                    if os.path.exists(os.path.join(folder, name)):
                        with open(os.path.join(folder, name)) as stream:
                            counters = dict(line.split() for line in stream if len(line.split()) == 2)
                        if "oom_kill" in counters:
                            return int(counters["oom_kill"])
    except (OSError, ValueError):
        pass
    return 0
