from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from envkit.binary.build_flags import BuildFlags, Extension
from envkit.binary.elf import Elf
from envkit.inside.probe import shared_object as reader
from envkit.verify.checks import build as checks
from envkit.verify.facts import (
    Collectives,
    Ended,
    ExtensionFile,
    Fact,
    Flags,
    Horovod,
    Import,
    Phase,
    RankFacts,
    SearchPath,
    World,
)
from envkit.verify.outcome import Expected, Ranks, Result, Status

from .compile_c import shared_object

MPI = "/mpi/lib/libmpi.so.40.30.4"
EXTENSION = "/h/horovod/torch/mpi_lib_v2.so"


def rank(number: int, **facts: Any) -> RankFacts:
    """A rank that went well with an extension built for Open MPI."""
    stated = {
        "phases": (Phase(name="libraries", at=0.0),),
        "ended": Ended(how="exit", status=0),
        "world": World(rank=number, size=2),
        "installed": {"torch": "2.1.0"},
        "horovod": Horovod(version="0.28.1", metadata={"pytorch": "2.1.0"}, extensions={"torch": EXTENSION}),
        "extension_file": ExtensionFile(size=9, wanted=9, needed=("libmpi_cxx.so.40", "libmpi.so.40", "libc.so.6")),
        "imported": Import(version="2.1.0"),
        "load": Fact(),
        "flags": Flags(mpi=True),
        "libraries": {"libmpi": (MPI, "/mpi/lib/libmpi_cxx.so.40.30.1")},
        "search_path": SearchPath(),
        "collectives_cpu": Collectives(),
    }
    return RankFacts(framework="torch", host="node1", pid=number, phase="exit", **{**stated, **facts})


def results(expected: Expected | None = None, /, **facts: Any) -> dict[str, Result]:
    """What the checks say of two such ranks, of which the second states other facts."""
    asked = expected or Expected(size=2, frameworks=("torch",))
    ranks = Ranks(framework="torch", facts=(rank(0), rank(1, **facts)), expected=asked)
    every = (checks.extension_present, checks.extension_loads, checks.framework_drift, checks.mpi_loaded)
    return {result.id: result for check in every for result in check(ranks)}


@pytest.mark.parametrize("wanted", ["", "/h/horovod", "/envs/own/horovod"])
def test_the_horovod_that_is_verified_is_the_environments(wanted: str) -> None:
    """Another one that is found first works, too, and says nothing of this environment."""
    asked = Expected(size=2, frameworks=("torch",), horovod=wanted)
    facts = [rank(number, horovod=Horovod(path="/h/horovod", version="0.28.1")) for number in (0, 1)]
    [found] = checks.horovod_present(Ranks(framework="torch", facts=tuple(facts), expected=asked))
    if wanted != "/envs/own/horovod":
        assert found.status is Status.PASS
        return
    assert (found.id, found.status) == ("horovod-present", Status.FAIL)
    assert "/h/horovod, not the environment's own, /envs/own/horovod" in found.message and found.remedy


def test_a_good_build_passes() -> None:
    assert {result.status for result in results().values()} == {Status.PASS}


def test_drift_is_known_where_importing_ended_the_process() -> None:
    died = {
        "installed": {"torch": "2.2.0"},
        "imported": None,
        "load": None,
        "flags": None,
        "ended": Ended(how="signal", signal="SIGSEGV"),
    }
    found = results(**died)["framework-drift"]
    assert found.status is Status.FAIL
    assert "built for torch 2.1.0, but 2.2.0 is installed (rank 1" in found.message


def test_drift_is_a_finding_beside_a_failed_load() -> None:
    found = results(imported=Import(version="2.2.0"), load=Fact(error="ImportError: x: undefined symbol: _ZN3c10E"))
    assert [found[name].status for name in ("framework-drift", "extension-loads")] == [Status.FAIL, Status.FAIL]


def test_drift_that_works_is_a_warning() -> None:
    assert results(imported=Import(version="2.2.0"))["framework-drift"].status is Status.WARN
    assert results(imported=Import(version="2.1.0+cu121"))["framework-drift"].status is Status.PASS


@pytest.mark.parametrize(
    ("distribution", "version", "status"),
    [
        ("tensorflow-cpu", "2.15.1", Status.PASS),
        ("tensorflow", "2.16.0", Status.FAIL),
        ("keras", "2.15.1", Status.SKIP),
    ],
)
def test_tensorflow_has_several_distributions(distribution: str, version: str, status: Status) -> None:
    horovod = Horovod(metadata={"tensorflow": "2.15.1"})
    facts = replace(rank(0), framework="tensorflow", installed={distribution: version}, horovod=horovod)
    facts = replace(facts, imported=None, load=None)
    ranks = Ranks(framework="tensorflow", facts=(facts,), expected=Expected(size=1, frameworks=("tensorflow",)))
    assert checks.framework_drift(ranks)[0].status is status


@pytest.mark.parametrize(
    ("symbol", "owner"),
    [
        ("_ZN10tensorflow12OpDefBuilder4AttrESs", "of before C++11"),
        ("_ZN10tensorflow12OpDefBuilder4AttrENSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEEE", "TensorFlow"),
        ("_ZN3tsl8internal21CheckOpMessageBuilderC1EPKc", "TensorFlow"),
        ("_ZNK10tensorflow8OpKernel4nameEv", "TensorFlow"),
        ("_ZTIN10tensorflow8OpKernelE", "TensorFlow"),
        ("_ZN3c105ErrorC1ENS_14SourceLocationESs", "of before C++11"),
        ("_ZN3c106detail14torchCheckFailEPKcS2_jS2_", "PyTorch"),
        ("_ZNK2at10TensorBase21__dispatch_contiguousEN3c1012MemoryFormatE", "PyTorch"),
        ("_ZN5torch3jit6Module4loadEv", "PyTorch"),
        ("_Z16THPVariable_WrapN2at10TensorBaseE", "PyTorch"),
        ("THPStorage_New", "PyTorch"),
        ("MPI_Init_thread", "MPI"),
        ("ompi_mpi_comm_world", "MPI"),
        ("ncclCommInitRankConfig", "NCCL"),
        ("cudaGetDriverEntryPointByVersion", "CUDA"),
        ("cuMemCreate", "CUDA"),
        ("hipGetDevicePropertiesR0600", "ROCm"),
        ("_ZNSt7__cxx1112basic_stringIcSt11char_traitsIcESaIcEE4_M_replaceEmmPKcm", "the C++ library"),
        ("PyUnicode_AsUTF8", "Python"),
        ("something_else", "does not know by name"),
    ],
)
def test_a_missing_symbol_tells_its_library(symbol: str, owner: str) -> None:
    found = results(load=Fact(error=f"ImportError: {EXTENSION}: undefined symbol: {symbol}"))["extension-loads"]
    assert found.status is Status.FAIL
    assert f"{symbol} should be in" in found.cause
    assert owner in found.cause
    assert "LD_LIBRARY_PATH" not in found.cause
    assert found.remedy


def test_a_missing_symbol_without_a_name() -> None:
    found = results(load=Fact(error="ImportError: symbol lookup error"))["extension-loads"]
    assert found.cause.endswith(": it should be in a library.")
    assert found.remedy == "Read the error."


def test_a_missing_symbol_tells_which_file_the_search_path_leads_to() -> None:
    path = SearchPath(folders={"/other": {"libmpi": "/other/libmpi.so.12"}})
    load = Fact(error="ImportError: /x.so: undefined symbol: ompi_mpi_real")
    assert (
        "LD_LIBRARY_PATH leads to /other/libmpi.so.12" in results(load=load, search_path=path)["extension-loads"].cause
    )


@pytest.mark.parametrize(
    ("file", "owner"),
    [
        ("libmpi.so.40", "Open MPI 3, 4 or 5"),
        ("libmpi_cxx.so.40", "Open MPI 5 no longer has"),
        ("libmpi.so.12", "MPICH's interface"),
        ("libmpi_gnu_91.so.12", "Cray MPICH"),
        ("libcudart.so.11.0", "CUDA of the release"),
        ("libnccl.so.2", "NCCL"),
        ("libcuda.so.1", "NVIDIA's driver"),
        ("libtorch_cuda.so", "PyTorch"),
        ("libc10.so", "PyTorch"),
        ("libtensorflow_framework.so.2", "TensorFlow"),
        ("libamdhip64.so.6", "ROCm"),
        ("libfoo.so.3", "does not know by name"),
    ],
)
def test_a_missing_file_tells_what_it_belongs_to(file: str, owner: str) -> None:
    error = f"ImportError: {file}: cannot open shared object file: No such file or directory"
    found = results(load=Fact(error=error))["extension-loads"]
    assert found.status is Status.FAIL
    assert f"{file} is " in found.cause
    assert owner in found.cause


def test_a_missing_file_is_named_without_its_folder() -> None:
    error = "ImportError: /x/lib/libmpi.so.40: cannot open shared object file: No such file or directory"
    cause = results(load=Fact(error=error))["extension-loads"].cause
    assert "libmpi.so.40 is " in cause
    assert "/x/lib" not in cause


def test_a_cut_extension_is_known_before_it_is_loaded() -> None:
    cut = {"extension_file": ExtensionFile(size=4096, wanted=65519152), "load": None}
    found = results(**cut, ended=Ended(how="signal", signal="SIGBUS"))["extension-present"]
    assert found.status is Status.FAIL
    assert "4096 bytes instead of 65519152" in found.message


@pytest.mark.parametrize("said", ["file too short", "invalid ELF header", "cannot read file data: Error 21"])
def test_a_damaged_library_is_told(said: str) -> None:
    found = results(load=Fact(error=f"ImportError: /x/libtorch.so: {said}"))["extension-loads"]
    assert "damaged" in found.cause


def with_file(*libraries: str) -> Expected:
    extension = Extension(
        framework="torch",
        path=EXTENSION,
        exists=True,
        flags={"mpi": 1},
        framework_found=True,
        unreadable=None,
        missing_libraries=(),
        missing_symbols=(),
        built_for=None,
        installed=None,
        mpi_libraries=libraries,
    )
    return Expected(size=2, frameworks=("torch",), built=BuildFlags(horovod="0.28.1", extensions=(extension,)))


def test_an_mpi_of_another_interface_fails() -> None:
    found = results(libraries={"libmpi": ("/other/libmpi.so.12.1.8",)})["mpi-loaded"]
    assert found.status is Status.FAIL
    assert "built for libmpi.so.40" in found.message


def test_an_mpi_that_the_search_path_shadows_is_told_with_its_folder() -> None:
    other = "/other/lib/libmpi.so.40.10.4"
    facts = {
        "libraries": {"libmpi": (other,)},
        "search_path": SearchPath(folders={"/other/lib": {"libmpi": other}}),
    }
    found = results(with_file(MPI), **facts)["mpi-loaded"]
    assert found.status is Status.WARN
    assert "LD_LIBRARY_PATH (/other/lib)" in found.cause
    hung = results(with_file(MPI), **facts, ended=Ended(how="timeout"))["mpi-loaded"]
    assert hung.status is Status.FAIL


@pytest.mark.parametrize(
    ("program", "library", "case"),
    [
        ("/venv/bin/mpirun", "/venv/lib/libmpi.so.40", "of-launcher"),
        ("/usr/bin/mpirun", "/venv/lib/libmpi.so.40", "elsewhere"),
        ("/usr/bin/mpirun", "/usr/lib/libmpi.so.40", "elsewhere"),
        ("", "/venv/lib/libmpi.so.40", "elsewhere"),
    ],
)
def test_an_mpi_that_lies_beside_the_first_mpirun_is_told_with_the_folder_of_path(
    program: str, library: str, case: str
) -> None:
    """Open MPI's sets LD_LIBRARY_PATH for its ranks: the user has not, and cannot take anything out of it."""
    folder = str(Path(library).parent)
    path = SearchPath(folders={folder: {"libmpi": f"{folder}/libmpi.so"}}, mpirun=program)
    found = results(with_file(MPI), libraries={"libmpi": (library,)}, search_path=path)["mpi-loaded"]
    assert (found.status, found.case) == (Status.WARN, case)
    assert ("Take /venv/bin out of PATH" in found.remedy) is (case == "of-launcher")
    assert (f"LD_LIBRARY_PATH ({folder})" in found.cause) is (case == "elsewhere")


def test_the_mpi_of_the_file_passes() -> None:
    assert results(with_file(MPI))["mpi-loaded"].status is Status.PASS


@pytest.mark.parametrize(
    ("paths", "status"),
    [
        (("/i/lib/libmpifort.so.12", "/i/lib/release/libmpi.so.12.0"), Status.FAIL),
        ((MPI, "/other/libmpi.so.12"), Status.FAIL),
        ((MPI, "/elsewhere/libmpi_cxx.so.40"), Status.PASS),
        ((), Status.FAIL),
    ],
)
def test_only_the_mpi_proper_is_counted(paths: tuple[str, ...], status: Status) -> None:
    assert results(libraries={"libmpi": paths})["mpi-loaded"].status is status


def test_the_parts_of_intel_mpi_are_one_mpi() -> None:
    facts = {
        "libraries": {"libmpi": ("/i/lib/libmpifort.so.12", "/i/lib/release/libmpi.so.12.0")},
        "extension_file": ExtensionFile(needed=("libmpifort.so.12", "libmpi.so.12")),
    }
    assert results(**facts)["mpi-loaded"].status is Status.PASS


# What the probe reads from files that were really compiled.


def test_the_probe_reads_what_the_other_reader_reads(tmp_path: Path) -> None:
    options = ["-Wl,--no-as-needed", "-lm", "-Wl,-rpath,/opt/mpi/lib:/opt/b"]
    path = shared_object(tmp_path / "x.so", "int f(void) { return 1; }", options)
    told = reader.shared_object(str(path))
    elf = Elf.open(path)
    assert tuple(told["needed"]) == elf.needed
    assert tuple(told["folders"]) == elf.runpath + elf.rpath
    assert told["size"] == told["wanted"] == path.stat().st_size


@pytest.mark.parametrize("left", [0, 10, 200, 4096, -1])
def test_a_cut_file_is_seen_at_any_length(tmp_path: Path, left: int) -> None:
    path = shared_object(tmp_path / "x.so", "int f(void) { return 1; }")
    os.truncate(path, left if left >= 0 else path.stat().st_size + left)
    told = reader.shared_object(str(path))
    assert told["size"] < told["wanted"]
    assert told["needed"] is None


def test_another_format_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "x.so"
    path.write_bytes(b"#!/bin/sh\n" * 20)
    with pytest.raises(ValueError, match="ELF"):
        reader.shared_object(str(path))


def test_a_stripped_file_is_whole(tmp_path: Path) -> None:
    if shutil.which("strip") is None:
        pytest.skip("no strip")
    path = shared_object(tmp_path / "x.so", "int f(void) { return 1; }")
    subprocess.run(["strip", "-s", str(path)], check=True)
    told = reader.shared_object(str(path))
    assert told["size"] >= told["wanted"]


def test_the_interpreter_itself_is_whole() -> None:
    told = reader.shared_object(os.path.realpath(sys.executable))
    assert told["size"] >= told["wanted"]
    assert any(name.startswith("libc.") for name in told["needed"])


@pytest.mark.parametrize(
    ("environment", "stacks", "words"),
    [
        ("", {}, ("switched off", "HOROVOD_GPU_OPERATIONS=NCCL", ())),
        ("pytorch-2.13-cpu", {"nccl": "pytorch-2.13-cuda"}, ("built without nccl", "", ("pytorch-2.13-cuda",))),
        ("pytorch-2.13-cpu", {"nccl": ""}, ("No stack of envkit", "recipe of your own", ())),
        ("toy --prefix /p", {}, ("another one", "in its place", ("toy --prefix /p --rebuild",))),
    ],
)
def test_the_remedy_of_a_flag_that_is_lacking_names_a_stack(
    environment: str, stacks: dict[str, str], words: tuple[str, str, tuple[str, ...]]
) -> None:
    """Variables of Horovod's build are for who builds it by hand."""
    asked = Expected(
        size=1, frameworks=("torch",), required=frozenset({"nccl"}), environment=environment, stacks=stacks
    )
    ranks = Ranks(framework="torch", facts=(rank(0, flags=Flags(mpi=True, nccl=0)),), expected=asked)
    [found] = checks.flags_required(ranks)
    cause, remedy, commands = words
    assert cause in found.cause and remedy in found.remedy
    assert found.commands == tuple(f"envkit install {one}" for one in commands)
    assert ("HOROVOD_" in found.remedy) is not bool(environment)


@pytest.mark.parametrize(("value", "case"), [("1", "switched-off"), ("0", "no"), (None, "no")])
def test_who_has_switched_off_threads_of_mpi_is_told(value: str | None, case: str) -> None:
    environment = {"HOROVOD_MPI_THREADS_DISABLE": value} if value else {}
    found = results_of_mpi(rank(0, mpi_threads=True), rank(1, mpi_threads=False, environment=environment))
    assert (found.status, found.case) == (Status.WARN, case)
    if case == "switched-off":
        assert "HOROVOD_MPI_THREADS_DISABLE=1 is set" in found.message
        assert found.commands == ("unset HOROVOD_MPI_THREADS_DISABLE",)


def results_of_mpi(*facts: RankFacts) -> Result:
    """What the check of MPI's threads says."""
    ranks = Ranks(framework="torch", facts=facts, expected=Expected(size=2, frameworks=("torch",)))
    return checks.mpi_threads(ranks)[0]
