"""A fault on purpose, in the rank and at the place that $LAB_FAULT names: RANK:PLACE:DEED.

PLACE is import (of horovod.torch) or allreduce (as the first one begins)."""

import ctypes
import importlib.abc
import importlib.machinery
import os
import signal
import sys
import time

RANK = ("OMPI_COMM_WORLD_RANK", "HOROVOD_RANK", "PMI_RANK", "SLURM_PROCID")
LATE_S, WAIT_S = 14, 4


def end_the_rank():
    """Kill what the launcher started, its probe with its watchdog, and this process."""
    above = [os.getppid()]
    while b"envkit" in command_line(above[-1]) or b"probe" in command_line(above[-1]):
        with open("/proc/%d/stat" % above[-1]) as stream:
            above.append(int(stream.read().rpartition(")")[2].split()[1]))
    for pid in above[-2::-1]:
        os.kill(pid, signal.SIGKILL)
    os.kill(os.getpid(), signal.SIGKILL)


def command_line(pid):
    with open("/proc/%d/cmdline" % pid, "rb") as stream:
        return stream.read()


def abort():
    mpi = ctypes.CDLL("libmpi.so.40")
    mpi.MPI_Abort(ctypes.byref(ctypes.c_char.in_dll(mpi, "ompi_mpi_comm_world")), 3)


DEEDS = {
    "abort": abort,
    "hang": lambda: time.sleep(3600),
    "late": lambda: time.sleep(LATE_S),
    "wait": lambda: time.sleep(WAIT_S),
    "kill": lambda: os.kill(os.getpid(), signal.SIGKILL),
    "kill-rank": end_the_rank,
}


class Fault(importlib.abc.MetaPathFinder):
    """Finds horovod.torch as ever, and does its deed there."""

    def __init__(self, place, deed):
        self.place, self.deed = place, deed

    def find_spec(self, name, path, target=None):
        if name != "horovod.torch":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        execute = spec.loader.exec_module
        spec.loader.exec_module = lambda module: self.executed(execute, module)
        return spec

    def executed(self, execute, module):
        if self.place == "import":
            self.deed()
        execute(module)
        if self.place == "allreduce":
            module.allreduce_async = self.before(module.allreduce_async)

    def before(self, function):
        def changed(*arguments, **options):
            self.deed()
            return function(*arguments, **options)

        return changed


if os.environ.get("LAB_FAULT"):
    number, at, what = os.environ["LAB_FAULT"].split(":")
    if number == next((os.environ[name] for name in RANK if name in os.environ), "0"):
        sys.meta_path.insert(0, Fault(at, DEEDS[what]))
