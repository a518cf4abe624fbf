"""Logs that were made to take long, to fill the memory, to speak to the terminal, or to become a command."""

import bz2
import contextlib
import gzip
import io
import itertools
import json
import lzma
import os
import pty
import re
import resource
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.diagnose import first_cause, judge, rules, scan, source
from envkit.diagnose.rule import Sign, done
from envkit.diagnose.scan import CHUNK
from envkit.report.words import escaped, plain
from envkit.system.decompression import zstd

Output = pytest.CaptureFixture[str]
ENVKIT = Path(sys.executable).with_name("envkit")
MPI = "x.cc:1:1: fatal error: mpi.h: No such file or directory"
HOSTILE = (
    "\x1b[31mred \x1b[2J \x1b]0;evil\x07 \x1b]8;;http://x\x1b\\ \x1bPq#0\x1b\\ \x9b31m \x9d0;evil\x9c \x1bc "
    "\x08\x08\x08 \x07 \u202egnp.exe\u2066 \x7f \x00 \x0e"
)
OBEYED = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def literals(pattern: str) -> list[str]:
    """Return the texts that a regular expression asks for, one for each choice in it."""
    texts = re.split(r"[()|]|\\[bdDsSwWB]|\[[^]]*\]|\.[*+?]|[*+?]|\?[:!<=>]+|\^|\$|\{[^}]*\}", pattern)
    return [text for text in (re.sub(r"\\(.)", r"\1", text) for text in texts) if text]


def pumps(sign: Sign) -> Iterator[str]:
    """Yield short texts that, repeated, are often nearly what a sign looks for."""
    told = [*sign.find, *(text for pattern in (sign.pattern, *sign.then) for text in literals(pattern))]
    yield from dict.fromkeys(told)
    for number in range(2, len(told) + 1):
        yield "".join(told[:number])
    yield from (
        f"{first}{char}" for first, char in itertools.product(sign.find[:2], ("1", ":1", ".", "_", "a ", ".so"))
    )


def seconds(sign: Sign, line: str) -> float:
    """Return the time that the processor worked here at a line."""
    began = time.thread_time()
    sign.fits(line)
    return time.thread_time() - began


def growth(sign: Sign, pump: str, size: int) -> float:
    """Return how many times longer a line takes that is four times as long: 4 if linear, 16 if quadratic."""
    lines = [(pump * (length // len(pump) + 1))[:length] for length in (size, 4 * size)]
    pairs = [[seconds(sign, line) for line in lines] for _ in range(3)]
    first, second = (min(column) for column in zip(*pairs, strict=True))
    return second / first if second > 0.002 else 1.0  # what is as short is no danger


SIGNS = {
    f"{rule.id}-{number}": sign
    for rule in rules()
    for number, sign in enumerate((rule, *rule.context))
    if sign.pattern or sign.then
} | {"done": done()}


@pytest.mark.integration
@pytest.mark.parametrize("name", SIGNS)
def test_no_pattern_takes_a_time_that_grows_as_the_square_of_the_line(name: str) -> None:
    sign = SIGNS[name]
    for pump in pumps(sign):
        for ends in ("", " x"):
            grown = least(sign, pump + ends)
            assert grown < QUADRATIC, (pump, grown)


QUADRATIC = 8  # between 4 and 16
MEASURES = 10


def least(sign: Sign, pump: str) -> float:
    """Return the least growth of so many measures at most: another process may have been in the way of some.

    Every second one is with longer lines: what looks no further than some letters grows faster up to there.
    """
    found = list[float]()
    while len(found) < MEASURES and min(found, default=QUADRATIC) >= QUADRATIC:
        found.append(growth(sign, pump, 8000 if len(found) % 2 else 2000))
    return min(found)


def test_the_measure_knows_a_pattern_that_is_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tests.test_hostile_logs.MEASURES", 2)  # one with each length
    assert least(Sign(find=("a",), pattern="a.*c"), "abbbbbbbbb") > QUADRATIC


def repeated(text: str, size: int) -> bytes:
    """Return a text as often as it takes to have so many bytes."""
    return text.encode() * (size // len(text.encode()) + 1)


def near(one: str) -> str:
    """Return lines with what a rule looks for, which it is not."""
    [rule] = [rule for rule in rules() if rule.id == one]
    return "".join(f"{text} {n:06d} is nearly it\n" for n in range(100) for text in rule.find)


KERAS = "".join(f"{n}/1875 [=====>......] - ETA: {n}s - loss: 0.{n} - accuracy: 0.9\r" for n in range(1875))
LOGS: dict[str, Callable[[], str]] = {
    "one letter": lambda: "x" * 1000,
    "Keras": lambda: KERAS,
    "escapes": lambda: "\x1b[m",
    "open escapes": lambda: "\x1b]8;",
    "returns": lambda: "\r",
    "ended well": lambda: "Successfully built horovod\n",
    "all at once": lambda: "".join(near(rule.id) for rule in rules()).replace("\n", " "),
}
OF_RULES: dict[str, Callable[[], str]] = {
    **{rule.id: lambda rule=rule: near(rule.id) for rule in rules()},  # type: ignore[misc]
    **{f"{rule.id} in a line": lambda rule=rule: near(rule.id).replace("\n", " ") for rule in rules()},  # type: ignore[misc]
}


@pytest.mark.integration
@pytest.mark.parametrize("name", [*LOGS, *(pytest.param(one, marks=pytest.mark.all) for one in OF_RULES)])
def test_a_log_takes_no_longer_than_its_size_allows(name: str) -> None:
    """The time goes by what the processor worked here; twice of what is meant, for machines that are slow."""
    size = 6_000_000 if "in a line" in name or name in ("Keras", "all at once") else 2_000_000
    data = repeated({**LOGS, **OF_RULES}[name](), size)
    began = time.thread_time()
    found = scan.scan((data[at : at + CHUNK] for at in range(0, len(data), CHUNK)), judge.search())
    took = time.thread_time() - began
    assert took < 2 * (scan.AT_ONCE_S + found.size / scan.BYTES_PER_S) + 0.5
    assert found.whole == (found.size == len(data))


@pytest.mark.parametrize("end", ["\r", "\n", "\r\n"])
def test_a_carriage_return_ends_a_line(end: str) -> None:
    found = first_cause([f"epoch 1{end}{KERAS}epoch 2{end}{MPI}{end}epoch 3{end}".encode()])
    assert found is not None
    assert (found.rule.id, found.line) == ("mpi-headers", MPI)


def test_a_cause_behind_a_carriage_return_stands_at_the_beginning_of_its_line() -> None:
    found = first_cause([f"{KERAS}Killed\r".encode()])
    assert found is not None and (found.rule.id, found.line) == ("killed", "Killed")


@pytest.mark.parametrize("at", [0, 3_000, 10_000, 1_500_000])
def test_a_cause_is_found_wherever_it_is_in_a_long_line(at: int) -> None:
    """What is nearly it, in front of it in the same line, does not hide it."""
    nearly = "fatal error: none; mpi.h: No such file, but none. "
    found = first_cause([(nearly * (at // len(nearly)) + MPI + nearly * 100).encode()])
    assert found is not None and found.rule.id == "mpi-headers"


@pytest.fixture
def little_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scan, "AT_MOST_S", 0.0)


@pytest.mark.usefixtures("little_time")
def test_where_the_time_is_over_it_is_said_what_was_read(tmp_path: Path, capsys: Output) -> None:
    log = tmp_path / "a log"
    log.write_text("-- ok\n" * (CHUNK // 6) + "-- ok\n" * CHUNK + f"{MPI}\n")
    assert run(["diagnose", "--json", str(log)]) == 1
    said = capsys.readouterr()
    told = json.loads(said.out)
    assert (told["complete"], told["cause"]) == (False, None)
    read = re.search(r"the first ([\d,]+) lines \(.* MB\).*tail -c \+(\d+) '(.*a log)' \| envkit diagnose -", said.err)
    assert read is not None and int(read[1].replace(",", "")) == (int(read[2]) - 1) // 6
    rest = subprocess.run(["tail", "-c", f"+{read[2]}", read[3]], capture_output=True, check=True).stdout
    assert len(rest) == log.stat().st_size - int(read[2]) + 1


def test_a_log_that_was_read_whole_says_so(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "log").write_text(f"{MPI}\n")
    assert run(["diagnose", "--json", str(tmp_path / "log")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["complete"] is True and not said.err


def test_what_was_not_read_to_the_end_is_not_certain() -> None:
    [rule] = [rule for rule in rules() if rule.id == "undefined-symbol"]
    judged = judge.judged

    seen = scan.scan([rule.example.encode()], judge.search())
    for whole, certainty in ((True, "confirmed"), (False, "likely")):
        seen.whole = whole
        found = judged(seen, None)
        assert found is not None and (found.rule.id, found.certainty) == ("undefined-symbol", certainty)


def make(kind: str, folder: Path) -> Path:
    """Make what is no file."""
    path = folder / "odd"
    if kind == "pipe":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as one, contextlib.chdir(folder):
            one.bind(path.name)
    elif kind == "loop":
        path.symlink_to(path)
    elif kind == "long name":
        return folder / ("x" * 5000)
    elif kind == "below a file":
        path.touch()
        return path / "log"
    elif kind == "folder with a broken link":
        path.mkdir()
        (path / "a.log").symlink_to("none")
    else:
        return Path(kind)
    return path


@pytest.mark.integration
@pytest.mark.parametrize(
    "kind",
    ["pipe", "socket", "loop", "long name", "below a file", "folder with a broken link", "/dev/zero", "/dev/null",
     "/dev/tty", "/dev/stdin"],
)  # fmt: skip
def test_what_is_no_file_is_refused_at_once(kind: str, tmp_path: Path) -> None:
    path = make(kind, tmp_path)
    for terminal in (False, True):
        reader, writer = pty.openpty() if terminal else os.pipe()
        try:
            done = subprocess.run([ENVKIT, "diagnose", path], stdin=writer if terminal else reader, check=False,
                                  capture_output=True, text=True, timeout=20, start_new_session=True)  # fmt: skip
        finally:
            os.close(reader)
            os.close(writer)
        assert done.returncode == 2, done.stderr
        assert "What to do: " in done.stderr and "Traceback" not in done.stderr


def test_a_pipe_is_read_as_standard_input() -> None:
    done = subprocess.run(["bash", "-c", f'{ENVKIT} diagnose - < <(echo "{MPI}")'], capture_output=True, check=False)
    assert done.stdout.startswith(b"mpi-headers")


MEASURE = """
import json, resource, subprocess, sys
status = subprocess.call(sys.argv[1:], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(json.dumps([status, used.ru_maxrss * 1024, used.ru_utime + used.ru_stime]))
"""


def peak(argv: list[str | Path]) -> tuple[int, int, float]:
    """Run a command: its exit code, its peak memory (bytes), the time of the processor.

    A small process starts it, since to the peak of a process counts what started it.
    """
    done = subprocess.run([sys.executable, "-I", "-c", MEASURE, *argv], capture_output=True, check=True)
    status, memory, seconds = json.loads(done.stdout)
    return status, memory, seconds


def test_a_dictionary_of_a_gigabyte(tmp_path: Path, capsys: Output) -> None:
    filters = [{"id": lzma.FILTER_LZMA2, "dict_size": 64 << 20}]
    data = bytearray(lzma.compress(f"{MPI}\n".encode(), check=lzma.CHECK_NONE, filters=filters))
    header = data[12 : 12 + 4 * (data[12] + 1)]
    at = 12 + header.index(b"\x21\x01") + 2
    assert data[at] == 28  # the size, as xz writes it
    data[at] = 38  # 2 GiB
    import zlib

    end = 12 + len(header)
    data[end - 4 : end] = zlib.crc32(data[12 : end - 4]).to_bytes(4, "little")
    (tmp_path / "log.xz").write_bytes(data)
    assert run(["diagnose", str(tmp_path / "log.xz")]) == 2
    said = capsys.readouterr().err
    assert "takes more than 256 MiB of memory" in said and "xz -dc " in said
    assert peak([ENVKIT, "diagnose", tmp_path / "log.xz"])[1] < 200_000_000


def test_streams_of_xz_behind_each_other(tmp_path: Path, capsys: Output) -> None:
    log = tmp_path / "log.xz"
    log.write_bytes(lzma.compress(b"-- ok\n" * 9) + b"\0" * 8 + lzma.compress(f"{MPI}\n".encode()))
    assert run(["diagnose", str(log)]) == 0
    assert f"{log}:10" in capsys.readouterr().out
    log.write_bytes(lzma.compress(b"-- ok\n" * 9)[:-9])
    assert run(["diagnose", str(log)]) == 2
    assert "damaged" in capsys.readouterr().err


@pytest.mark.parametrize("pack", [lzma.compress, zstd.compress])
def test_nothing_behind_many_zeros_is_lost(pack: Callable[[bytes], bytes], tmp_path: Path, capsys: Output) -> None:
    log = tmp_path / "log"
    log.write_bytes(pack(b"-- ok\n" * 9) + bytes(3 << 20) + pack(f"{MPI}\n".encode()))
    assert run(["diagnose", str(log)]) == 0
    assert f"{log}:10" in capsys.readouterr().out


def test_a_window_of_half_a_gigabyte(tmp_path: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch) -> None:
    packer = zstd.ZstdCompressor(options={zstd.CompressionParameter.window_log: 29})
    log = tmp_path / "log.zst"
    log.write_bytes(packer.compress(f"{MPI}\n".encode() * 9) + packer.flush())
    assert run(["diagnose", str(log)]) == 2
    assert f"zstd -dc --long=31 {log} | envkit diagnose -" in capsys.readouterr().err
    with log.open("rb") as stream:
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(stream))
        assert run(["diagnose", "-"]) == 2
    assert "zstd -dc --long=31 LOG | envkit diagnose -" in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, bz2.compress, zstd.compress])
def test_what_unpacks_without_an_end_is_bounded(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """A bomb of 20 GB; what the tests have of time is enough for the first of it."""
    one, log = pack(b"x" * 20_000_000), tmp_path / "log"
    with log.open("wb") as stream:
        for _ in range(1000):
            stream.write(one)
    code = "from envkit.diagnose import scan; scan.AT_MOST_S = 1.0; from envkit.cli import run; raise SystemExit(run())"
    status, memory, took = peak([sys.executable, "-c", code, "diagnose", log])
    assert status == 1 and memory < 400_000_000 and took < 15


@pytest.mark.integration
@pytest.mark.parametrize("pack", [gzip.compress, lzma.compress, zstd.compress])
def test_what_unpacks_to_nothing_is_bounded_by_the_clock(pack: Callable[[bytes], bytes], tmp_path: Path) -> None:
    """Two million packed files of no bytes, one after another: as long as the limit, and what it takes to begin."""
    code = "from envkit.diagnose import scan; scan.AT_MOST_S = 1.0; from envkit.cli import run; raise SystemExit(run())"

    log = tmp_path / "log"
    log.write_bytes(pack(b"") * 2_000_000)
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    argv = [sys.executable, "-c", code, "diagnose", str(log)]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)  # where it waits
    after = resource.getrusage(resource.RUSAGE_CHILDREN)  # what the machine does besides counts for nothing
    assert done.returncode == 1 and "envkit: the first 0 lines (0.0 MB) of " in done.stderr
    assert "no more: to look at all of it takes too long" in done.stderr and "To go on" not in done.stderr
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 6


def test_the_time_is_over_for_all_of_a_log_together(tmp_path: Path) -> None:
    """By a clock that goes on by a second at each look: unpacking, looking, and the lines that are shown."""
    log = tmp_path / "log.gz"
    log.write_bytes(gzip.compress(b"-- ok\n" * 20_000_000, 1))
    now = iter(range(10_000))
    limit = scan.Deadline(lambda: float(next(now)))
    with source.opened(str(log), limit) as blocks:
        seen = scan.scan(blocks, judge.search())
    assert not seen.whole and 0 < seen.size < 40_000_000
    assert source.lines(str(log), 1, 4, limit) == []
    assert source.lines(str(log), 1, 4, scan.Deadline()) == ["-- ok"] * 4


TERMINAL = """
import os, pty, sys
status = pty.spawn(sys.argv[1:])
sys.exit(os.waitstatus_to_exitcode(status))
"""


def on_a_terminal(*argv: str | Path) -> str:
    """Return what a command writes to a terminal of its own."""
    env = {**os.environ, "NO_COLOR": "1", "TERM": "dumb"}
    done = subprocess.run([sys.executable, "-c", TERMINAL, *argv], capture_output=True, check=False, env=env,
                          stdin=subprocess.DEVNULL)  # fmt: skip
    return done.stdout.decode().replace("\r\n", "\n")


@pytest.mark.integration
@pytest.mark.parametrize("words", [[], ["--json"]])
@pytest.mark.parametrize(
    "line",
    [
        f"x.cc:1:1: fatal error: {HOSTILE}mpi.h: No such file".replace(f"error: {HOSTILE}", f"{HOSTILE} fatal error: "),
        f"No matching distribution found for a{HOSTILE}",
        f"The following module(s) are unknown: {HOSTILE}",
        f"error: {HOSTILE}\nx.cc:1: error: {HOSTILE}",
    ],
)
def test_nothing_of_a_log_reaches_the_terminal_that_it_would_obey(line: str, words: list[str], tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text("head\n" * 400_000 + line.replace("\x00", "") + "\n")
    said = on_a_terminal(ENVKIT, "diagnose", *words, log)
    assert re.search(r"mpi-headers|package-not-found|module-unknown|exception-line", said), said
    assert not OBEYED.search(said)


@pytest.mark.integration
def test_nothing_of_a_name_of_a_file_either(tmp_path: Path) -> None:
    for content in (None, b"", b"\0", f"{MPI}\n".encode()):
        log = tmp_path / "\x1b]0;evil\x07\u202e"
        if content is not None:
            log.write_bytes(content)
        assert not OBEYED.search(on_a_terminal(ENVKIT, "diagnose", log))


def test_plain_keeps_what_is_text() -> None:
    assert plain(f"a{HOSTILE}b\n\tü 日本 😀") == "ared       b\n\tü 日本 😀".replace(
        "ared       b", plain(f"a{HOSTILE}b")
    )
    assert not OBEYED.search(plain(HOSTILE)) and "evil" not in plain("\x1b]0;evil\x07\x9d0;evil\x9c")
    for text in (HOSTILE, "ü\n", 'a"\\'):
        assert json.loads(escaped(json.dumps(text, ensure_ascii=False))) == text
        assert not OBEYED.search(escaped(json.dumps(text, ensure_ascii=False)))


@pytest.mark.parametrize("name", ["CUDA;curl${IFS}evil|sh", "$(touch${IFS}X)", "`touch`", "-rf", "a" * 101])
def test_what_a_log_names_is_no_part_of_a_command_unless_it_is_a_name(name: str) -> None:
    found = first_cause([f"The End User License Agreement (EULA) for {name} is currently not accepted!"])
    assert found is not None and found.rule.id == "eula"
    assert "--accept-eula NAME (plain eb: --accept-eula-for=NAME)" in found.fix


def test_a_name_is_put_into_the_command() -> None:
    for name in ("CUDA", "cuDNN", "Intel-oneAPI"):
        found = first_cause([f"The End User License Agreement (EULA) for {name} is currently not accepted!"])
        assert found is not None and f"--accept-eula {name} " in found.fix


def test_a_name_does_not_ask_for_another() -> None:
    found = first_cause(["ImportError: lib{owner}{fix}.so: cannot open shared object file: No such file"])
    assert found is not None and "lib{owner}{fix}.so is " in found.cause
