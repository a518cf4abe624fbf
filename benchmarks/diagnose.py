"""What ``envkit diagnose`` takes for large logs: whole processes, beside ``grep`` for the same literals.

``python benchmarks/diagnose.py [LOG]``: LOG, of a failed build, is repeated up to 39 MB; without it, one is made.
Times are of the processor (user and system), so that other work on the machine does not count.
"""

import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

from timing import ENVKIT

from envkit.diagnose import rules

MB = 1_000_000
RUNS = 5
LINE = "[ 12%] Building CXX object horovod/common/CMakeFiles/common.dir/ops/operations_{}.cc.o\n"
COMMAND = (
    "cd build/horovod/torch && c++ -DHAVE_MPI=1 -I/include/{} -O3 -fPIC -Wall -MD -MT mpi_ops_{}.o -c mpi_ops.cc\n"
)
FIRST = "torch/all.h:5:2: error: #error C++17 or later compatible compiler is required to use PyTorch.\n"
FOLLOW_UP = "torch/include/ATen/ops/add_{}.h:24:143: error: 'std::optional' has not been declared\n{}   24 |\n"


def good(path: Path, size: int) -> None:
    """Write a log without a failure (bytes)."""
    block = "".join(LINE.format(n) + COMMAND.format(n, n) for n in range(5000)).encode()
    with path.open("wb") as stream:
        while stream.tell() < size:
            stream.write(block)


def failed(path: Path, size: int, made_from: Path | None) -> None:
    """Write the log of a failed build (bytes): lines that went well, the first error, tens of thousands that follow."""
    text = FIRST + "".join(FOLLOW_UP.format(n, " " * 400) for n in range(5000))
    block = made_from.read_bytes() if made_from else text.encode()
    with path.open("wb") as stream:
        stream.write("".join(LINE.format(n) for n in range(3000)).encode())
        while stream.tell() < size:
            stream.write(block[: size - stream.tell()])


def hostile() -> dict[str, str]:
    """Return what logs are made of that take long."""
    keras = "".join(f"{n}/1875 [=====>.......] - ETA: {n}s - loss: 0.{n} - accuracy: 0.9\r" for n in range(1875))
    near = "".join(f"{text} {n:06d} is nearly it\n" for n in range(50) for rule in rules() for text in rule.find)
    texts = {"one line": "x" * 1000, "progress of Keras": keras, "lines that are nearly causes": near}
    return texts | {
        "a line of what is nearly a cause": near.replace("\n", " "),
        "success": "Successfully built horovod\n",
    }


def bounded(log: Path, name: str, text: str) -> int:
    """Print how fast a log of 100 MB is done with that was made to take long; return 1 if that is below 20 MB/s."""
    with log.open("wb") as stream:
        while stream.tell() < 100 * MB:
            stream.write(text.encode() * (MB // len(text) + 1))
    seconds, peak, out = measured(ENVKIT, "diagnose", "--json", log)
    speed = log.stat().st_size / MB / seconds
    holds = "holds" if speed >= 20 and peak < 300 * MB else "FAILS"
    read = "all of it" if json.loads(out)["complete"] else "its beginning, as it says"
    print(f"100 MB of {name}: {speed:.0f} MB/s (at least 20): {holds}; {peak / MB:.0f} MB of memory; read: {read}")
    return int(holds != "holds")


def measured(*argv: str | Path) -> tuple[float, int, bytes]:
    """Run a command; return processor time (s), peak memory (bytes) and standard output."""
    with tempfile.TemporaryFile() as output:
        running = subprocess.Popen(argv, stdout=output, stderr=subprocess.DEVNULL, env={**os.environ, "LC_ALL": "C"})
        _, _, used = os.wait4(running.pid, 0)
        running.returncode = 0
        output.seek(0)
        return used.ru_utime + used.ru_stime, used.ru_maxrss * 1024, output.read()


def report(claim: str, log: Path, literals: Path, least: float, wanted: str | None) -> int:
    """Print the speed on a log beside grep's; return 1 if it is not as fast as claimed. Raises for a wrong answer."""
    ours, theirs = [], []
    for _ in range(RUNS):
        seconds, _, out = measured(ENVKIT, "diagnose", "--json", log)
        found = json.loads(out)["cause"]
        if (found and found["id"]) != wanted:
            raise RuntimeError(f"{log}: {found}")
        ours.append(seconds)
        theirs.append(measured("grep", "-c", "-F", "-f", literals, log)[0])
    first, second = statistics.median(ours), statistics.median(theirs)
    speed = log.stat().st_size / MB / first
    holds = "holds" if speed >= least else "FAILS"
    print(f"{claim}: {speed:.0f} MB/s (at least {least:.0f}): {holds}; {first:.2f} s, grep -F {second:.2f} s")
    return int(speed < least)


def main(made_from: Path | None) -> int:
    """Measure all claims."""
    with tempfile.TemporaryDirectory() as folder:
        log, literals = Path(folder, "log"), Path(folder, "literals")
        literals.write_text("\n".join(sorted({text for rule in rules() for text in rule.find})) + "\n")
        good(log, 400 * MB)
        wrong = report("400 MB without a failure", log, literals, 150, None)
        failed(log, 39 * MB, made_from)
        wrong += report("39 MB of a failed build", log, literals, 100, "cxx17")
        wrong += sum(bounded(log, name, text) for name, text in hostile().items())
        good(log, 1000 * MB)
        seconds, peak, _ = measured(ENVKIT, "diagnose", log)
        holds = "holds" if peak < 150 * MB else "FAILS"
        print(f"memory on 1 GB: {peak / MB:.0f} MB (at most 150): {holds}; {1000 / seconds:.0f} MB/s")
        return wrong + (peak >= 150 * MB)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]) if len(sys.argv) > 1 else None))
