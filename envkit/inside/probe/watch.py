"""The watchdog: a process that never touches MPI, and the child that measures.

Threads would not do: in a process that hangs in MPI none of them gets to run.
"""

import faulthandler
import importlib
import os
import select
import signal
import socket
import sys
import time
from typing import Any, Callable, Dict, List, Optional

from .connection import STOPPING, CopiedDescriptor
from .process import memory_kills, state
from .record import Record

TICK_S = 1.0
STACK_S = 0.7
HURRY_S = 0.2
SAID = 4000
PAUSED = 5  # looks, one each TICK_S: a job that was suspended as a whole goes on as a whole
ABORTING = "abort_delay is < 0"


class Child:
    """The process that measures; the pipe tells its steps, and `connection` is what holds it to its launcher."""

    def __init__(self, pid: int, pipe: int, path: str, connection: CopiedDescriptor) -> None:
        self.pid, self.pipe, self.path, self.connection = pid, pipe, path, connection

    def told(self, name: str) -> str:
        """Return what is in one of the child's files, `stack` or `said`."""
        try:
            with open("%s.%s" % (self.path, name), errors="replace") as stream:
                return stream.read()
        except OSError:
            return ""

    def says(self) -> str:
        """The steps it has come to; nothing when it has ended."""
        try:
            return os.read(self.pipe, 65536).decode()
        except ConnectionResetError:
            return ""

    def go_on(self) -> None:
        """Let the child go on that waits until its connection is held."""
        try:
            os.write(self.pipe, b".")
        except OSError:
            pass

    def end(self, patience: float = STACK_S) -> None:
        """Have the child write its Python stack, then end it."""
        self.connection.hold(self.pid)
        try:
            os.kill(self.pid, signal.SIGUSR1)
            deadline = time.time() + patience
            while not self.told("stack") and time.time() < deadline:
                time.sleep(0.02)
            time.sleep(0.05)
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        os.waitpid(self.pid, 0)

    def leave_connection(self, folder: str) -> None:
        """Leave a process that keeps the connection to the launcher while the others' facts are awaited in a folder."""
        if self.connection.held and not os.fork():
            self.connection.keep(folder)
            os._exit(0)

    def last_words(self) -> Dict[str, Optional[str]]:
        """The child's stack and the end of what it said, and their files removed."""
        words = {name: self.told(name)[-SAID:] or None for name in ("stack", "said")}
        for name in words:
            try:
                os.remove("%s.%s" % (self.path, name))
            except OSError:
                pass
        return words


class StoppedError(Exception):
    """The watchdog was told to stop; holds the signal's name."""


def on_signal(number: int, _frame: Any) -> None:
    raise StoppedError(signal.Signals(number).name)


def die_with_parent(number: int) -> None:
    """Have the kernel send a signal to this process when its parent ends."""
    try:
        ctypes = importlib.import_module("ctypes")
        ctypes.CDLL(None).prctl(1, int(number), 0, 0, 0)
    except (ImportError, AttributeError, OSError):
        pass


def start(path: str, measure: Callable[[Record], Any]) -> Child:
    """Fork the child that measures into the record at `path`.

    If Open MPI aborts in it, it says so and waits to be ended: MPI would have the launcher end all ranks at once.
    """
    reader, writer = (end.detach() for end in socket.socketpair())
    os.environ.setdefault("OMPI_MCA_mpi_abort_delay", "-1")
    pid = os.fork()
    if pid:
        os.close(writer)
        return Child(pid, reader, path, CopiedDescriptor(os.environ))
    os.close(reader)
    status = 1
    try:
        alone(path)
        with open(path + ".stack", "w") as stream:
            faulthandler.enable(stream)
            faulthandler.register(signal.SIGUSR1, stream)
            measure(Record(path, writer))
        status = 0
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stderr.flush()
    leave(status)
    raise AssertionError


def alone(path: str) -> None:
    """Keep signals and output of the launcher away from the child; what it says goes to a file."""
    die_with_parent(signal.SIGKILL)
    os.setpgid(0, 0)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda _number, _frame: None)
    output = os.open(path + ".said", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(output, 1)
    os.dup2(output, 2)


def leave(status: int) -> None:
    """End the child as a script would: with the exit functions of its libraries, MPI's among them."""
    sys.exit(status)


def watch(child: Child, limits: Dict[str, float], stopped: Callable[[], bool]) -> Dict[str, Any]:
    """How the child ended: exit (with its status), signal, aborted by MPI, timeout of a step, terminated, stopped.

    `limits` holds seconds by step, "*" for any other. `stopped` is called about once a second and says whether
    another rank has ended so that there is nothing left to wait for.
    """
    for number in STOPPING:
        signal.signal(number, on_signal)
    try:
        return follow(child, limits, stopped)
    except StoppedError as error:
        for number in STOPPING:
            signal.signal(number, signal.SIG_IGN)
        child.end(HURRY_S)
        return {"how": "terminated", "signal": str(error)}


def follow(child: Child, limits: Dict[str, float], stopped: Callable[[], bool]) -> Dict[str, Any]:
    phase, since, looked, kills, paused = "start", time.time(), 0.0, memory_kills(), 0
    while True:
        limit = limits.get(phase, limits["*"])
        remaining = since + limit - time.time()
        if remaining <= 0:
            return dict(given_up(child), how="timeout", limit=limit)
        if time.time() - looked > TICK_S:  # also while the child is quick: others look for what this writes
            looked = time.time()
            if stopped():
                return dict(given_up(child), how="stopped")
            paused = paused + 1 if state(child.pid)["state"] == "T" else 0
            if paused >= PAUSED:
                return dict(given_up(child), how="timeout", limit=PAUSED * TICK_S)
        if select.select([child.pipe], [], [], min(remaining, TICK_S))[0]:
            words = child.says()
            if not words:
                return dict(ending(child, limit), memory_kills=memory_kills() - kills)
            phase, since = words.split()[-1], time.time()
            child.connection.hold(child.pid)
            if phase == "joined":
                child.go_on()
        elif ABORTING in child.told("said"):
            child.end()
            return {"how": "aborted"}


def given_up(child: Child) -> Dict[str, Any]:
    """End a child that does not go on; what the kernel said of it before, and its number."""
    before = state(child.pid)
    child.end()
    return dict(before, pid=child.pid)


def ending(child: Child, limit: float) -> Dict[str, Any]:
    """How a child ended that has closed its pipe, as it does when it ends."""
    deadline = time.time() + limit
    while time.time() < deadline:
        pid, status = os.waitpid(child.pid, os.WNOHANG)
        if pid:
            if os.WIFSIGNALED(status):
                return {"how": "signal", "signal": signal.Signals(os.WTERMSIG(status)).name, "pid": child.pid}
            return {"how": "exit", "status": os.WEXITSTATUS(status)}
        time.sleep(0.005)
    child.end()
    return {"how": "timeout", "limit": limit}


def pending(limits: List[str]) -> Dict[str, float]:
    """The limits given as STEP=SECONDS."""
    pairs = [text.partition("=") for text in limits]
    return {step: float(seconds) for step, _, seconds in pairs}
