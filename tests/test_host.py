import os
import platform
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.errors import HostProblem
from envkit.machine import host, modules_tool
from envkit.machine.host import Platform

Fake = Callable[..., Path]
OPEN_MPI_4 = "mpirun (Open MPI) 4.1.4\n\nReport bugs to http://www.open-mpi.org/community/help/\n"
OPEN_MPI_5 = "mpirun (Open MPI) 5.0.3\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
OPEN_MPI_RC = "mpirun (Open MPI) 5.0.0rc12\n\nReport bugs to https://www.open-mpi.org/community/help/\n"
MPICH = """\
HYDRA build details:
    Version:                                 4.0.2
    Release Date:                            Thu Apr  7 12:34:45 CDT 2022
    CC:                              gcc  -g -O2 -Wdate-time -D_FORTIFY_SOURCE=2 -Wl,-z,relro
    Configure options:                       '--with-libfabric' '--prefix=/usr'
    Process Manager:                         pmi
    Launchers available:                     ssh rsh fork slurm ll lsf sge manual persist
    Topology libraries available:            hwloc
    Resource management kernels available:   user slurm ll lsf sge pbs cobalt
    Demux engines available:                 poll select
"""
INTEL = """\
Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005 (id: 74c4a23)
Copyright 2003-2023, Intel Corporation.
"""
UNKNOWN = "mpirun: HP MPI 02.03.01.00 Linux x86-64\n"
CMAKE = "cmake version {}\n\nCMake suite maintained and supported by Kitware (kitware.com/cmake).\n"


def says(text: str) -> str:
    return f"cat <<'END'\n{text}END"


@pytest.fixture
def env(tmp_path: Path) -> dict[str, str]:
    """A PATH of the fakes and nothing else but what a shell script needs."""
    folder = tmp_path / "bin"
    folder.mkdir(exist_ok=True)
    for name in ("sh", "cat"):
        (folder / name).symlink_to(str(shutil.which(name)))
    return {"PATH": str(folder)}


@pytest.mark.parametrize(
    ("told", "family", "version"),
    [
        (OPEN_MPI_4, "Open MPI", "4.1.4"),
        (OPEN_MPI_5, "Open MPI", "5.0.3"),
        (OPEN_MPI_RC, "Open MPI", "5.0.0rc12"),
        (MPICH, "MPICH", "4.0.2"),
        (INTEL, "Intel MPI", "2021.11"),
        (UNKNOWN, "unknown", "unknown"),
        ("", "unknown", "unknown"),
    ],
)
def test_mpi_by_what_its_launcher_says(told: str, family: str, version: str, fake: Fake, env: dict[str, str]) -> None:
    fake("mpicxx")
    launcher = fake("mpirun", says(told))
    assert list(host.mpis(env)) == [host.Program(path=launcher, version=version, family=family)]


@pytest.mark.parametrize("name", ["mpicxx", "mpirun"])
def test_mpi_needs_a_compiler_wrapper_and_a_launcher(name: str, fake: Fake, env: dict[str, str]) -> None:
    fake(name, says(OPEN_MPI_4))
    assert not list(host.mpis(env))


def test_an_mpi_without_its_headers_is_none(fake: Fake, env: dict[str, str]) -> None:
    """As where Debian's openmpi-bin is installed without libopenmpi-dev."""
    fake("mpirun", says(OPEN_MPI_5))
    fake("mpicxx", "echo 'fatal error: mpi.h: No such file or directory' >&2; exit 1")
    assert not list(host.mpis(env))


@pytest.mark.parametrize("version", ["3.25.1", "4.0.0", "3.30.0-rc2", "3.18.0-dirty"])
def test_cmake(version: str, fake: Fake, env: dict[str, str]) -> None:
    path = fake("cmake", says(CMAKE.format(version)))
    assert host.cmake(env) == host.Program(path=path, version=version)


def test_a_cmake_that_does_not_end(fake: Fake, env: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host, "PATIENCE_S", 0.3)
    monkeypatch.setattr(host, "HUNG", {})
    path = fake("cmake", "exec /bin/sleep 300")
    assert host.cmake(env) is None and host.not_ended(path) == f"'{path} --version' has not ended in 0.3 s"
    fake("cmake", says(CMAKE.format("3.25.1")))
    monkeypatch.setattr(host, "AGAIN_S", 0.0)
    assert host.cmake(env) and not host.not_ended(path)


def test_a_compiler_that_does_not_end_is_named(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    """No wrapper of an MPI is asked, since all of them call it."""
    monkeypatch.setattr(host, "PATIENCE_S", 0.3)
    monkeypatch.setattr(host, "HUNG", {})
    path = fake("g++", "exec /bin/sleep 300")
    monkeypatch.setenv("PATH", f"{path.parent}:{os.environ['PATH']}")
    with pytest.raises(HostProblem, match=r"g\+\+ -std=c\+\+17' has not ended in 0.3 s\.$"):
        host.detect()


def test_an_answer_without_an_end(fake: Fake, env: dict[str, str]) -> None:
    fake("cmake", "while :; do echo 'cmake version 3.25.1'; done")
    assert host.cmake(env)


def test_cmake_that_fails_or_is_not_there(fake: Fake, env: dict[str, str]) -> None:
    assert host.cmake(env) is None
    fake("cmake", "echo 'libssl.so.1.1: cannot open shared object file' >&2; exit 127")
    assert host.cmake(env) is None


def test_compiler(fake: Fake, env: dict[str, str]) -> None:
    fake("gcc")
    path = fake("g++", '[ "$1" != -dumpfullversion ] || echo 12.2.0')
    assert host.compiler(env) == host.Program(path=path, version="12.2.0")


def test_compiler_that_cannot_compile(fake: Fake, env: dict[str, str]) -> None:
    fake("gcc")
    fake("g++", "echo \"g++: error: unrecognized command line option '-std=c++17'\" >&2; exit 1")
    assert host.compiler(env) is None


@pytest.mark.parametrize("name", ["gcc", "g++"])
def test_compiler_is_one_for_c_and_one_for_cpp(name: str, fake: Fake, env: dict[str, str]) -> None:
    fake(name)
    assert host.compiler(env) is None


def test_the_real_compiler() -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is missing")
    found = host.compiler({"PATH": os.environ["PATH"]})
    assert found is not None and found.version.count(".") == 2


def test_interpreter_is_the_one_below_the_virtual_environment() -> None:
    found = host.interpreter({"PATH": modules_tool.without_private_folders(os.environ)})
    assert found.path == Path(os.path.realpath(getattr(sys, "_base_executable", sys.executable)))
    assert found.version == platform.python_version()
    assert found.minor == ".".join(map(str, sys.version_info[:2]))


def test_interpreter_that_a_site_module_puts_on_path(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "include").mkdir()
    fake("python3", says(f"/opt/cray/pe/python/3.12.4/bin/python3.12\n3.12.4\n{tmp_path}/include\n"), "cray")
    env = {"PATH": f"{tmp_path}/cray:{modules_tool.without_private_folders(os.environ)}"}
    found = host.interpreter(env)
    assert found == host.Interpreter(
        path=Path("/opt/cray/pe/python/3.12.4/bin/python3.12"), version="3.12.4", headers=False
    )
    (tmp_path / "include" / "Python.h").touch()
    assert host.interpreter(env).headers


@pytest.mark.parametrize("body", ["exit 1", "echo hello"])
def test_interpreter_on_path_that_does_not_answer(body: str, fake: Fake, tmp_path: Path) -> None:
    fake("python3", body, "broken")
    env = {"PATH": f"{tmp_path}/broken:{modules_tool.without_private_folders(os.environ)}"}
    assert host.interpreter(env).version == platform.python_version()


def test_platform_is_what_binaries_depend_on() -> None:
    assert str(Platform(machine="aarch64", python="3.12")) == "aarch64-py3.12"
    assert Platform.own().python == ".".join(map(str, sys.version_info[:2]))


def test_look_at_this_machine() -> None:
    found = host.detect()
    assert found.machine == platform.machine()
    assert found.load == ()
    assert "VIRTUAL_ENV" not in found.env
    assert found.platform == Platform(machine=found.machine, python=found.python.minor)


def test_cpu_target_is_a_name() -> None:
    assert host.cpu_target().replace("_", "").isalnum()


def test_writable_parent(tmp_path: Path) -> None:
    assert host.writable_parent(tmp_path / "a" / "b") == tmp_path
    (tmp_path / "file").touch()
    with pytest.raises(HostProblem, match="is a file, not a folder"):
        host.writable_parent(tmp_path / "file")


def test_cores() -> None:
    assert 1 <= host.cores() <= (os.cpu_count() or 1)
