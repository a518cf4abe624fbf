import bz2
import dataclasses
import gzip
import io
import json
import lzma
import os
import random
import shutil
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from envkit.cli import run
from envkit.diagnose import Certainty, Rule, first_cause, first_cause_in, judge, rules
from envkit.diagnose.rule import Sign, done, parse_rule
from envkit.diagnose.scan import CHUNK, Scan, ScannedLog, Search, below, scan, whole_lines
from envkit.diagnose.surroundings import Surroundings
from envkit.knowledge.known import catalogue
from envkit.system.decompression import zstd
from tests.diagnose_recall import AREAS, FILE, WHOLE, Thread, table, threads, verdict, written

RULES = [rule for rule in rules() if not rule.quiet]
FOLLOW_UP = "operations.cc:{}:3: error: expected ';' before 'shape'\n"
DISK = "write: No space left on device\n"
ENVKIT = Path(sys.executable).with_name("envkit")
Output = pytest.CaptureFixture[str]


def cause(*lines: str) -> str:
    """Return the identifier of the first cause of a log, or nothing."""
    found = first_cause(lines)
    return found.rule.id if found else ""


@pytest.mark.parametrize("rules_file", sorted({rule.about for rule in RULES}))
def test_a_rule_explains_its_own_example_in_the_midst_of_a_log(rules_file: str) -> None:
    for rule in (rule for rule in RULES if rule.about == rules_file):
        example = rule.example.strip().splitlines()
        found = first_cause(["== building...", "", "", "", "", *example, "make: *** [all] Error 2"])
        assert found is not None, rule.id
        assert found.rule.id == rule.id
        assert 6 <= found.number < 6 + len(example), rule.id
        assert any(literal in found.line for literal in rule.find) or len(found.line) == 300, rule.id


@pytest.mark.parametrize("rules_file", sorted({rule.about for rule in RULES}))
def test_what_is_nearly_it_is_not_it(rules_file: str) -> None:
    for rule in (rule for rule in RULES if rule.about == rules_file):
        for log in rule.near:
            found = first_cause(log.splitlines())
            assert found is None or found.rule.id != rule.id, log


def test_a_rule_has_all_that_it_needs() -> None:
    for rule in rules():
        assert rule.source or rule.unknown, rule.id
        assert rule.cause and rule.fix and rule.example.strip(), rule.id
        literals = [literal for sign in (rule, *rule.context) for literal in sign.find]
        assert all(literal.strip() and len(literal) >= 4 for literal in literals), rule.id
        if not rule.quiet:
            found = first_cause(rule.example.splitlines())
            assert found is not None, rule.id
            assert not {"{", "}"} & set(found.cause + found.fix), rule.id


@pytest.mark.parametrize("rule", [rule for rule in rules() if rule.quiet], ids=lambda rule: rule.id)
def test_what_the_machine_alone_shows_is_not_in_a_log(rule: Rule) -> None:
    found = first_cause(rule.example.splitlines())
    assert found is None or found.rule.id != rule.id


def test_identifiers_are_named_once() -> None:
    assert len({rule.id for rule in rules()}) == len(rules())


def test_a_line_that_a_rule_asks_for_must_stand_above_and_near() -> None:
    head, line = "CMake Error at third_party/gloo/CMakeLists.txt:1:", "Compatibility with CMake < 3.5 has been removed"
    assert cause(head, line) == "cmake-4"
    assert cause(line, head) == "step-failed"
    assert cause(head, *["-- ok"] * 5, line) == "step-failed"
    assert cause(line, *["-- ok"] * 5, head, line) == "cmake-4"


def sign(literal: str) -> Sign:
    return Sign(find=(literal,))


def rule(literal: str = "broken", **fields: Any) -> Rule:
    """A rule for lines with a literal."""
    given = {"id": literal, "about": "", "cause": "c", "fix": "f", "example": "", "source": (), **fields}
    return Rule(find=(literal,), **given)


def seen(text: str, *rules: Rule) -> ScannedLog:
    return scan([text.encode()], Search(rules, sign("all went well")))


@pytest.mark.parametrize(("between", "near"), [(0, True), (3, True), (4, False), (9, False)])
def test_how_near_a_line_above_must_stand(between: int, near: bool) -> None:
    """At most four lines, where a rule does not say how many; the nearest of several counts."""
    for first in ("", "the head\n" + "\n" * 9):
        found = seen(first + "the head\n" + "\n" * between + "broken\n", rule(preceded_by=sign("the head")))
        assert (found.hits.keys() == {"broken"}) == near
        if near:
            line = first.count("\n") + 1
            above = found.hits["broken"].above
            assert above is not None and (above.number, above.text) == (line, "the head")
            assert found.hits["broken"].line.number == line + between + 1
    assert not seen("broken\nthe head\n", rule(preceded_by=sign("the head"))).hits


@pytest.mark.parametrize(
    ("log", "number"),
    [
        ("broken", 0),
        ("broken\nbroken", 2),
        ("broken\n\nbroken", 0),
        ("broken\n\nbroken\nbroken", 4),
        ("broken broken", 0),
    ],
)
def test_a_line_that_must_stand_there_twice(log: str, number: int) -> None:
    found = seen(f"{log}\n", rule(preceded_by=sign("broken"), within=1)).hits.get("broken")
    assert (found.line.number if found else 0) == number


def test_lines_are_counted_from_1_over_all_blocks() -> None:
    for empty in range(3):
        blocks = [b"\n" * empty + b"broken\nx\n", b"\ny bad y\n  worse\n", b"bad\nlast"]
        found = scan(blocks, Search([rule(), rule("bad"), rule("worse"), rule("last")], sign("all went well")))
        lines = {name: (hit.line.number - empty, hit.line.text) for name, hit in found.hits.items()}
        assert lines == {"broken": (1, "broken"), "bad": (4, "y bad y"), "worse": (5, "worse"), "last": (7, "last")}
        assert (found.lines, found.size) == (6 + empty, sum(map(len, blocks)))


def test_a_line_is_looked_at_4000_bytes_on_either_side() -> None:
    for left, right in ((3999, 3993), (4001, 3995), (9000, 9000)):
        found = seen("a" * left + "broken" + "b" * right + "\nnext", rule()).hits["broken"].line.text
        assert found == "a" * min(left, 4000) + "broken" + "b" * min(right, 3994)


def test_bytes_that_are_no_text_are_replaced() -> None:
    found = scan([b"\xff broken \xfe\n"], Search([rule()], sign("all went well")))
    assert found.hits["broken"].line.text == "\ufffd broken \ufffd"


@pytest.mark.parametrize("survives", [False, True])
def test_of_what_ended_well_only_what_survives_is_kept(survives: bool) -> None:
    one = rule(also=sign("a sign"), survives=survives)
    found = seen("a sign\nbroken 1\nall went well\n", one)
    assert (len(found.hits), len(found.signs)) == ((1, 1) if survives else (0, 0))
    again = seen("a sign\nbroken 1\nall went well\nbroken 2\na sign\n", one)
    assert (again.hits["broken"].line.number, again.signs[sign("a sign")].number) == ((2, 1) if survives else (4, 5))


def test_the_first_of_several_lines_counts() -> None:
    found = seen("a sign 1\nbroken 1\nbroken 2\na sign 2\n", rule(proof=sign("a sign")))
    assert (found.hits["broken"].line.text, found.signs[sign("a sign")].text) == ("broken 1", "a sign 1")


def test_what_all_logs_are_searched_with_is_made_once() -> None:
    """It takes twenty times as long as to read a short log; and of one log nothing is left for the next."""
    assert judge.search() is judge.search()
    one = Search([rule()], sign("all went well"))
    assert scan([b"broken\n"], one).hits and not scan([b"whole\n"], one).hits and scan([b"broken\n"], one).hits


def test_blocks_are_cut_behind_lines() -> None:
    assert [*whole_lines([b"a\nb", b"c", b"d\n", b"", b"e"])] == [b"a\n", b"bcd\n", b"e"]
    assert [*whole_lines([b"a\n", b"\n"])] == [b"a\n", b"\n"]
    assert [*whole_lines([])] == []
    long = b"x" * CHUNK
    assert [*whole_lines([long, b"y", b"z\n"])] == [long + b"y", b"z\n"]


def test_a_rule_without_words_has_those_of_its_check() -> None:
    table = {"find": ["x"], "example": "x", "source": []}
    case = catalogue()["extension-loads"]["symbol"]
    told = parse_rule("n", "build", {**table, "words": "extension-loads.symbol"})
    assert (told.id, told.about, told.cause, told.fix) == ("n", "build", case["cause"], case["remedy"])
    own = parse_rule("n", "build", {**table, "words": "extension-loads.symbol", "cause": "c", "fix": "f"})
    assert (own.cause, own.fix) == ("c", "f")
    none = parse_rule("n", "build", {**table, "words": "rank-hung.pass"})
    assert (none.cause, none.fix) == ("", "")


def test_what_ended_well_is_no_cause() -> None:
    ended = "== COMPLETED: Installation ended successfully (took 2 secs)"
    assert cause(FOLLOW_UP.format(1), "fatal error: mpi.h: No such file", ended) == ""
    assert cause(DISK, ended, "fatal error: mpi.h: No such file") == "mpi-headers"
    assert cause("fatal error: mpi.h: No such file", ended, "fatal error: mpi.h: No such file") == "mpi-headers"


def test_what_a_command_of_easybuild_that_ended_well_says_is_no_cause() -> None:
    said = "TypeError: this is refused, as it should be"
    ended = (
        "== 2026-01-01 10:00:00,000 easyblock.py:4696 INFO sanity check command python -c x ran successfully! (output: "
    )
    assert cause(said) == "exception-line"
    assert cause(said, ended, said, ")") == "exception-line"
    assert cause(said, ended) == ""
    assert cause(said, ended, "Sanity check failed: no file found at 'bin/x'") == "easybuild-sanity"


@pytest.mark.parametrize(
    "line", ["[mpiexec@n1] HYD_sock_x: error waiting for event", "[proxy:0:1@n2] unable to do it", "**ERROR: no way**"]
)
def test_what_a_launcher_or_program_calls_an_error_is_not_passed_over(line: str) -> None:
    found = first_cause([line])
    assert found is not None
    assert found.certainty is Certainty.UNKNOWN
    assert cause("[mpiexec@n1] Launch arguments: /usr/bin/ssh -q -x n2") == ""


RESET = "include/socket.h:428 NCCL WARN Net : Call to recv from 10.0.0.2<36048> failed : Connection reset by peer"
GLOO_RESET = (
    "loop uncaught exception: [/p/gloo/transport/tcp/pair.cc:566] Read error [10.0.0.2]:3: Connection reset by peer"
)
WATCHDOG = "[PG 0 Rank 12] Process group watchdog thread terminated with exception: CUDA error: "
OTHER_WORDS = [
    ("gpu-fault", WATCHDOG + "unspecified launch failure"),
    ("gpu-fault", WATCHDOG + "an illegal memory access was encountered"),
    ("gpu-out-of-memory", WATCHDOG + "out of memory"),
    ("ddp-watchdog", WATCHDOG + "one that no rule knows"),
    ("gpu-fault", "init.cc:204 NCCL WARN Cuda failure 'an illegal memory access was encountered'"),
    ("gpu-ecc", "init.cc:204 NCCL WARN Cuda failure 'uncorrectable ECC error encountered'"),
    ("nccl-cuda", "init.cc:204 NCCL WARN Cuda failure 'invalid device symbol'"),
    ("nccl-nvls", "n1:4:4 [1] transport/nvls.cc:254 NCCL WARN Cuda failure 401 'the operation cannot be performed'"),
    ("locked-memory", "register:465 NCCL WARN NET/OFI Unable to register memory (type = 1). RC: 12, Error: Cannot"),
    ("locked-memory", "create:496 NCCL WARN NET/OFI Couldn't enable endpoint. RC: -12, ERROR: Cannot allocate memory"),
    (
        "locked-memory",
        "libfabric:7:16::efa:mr:efa_mr_regattr():632<warn> Unable to register MR: Cannot allocate memory",
    ),
    ("locked-memory", "libfabric:7:17::efa:cq:efa_cq():92<warn> Unable to create extended CQ: Cannot allocate memory"),
    ("locked-memory", "MPIDI_CH3I_RDMA_init(446):  rdma_iba_hca_init(1636)..: cannot create cq"),
    ("nccl-ofi", "get_ep:969 NCCL WARN NET/OFI Creating new endpoint for domain 0x7f9b failed: Invalid argument"),
    ("nccl-peer", "n1:5:6 [1] include/socket.h:194 WARN Call to recv failed : Connection reset by peer"),
    ("nccl-connect", "n1:5:6 [0] include/socket.h:360 WARN Call to connect failed : Connection timed out"),
    (
        "nccl-connect",
        "n1:5:6 [0] include/socket.h:403 NCCL WARN Connect to fe80::42<49153> failed : Connection timed out",
    ),
    ("aborted-said", "mpirun noticed that process rank 0 with PID 19 on node n1 exited on signal 6 (Aborted)."),
    ("assertion-said", "/p/x.cu:42: block: [0,0,0], thread: [1,0,0] Assertion `n > 0` failed."),
    (
        "loader-memory",
        "ERROR: Unexpected bus error encountered in worker. This might be caused by insufficient shared memory",
    ),
    (
        "duplicate-name",
        "ValueError: Requested to allreduce a tensor with the same name as another tensor that is currently",
    ),
    ("keras-optimizer", "ValueError: Optimizer has to be an instance of tensorflow.keras.optimizers.legacy.Optimizer"),
    ("framework-too-old", "horovod/mxnet/mpi_ops.cc:134:60: error: 'MXEnginePushAsync' was not declared in this scope"),
    ("storage-fault", "ERROR: couldn't load file: /p/lib/libx.so: cannot read file data: Input/output error"),
    ("extension-cut", "ImportError: /p/lib/libx.so: cannot read file data"),
    ("driver-mismatch", "E cuda_diagnostics.cc:313] kernel version 455.32.0 does not match DSO version 460.73.1"),
    ("host-slots", "ssh: Could not resolve hostname train-worker-0:4: Name or service not known"),
    ("pod-host-unknown", "ssh: Could not resolve hostname `n-launcher-0-0.n`: Name or service not known"),
    ("mpi-session-socket", "src/server/pmix_server_listener.c:92 bind() failed+ rc=213"),
    ("mpi-session-socket", "[n1:10716] Impossible to open the file /tmp/pmix-contact.txt in write mode"),
    (
        "slurm-pmix-socket",
        "slurmstepd: error:  mpi/pmix_v5: pmixp_p2p_send: n4 [4]: pmixp_utils.c:469: send failed, rc=1001",
    ),
    ("mpi-threads-unsupported", "Error: coll_ucc_module.c:265 UCC library doesn't support MPI_THREAD_MULTIPLE"),
    ("hcoll-init", "coll_hcoll_module.c:241 - enable() coll_hcol: mca_coll_hcoll_save_coll_handlers failed"),
    ("ofi-call", "mtl_ofi.h:101: Error returned from fi_cq_readerr: Resource temporarily unavailable(-11)."),
    ("user-unknown", "srun: fatal: Invalid user id: 1046"),
    ("pod-not-running", 'error: unable to upgrade connection: container not found ("mpi-master")'),
    ("old-libstdcxx", "ImportError: /p/lib/libstdc++.so.6: version `GLIBCXX_3.4.30' not found (requ"),
    ("disk-full", "While performing build: writing data object for SIF file: write /tmp/x: no space left on device"),
    ("image-disk-full", "slurmstepd: error: pyxis:     Write failed because No space left on device"),
    (
        "ssh-home",
        "Failed to add the host to the list of known hosts (/x/.ssh/known_hosts).\nHost key verification failed.",
    ),
]


@pytest.mark.parametrize(
    ("wanted", "log"), OTHER_WORDS, ids=[f"{at}-{name}" for at, (name, _) in enumerate(OTHER_WORDS)]
)
def test_what_tools_say_of_a_cause_in_other_words(wanted: str, log: str) -> None:
    assert cause(*log.splitlines()) == wanted


@pytest.mark.parametrize(
    ("log", "wanted"),
    [
        ([RESET, "init.cc:204 NCCL WARN Cuda failure 'an illegal memory access was encountered'"], "gpu-fault"),
        ([GLOO_RESET, "[1]<stderr>:Segmentation fault (core dumped)", GLOO_RESET], "rank-crashed"),
        (
            ["bind() failed on error Address already in use (98)", "pmix_server_listener.c:92 bind() failed"],
            "mpi-session-socket",
        ),
        ([RESET], "nccl-peer"),
        ([GLOO_RESET], "gloo-timeout"),
    ],
)
def test_what_other_ranks_met_before_is_an_echo(log: list[str], wanted: str) -> None:
    assert cause(*log) == wanted


def test_rules_that_explain_each_other_come_to_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    both = (rule("one", explains=("two",), anywhere=True), rule("two", explains=("one",), anywhere=True))
    monkeypatch.setattr(judge, "rules", lambda: both)
    for text, first in (("one\ntwo\n", "two"), ("two\none\n", "one"), ("one\n", "one")):
        found = judge.judged(seen(text, *both), None)
        assert found is not None and found.rule.id == first


def test_what_a_log_from_elsewhere_says_of_a_kill_is_all() -> None:
    found = first_cause(["mpirun noticed that process rank 1 with PID 7 on node n1 exited on signal 9 (Killed)."])
    assert found is not None
    assert "the kernel of a node" in found.cause and "control group" not in found.cause


@pytest.mark.parametrize(
    "results",
    [
        "# OSU MPI Broadcast Latency Test v5.8",
        "# Avg bus bandwidth    : 12.5",
        "Total img/sec on 4 GPU(s): 1203.5 +-3.1",
        "total images/sec: 812.41",
    ],
)
def test_what_stands_above_the_results_of_a_benchmark_was_survived(results: str) -> None:
    error = "UCX  ERROR mlx5_0: ibv_create_cq() failed: Please set max locked memory (ulimit -l) to 'unlimited'"
    assert cause(error) == cause(results, error) == "locked-memory"
    assert cause(error, results) == ""


@pytest.mark.parametrize("said", ["localhost:4", "`localhost:4`"])
def test_a_host_with_its_slots_is_named_as_it_was_given(said: str) -> None:
    found = first_cause([f"ssh: Could not resolve hostname {said}: Name or service not known"])
    assert found is not None
    assert "took localhost:4, a host" in found.cause


def test_what_a_step_is_refused_for_is_what_slurm_says() -> None:
    found = first_cause(["srun: error: Unable to create step for job 7: Invalid generic resource (gres) specification"])
    assert found is not None
    assert found.rule.id == "job-refused"
    assert "Invalid generic resource" in found.cause


def test_a_certain_rule_says_which_line_proves_it() -> None:
    error = "torch/all.h:5:2: error: #error C++17 or later compatible compiler is required to use PyTorch."
    likely, certain = first_cause([error]), first_cause(["c++ -std=gnu++14 -c adapter_v2.cc", error])
    assert likely is not None and certain is not None
    assert (likely.certainty, likely.confirmed) == (Certainty.LIKELY, ())
    assert certain.certainty is Certainty.CONFIRMED
    assert certain.confirmed == ("line 1: c++ -std=gnu++14 -c adapter_v2.cc",)


def test_words_are_those_of_the_checks() -> None:
    found = first_cause(["ImportError: libmpi_cxx.so.40: cannot open shared object file: No such file or directory"])
    assert found is not None
    assert "libmpi_cxx.so.40 is the C++ part of Open MPI 3 or 4" in found.cause


def test_nothing_that_goes_well_is_a_cause() -> None:
    log = ["== building...", "gcc -Werror=format -c error.c", "0 errors", "-- Found MPI_CXX: /usr/lib", "error_log.cc"]
    log += ["-- Could not find nvcc, please set CUDAToolkit_ROOT.", "ModuleNotFoundError: No module named 'tensorflow'"]
    log += ['-- Could NOT find Tensorflow (missing: Tensorflow_LIBRARIES) (Required is at least version "1.15.0")']
    assert first_cause(log) is None
    assert first_cause([]) is None


HEALTHY = """
E cuda_dnn.cc:9261] Unable to register cuDNN factory: Attempting to register factory for plugin cuDNN
W py_utils.cc:38] TF-TRT Warning: Could not find TensorRT
E cuda_driver.cc:265] failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected
n1:1:1 [0] NCCL INFO NET/Plugin: Could not find: libnccl-net.so. Using internal network plugin.
WARNING: There was an error initializing an OpenFabrics device.
parser.c:1911 UCX  WARN  unused env variable: UCX_HOME (set UCX_WARN_UNUSED_ENV_VARS=n to suppress this warning)
INFO:    gocryptfs not found, will not be able to use gocryptfs
WARNING: Skipping mount /etc/localtime [binds]: /etc/localtime doesn't exist in container
[W socket.cpp:601] [c10d] The client socket has failed to connect to [n1]:29500 (errno: 97)
WARNING: Retrying (Retry(total=4)) after connection broken by 'ReadTimeoutError("Read timed out.")': /simple/x/
conftest.c:12:3: error: implicit declaration of function 'foo'
-- Could NOT find OpenMP_CXX (missing: OpenMP_CXX_FLAGS)
x.cc:1:2: warning: 'f' was not declared in this scope
make[1]: Nothing to be done for 'all'.
tar: Removing leading '/' from member names
  >> result for command 'x --help': OK
srun: job 17 queued and waiting for resources
The following have been reloaded with a version change:
n1:4024:4055 [0] net_fastsocket.cc:674 NCCL WARN Maximum retry reached for connect 3.
n1:101542:101934 [0] NCCL INFO Call to connect returned Connection timed out, retrying
libfabric:85:1747438790::core:core:fi_getinfo_():1392<warn> fi_getinfo: provider efa output empty list
  Uncorrectable ECC errors: 0
"""


@pytest.mark.parametrize("line", HEALTHY.strip().splitlines())
def test_what_healthy_logs_say_is_no_failure(line: str) -> None:
    assert cause(line) == ""


def test_the_first_of_many_follow_ups() -> None:
    found = first_cause(["ok\n", FOLLOW_UP.format(1), *(FOLLOW_UP.format(n) for n in range(2, 300))])
    assert found is not None
    assert (found.rule.id, found.number, found.certainty) == ("step-failed", 3, Certainty.UNKNOWN)


def test_a_cause_counts_before_the_follow_ups_above_it() -> None:
    log = [FOLLOW_UP.format(n).strip() for n in range(100)]
    log += ["torch/all.h:5:2: error: #error C++17 or later compatible compiler is required to use PyTorch."]
    found = first_cause([*log, "fatal error: mpi.h: No such file or directory"])
    assert found is not None
    assert (found.rule.id, found.number) == ("cxx17", 101)


def test_a_full_disk_outranks_all() -> None:
    assert cause(FOLLOW_UP.format(1), "fatal error: mpi.h: No such file", DISK) == "disk-full"


@pytest.mark.parametrize(
    "line",
    [
        "n1:17:42 [0] NCCL INFO NET/Plugin : dlerror=libnccl-net.so: cannot open shared object file: No such file",
        "[n1:1] mca_base_component_repository_open: libpsm_infinipath.so.1: cannot open shared object file (ignored)",
        "libibverbs: Warning: couldn't load driver 'libvmw_pvrdma-rdmav34.so': libx.so: cannot open shared object file",
        "W Could not load dynamic library 'libnvinfer.so.7'; dlerror: libnvinfer.so.7: cannot open shared object file",
        "n1:17:42 [0] NCCL INFO NET/Plugin: undefined symbol: ncclCollNetPlugin_v6",
        "INFO:    User not listed in /etc/subuid, trying root-mapped namespace: newuidmap failed",
    ],
)
def test_what_says_of_itself_that_it_does_no_harm_is_no_cause(line: str) -> None:
    assert cause(line) == ""
    assert cause(line, "x.cc:1:2: fatal error: Python.h: No such file") == "python-headers"
    assert cause(line, "ImportError: libmpi.so.40: cannot open shared object file: No such file") == "library-missing"


@pytest.mark.parametrize(
    "line",
    [
        "Segmentation fault (core dumped)",
        "n1 exited on signal 11 (Segmentation fault).",
        "Bus error (core dumped)",
        "n1 exited on signal 9 (Killed).",
        "n1 exited on signal 4 (Illegal instruction).",
    ],
)
def test_a_signal_alone_confirms_nothing(line: str) -> None:
    found = first_cause([line])
    assert found is not None
    assert found.certainty is not Certainty.CONFIRMED


@pytest.mark.parametrize("end", ["Training finished.", "training complete", "State: COMPLETED (exit code 0)"])
def test_a_stall_or_a_lost_rank_that_was_got_over_is_no_failure(end: str) -> None:
    stall = "[1,0]<stderr>: WARNING: One or more tensors were submitted to be reduced, gathered or broadcasted by "
    assert cause(stall + "subset of ranks", "Stalled ops:", "epoch 4") == "stalled"
    assert cause(stall + "subset of ranks", "Horovod has been shut down", "epoch 4", end) == ""
    assert cause("epoch 4", end, "CUDA out of memory") == "gpu-out-of-memory"


SAID = {
    "slurm-said": "srun: error: n1: task 3: Exited with exit code 1",
    "mpi-said": "mpirun detected that one or more processes exited with non-zero status, thus causing",
    "apptainer-said": "FATAL:   container creation failed: unknown reason",
    "eb-failed": "== FAILED: Installation ended unsuccessfully: cannot do that (took 1 secs)",
    "modules-said": "Lmod has detected the following error: something else",
    "nccl-said": "n1:1:2 [0] misc/x.cc:1 NCCL WARN something else",
    "exception-line": "KeyError: 'x'",
}


@pytest.mark.parametrize("name", SAID)
def test_of_a_failure_that_is_not_known_the_tool_that_told_of_it_is(name: str) -> None:
    found = first_cause(["ok", SAID[name], "and so on"])
    assert found is not None
    assert (found.rule.id, found.certainty, found.number) == (name, Certainty.UNKNOWN, 2)


def test_colours_do_not_hide_a_line() -> None:
    line = "\x1b[01m\x1b[Kx.cc:1:2:\x1b[m\x1b[K \x1b[01;31m\x1b[Kfatal error: \x1b[m\x1b[KPython.h: No such file\n"
    assert cause(line) == "python-headers"


@pytest.mark.parametrize("seed", range(20))
def test_lines_are_counted_the_same_however_blocks_fall(seed: int) -> None:
    chance = random.Random(seed)
    lines = [chance.choice(["ok", "", "x" * 50, "-- Found é", "make -C x"]) for _ in range(chance.randrange(200))]
    log = "\n".join([*lines, "fatal error: mpi.h: No such file or directory", "end"]).encode()
    cuts = sorted(chance.randrange(len(log)) for _ in range(chance.randrange(30)))
    blocks = [log[a:b] for a, b in zip([0, *cuts], [*cuts, len(log)], strict=True)]
    assert b"".join(whole_lines(blocks)) == log
    found = first_cause(blocks)
    assert found is not None
    assert (found.rule.id, found.number) == ("mpi-headers", len(lines) + 1)


@pytest.mark.parametrize(
    "at, wanted", [(0, "second"), (4, "second"), (5, "second"), (6, "third"), (13, "fourth"), (19, "")]
)
def test_the_line_below(at: int, wanted: str) -> None:
    assert below(b"first\nsecond\nthird\nfourth", at) == wanted


def test_what_was_looked_at_in_one_chunk_does_not_hide_the_next_ones() -> None:
    [rule] = [rule for rule in rules() if rule.id == "mpi-headers"]
    reading = Scan(Search([rule], done()))
    reading.read(b"x" * 100 + b"\n")
    reading.read(b"y" * 100 + b" note: mpi.h: No such file\n")
    reading.read(b"fatal error: mpi.h: No such file or directory\n")
    assert reading.seen.hits["mpi-headers"].line.number == 3


@pytest.mark.parametrize("hole", [(0, 1), (0, 9_000), (300, 1), (300, 5_000), (6_000, 4_096)])
def test_a_hole_in_a_log_hides_nothing_else(hole: tuple[int, int], tmp_path: Path) -> None:
    at, size = hole
    log = b"ok, and a line\n" * 500 + b"x.cc:1:2: fatal error: Python.h: No such file or directory\n"
    (tmp_path / "log").write_bytes(log[:at] + bytes(size) + log[at:])
    found = first_cause_in(tmp_path / "log")
    assert found is not None and found.rule.id == "python-headers"


@pytest.mark.parametrize(
    "log", [b"fatal error: Python.h: No such file", b"\xe9\n" * 50 + b"fatal error: Python.h: No such file\n"]
)
def test_a_line_without_an_end_and_another_coding_are_text(log: bytes, tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(log)
    found = first_cause_in(tmp_path / "log")
    assert found is not None and found.rule.id == "python-headers"
    assert run(["diagnose", str(tmp_path / "log")]) == 0


@pytest.mark.parametrize("name", ["ls", "python", "openssl"])
def test_a_program_is_no_log(name: str, capsys: Output) -> None:
    assert run(["diagnose", str(Path(shutil.which(name) or sys.executable).resolve())]) == 2
    assert "is no text" in capsys.readouterr().err


def test_utf_16_without_a_mark_is_no_log(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "log").write_bytes("fatal error: Python.h: No such file\n".encode("utf-16-le") * 100)
    assert run(["diagnose", str(tmp_path / "log")]) == 2
    assert "is no text" in capsys.readouterr().err


def test_a_complaint_at_the_beginning_is_not_the_cause_of_what_ends_hours_later() -> None:
    found = first_cause(
        [
            "CommandNotFoundError: Your shell has not been properly configured to use 'conda activate'.",
            *("epoch" for _ in range(1000)),
            "slurmstepd: error: *** JOB 42210 ON n1 CANCELLED AT 2022-01-01T10:00:00 DUE TO TIME LIMIT ***",
        ]
    )
    assert found is not None and found.rule.id == "time-limit"


@pytest.mark.parametrize("tag", ["[host1:0]", "[host1:0]:", "[1,3]<stderr>:", "[rank0]: ", "[1]", "==> "])
def test_an_exception_behind_a_tag_is_one(tag: str) -> None:
    found = first_cause([f"{tag}OddError: there is no such thing"])
    assert found is not None and found.rule.id == "exception-line"


def test_a_long_line_is_cut() -> None:
    found = first_cause(["x" * 3_000 + " No space left on device " + "y" * 100_000])
    assert found is not None
    assert len(found.line) == 300


def test_a_line_without_an_end_is_read_in_little_memory() -> None:
    blocks = (b"x" * CHUNK for _ in range(64))
    assert max(map(len, whole_lines(blocks))) <= 3 * CHUNK


@pytest.mark.integration
def test_a_large_log_is_read_in_little_memory() -> None:
    line = "[ 12%] Building CXX object horovod/common/CMakeFiles/common.dir/operations.cc.o\\n"
    code = f"""
        from pathlib import Path
        from envkit.diagnose import first_cause
        def blocks():
            for _ in range(200):
                yield b"{line}" * 13_000
            yield b"fatal error: Python.h: No such file or directory\\n"
        found = first_cause(blocks())
        [peak] = (line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
        print(found.rule.id, found.number, peak.split()[1])
    """
    told = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    name, number, kilobytes = told.stdout.split()
    assert (name, int(number)) == ("python-headers", 2_600_001)
    assert int(kilobytes) < 150_000


def test_a_log_file(tmp_path: Path) -> None:
    path = tmp_path / "log"
    assert first_cause_in(path) is None
    path.write_bytes(b"\xff\xfe\nfatal error: mpi.h: No such file\n")
    found = first_cause_in(path)
    assert found is not None
    assert (found.rule.id, found.number) == ("mpi-headers", 2)


class TestPlace:
    """What the machine confirms and refutes."""

    ERROR = "torch/all.h:5:2: error: #error C++17 or later compatible compiler is required to use PyTorch."

    @pytest.fixture
    def place(self, tmp_path: Path) -> Surroundings:
        """An environment whose Python has PYTHONPATH alone, and no programs besides."""
        (tmp_path / "bin").mkdir()
        script = f'#!/bin/sh\nexec {sys.executable} -S "$@"\n'
        (tmp_path / "bin" / "python").write_text(script)
        (tmp_path / "bin" / "python").chmod(0o755)
        return Surroundings(env={"PATH": str(tmp_path / "bin"), "PYTHONPATH": str(tmp_path / "lib")})

    def package(self, tmp_path: Path, name: str, version: str) -> None:
        folder = tmp_path / "lib" / f"{name}-{version}.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")

    def test_a_version_confirms(self, tmp_path: Path, place: Surroundings) -> None:
        self.package(tmp_path, "torch", "2.13.0+cpu")
        found = first_cause([self.ERROR], place)
        assert found is not None
        assert found.certainty is Certainty.CONFIRMED
        assert found.confirmed == (f"{sys.executable} has torch 2.13.0+cpu",)

    def test_a_version_refutes(self, tmp_path: Path, place: Surroundings) -> None:
        self.package(tmp_path, "torch", "2.0.1")
        found = first_cause([self.ERROR], place)
        assert found is not None
        assert found.rule.id == "step-failed"

    def test_a_package_that_is_not_there_says_nothing(self, place: Surroundings) -> None:
        found = first_cause([self.ERROR], place)
        assert found is not None
        assert (found.rule.id, found.certainty) == ("cxx17", Certainty.LIKELY)

    def test_no_python(self, tmp_path: Path) -> None:
        found = first_cause([self.ERROR], Surroundings(env={"PATH": str(tmp_path)}))
        assert found is not None
        assert found.certainty is Certainty.LIKELY

    @pytest.mark.parametrize("there, certainty", [(False, Certainty.CONFIRMED), (True, None)])
    def test_a_program(self, there: bool, certainty: Certainty | None, place: Surroundings, tmp_path: Path) -> None:
        if there:
            (tmp_path / "bin" / "mpicxx").write_text("#!/bin/sh\n")
            (tmp_path / "bin" / "mpicxx").chmod(0o755)
        found = first_cause(["x.cc:1:2: fatal error: mpi.h: No such file or directory"], place)
        assert found is not None
        assert (found.certainty if found.rule.id == "mpi-headers" else None) is certainty

    @pytest.mark.parametrize(
        "folder", ["/usr/include", "/usr/local/include", "/usr/local/cuda/include", "/named", "/home/of/include"]
    )
    def test_a_header_is_looked_for_in_the_usual_folders(self, folder: str, monkeypatch: pytest.MonkeyPatch) -> None:
        place = Surroundings(env={"CPATH": "/other:/named", "NCCL_HOME": "/home/of"})
        monkeypatch.setattr(Path, "is_file", lambda path: str(path) == f"{folder}/nccl.h")
        assert place.no_header("nccl.h") == (None, f"{folder}/nccl.h is there")
        assert place.no_header("other.h")[0] is True

    @pytest.mark.parametrize("size, wanted", [(64, "extension-cut-seen"), (4096, "bus-error")])
    def test_a_cut_extension(self, size: int, wanted: str, place: Surroundings, tmp_path: Path) -> None:
        header = b"\x7fELF\x02".ljust(40, b"\0") + (1024).to_bytes(8, "little") + b"\0" * 10 + b"\x40\0\x02\0\0\0"
        extension = tmp_path / "lib" / "horovod" / "torch" / "mpi_lib_v2.so"
        extension.parent.mkdir(parents=True)
        (tmp_path / "lib" / "horovod" / "__init__.py").touch()
        extension.write_bytes(header.ljust(size, b"\0"))
        found = first_cause(["Bus error (core dumped)"], place)
        assert found is not None
        assert found.rule.id == wanted


class TestCommand:
    """``envkit diagnose``."""

    LOG = "ok\nx.cc:1:2: fatal error: Python.h: No such file or directory\n"

    @pytest.fixture
    def log(self, tmp_path: Path) -> Path:
        path = tmp_path / "build.log"
        path.write_text(self.LOG)
        return path

    def test_text(self, log: Path, capsys: Output) -> None:
        assert run(["diagnose", str(log)]) == 0
        said = capsys.readouterr().out
        assert said.startswith(f"python-headers (confirmed)  {log}:2\n    x.cc:1:2: fatal error: Python.h")
        for words in (
            "cause   The headers of the Python",
            "confirmed   the line itself",
            "remedy   Debian",
            "source   ",
        ):
            assert words in said
        assert max(map(len, said.splitlines()[1:])) <= 100

    def test_json(self, log: Path, capsys: Output) -> None:
        assert run(["diagnose", "--json", str(log)]) == 0
        told = json.loads(capsys.readouterr().out)
        assert (told["version"], told["log"]) == (1, str(log))
        assert set(told["cause"]) == {
            "id", "certainty", "line", "text", "cause", "confirmed", "remedy", "source",
        }  # fmt: skip
        assert (told["cause"]["id"], told["cause"]["line"]) == ("python-headers", 2)

    def test_no_failure(self, log: Path, capsys: Output) -> None:
        log.write_text("all went well\n")
        assert run(["diagnose", str(log)]) == 1
        assert "no sign of a failure" in capsys.readouterr().out
        assert run(["diagnose", "--json", str(log)]) == 1
        told = json.loads(capsys.readouterr().out)
        assert (told["cause"], told["state"]) == (None, "no failure")

    @pytest.mark.parametrize("pack", [gzip.compress, lambda data: data])
    def test_unknown_failure(self, pack: Any, log: Path, capsys: Output) -> None:
        log.write_bytes(pack(b"ok\n" + FOLLOW_UP.format(7).encode() + b"  shape(3);\r.\n  ^~~~~\n3\n4\n5\n"))
        assert run(["diagnose", str(log)]) == 9
        said = capsys.readouterr().out
        assert said.startswith(f"step-failed (unknown)  {log}:2\n    operations.cc:7")
        assert [line.strip() for line in said.splitlines()[3:6]] == ["^~~~~", "3", "4"]
        assert "shape(3);" in said.splitlines()[2] and "\r" not in said
        assert "A step of the build failed" in said and "confirmed" not in said
        assert run(["diagnose", "--json", str(log)]) == 9
        told = json.loads(capsys.readouterr().out)
        assert (told["cause"]["id"], told["state"]) == ("step-failed", "unknown")

    @pytest.mark.parametrize("pack", [gzip.compress, bz2.compress, lzma.compress, zstd.compress, lambda data: data])
    def test_compressed_and_from_standard_input(
        self, pack: object, log: Path, capsys: Output, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert callable(pack)
        log.write_bytes(pack(self.LOG.encode()))
        assert run(["diagnose", str(log)]) == 0
        assert capsys.readouterr().out.startswith("python-headers ")
        reader, writer = os.pipe()
        os.write(writer, log.read_bytes())
        os.close(writer)
        with os.fdopen(reader) as stream:
            monkeypatch.setattr(sys, "stdin", stream)
            assert run(["diagnose", "-"]) == 0
        assert capsys.readouterr().out.startswith("python-headers ")

    @pytest.mark.parametrize(
        "content, words",
        [
            (None, "There is no log"),
            (b"", "is empty"),
            (b"\x7fELF\x02\0\0\0", "is no text"),
            (gzip.compress(b"x" * 100_000, mtime=0)[:-20], "is a compressed file that is damaged"),
            (b"BZh9" + b"x" * 100, "is a compressed file that is damaged"),
            (b"\xfd7zXZ\0" + b"x" * 100, "is a compressed file that is damaged"),
            (gzip.compress(b"", mtime=0), "is empty"),
            (b"(\xb5/\xfd" + b"x" * 100, "is a compressed file that is damaged"),
            (zstd.compress(b"x" * 100_000)[:-5], "is a compressed file that is damaged"),
            (zstd.compress(b""), "is empty"),
            (b"PK\x03\x04rest", "unzip -p"),
        ],
    )
    def test_what_is_no_log(self, content: bytes | None, words: str, tmp_path: Path, capsys: Output) -> None:
        path = tmp_path / "log"
        if content is not None:
            path.write_bytes(content)
        assert run(["diagnose", str(path)]) == 2
        said = capsys.readouterr().err
        assert words in said and "What to do: " in said

    def test_a_folder(self, log: Path, capsys: Output) -> None:
        assert run(["diagnose", str(log.parent)]) == 2
        assert f"envkit diagnose {log}" in capsys.readouterr().err

    def test_a_log_that_may_not_be_read(self, log: Path) -> None:
        log.chmod(0)
        drop = (
            ["setpriv", "--bounding-set=-dac_override,-dac_read_search", "--inh-caps=-all"] if not os.geteuid() else []
        )
        done = subprocess.run([*drop, ENVKIT, "diagnose", log], capture_output=True, text=True, check=False)
        assert done.returncode == 2
        assert "may not be read by this user" in done.stderr

    @pytest.mark.parametrize("words", [[], ["LOG", "--list"], ["--list", "--explain", "cxx17"], ["--list", "--here"]])
    def test_one_thing_at_a_time(self, words: list[str], capsys: Output) -> None:
        assert run(["diagnose", *words]) == 2
        assert capsys.readouterr().err

    def test_list_and_explain(self, capsys: Output) -> None:
        assert run(["diagnose", "--list"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert [line.split()[1] for line in lines] == [rule.id for rule in rules()]
        assert run(["diagnose", "--list", "--json"]) == 0
        assert [one["id"] for one in json.loads(capsys.readouterr().out)["rules"]] == [rule.id for rule in rules()]
        for rule in rules():
            assert run(["diagnose", "--explain", rule.id]) == 0
            assert rule.id in capsys.readouterr().out
        assert run(["diagnose", "--explain", "cxx18"]) == 2
        assert "Did you mean 'cxx17'?" in capsys.readouterr().err


def test_a_stream_is_read_as_it_comes() -> None:
    def blocks() -> Iterator[bytes]:
        yield from iter(lambda: stream.read(7), b"")

    stream = io.BytesIO(b"ok\n" * 1000 + b"fatal error: mpi.h: No such file or directory\n")
    found = first_cause(blocks())
    assert found is not None
    assert found.number == 1001


def test_the_sign_of_success_is_no_rule() -> None:
    assert "done" not in {rule.id for rule in rules()}
    assert done().fits("Successfully installed cloudpickle-3.1.2 horovod-0.28.1")
    assert not done().fits("Successfully installed cloudpickle-3.1.2")


@pytest.mark.parametrize("area", AREAS)
def test_a_verdict_on_what_others_met_is_the_one_that_is_kept(area: str) -> None:
    of_area = [thread for thread in threads() if thread.area == area]
    other = {thread.address: found for thread in of_area if (found := verdict(thread.log)) != thread.after}
    assert of_area and not other, "python -m tests.diagnose_recall --write keeps the new ones"


def test_each_report_of_others_is_of_an_area() -> None:
    assert {thread.area for thread in threads()} == set(AREAS)


@pytest.mark.integration
def test_the_reports_of_others_are_written_as_they_are_read() -> None:
    assert written(threads()) == FILE.read_text()
    assert len({thread.address for thread in threads()}) == len(threads())


def test_how_verdicts_are_counted() -> None:
    def report(address: str, first: str, after: str) -> Thread:
        return Thread(
            address=address, area="run", cause="", rules=("a",), before="silent", first=first, after=after, log=""
        )

    used = [name for name in map(str, range(99)) if not report(name, "x", "x").is_held_out]
    held = [name for name in map(str, range(99)) if report(name, "x", "x").is_held_out]
    assert 20 < len(held) < 50
    assert not any(report(name, "", "x").is_held_out for name in held)
    last = dataclasses.replace(report(used[1], "a likely", "a likely"), draw=WHOLE[0])
    assert last.is_held_out
    fourth = [report(name, "b likely", "a likely") for name in (used[2], held[1])]
    fourth = [dataclasses.replace(one, draw=4, before="") for one in fourth]
    rows = table((report(used[0], "", "a likely"), report(held[0], "b confirmed", "a unknown"), last, *fourth))
    cells = [cell.split(",")[0].strip() for cell in rows.splitlines()[-1].split("|")[2:-1]]
    assert cells == [
        "0 % (0 of 1)", "100 % (2 of 2)", "0 % (0 of 1)", "- (0 of 0)", "100 % (1 of 1)", "0 % (0 of 2)", "- (0 of 0)",
        "- (0 of 0)", "- (0 of 0)", "- (0 of 0)", "0 % (0 of 1)", "100 % (1 of 1)", "0 % (0 of 2)", "67 % (2 of 3)"
    ]  # fmt: skip
    assert "1 wrong" in rows.splitlines()[-1].split("|")[4]
