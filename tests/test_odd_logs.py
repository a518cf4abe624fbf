"""Logs that no rule was written for: no log, healthy, failed for an unknown reason, or explained."""

import gzip
import random
from pathlib import Path

import pytest

from envkit.cli import run

NO_LOG, HEALTHY, UNKNOWN, CAUSE = 2, 1, 9, 0
SEED = random.Random(7)
LOGS: dict[str, tuple[int, bytes]] = {}


def add(name: str, status: int, content: str | bytes) -> None:
    """Add a log, and how diagnose is to end."""
    LOGS[name] = (status, content if isinstance(content, bytes) else content.encode())


add("empty", NO_LOG, "")
add("blank lines", HEALTHY, "\n\n\n  \n")
add("binary random", NO_LOG, bytes(SEED.randrange(256) for _ in range(5000)))
add("elf", NO_LOG, b"\x7fELF\x02\x01\x01" + b"\0" * 500)
add("binary without nul", NO_LOG, bytes(SEED.randrange(128, 256) for _ in range(3000)))
add("utf16", NO_LOG, "RuntimeError: CUDA out of memory. Tried to allocate 2 GiB\n".encode("utf-16"))
add("utf8 bom", CAUSE, b"\xef\xbb\xbfModuleNotFoundError: No module named 'horovod'\n")
add("png", NO_LOG, b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR" + bytes(range(256)))
add("german bash", UNKNOWN, "/var/spool/slurmd/job1/slurm_script: Zeile 7: foo_program: Kommando nicht gefunden.\n")
add("german mkdir", UNKNOWN, "mkdir: Verzeichnis '/data' kann nicht angelegt werden: Keine Berechtigung\n")
add("french", UNKNOWN, "bash: ligne 3 : mpirun : commande introuvable\n")
add("french gcc", UNKNOWN, "x.c:3:1: erreur: expected ';' before 'y'\nmake: *** [Makefile:3 : all] Erreur 1\n")
add("japanese", UNKNOWN, "bash: mpirun: コマンドが見つかりません\n")
add("spanish seg", UNKNOWN, "./run.sh: línea 4: 12345 Violación de segmento  (`core' generado) ./a.out\n")
add("chinese oom", UNKNOWN, "make: *** [all] 错误 137\n")
add("polish healthy", HEALTHY, "Epoka 1/3 strata 0.4\nEpoka 2/3 strata 0.3\nKoniec treningu\n")
add("healthy training", HEALTHY, "".join(f"Epoch {i} loss {1 / (i + 1):.3f}\n" for i in range(50)))
add(
    "healthy with warnings",
    HEALTHY,
    "UserWarning: The given NumPy array is not writable\n"
    "WARNING: Open MPI accepted a TCP connection\n"
    "Epoch 1 loss 0.2 error_rate=0.02\n"
    "Test errors: 0\n",
)
add(
    "healthy NCCL",
    HEALTHY,
    "n1:1:2 [0] NCCL INFO NET/Plugin: No plugin found (libnccl-net.so)\n"
    "n1:1:2 [0] NCCL INFO Bootstrap : Using eth0\nEpoch 1\n",
)
inter = "".join(f"[1,{r}]<stdout>:Epoch {e} loss {SEED.random():.2f}\n" for e in range(5) for r in range(4))
add(
    "interleaved unknown",
    UNKNOWN,
    inter + "[1,2]<stderr>:Traceback (most recent call last):\n"
    "[1,0]<stdout>:Epoch 6\n"
    '[1,2]<stderr>:  File "t.py", line 3, in <module>\n'
    "[1,1]<stdout>:Epoch 6\n"
    "[1,2]<stderr>:MyOwnError: the widget is upside down\n"
    "[1,0]<stdout>:Epoch 7\n",
)
add(
    "interleaved cause",
    CAUSE,
    inter + "[1,3]<stderr>:RuntimeError: CUDA out of memory. Tried to allocate 20.00 MiB\n"
    "[1,0]<stderr>:horovod.common.exceptions.HorovodInternalError: Horovod has been shut down\n",
)
add(
    "interleaved srun label",
    CAUSE,
    "0: start\n"
    "3: Traceback (most recent call last):\n"
    '1: start\n3:   File "x.py", line 1\n'
    "2: start\n"
    "3: ModuleNotFoundError: No module named 'horovod'\n"
    "srun: error: n2: task 3: Exited with exit code 1\n",
)
add(
    "mixed within line",
    UNKNOWN,
    "Traceback (mostTraceback (most recent call last):\n"
    " recent call last):\n  File \"a.py\"KeyError: 'x'\nKeyError: 'x'\n",
)
add(
    "perl died",
    UNKNOWN,
    "BEGIN failed--compilation aborted at x.pl line 2.\n",
)
add("fortran", UNKNOWN, "forrtl: severe (24): end-of-file during read, unit 5, file /proc/1/fd/0\n")
add("fortran2", UNKNOWN, "At line 12 of file x.f90\nFortran runtime error: End of file\n")
add(
    "rust panic",
    UNKNOWN,
    "thread 'main' panicked at src/main.rs:2:5:\nexplicit panic\nnote: run with `RUST_BACKTRACE=1`\n",
)
add(
    "go panic",
    UNKNOWN,
    "panic: runtime error: index out of range [3] with length 3\n\ngoroutine 1 [running]:\nmain.main()\n",
)
add("java", UNKNOWN, 'Exception in thread "main" java.lang.NullPointerException\n\tat Main.main(Main.java:3)\n')
add("node", UNKNOWN, "internal/modules/cjs/loader.js:638\n    throw err;\n    ^\nError: Cannot find module 'x'\n")
add("julia", UNKNOWN, "ERROR: LoadError: UndefVarError: x not defined\nStacktrace:\n [1] top-level scope\n")
add("ld", UNKNOWN, "collect2: error: ld returned 1 exit status\n")
add("ninja", UNKNOWN, "[1/2] Building CXX object a.o\nFAILED: a.o\nninja: build stopped: subcommand failed.\n")
add("c assert", UNKNOWN, "a.out: x.c:3: main: Assertion `0' failed.\n")
add("exit status only", UNKNOWN, "Job finished\nsrun: error: n1: task 0: Exited with exit code 3\n")
add(
    "slurm state",
    UNKNOWN,
    "JobId=1 JobName=x\n   JobState=FAILED Reason=NonZeroExitCode Dependency=(null)\n   ExitCode=1:0\n",
)
add("aborted", UNKNOWN, "free(): invalid pointer\nAborted\n")
add(
    "std exception", UNKNOWN, "terminate called after throwing an instance of 'std::runtime_error'\n  what():  widget\n"
)
add("glibc fatal", UNKNOWN, "*** stack smashing detected ***: terminated\n")
add(
    "json log",
    UNKNOWN,
    '{"level":"info","msg":"start"}\n{"level":"error","msg":"worker exited unexpectedly","rank":3}\n',
)
add(
    "logging ERROR",
    UNKNOWN,
    "2024-01-01 10:00:00,123 INFO start\n"
    "2024-01-01 10:00:01,123 ERROR trainer could not open shard 17\n"
    "2024-01-01 10:00:02,000 CRITICAL giving up\n",
)
add("glog F", UNKNOWN, "F0101 10:00:00.123456 123 widget.cc:33] Check failed: a == b (1 vs. 2)\n")
add(
    "traceback without end",
    UNKNOWN,
    'Traceback (most recent call last):\n  File "x.py", line 3, in <module>\n    main()\n',
)
add("KeyboardInterrupt", CAUSE, 'Traceback (most recent call last):\n  File "x.py", line 3\nKeyboardInterrupt\n')
add(
    "exception bare",
    UNKNOWN,
    'Traceback (most recent call last):\n  File "x.py", line 3, in <module>\n    raise StopIteration\nStopIteration\n',
)
add("source code", HEALTHY, "def f(x):\n    if x < 0:\n        raise ValueError('negative')\n    return x\n")
add("prose", HEALTHY, "Dear all, the meeting is on Tuesday. We discuss the errors of the past.\n")
add("csv", HEALTHY, "".join(f"{i},{i * i},{SEED.random()}\n" for i in range(100)))
add("html page", HEALTHY, "<html><body><h1>Hello</h1></body></html>\n")
add("one long line", UNKNOWN, "x" * 300000 + " Segmentation fault\n")
add("cr progress", UNKNOWN, "".join(f"\r{i}%" for i in range(100)) + "\nValueError: bad shard\n")
add(
    "two logs one good one bad",
    UNKNOWN,
    "==> a.log <==\n"
    "Epoch 1\n"
    "Training finished\n"
    "==> b.log <==\n"
    "Traceback (most recent call last):\n"
    '  File "x"\n'
    "ZeroDivisionError: division by zero\n",
)
add("gz unknown", UNKNOWN, gzip.compress(b"ok\nZeroDivisionError: division by zero\n"))


@pytest.mark.parametrize("name", LOGS)
def test_a_log_is_told_apart(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    status, content = LOGS[name]
    log = tmp_path / "log"
    log.write_bytes(content)
    assert run(["diagnose", str(log)]) == status
    said = capsys.readouterr()
    if status == UNKNOWN:
        lines = said.out.splitlines()
        assert "(unknown)" in lines[0] and f"{log}:" in lines[0] and lines[1].strip()
        assert "cause" in said.out and "remedy" in said.out
    assert ("What to do: " in said.err) == (status == NO_LOG)
