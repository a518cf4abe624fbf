from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envkit.inside.probe import machine, software
from envkit.verify.checks import machine as checks
from envkit.verify.facts import (
    Collectives,
    Compiled,
    Ended,
    Flags,
    Gpus,
    Horovod,
    Import,
    Machine,
    NodeGpus,
    Python,
    RankFacts,
    SearchPath,
    Space,
    World,
)
from envkit.verify.outcome import Expected, Ranks, Result, Status

GIB = 2**30
MACHINE = Machine(kernel="6.1", libc="glibc 2.36", architecture="x86_64", cores=8, shm=Space(size=GIB, free=GIB))


def rank(number: int, **facts: Any) -> RankFacts:
    """A rank that went well, on a node with eight cores of which it may use two."""
    stated = {
        "ended": Ended(how="exit", status=0),
        "world": World(rank=number, size=2),
        "horovod": Horovod(version="0.28.1"),
        "python": Python(version="3.11.7"),
        "imported": Import(version="2.1.0"),
        "compiled": Compiled(),
        "machine": MACHINE,
        "node_gpus": NodeGpus(),
        "search_path": SearchPath(),
        "affinity": (2 * number, 2 * number + 1),
        "libraries": {"libmpi": ("/mpi/libmpi.so.40.30.4",)},
        "collectives_cpu": Collectives(),
    }
    return RankFacts(framework="torch", host="node1", pid=number, phase="exit", **{**stated, **facts})


def results(*facts: RankFacts, cores: int = 0) -> dict[str, Result]:
    expected = Expected(size=len(facts), frameworks=("torch",), cores=cores)
    ranks = Ranks(framework="torch", facts=facts, expected=expected)
    every = (
        checks.versions_agree,
        checks.nodes_agree,
        checks.dev_shm,
        checks.preloaded,
        checks.search_path,
        checks.binding,
    )
    return {result.id: result for check in every for result in check(ranks)}


def on(host: str, facts: RankFacts, **changed: Any) -> RankFacts:
    return replace(facts, host=host, **changed)


def test_a_good_machine_passes_every_check() -> None:
    found = results(rank(0), on("node2", rank(1)))
    assert {result.id for result in found.values()} == {
        "versions-agree",
        "nodes-agree",
        "dev-shm",
        "preloaded",
        "search-path",
        "binding",
    }
    assert {result.status for result in found.values()} == {Status.PASS}


def test_records_without_these_facts_say_nothing() -> None:
    bare = {"machine": None, "search_path": None, "affinity": None}
    assert set(results(rank(0, **bare), rank(1, **bare))) == {"versions-agree"}


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"imported": Import(version="2.0.0")}, "torch is 2.0.0 on node3, 2.1.0 elsewhere"),
        ({"horovod": Horovod(version="0.27.0")}, "Horovod is 0.27.0 on node3"),
        ({"python": Python(version="3.10.2")}, "Python is 3.10.2 on node3"),
        ({"libraries": {"libmpi": ("/mpi/libmpi.so.12",)}}, "MPI library is libmpi.so.12 on node3"),
        ({"libraries": {}}, "MPI library is absent on node3"),
        ({"nccl": {"/x": 22907}}, "NCCL is 22907 on node3, absent elsewhere"),
        ({"compiled": Compiled(cuda="12.1")}, "CUDA is 12.1 on node3"),
    ],
)
def test_the_node_that_differs_from_most_is_named(changed: dict[str, Any], words: str) -> None:
    found = results(on("node1", rank(0)), on("node2", rank(1)), on("node3", rank(2), **changed))["versions-agree"]
    assert found.status is Status.FAIL
    assert words in found.message


def test_libraries_in_another_order_are_the_same() -> None:
    two = ("/mpi/libmpi.so.40.30.4", "/mpi/libmpi_cxx.so.40")
    found = results(rank(0, libraries={"libmpi": two}), rank(1, libraries={"libmpi": two[::-1]}))
    assert found["versions-agree"].status is Status.PASS


def test_on_one_node_the_rank_is_named() -> None:
    found = results(rank(0), rank(1), rank(2, imported=Import(version="2.0.0")))["versions-agree"]
    assert "on rank 2 (node1, pid 2)" in found.message


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"machine": replace(MACHINE, kernel="5.14")}, "kernel is 5.14 on node2"),
        ({"node_gpus": NodeGpus(nvidia_driver="535.54.03")}, "GPU driver is 535.54.03 on node2"),
    ],
)
def test_what_may_differ_between_nodes_is_a_warning(changed: dict[str, Any], words: str) -> None:
    found = results(rank(0), on("node2", rank(1), **changed))["nodes-agree"]
    assert found.status is Status.WARN
    assert words in found.message


def small(size: int) -> Machine:
    return replace(MACHINE, shm=Space(size=size, free=size))


def test_the_default_of_containers_is_too_small_for_nccl() -> None:
    on_gpus = {"flags": Flags(nccl=21803), "gpus": Gpus(count=2), "machine": small(64 * 2**20)}
    found = results(rank(0, **on_gpus), rank(1, **on_gpus))["dev-shm"]
    assert (found.status, "--shm-size" in found.remedy) == (Status.WARN, True)
    assert "2 ranks want 128 MiB" in found.message
    crashed = {**on_gpus, "ended": Ended(how="signal", signal="SIGBUS")}
    assert results(rank(0, **on_gpus), rank(1, **crashed))["dev-shm"].status is Status.FAIL


def test_ranks_on_cpus_need_less_shared_memory() -> None:
    assert results(rank(0, machine=small(64 * 2**20)))["dev-shm"].status is Status.PASS
    none = replace(MACHINE, shm=Space(error="FileNotFoundError: [Errno 2] No such file or directory: '/dev/shm'"))
    found = results(rank(0, machine=none))["dev-shm"]
    assert (found.status, found.case) == (Status.WARN, "absent") and "mount -t tmpfs" in found.remedy
    closed = replace(MACHINE, shm=Space(size=GIB, free=GIB, writable=False))
    found = results(rank(0, machine=closed))["dev-shm"]
    assert (found.status, found.case) == (Status.WARN, "closed") and "remount,rw" in found.remedy
    full = replace(MACHINE, shm=Space(size=GIB, free=2**20))
    found = results(rank(0, machine=full), rank(1, machine=full))["dev-shm"]
    assert found.status is Status.WARN
    assert "1 MiB free of 1024 MiB" in found.message


@pytest.mark.parametrize(
    ("path", "words"),
    [
        (SearchPath(preload=("/apps/xalt/lib64/libxalt_init.so",)), "XALT"),
        (SearchPath(preload_file=("/usr/lib/libx.so",)), "does not know by name"),
    ],
)
def test_what_is_preloaded_is_told(path: SearchPath, words: str) -> None:
    found = results(rank(0, search_path=path))["preloaded"]
    assert found.status is Status.WARN
    assert words in found.cause


def test_two_folders_with_different_files_of_one_library_are_told() -> None:
    folders = {"/a/lib": {"libmpi": "/a/lib/libmpi.so.40"}, "/b/lib": {"libmpi": "/b/lib/libmpi.so.12"}}
    found = results(rank(0, search_path=SearchPath(folders=folders)))["search-path"]
    assert found.status is Status.WARN
    assert "/a/lib is used, not /b/lib" in found.message
    same = {"/a/lib": {"libmpi": "/a/lib/libmpi.so.40"}, "/a/lib64": {"libmpi": "/a/lib/libmpi.so.40"}}
    assert results(rank(0, search_path=SearchPath(folders=same)))["search-path"].status is Status.PASS


@pytest.mark.parametrize(
    ("first", "second", "cores", "words"),
    [
        ((0,), (0,), 8, "2 ranks share 1 of 8 cores"),
        ((0,), (1,), 8, "one core each, of 8"),
        ((0,), (1,), 2, None),
        ((0,), (0,), 1, None),
        ((0, 1, 2, 3), (0, 1, 2, 3), 4, None),
    ],
)
def test_how_ranks_are_bound(first: tuple[int, ...], second: tuple[int, ...], cores: int, words: str | None) -> None:
    machine = replace(MACHINE, cores=cores)
    launched = {"environment": {"OMPI_COMM_WORLD_RANK": "0"}, "machine": machine}
    found = results(rank(0, affinity=first, **launched), rank(1, affinity=second, **launched))["binding"]
    assert found.status is (Status.WARN if words else Status.PASS)
    assert (words or "") in found.message
    assert "--bind-to none" in found.remedy or not words


@pytest.mark.parametrize(
    ("library", "launcher", "words"),
    [
        ("/opt/mvapich2/lib/libmpi.so.12", "PMI_RANK", "MV2_ENABLE_AFFINITY=0"),
        ("/opt/mvapich2/lib/libmpi.so.12", "SLURM_STEP_ID", "MV2_ENABLE_AFFINITY=0"),
        ("/usr/lib/libmpich.so.12", "PMI_RANK", "-bind-to none"),
        ("/usr/lib/libmpich.so.12", "SLURM_STEP_ID", "srun --cpus-per-task"),
        ("/usr/lib/libmpi.so.40", "", "Ask the launcher"),
        ("/opt/mvapich2/lib/libmpi.so.12", "HOROVOD_GLOO_RENDEZVOUS_ADDR", "horovodrun does not bind"),
        ("/opt/mvapich2/lib/libmpi.so.12", "MV2_ENABLE_AFFINITY", "Ask the launcher"),  # it is 0 already
    ],
)
def test_what_binds_a_rank_is_told_how_to_give_it_more(library: str, launcher: str, words: str) -> None:
    """MVAPICH binds its ranks itself, whatever starts them."""
    launched = {
        "environment": {launcher: "0"} if launcher else {},
        "machine": replace(MACHINE, cores=16),
        "libraries": {"libmpi": (library,)},
    }
    found = results(rank(0, affinity=(0,), **launched), rank(1, affinity=(1,), **launched))["binding"]
    assert found.status is Status.WARN and words in found.remedy


def test_a_session_that_is_bound_itself_is_not_the_launchers_fault() -> None:
    bound = rank(0, affinity=(0,)), rank(1, affinity=(0,))
    assert "as many as this session may use" in results(*bound, cores=1)["binding"].message
    assert "The launcher" in results(*bound, cores=8)["binding"].cause


def test_cores_that_the_job_was_not_given_are_not_counted() -> None:
    slurm = {"environment": {"SLURM_CPUS_ON_NODE": "2", "SLURM_STEP_ID": "0"}}
    assert results(rank(0, affinity=(0,), **slurm), rank(1, affinity=(1,), **slurm))["binding"].status is Status.PASS
    limited = {"machine": replace(MACHINE, cores=64, granted=2)}
    assert (
        results(rank(0, affinity=(0,), **limited), rank(1, affinity=(1,), **limited))["binding"].status is Status.PASS
    )


# What the probe states of the machine that the tests run on.


def test_the_machine_is_as_its_own_tools_say() -> None:
    told = machine.machine()
    assert (told["kernel"], told["cores"]) == (os.uname().release, os.cpu_count())
    assert machine.affinity() == sorted(os.sched_getaffinity(0))
    shm = os.statvfs("/dev/shm")
    assert told["shm"]["size"] == shm.f_blocks * shm.f_frsize
    assert told["shm"]["writable"] is os.access("/dev/shm", os.W_OK)
    assert machine.space("/proc/sys")["writable"] is False, "where nobody can make a file"


@pytest.mark.parametrize(("ranges", "number"), [("0", 1), ("0-3", 4), ("0-3,8,10-11", 7)])
def test_lists_of_cores_are_counted(ranges: str, number: int) -> None:
    assert machine.count(ranges) == number


def test_the_search_path_tells_what_it_shadows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libmpi.so.40.30.4").touch()
    (tmp_path / "libmpi.so.40").symlink_to("libmpi.so.40.30.4")
    (tmp_path / "libmpi_other.txt").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{tmp_path}:/absent:{tmp_path}:")
    monkeypatch.setenv("LD_PRELOAD", "/x/liba.so:/x/libb.so")
    monkeypatch.setenv("PATH", f"/absent:{tmp_path}")
    (tmp_path / "mpirun").touch(0o755)
    told = machine.search_path()
    assert told["mpirun"] == str(tmp_path / "mpirun")
    assert told["folders"] == {str(tmp_path): {"libmpi": str(tmp_path / "libmpi.so.40.30.4")}, "/absent": {}}
    assert told["preload"] == ["/x/liba.so", "/x/libb.so"]


def test_variables_of_launchers_are_recorded_and_secrets_are_not(monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {
        "PMI_RANK": "0",
        "PMIX_NAMESPACE": "n",
        "OMPI_COMM_WORLD_SIZE": "2",
        "OMPI_MCA_btl_tcp_if_include": "eth0",
        "SLURM_STEP_NUM_TASKS": "2",
        "SLURMD_NODENAME": "node1",
        "PALS_RANKID": "0",
        "FLUX_TASK_RANK": "0",
        "JSM_NAMESPACE_SIZE": "2",
        "I_MPI_HYDRA_UUID": "u",
        "HOROVOD_GLOO_RENDEZVOUS_ADDR": "10.0.0.1",
        "NCCL_SOCKET_IFNAME": "hsn",
        "CUDA_VISIBLE_DEVICES": "",
    }
    dropped = (
        "HOROVOD_SECRET_KEY",
        "PMI_SHARED_SECRET",
        "OMPI_MCA_orte_precondition_transports",
        "OMPI_MCA_orte_hnp_uri",
        "PMIX_SERVER_URI4",
        "SLURM_JWT",
        "AWS_SECRET_ACCESS_KEY",
        "OMPI_ARGV",
        "HOME",
    )
    for name in list(os.environ):
        monkeypatch.delenv(name)
    for name, value in {**kept, **dict.fromkeys(dropped, "x")}.items():
        monkeypatch.setenv(name, value)
    assert software.environment() == kept


def test_long_values_are_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_STEP_NODELIST", "n" * 5000)
    assert len(software.environment()["SLURM_STEP_NODELIST"]) == software.VALUE_LENGTH


def test_the_facts_of_a_machine_take_milliseconds() -> None:
    code = """
import time
from envkit.inside.probe import gpu, machine
start = time.process_time()
for fact in (machine.machine, machine.affinity, machine.search_path, machine.fabric, gpu.node_gpus, gpu.gpu_driver):
    fact()
assert time.process_time() - start < 0.03
"""
    subprocess.run([sys.executable, "-c", code], check=True)
