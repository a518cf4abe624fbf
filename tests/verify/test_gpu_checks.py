from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envkit.inside.probe import gpu, mpi_gpu, nccl
from envkit.verify.checks import gpu as checks
from envkit.verify.facts import (
    Collectives,
    Compiled,
    Device,
    DriverDevice,
    Fact,
    Flags,
    GpuDriver,
    Gpus,
    Import,
    NodeGpu,
    NodeGpus,
    RankFacts,
    World,
)
from envkit.verify.outcome import Expected, Ranks, Result, Status

from .compile_c import shared_object

DEVICES = tuple(DriverDevice(name="NVIDIA A100", uuid=f"GPU-{n}", capability="8.0") for n in range(2))
NODE = NodeGpus(nvidia=(NodeGpu(name="A100"), NodeGpu(name="A100")), nvidia_files=2, nvidia_driver="535.54.03")
BUILD = Compiled(cuda="12.1", architectures=("sm_80", "sm_90", "compute_90"), nccl="2.18.3")
LIBNCCL = "/opt/nccl/lib/libnccl.so.2.18.3"


def rank(number: int, **facts: Any) -> RankFacts:
    """A rank on a node with two A100, using the GPU of its number."""
    stated = {
        "world": World(rank=number, size=2, local_rank=number),
        "imported": Import(version="2.1.0"),
        "node_gpus": NODE,
        "gpu_driver": GpuDriver(present=True, cuda=12020, devices=DEVICES),
        "compiled": BUILD,
        "flags": Flags(nccl=21803, cuda=True),
        "nccl": {LIBNCCL: 21803},
        "gpus": Gpus(count=2, uuids=("0", "1")),
        "device": Device(index=number, uuid=str(number)),
        "collectives_gpu": Collectives(),
    }
    return RankFacts(framework="torch", host="node1", pid=number, phase="exit", **{**stated, **facts})


def world(**facts: Any) -> Ranks:
    """Two such ranks, with other facts in both."""
    return ranks(rank(0, **facts), rank(1, **facts))


def ranks(*facts: RankFacts) -> Ranks:
    return Ranks(framework="torch", facts=facts, expected=Expected(size=len(facts), frameworks=("torch",)))


CHECKS = (
    checks.gpu_visible,
    checks.gpu_driver,
    checks.gpu_architecture,
    checks.gpu_shared,
    checks.mpi_gpu,
    checks.gpu_unused,
    checks.nccl_version,
)


def results(of: Ranks) -> dict[str, Result]:
    return {result.id: result for check in (*CHECKS, checks.gpu_slices) for result in check(of)}


def test_a_good_node_passes_every_check() -> None:
    assert {result.id: result.status for result in results(world()).values()} == dict.fromkeys(
        ["gpu-visible", "gpu-driver", "gpu-architecture", "gpu-shared", "gpu-unused", "nccl-version"], Status.PASS
    )


def test_without_gpus_there_is_nothing_to_say() -> None:
    bare: dict[str, Any] = {
        "node_gpus": NodeGpus(),
        "gpu_driver": GpuDriver(),
        "gpus": Gpus(),
        "device": None,
        "nccl": {},
    }
    assert results(world(**bare, flags=Flags(), compiled=Compiled())) == {}


@pytest.mark.parametrize(
    ("facts", "words"),
    [
        ({"environment": {"CUDA_VISIBLE_DEVICES": ""}}, "CUDA_VISIBLE_DEVICES="),
        ({"compiled": Compiled()}, "built for CPUs only"),
        ({"gpu_driver": GpuDriver(error="OSError: libcuda.so.1: cannot open shared object file")}, "--nv"),
        ({"gpu_driver": GpuDriver(present=True, status=802)}, "fabric manager"),
        ({"gpu_driver": GpuDriver(present=True, status=34)}, "stub"),
        ({"gpu_driver": GpuDriver(present=True, status=12345)}, "error 12345"),
        ({"node_gpus": replace(NODE, nvidia_files=0)}, "/dev/nvidia0"),
        ({}, "limits keep this job"),
    ],
)
def test_why_the_gpus_are_not_seen(facts: dict[str, Any], words: str) -> None:
    found = results(world(**{"gpus": Gpus(), "device": None, **facts}))["gpu-visible"]
    assert found.status is Status.WARN
    assert words in " ".join((found.message, found.cause, found.remedy))


@pytest.mark.parametrize("facts", [{"imported": None}, {"imported": Import(error="ImportError: none")}, {"gpus": None}])
def test_whether_gpus_are_seen_is_not_told_where_that_was_not_measured(facts: dict[str, Any]) -> None:
    found = results(world(**facts))["gpu-visible"]
    assert (found.case, found.status, found.required) == ("optional", Status.SKIP, False)


@pytest.mark.parametrize(
    ("cuda", "supported", "driver", "suits"),
    [
        ("12.1", 12020, "535.54.03", True),
        ("12.8", 12020, "535.54.03", True),
        ("12.8", 12000, "520.61.05", False),
        ("13.0", 12020, "535.54.03", False),
        ("11.8", 12020, "535.54.03", True),
        ("11.8", 11000, "450.36.06", False),
        ("11.8", 11000, "450.80.02", True),
        ("10.2", 10010, "418.39", False),
        ("13.0", 13000, "unknown", True),
    ],
)
def test_which_driver_runs_which_cuda(cuda: str, supported: int, driver: str, suits: bool) -> None:
    facts = {
        "compiled": replace(BUILD, cuda=cuda),
        "gpu_driver": GpuDriver(present=True, cuda=supported, devices=DEVICES),
        "node_gpus": replace(NODE, nvidia_driver=driver),
        "collectives_gpu": None,
    }
    found = results(world(**facts))["gpu-driver"]
    assert found.status is (Status.PASS if suits else Status.FAIL)


def test_an_old_driver_that_works_is_a_warning() -> None:
    assert results(world(compiled=replace(BUILD, cuda="13.0")))["gpu-driver"].status is Status.WARN


@pytest.mark.parametrize(
    ("capability", "built", "fits"),
    [
        ("8.6", ("sm_80",), True),
        ("8.0", ("sm_86",), False),
        ("9.0", ("sm_80",), False),
        ("9.0", ("sm_80", "compute_80"), True),
        ("7.0", ("sm_75", "sm_80", "compute_90"), False),
        ("9.0", ("sm_90a",), True),
        ("10.0", ("sm_90a", "compute_90a"), False),
        ("12.0", ("sm_100", "sm_120"), True),
    ],
)
def test_which_code_runs_on_which_gpu(capability: str, built: tuple[str, ...], fits: bool) -> None:
    driver = GpuDriver(
        present=True, cuda=12020, devices=(DriverDevice(name="GPU", uuid="GPU-0", capability=capability),)
    )
    found = results(world(gpu_driver=driver, compiled=replace(BUILD, architectures=built)))["gpu-architecture"]
    assert found.status is (Status.PASS if fits else Status.FAIL)


@pytest.mark.parametrize(("built", "fits"), [(("gfx90a:sramecc+", "gfx942"), True), (("gfx1030",), False)])
def test_amd_architectures_are_compared_by_name(built: tuple[str, ...], fits: bool) -> None:
    node = NodeGpus(amd=(NodeGpu(name="gfx90a", uuid="1"),), amd_files=True)
    facts = {"node_gpus": node, "gpu_driver": GpuDriver(), "compiled": Compiled(rocm="6.2", architectures=built)}
    found = results(world(**facts))["gpu-architecture"]
    assert found.status is (Status.PASS if fits else Status.FAIL)


def test_architectures_that_are_not_understood_prove_nothing() -> None:
    assert "gpu-architecture" not in results(world(compiled=replace(BUILD, architectures=("8.0",))))


def test_one_gpu_under_two_ranks_is_seen_by_its_uuid() -> None:
    alone = [GpuDriver(present=True, cuda=12020, devices=(DEVICES[number],)) for number in (0, 0)]
    both = [rank(number, gpu_driver=driver, device=Device(index=0)) for number, driver in enumerate(alone)]
    found = results(ranks(*both))["gpu-shared"]
    assert found.status is Status.FAIL
    assert "0 on node1: ranks 0 1" in found.message


def test_index_0_in_each_rank_may_be_different_gpus() -> None:
    alone = [GpuDriver(present=True, cuda=12020, devices=(DEVICES[number],)) for number in (0, 1)]
    both = [rank(number, gpu_driver=driver, device=Device(index=0)) for number, driver in enumerate(alone)]
    assert results(ranks(*both))["gpu-shared"].status is Status.PASS
    assert results(ranks(*both))["gpu-unused"].status is Status.PASS


def test_a_gpu_of_its_own_for_each_rank_is_told() -> None:
    """As of --gpus-per-task: hvd.local_rank() names no GPU then."""
    alone = [GpuDriver(present=True, cuda=12020, devices=(DEVICES[number],)) for number in (0, 1)]
    each = [rank(n, gpu_driver=own, gpus=Gpus(count=1), device=Device(index=0)) for n, own in enumerate(alone)]
    found = results(ranks(*each))["gpu-visible"]
    assert found.status is Status.WARN
    assert "sees 1 of the GPUs of its node, where its local rank is 1" in found.message
    assert results(ranks(each[0]))["gpu-visible"].status is Status.PASS


def test_one_gpu_that_is_shared_is_no_gpu_of_its_own_for_each_rank() -> None:
    one = GpuDriver(present=True, cuda=12020, devices=(DEVICES[0],))
    found = results(ranks(*(rank(n, gpu_driver=one, gpus=Gpus(count=1), device=Device(index=0)) for n in (0, 1))))
    assert (found["gpu-visible"].status, found["gpu-shared"].status) == (Status.PASS, Status.FAIL)


def test_the_same_index_on_two_nodes_is_no_sharing() -> None:
    there = replace(rank(1, device=Device(index=0)), host="node2")
    assert results(ranks(rank(0), there))["gpu-shared"].status is Status.PASS


def test_a_gpu_without_a_rank_is_told() -> None:
    found = results(ranks(rank(0)))["gpu-unused"]
    assert found.status is Status.WARN
    assert "1 of 2 on node1" in found.message


def test_a_gpu_that_slurm_gave_and_no_rank_sees_is_told() -> None:
    alone = GpuDriver(present=True, cuda=12020, devices=DEVICES[:1])
    bound = rank(0, gpu_driver=alone, gpus=Gpus(count=1), environment={"SLURM_GPUS_ON_NODE": "4"})
    assert "3 of 4 on node1" in results(ranks(bound))["gpu-unused"].message


def test_slices_under_several_ranks_are_a_warning() -> None:
    sliced = GpuDriver(present=True, cuda=12020, devices=(DriverDevice(uuid="MIG-1", capability="8.0", mig=True),))
    assert results(world(gpu_driver=sliced))["gpu-slices"].status is Status.WARN
    assert results(ranks(rank(0, gpu_driver=sliced)))["gpu-slices"].status is Status.PASS


@pytest.mark.parametrize(
    ("loaded", "own", "status", "words"),
    [
        ({LIBNCCL: 21803}, "2.18.3", Status.PASS, "built with 2.18.3"),
        ({LIBNCCL: 22907}, "2.29.7", Status.PASS, "2.29.7"),
        ({LIBNCCL: 21003}, "2.10.3", Status.FAIL, "older one is loaded: 2.10.3"),
        ({LIBNCCL: 2708}, None, Status.FAIL, "2.7.8"),
        ({LIBNCCL: 21803, "/b/libnccl.so.2": 22005}, None, Status.FAIL, "several"),
        ({LIBNCCL: 21803}, "2.20.5", Status.WARN, "its own 2.20.5"),
        ({}, None, Status.PASS, "none of its own"),
        ({LIBNCCL: Fact(error="AttributeError: none")}, None, Status.PASS, "2.18.3"),
    ],
)
def test_three_ncclversions_are_held_against_each_other(
    loaded: dict[str, Any], own: str | None, status: Status, words: str
) -> None:
    found = results(world(nccl=loaded, compiled=replace(BUILD, nccl=own), collectives_gpu=None))["nccl-version"]
    assert found.status is status
    assert words in found.message


BY_MPI = {"flags": Flags(mpi=True, cuda=True, nccl=0), "libraries": {"libmpi": ("/usr/lib/libmpi.so.40",)}}
BY_CRAY = {
    **BY_MPI,
    "libraries": {"libmpi": ("/opt/cray/pe/lib64/libmpi_gnu_123.so.12",)},
    "mpi_gpu": {"running": True},
}
ON = {"environment": {"MPICH_GPU_SUPPORT_ENABLED": "1"}}


def told(**answers: bool) -> dict[str, dict[str, bool]]:
    return {"mpi_gpu": {"running": True, **answers}}


@pytest.mark.parametrize(
    ("facts", "status", "words"),
    [
        ({**BY_MPI, **told(cuda=True, rocm=False)}, Status.PASS, "as it tells"),
        ({**BY_MPI, **told(cuda=False), "collectives_gpu": None}, Status.FAIL, "does not take them (CUDA)"),
        ({**BY_MPI, **told(cuda=False)}, Status.WARN, "/usr/lib/libmpi.so.40"),
        (
            {
                **BY_MPI,
                "flags": Flags(mpi=True, rocm=True, nccl=0),
                **told(cuda=True, rocm=False),
                "collectives_gpu": None,
            },
            Status.FAIL,
            "(ROCm)",
        ),
        ({**BY_CRAY, "collectives_gpu": None}, Status.FAIL, "MPICH_GPU_SUPPORT_ENABLED is not 1"),
        ({**BY_CRAY, **ON}, None, ""),
        ({**BY_CRAY, **ON, **told(cuda=False)}, None, ""),  # its GTL library does it
        ({**BY_CRAY, "mpi_gpu": {}}, None, ""),  # by Gloo
        (BY_MPI, None, ""),
        ({**BY_MPI, **told()}, None, ""),  # it cannot be asked
        ({**BY_MPI, "mpi_gpu": {"error": "TypeError"}}, None, ""),
        ({**BY_MPI, **told(cuda=False), "flags": Flags(mpi=True, cuda=True, nccl=21803)}, None, ""),
        ({**BY_MPI, **told(cuda=False), "flags": Flags(mpi=True, nccl=0)}, None, ""),
        ({**BY_MPI, **told(cuda=False), "gpus": Gpus(count=0)}, None, ""),
    ],
)
def test_an_mpi_that_horovod_gives_gpu_memory_to_has_to_take_it(
    facts: dict[str, Any], status: Status | None, words: str
) -> None:
    found = results(world(**facts)).get("mpi-gpu")
    assert (found.status if found else None) is status
    assert found is None or words in found.message


# What the probe states, from the files of a kernel driver and from libraries that are really loaded.


def test_the_mpi_tells_whether_it_takes_gpu_memory(tmp_path: Path) -> None:
    """But not where it is not running, as with Gloo: MPICH would end the process."""
    code = """
    int MPIX_Query_cuda_support(void) { return 1; }
    int MPIX_Query_rocm_support(void) { return 0; }
    int MPI_Initialized(int *flag) { *flag = BEGUN; return 0; }
    int MPI_Finalized(int *flag) { *flag = ENDED; return 0; }
    """

    def asked(name: str, begun: int, ended: int) -> dict[str, bool]:
        text = code.replace("BEGUN", str(begun)).replace("ENDED", str(ended))
        return mpi_gpu.mpi_gpu({"libmpi": [str(shared_object(tmp_path / name, text))]})

    assert asked("libmpi.so.40", 1, 0) == {"running": True, "cuda": True, "rocm": False}
    assert asked("libmpi.so.12", 0, 0) == asked("libmpi.so.20", 1, 1) == {}
    code += """
    #include <string.h>
    int MPI_Get_library_version(char *text, int *length) { strcpy(text, "MPICH Version:\\t3.4.3"); return 0; }
    """
    assert asked("libmpi.so.12.1", 1, 0) == {"running": True}  # it would die of the question
    silent = shared_object(tmp_path / "libmpich.so.12", "int MPI_Init(void) { return 0; }\n")
    assert mpi_gpu.mpi_gpu({"libmpich": [str(silent)]}) == mpi_gpu.mpi_gpu({}) == {}


FAKE_CUDA = """
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuInit(unsigned flags) { return STATUS; }
int cuDeviceGetCount(int *count) { *count = 2; return 0; }
int cuDeviceGet(int *device, int index) { *device = index; return 0; }
int cuDeviceGetName(char *name, int length, int device) { name[0] = 'H'; name[1] = '0' + device; return 0; }
int cuDeviceGetAttribute(int *value, int which, int device) { *value = which == 75 ? 9 : 0; return 0; }
int cuDeviceGetUuid(unsigned char *uuid, int device) { for (int i = 0; i < 16; i++) uuid[i] = device; return 0; }
int cuDeviceGetUuid_v2(unsigned char *uuid, int device)
{ for (int i = 0; i < 16; i++) uuid[i] = device ? 7 : 0; return 0; }
"""
FAKE_NCCL = "int ncclGetVersion(int *version) { *version = 22907; return 0; }"


def asked(code: str, library_path: Path) -> Any:
    """The JSON that Python code prints in a process of its own, with a search path for libraries."""
    env = {**os.environ, "LD_LIBRARY_PATH": str(library_path)}
    ran = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=True)
    return json.loads(ran.stdout)


def node_of(tmp_path: Path) -> Path:
    """A folder like /proc/driver/nvidia of a node with one GPU."""
    (tmp_path / "gpus" / "0000:41:00.0").mkdir(parents=True)
    told = "Model: \t\t NVIDIA H200\nIRQ:   \t\t 18\nGPU UUID: \t GPU-1b2c\nBus Location: \t 0000:41:00.0\n"
    (tmp_path / "gpus" / "0000:41:00.0" / "information").write_text(told)
    version = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  535.54.03  Tue Jun  6 22:20:39 UTC 2023\n"
    (tmp_path / "version").write_text(version)
    return tmp_path


def test_the_kernel_tells_the_gpus_of_a_node(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "NVIDIA", str(node_of(tmp_path)))
    told = gpu.node_gpus()
    assert told["nvidia"] == [{"name": "NVIDIA H200", "uuid": "GPU-1b2c"}]
    assert told["nvidia_driver"] == "535.54.03"
    assert not told["mig"]


def test_an_open_kernel_module_tells_its_version_too() -> None:
    line = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06  Release Build  (dvs-builder@U16)"
    assert gpu.first_match(gpu.KERNEL_MODULE, line) == "580.65.06"


def test_amd_gpus_are_told_from_processors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, properties in (
        ("0", "simd_count 0\n"),
        ("1", "simd_count 440\ngfx_target_version 90010\nunique_id 255\n"),
    ):
        (tmp_path / name).mkdir()
        (tmp_path / name / "properties").write_text(properties)
    monkeypatch.setattr(gpu, "KFD", str(tmp_path))
    assert gpu.node_gpus()["amd"] == [{"name": "gfx90a", "uuid": "00000000000000ff"}]


def driver_code(node: Path) -> str:
    return f"""
import json
from envkit.inside.probe import gpu
gpu.NVIDIA = {str(node)!r}
print(json.dumps(gpu.gpu_driver()))
"""


def test_the_driver_library_tells_versions_and_devices(tmp_path: Path) -> None:
    shared_object(tmp_path / "lib" / "libcuda.so.1", FAKE_CUDA.replace("STATUS", "0"))
    told = asked(driver_code(node_of(tmp_path)), tmp_path / "lib")
    assert (told["cuda"], told["status"]) == (12040, 0)
    whole, part = told["devices"]
    assert whole == {
        "name": "H0",
        "uuid": "GPU-00000000-0000-0000-0000-000000000000",
        "capability": "9.0",
        "mig": False,
    }
    assert (part["uuid"], part["mig"]) == ("MIG-07070707-0707-0707-0707-070707070707", True)


def test_a_driver_that_refuses_tells_its_error(tmp_path: Path) -> None:
    shared_object(tmp_path / "lib" / "libcuda.so.1", FAKE_CUDA.replace("STATUS", "802"))
    told = asked(driver_code(node_of(tmp_path)), tmp_path / "lib")
    assert (told["status"], told["devices"]) == (802, [])


def test_without_devices_the_driver_is_not_asked(tmp_path: Path) -> None:
    shared_object(tmp_path / "lib" / "libcuda.so.1", FAKE_CUDA.replace("STATUS", "0"))
    assert asked(driver_code(tmp_path / "absent"), tmp_path / "lib") == {"present": False}


def test_the_version_of_the_nccl_that_is_loaded(tmp_path: Path) -> None:
    path = str(shared_object(tmp_path / "libnccl.so.2.29.7", FAKE_NCCL))
    plugin = str(tmp_path / "libnccl-net.so")
    assert nccl.nccl_loaded({"libnccl": [path, plugin]}) == {path: 22907}


def test_a_file_that_is_no_nccl_is_an_error_of_its_own(tmp_path: Path) -> None:
    path = str(shared_object(tmp_path / "libnccl.so.2", "int other(void) { return 1; }"))
    assert "ncclGetVersion" in nccl.nccl_loaded({"libnccl": [path]})[path]["error"]


def test_torch_and_tensorflow_tell_what_they_were_compiled_for() -> None:
    class Torch:
        class version:
            cuda = "12.1"
            hip = None

        class cuda:
            class nccl:
                @staticmethod
                def version() -> tuple[int, int, int]:
                    return 2, 18, 1

        class _C:
            _GLIBCXX_USE_CXX11_ABI = False

            @staticmethod
            def _cuda_getArchFlags() -> str:
                return "sm_80 sm_90"

    class TensorFlow:
        class sysconfig:
            CXX11_ABI_FLAG = 1

            @staticmethod
            def get_build_info() -> dict[str, Any]:
                return {"is_cuda_build": True, "cuda_version": "12.2", "cuda_compute_capabilities": ["sm_80"]}

    built = {"cuda": "12.1", "rocm": None, "architectures": ["sm_80", "sm_90"], "nccl": "2.18.1", "cxx11_abi": 0}
    assert gpu.compiled_torch(Torch) == built
    assert gpu.compiled_tensorflow(TensorFlow) == {
        **built,
        "cuda": "12.2",
        "architectures": ["sm_80"],
        "nccl": None,
        "cxx11_abi": 1,
    }
