"""The only place that starts programs: argv lists, a chosen environment, no shell."""

import ctypes
import errno
import fcntl
import locale
import logging
import os
import re
import resource
import select
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NoReturn

from envkit.errors import HostProblem, Interrupted
from envkit.system.resources import data
from envkit.system.stopped import Watch

GRACE_S = 5.0
NEUTRAL = Path("/")  # where programs are asked whose answer shall not depend on the folder that the caller is in
POLL_S = 0.1
BRISK_S = 0.01  # at the beginning: a command that fails at once is looked at all the same
BRISK_FOR_S = 0.3
PR_SET_PDEATHSIG = 1
PASSED_ON = (
    *(signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT),
    *(signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGWINCH),
)
INTERRUPTING = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
KILLED_S = 0.5
STOPPED_S = 4 * GRACE_S  # which a supervisor never takes
KEPT_BYTES = 65536
MOST_BYTES = 64 << 20  # of output that a short command is read for: what prints more prints without an end
LIMIT: ContextVar["TimeLimit | None"] = ContextVar("limit", default=None)


class CutOffError(Exception):
    """A program had not ended when its Limit was over; the text names it."""


class TimeLimit:
    """How long short commands may take together (s), from now on."""

    def __init__(self, seconds: float) -> None:
        self.deadline = time.monotonic() + seconds
        self.running = set[subprocess.Popen[str]]()

    @property
    def left_s(self) -> float:
        """The seconds that are left of it."""
        return max(self.deadline - time.monotonic(), 0)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Have it hold for the commands of this block, in this thread: one that takes longer raises CutOffError."""
        token = LIMIT.set(self)
        try:
            yield
        finally:
            LIMIT.reset(token)

    def end(self) -> None:
        """End every command that still runs, with all that it has started."""
        for running in list(self.running):
            with suppress(ProcessLookupError):
                os.killpg(running.pid, signal.SIGKILL)


@dataclass(frozen=True, kw_only=True)
class Completed:
    """The outcome of a short command. ``status`` is 128 + N after signal N, 124 after a timeout."""

    argv: tuple[str, ...]
    status: int
    stdout: str
    stderr: str
    seconds: float


def which(program: str, path: str | None = None) -> str | None:
    """Return where a program is on PATH, or ``path``; relative folders, which mean whatever one is in, do not count."""
    return shutil.which(program, path=absolute(os.environ.get("PATH", os.defpath) if path is None else path))


def absolute(path: str) -> str:
    """Return a search path without its relative folders, the empty one among them."""
    return os.pathsep.join(folder for folder in path.split(os.pathsep) if folder.startswith("/"))


def settled(env: Mapping[str, str]) -> dict[str, str]:
    """Return settings in which no search path of programs or of Python modules has a relative folder."""
    nothing = {"PATH": os.defpath, "PYTHONPATH": ""}  # an empty PATH is the current folder
    return {**env, **{name: absolute(env[name]) or nothing[name] for name in nothing if name in env}}


LOG = logging.getLogger(__name__)
PASSWORD = re.compile(r"(?<=://)[^/@\s]*(?=@)")
OBEYED = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")  # by a terminal, of what ASCII has
NOT_STARTED = (errno.ENOENT, errno.EACCES, errno.ENOEXEC, errno.ENOTDIR, errno.ELOOP, errno.EPERM)


def tell(argv: Sequence[str]) -> None:
    """Tell of a program that is started, without the passwords of addresses; 'envkit -v' shows it.

    What a terminal would obey of its arguments is told as an escape.
    """
    if LOG.isEnabledFor(logging.INFO):
        line = PASSWORD.sub("***", shlex.join(argv)).encode("ascii", "backslashreplace").decode()
        LOG.info("+ %s", OBEYED.sub(lambda match: f"\\x{ord(match[0]):02x}", line))


def capture(
    argv: Sequence[str],
    *,
    env: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout_s: float = 60,
    most_bytes: int = MOST_BYTES,
) -> Completed:
    """Run a short command and keep what it prints; a program that does not exist ends with status 127.

    No program of the current folder is run, though PATH has it, by this or by the command. One that takes longer, or
    prints more, is killed with all that it has started, as long as that stays in its group of processes.
    """
    tell(argv)
    began, limit = time.monotonic(), LIMIT.get()
    left_s = min(timeout_s, limit.left_s) if limit else timeout_s
    try:
        running = subprocess.Popen(
            argv,
            env=settled(os.environ if env is None else env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
            start_new_session=left_s < timeout_s,
            process_group=None if left_s < timeout_s else 0,
        )
    except OSError as error:
        if error.errno not in NOT_STARTED:
            raise
        return Completed(argv=tuple(argv), status=127, stdout="", stderr=str(error), seconds=0.0)
    stdout, stderr, status = outcome(running, argv, left_s, most_bytes, limit if left_s < timeout_s else None)
    return Completed(argv=tuple(argv), status=status, stdout=stdout, stderr=stderr, seconds=time.monotonic() - began)


def outcome(
    running: subprocess.Popen[str], argv: Sequence[str], left_s: float, most_bytes: int, limit: TimeLimit | None
) -> tuple[str, str, int]:
    """Return what a command prints, and its status. One that takes longer or prints more is killed with its group.

    Raises CutOffError where it was the limit's.
    """
    if limit:
        limit.running.add(running)
    printed = bytearray(), bytearray()
    try:
        if not read(running, printed, left_s, most_bytes):
            kill(running)
        status = -signal.SIGKILL if running.returncode is None else running.returncode
        return text(printed[0]), text(printed[1]), 128 - status if status < 0 else status
    except subprocess.TimeoutExpired:
        kill(running)
        if limit:
            raise CutOffError(" ".join(argv[:2])) from None
        return text(printed[0]), "timed out", 124
    except BaseException:
        kill(running)
        raise
    finally:
        close(running)
        if limit:
            limit.running.discard(running)


def read(running: subprocess.Popen[str], printed: tuple[bytearray, bytearray], left_s: float, most_bytes: int) -> bool:
    """Read what a command prints until it has ended; say whether that is no more than ``most_bytes``.

    Raises TimeoutExpired.
    """
    deadline = time.monotonic() + left_s
    with selectors.DefaultSelector() as waiting:
        for stream, kept in zip((running.stdout, running.stderr), printed, strict=True):
            if stream is not None:
                waiting.register(stream, selectors.EVENT_READ, kept)
        while waiting.get_map():
            ready = waiting.select(max(deadline - time.monotonic(), 0))
            if time.monotonic() >= deadline:
                raise subprocess.TimeoutExpired(running.args, left_s)
            for key, _ in ready:
                more = os.read(key.fd, KEPT_BYTES)
                key.data.extend(more)
                if not more:
                    waiting.unregister(key.fileobj)
            if sum(map(len, printed)) > most_bytes:
                return False
    running.wait(max(deadline - time.monotonic(), 0))
    return True


def text(printed: bytearray) -> str:
    """Return what was printed, with the line ends of Unix."""
    decoded = printed.decode(locale.getpreferredencoding(do_setlocale=False), errors="replace")
    return decoded.replace("\r\n", "\n").replace("\r", "\n")


def kill(running: subprocess.Popen[str]) -> None:
    """Kill a command with its group of processes. One that waits in the kernel is left to itself."""
    with suppress(ProcessLookupError, PermissionError):
        os.killpg(running.pid, signal.SIGKILL)
    with suppress(subprocess.TimeoutExpired):
        running.wait(KILLED_S)
    close(running)


def close(running: subprocess.Popen[str]) -> None:
    """Read no more of what a command prints."""
    for stream in (running.stdout, running.stderr):
        if stream is not None:
            stream.close()


def supervise(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    log: Path,
    cwd: Path | None = None,
    watch: Callable[[], None] = lambda: None,
    until: Callable[[], bool] = lambda: False,
    holding: Path | None = None,
) -> int:
    """Run a long command with its output in ``log``, calling ``watch`` ten times a second, at the beginning more often.

    The file ``holding`` is locked, shared with others, until nothing of the command is left, or of this process.

    Nothing that the command starts outlives this call or this process, however either ends. Returns the
    exit status, 128 + N after signal N, 124 if it was stopped because ``until`` held. Raises Interrupted on Ctrl-C and
    SIGTERM, after the command has been stopped.
    """
    tell(argv)
    reader, writer = os.pipe()
    inherited = [reader, *([locked(holding)] if holding else [])]
    descriptors = ",".join(map(str, inherited))
    supervisor = [sys.executable, "-I", "-S", str(data("system/supervise.py")), str(GRACE_S), descriptors, *argv]
    with log.open("ab") as output, interruptible():
        try:
            running = subprocess.Popen(
                supervisor,
                env=settled(env),
                cwd=cwd,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                pass_fds=inherited,
                start_new_session=True,
            )
            for descriptor in inherited:
                os.close(descriptor)
            try:
                began = time.monotonic()
                while running.poll() is None:
                    watch()
                    if until():
                        return 124
                    wait_briefly(running, most_s=BRISK_S if time.monotonic() - began < BRISK_FOR_S else POLL_S)
                watch()
                return 128 - running.returncode if running.returncode < 0 else running.returncode
            finally:
                os.close(writer)
                writer = -1
                with suppress(subprocess.TimeoutExpired):
                    running.wait(STOPPED_S)
                if running.poll() is None:  # it was stopped itself
                    running.kill()
                if running.wait() < 0:  # the supervisor was killed: its command died with it, what that started did not
                    with suppress(ProcessLookupError):
                        os.killpg(running.pid, signal.SIGKILL)
        finally:
            if writer >= 0:
                os.close(writer)


def locked(path: Path) -> int:
    """Lock a file, shared with others; return its descriptor."""
    path.parent.mkdir(mode=0o770, parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o660)
    fcntl.flock(descriptor, fcntl.LOCK_SH)
    return descriptor


def wait_briefly(running: subprocess.Popen[bytes], *readers: int, most_s: float = POLL_S) -> None:
    """Wait for the end of a process, or something to read, ``most_s`` at most; both are noticed at once."""
    try:
        descriptor = os.pidfd_open(running.pid)
    except OSError:  # a kernel before 5.3
        time.sleep(most_s)
        return
    try:
        select.select([descriptor, *readers], [], [], most_s)
    finally:
        os.close(descriptor)


def run_as_rank(
    argv: Sequence[str],
    *,
    env: Mapping[str, str],
    timeout_s: float,
    watch: Callable[[], None] = lambda: None,
    grace_s: float = GRACE_S,
) -> tuple[int, str]:
    """Run a command as a part of this rank: it keeps every descriptor that the launcher gave to this process.

    Returns the status as ``supervise`` does, and the end of what was said, all of which is passed on to standard error.
    One that a signal has stopped, and that does not go on, is killed: 128 + SIGSTOP.
    Raises Interrupted, after passing a signal on and a grace.
    """
    tell(argv)
    deadline = time.monotonic() + timeout_s
    stopped = Watch(os.getpid())
    reader, writer = os.pipe()
    tail = PipeTail(reader)
    with interruptible():
        try:
            running = subprocess.Popen(
                argv,
                env=settled(env),
                stdin=subprocess.DEVNULL,
                stdout=writer,
                stderr=subprocess.STDOUT,
                close_fds=False,
            )
        finally:
            os.close(writer)
        passed_on = signal.SIGTERM
        try:
            while running.poll() is None:
                watch()
                stopped.look()
                if stopped.found:
                    running.kill()
                    return 128 + signal.SIGSTOP, tail.text()
                if time.monotonic() > deadline:
                    return 124, tail.text()
                wait_briefly(running, *tail.readers)
                tail.pass_on()
            status = 128 - running.returncode if running.returncode < 0 else running.returncode
            return status, tail.text()
        except Interrupted as stop:
            passed_on = signal.Signals[stop.signal_name]
            raise
        finally:
            with suppress(subprocess.TimeoutExpired):
                running.send_signal(passed_on)
                running.wait(grace_s)
            running.kill()
            running.wait()
            tail.close()


class PipeTail:
    """The output that comes out of a pipe: passed on to standard error as it comes, and its end kept."""

    def __init__(self, reader: int) -> None:
        os.set_blocking(reader, False)
        self.readers = [reader]
        self.kept = b""

    def pass_on(self) -> None:
        """Pass on what is there."""
        with suppress(BlockingIOError):
            while self.readers:
                read = os.read(self.readers[0], KEPT_BYTES)
                if not read:
                    self.close()
                self.kept = (self.kept + read)[-KEPT_BYTES:]
                sys.stderr.buffer.write(read)
                sys.stderr.flush()

    def text(self) -> str:
        """Pass on the rest; return the end of all."""
        self.pass_on()
        return self.kept.decode(errors="replace")

    def close(self) -> None:
        """Read no more."""
        while self.readers:
            os.close(self.readers.pop())


def interrupt(number: int, _frame: FrameType | None) -> None:
    """Stop what this process does, because of a signal. Raises Interrupted."""
    for one in INTERRUPTING:
        signal.signal(one, signal.SIG_IGN)
    name = "Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name
    raise Interrupted(signal_number=number, what=f"Stopped by {name}.")


@contextmanager
def interruptible() -> Iterator[None]:
    """Turn Ctrl-C, SIGTERM, SIGQUIT and a lost terminal into Interrupted while the block runs; any more are ignored.

    So what cleans up in the block, or in one around it, and programs that it starts for that, are not stopped by a
    second Ctrl-C. Signals reach the main thread alone: in another one nothing is changed.
    """
    if threading.current_thread() is not threading.main_thread() or signal.getsignal(signal.SIGTERM) is interrupt:
        yield
        return
    before = {number: signal.signal(number, interrupt) for number in INTERRUPTING}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # it was set by a library that is preloaded, and Python cannot set it again
                signal.signal(number, handler)


def exec_into(argv: Sequence[str], env: Mapping[str, str]) -> NoReturn:
    """Replace this process by the command, so that signals, terminal and exit status are its own."""
    tell(argv)
    sys.stdout.flush()
    sys.stderr.flush()
    # Python ignores these, and so would the command
    ignored = {number: signal.signal(number, signal.SIG_DFL) for number in (signal.SIGPIPE, signal.SIGXFSZ)}
    try:
        os.execve(place(argv[0], env), list(argv), dict(env))
    except OSError as error:
        for number, handler in ignored.items():
            signal.signal(number, handler)
        raise not_started(argv[0], error) from error


def place(program: str, env: Mapping[str, str]) -> str:
    """Return the path of a program, none of the current folder unless that is named. Raises FileNotFoundError."""
    path = program if "/" in program else which(program, env.get("PATH"))
    if path is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), program)
    return path


def not_started(program: str, error: OSError) -> HostProblem:
    """Say that a program could not be started."""
    return HostProblem(
        what=f"{program} could not be started.",
        why=error.strerror or str(error),
        fix=f"Check that {program} is installed and on PATH.",
    )


def run_foreground(argv: Sequence[str], env: Mapping[str, str]) -> int:
    """Run a command as ``exec_into`` does, but come back after it; return its status, -N after signal N.

    It has every stream and descriptor of this process, and gets the signals sent to this one; those of a terminal it
    gets from there. It does not outlive this process.
    """
    tell(argv)
    sys.stdout.flush()
    sys.stderr.flush()
    libc = ctypes.CDLL(None)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (*PASSED_ON, signal.SIGCHLD))

    def prepare() -> None:
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    try:
        program = place(argv[0], env)
        running = subprocess.Popen(argv, executable=program, env=env, close_fds=False, preexec_fn=prepare)
        while running.poll() is None:
            received = signal.sigwaitinfo((*PASSED_ON, signal.SIGCHLD))
            if received.si_signo != signal.SIGCHLD and received.si_code <= 0:  # the kernel's own are above
                running.send_signal(received.si_signo)
    except OSError as error:
        raise not_started(argv[0], error) from error
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    return running.returncode


def end_alike(status: int) -> int:
    """Return a status as ``run_foreground`` does; after a signal, die by the same one, without a core."""
    if status < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
        with suppress(OSError):  # SIGKILL has no handler
            signal.signal(-status, signal.SIG_DFL)
        os.kill(os.getpid(), -status)
    return status
