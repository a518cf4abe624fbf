import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from envkit.errors import HostProblem, Interrupted
from envkit.system import process, stopped

from .verify.compile_c import shared_object

ENV = {"PATH": os.environ["PATH"]}
PYTHON = sys.executable
DAEMON = """
import os, time
for _ in range(2):
    if os.fork():
        os._exit(0)
    os.setsid()
open({path!r}, "w").write(str(os.getpid()))
{ignore}
time.sleep(300)
"""
SUPERVISING = """
import sys
from pathlib import Path
from envkit.system import process
process.GRACE_S = 0.3
print(process.supervise(sys.argv[2:], env={{"PATH": {path!r}}}, log=Path(sys.argv[1])), flush=True)
"""


def wait_for(path: Path) -> int:
    """The process id that a process has written."""
    for _ in range(500):
        with suppress(OSError, ValueError):
            return int(path.read_text())
        time.sleep(0.01)
    raise AssertionError(f"{path} was not written")


def gone(pid: int, within_s: float = 8) -> bool:
    """Whether a process has ended."""
    deadline = time.monotonic() + within_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            return True
        if state in "ZX":
            return True
        time.sleep(0.02)
    return False


@pytest.mark.parametrize("path", [".:/usr/bin:/bin", ":/usr/bin:/bin", "/usr/bin:/bin:", "", "."])
@pytest.mark.parametrize("start", ["capture", "supervise", "exec_into", "run_foreground"])
def test_no_program_of_the_current_folder_is_started(
    path: str, start: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "nowhere-else").write_text("#!/bin/sh\n: >sprung\n")
    (tmp_path / "nowhere-else").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    env = {"PATH": path}
    if start == "capture":
        assert process.capture(["nowhere-else"], env=env).status == 127
    elif start == "supervise":
        assert process.supervise(["nowhere-else"], env=env, log=tmp_path / "log") == 127
    else:
        with pytest.raises(HostProblem, match="nowhere-else could not be started"):
            getattr(process, start)(["nowhere-else"], env)
    assert not (tmp_path / "sprung").exists()


def test_capture_keeps_both_outputs_and_the_status() -> None:
    done = process.capture(["sh", "-c", "echo out; echo err >&2; exit 3"], env=ENV)
    assert (done.status, done.stdout, done.stderr) == (3, "out\n", "err\n")
    assert done.argv == ("sh", "-c", "echo out; echo err >&2; exit 3")
    assert 0 < done.seconds < 10


def test_capture_gives_only_the_environment_it_is_given(tmp_path: Path) -> None:
    done = process.capture([PYTHON, "-c", "import os; print(sorted(os.environ), os.getcwd())"], env={}, cwd=tmp_path)
    assert str(tmp_path) in done.stdout and "HOME" not in done.stdout


def test_capture_has_no_input() -> None:
    assert process.capture(["cat"]).stdout == ""


def test_capture_of_what_is_not_text() -> None:
    assert process.capture(["printf", "a\\377b"]).stdout == "a\N{REPLACEMENT CHARACTER}b"


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize(
    "script",
    [
        "sleep 300 & echo $! > pid; wait",
        "(sleep 300 >/dev/null 2>&1 & echo $! > pid); sleep 300",
        "sleep 300 & echo $! > pid",
    ],
)
def test_what_a_command_has_started_ends_with_it_after_a_timeout(script: str, tmp_path: Path) -> None:
    late = process.capture(["sh", "-c", script], cwd=tmp_path, timeout_s=1)
    assert late.status == 124
    pid = int((tmp_path / "pid").read_text())
    end = time.monotonic() + 5
    while alive(pid) and time.monotonic() < end:
        time.sleep(0.05)
    assert not alive(pid)


def test_capture_of_a_signal_and_of_a_timeout() -> None:
    assert process.capture(["sh", "-c", "kill -SEGV $$"]).status == 128 + signal.SIGSEGV
    late = process.capture(["sh", "-c", "echo begun; exec sleep 60"], timeout_s=0.3)
    assert (late.status, late.stdout, late.stderr) == (124, "begun\n", "timed out")


def test_capture_of_a_program_that_prints_without_an_end() -> None:
    """It is ended, and so is what it has started, before it fills the memory."""
    endless = process.capture(["sh", "-c", "yes 'version 4.1.4' | cat"], env=ENV, most_bytes=100_000)
    assert endless.status == 137 and endless.seconds < 10
    assert 100_000 < len(endless.stdout) < 300_000 and endless.stdout.startswith("version 4.1.4\n")
    whole = process.capture(["sh", "-c", "yes | head -c 100000; exit 3"], env=ENV, most_bytes=100_000)
    assert (whole.status, len(whole.stdout)) == (3, 100_000)


def test_capture_of_what_cannot_be_run(tmp_path: Path) -> None:
    (tmp_path / "plain").touch()
    for argv in (["no-such-program"], [str(tmp_path / "plain")]):
        done = process.capture(argv)
        assert done.status == 127 and argv[0] in done.stderr


def test_supervise_writes_the_log_and_returns_the_status(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("before\n")
    calls: list[float] = []
    status = process.supervise(
        ["sh", "-c", "pwd; echo err >&2; sleep 0.8; exit 7"],
        env=ENV,
        log=log,
        cwd=tmp_path,
        watch=lambda: calls.append(time.monotonic()),
    )
    assert status == 7
    assert log.read_text() == f"before\n{tmp_path}\nerr\n"
    early = [call for call in calls if call - calls[0] < process.BRISK_FOR_S]
    late = calls[len(early) :]
    assert 3 <= len(early) <= 32
    assert 3 <= len(late) <= (late[-1] - late[0]) / process.POLL_S + 3


@pytest.mark.parametrize("number", [signal.SIGSEGV, signal.SIGKILL, signal.SIGTERM])
def test_supervise_of_a_command_that_dies_of_a_signal(number: signal.Signals, tmp_path: Path) -> None:
    argv = ["sh", "-c", f"kill -{number.value} $$"]
    assert process.supervise(argv, env=ENV, log=tmp_path / "log") == 128 + number


def test_supervise_of_what_is_not_there(tmp_path: Path) -> None:
    assert process.supervise(["no-such-program"], env=ENV, log=tmp_path / "log") == 127
    assert (tmp_path / "log").read_text() == "no-such-program: No such file or directory\n"


def after(seconds: float) -> Callable[[], bool]:
    end = time.monotonic() + seconds
    return lambda: time.monotonic() > end


@pytest.mark.parametrize(("first", "stopped_s"), [("", process.STOPPED_S), ("kill -STOP $PPID; ", 0.5)])
def test_supervise_stops_what_runs_too_long(
    first: str, stopped_s: float, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where what supervises it is stopped itself."""
    monkeypatch.setattr(process, "STOPPED_S", stopped_s)
    began = time.monotonic()
    argv = ["sh", "-c", f"echo $$ > pid; {first}exec sleep 300"]
    status = process.supervise(argv, env=ENV, log=tmp_path / "log", cwd=tmp_path, until=after(0.4))
    assert status == 124
    assert gone(int((tmp_path / "pid").read_text()), 0.1)
    assert time.monotonic() - began < 4


def test_supervise_ends_what_a_command_leaves_behind(tmp_path: Path) -> None:
    daemon = DAEMON.format(path=str(tmp_path / "pid"), ignore="")
    argv = ["sh", "-c", '"$0" -c "$1"; while [ ! -s pid ]; do sleep 0.02; done', PYTHON, daemon]
    assert process.supervise(argv, env=ENV, log=tmp_path / "log", cwd=tmp_path) == 0
    assert gone(wait_for(tmp_path / "pid"), 0.1)


def test_a_watch_that_fails_stops_the_command(tmp_path: Path) -> None:
    def watch() -> None:
        if (tmp_path / "pid").exists():
            raise ZeroDivisionError

    argv = ["sh", "-c", "echo $$ > pid; exec sleep 300"]
    with pytest.raises(ZeroDivisionError):
        process.supervise(argv, env=ENV, log=tmp_path / "log", cwd=tmp_path, watch=watch)
    assert gone(wait_for(tmp_path / "pid"), 0.1)


@pytest.mark.parametrize("ignore", ["", "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)"])
def test_nothing_outlives_a_supervising_process_that_is_killed(ignore: str, tmp_path: Path) -> None:
    daemon = DAEMON.format(path=str(tmp_path / "daemon"), ignore=ignore)
    script = f'"$0" -c "$1"; echo $$ > {tmp_path}/command; exec sleep 300'
    argv = [PYTHON, "-c", SUPERVISING.format(path=ENV["PATH"]), str(tmp_path / "log")]
    with subprocess.Popen([*argv, "sh", "-c", script, PYTHON, daemon], stdout=subprocess.PIPE) as supervising:
        pids = [wait_for(tmp_path / "daemon"), wait_for(tmp_path / "command")]
        supervising.send_signal(signal.SIGKILL)
    assert all(gone(pid) for pid in pids)


def has_stopped(program: str) -> bool:
    """Say whether a process of that name below this one is stopped."""
    below = stopped.below(os.getpid())
    return any(one.program == program for pid, above in below if (one := stopped.stopped(pid, "", above)))


def test_what_is_stopped_can_still_clear_away(tmp_path: Path) -> None:
    program = "trap 'rm mark; exit' TERM; touch mark; kill -STOP $$; while :; do sleep 0.1; done"
    until = iter(range(10**6))
    mark = tmp_path / "mark"

    def is_stopped() -> bool:
        return (mark.exists() and has_stopped("sh")) or next(until) > 600

    argv = ["sh", "-c", program]
    status = process.supervise(argv, env=dict(os.environ), log=tmp_path / "log", cwd=tmp_path, until=is_stopped)
    assert status == 124 and not mark.exists()


@pytest.mark.parametrize("number", process.INTERRUPTING)
def test_signals_stop_the_command_first(number: signal.Signals, tmp_path: Path) -> None:
    def interrupt() -> None:
        wait_for(tmp_path / "pid")
        os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    sender = threading.Thread(target=interrupt)
    sender.start()
    argv = ["sh", "-c", "echo $$ > pid; exec sleep 300"]
    with pytest.raises(Interrupted) as stopped:
        process.supervise(argv, env=ENV, log=tmp_path / "log", cwd=tmp_path)
    sender.join()
    assert stopped.value.exit_code == 128 + number
    assert gone(wait_for(tmp_path / "pid"), 0.1)
    assert signal.getsignal(number) == before


@pytest.mark.parametrize(
    ("number", "said"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM"), (signal.SIGQUIT, "SIGQUIT")]
)
def test_interruptible_puts_the_handlers_back(number: signal.Signals, said: str) -> None:
    before = signal.getsignal(number)
    with pytest.raises(Interrupted, match=rf"Stopped by {said}\."), process.interruptible():
        os.kill(os.getpid(), number)
        time.sleep(1)
    assert signal.getsignal(number) == before


def test_a_second_ctrl_c_does_not_stop_what_cleans_up_after_the_first() -> None:
    """As by somebody impatient, or by timeout(1), which sends it to the process and to its group."""
    before = signal.getsignal(signal.SIGINT)
    again = (
        "import os, signal; os.kill(os.getppid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGINT); print('kept')"
    )
    cleaned = ""
    with process.interruptible():
        try:
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(1)
        except Interrupted:
            cleaned = process.capture([sys.executable, "-c", again]).stdout
    assert cleaned == "kept\n"
    assert signal.getsignal(signal.SIGINT) == before


@pytest.mark.parametrize("number", process.INTERRUPTING)
def test_no_other_signal_stops_what_cleans_up_after_the_first(number: signal.Signals) -> None:
    """Nor in the block around the one that was left by the first."""
    before = [signal.getsignal(one) for one in process.INTERRUPTING]
    with pytest.raises(Interrupted, match=r"Stopped by SIGTERM\."), process.interruptible():
        try:
            with process.interruptible():
                os.kill(os.getpid(), signal.SIGTERM)
                time.sleep(1)
        finally:
            os.kill(os.getpid(), number)
            with process.interruptible():
                time.sleep(0.01)
    assert [signal.getsignal(one) for one in process.INTERRUPTING] == before


def test_no_file_stays_open(tmp_path: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    process.supervise(["true"], env=ENV, log=tmp_path / "log")
    process.supervise(["sleep", "9"], env=ENV, log=tmp_path / "log", until=after(0.1))
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_become_is_the_command() -> None:
    code = (
        "import os; from envkit.system import process; print('first');"
        "process.exec_into(['sh', '-c', 'echo $A; exit 5'], {'A': 'x', 'PATH': os.environ['PATH']})"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (5, "first\nx\n")


def test_become_leaves_no_signal_ignored() -> None:
    code = (
        "import os; from envkit.system import process\n"
        "process.exec_into(['bash', '-c', 'yes | head -n 1; echo ${PIPESTATUS[0]}'], {'PATH': os.environ['PATH']})"
    )
    done = subprocess.run([PYTHON, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("y\n141\n", "")


def test_become_of_what_is_not_there() -> None:
    with pytest.raises(HostProblem, match=r"no-such-program could not be started\."):
        process.exec_into(["no-such-program"], {"PATH": "/proc/nonexistent"})


def test_a_part_of_a_rank_keeps_the_descriptors_of_the_launcher(capfd: pytest.CaptureFixture[str]) -> None:
    reader, writer = os.pipe()
    os.set_inheritable(writer, True)
    argv = ["bash", "-c", f"echo PMI >&{writer}; seq 9999; echo told >&2; exit 3"]
    status, said = process.run_as_rank(argv, env=ENV, timeout_s=9)
    os.close(writer)
    with os.fdopen(reader) as stream:
        assert stream.read() == "PMI\n"
    told = "\n".join(map(str, range(1, 10000))) + "\ntold\n"
    assert (status, said, capfd.readouterr().err) == (3, told, told)


def test_a_part_of_a_rank_that_runs_too_long_is_stopped() -> None:
    began = time.monotonic()
    assert process.run_as_rank(["sleep", "300"], env=ENV, timeout_s=0.2)[0] == 124
    assert time.monotonic() - began < 3


def test_a_part_of_a_rank_is_stopped_with_the_rank(tmp_path: Path) -> None:
    code = (
        "from envkit.system import process\n"
        f"process.run_as_rank(['sh', '-c', 'echo $$ > {tmp_path}/pid; exec sleep 300'], env={ENV!r}, timeout_s=60)"
    )
    rank = subprocess.Popen([PYTHON, "-c", code], stderr=subprocess.DEVNULL)
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        time.sleep(0.02)
    rank.terminate()
    rank.wait(10)
    assert gone(int((tmp_path / "pid").read_text()), 10)


def test_a_handler_that_python_cannot_set_again(tmp_path: Path) -> None:
    """As of a library that is preloaded, and has one of its own in C."""
    text = "#include <signal.h>\nstatic void own(int n) {}\n"
    text += "__attribute__((constructor)) void set(void) { signal(SIGHUP, own); }"
    library = shared_object(tmp_path / "own.so", text)
    code = "from envkit.system import process\nwith process.interruptible(): pass\nprint('left')"
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, "LD_PRELOAD": str(library)}, capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "left\n"), done.stderr


def test_supervise_works_in_any_thread(tmp_path: Path) -> None:
    """Only the main thread gets signals, and may say what becomes of them."""
    found: list[int] = []
    argv = [PYTHON, "-c", "raise SystemExit(3)"]
    thread = threading.Thread(target=lambda: found.append(process.supervise(argv, env=ENV, log=tmp_path / "log")))
    thread.start()
    thread.join()
    assert found == [3]
