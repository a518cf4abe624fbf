"""Failures that are made here, for real, and diagnosed from their logs, alone and in place."""

import gzip
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from envkit.machine import host
from envkit.system import resources

from .. import stacks as real
from .site import SYSTEM_PATH, TOYS, Site, needs
from .test_install_refusals import hidden, place

STACK = "pytorch-2.13-cpu"
NO_FRAMEWORK = {f"HOROVOD_WITHOUT_{name}": "1" for name in ("PYTORCH", "TENSORFLOW", "MXNET")}
NO_GLOO = {"HOROVOD_WITHOUT_GLOO": "1"}
pytestmark = pytest.mark.integration
Log = tuple[Path, Mapping[str, str]]


def attempt(log: Path, *argv: str | Path, status: int | None = None, env: Mapping[str, str]) -> Log:
    """Run a command, with both its outputs in a log; return the log and the variables it ran with."""
    given = {"HOME": str(log.parent), "PATH": SYSTEM_PATH, "LANG": "C.UTF-8", **env}
    with log.open("ab") as stream:
        ended = subprocess.run(argv, env=given, cwd=log.parent, stdout=stream, stderr=subprocess.STDOUT).returncode
    assert bool(ended) == (status != 0) and status in (None, ended), log.read_text()[-3000:]
    return log, given


def diagnosed(log: Path, *words: str, status: int = 0, env: Mapping[str, str] | None = None) -> Any:
    """Return the cause that ``envkit diagnose`` finds."""
    argv: list[str | Path] = [real.ENVKIT, "diagnose", "--json", *words, log]
    done = subprocess.run(argv, env=env, capture_output=True, text=True)
    assert done.returncode == status, f"{done.stdout}{done.stderr}{log.read_text()[-2000:]}"
    return json.loads(done.stdout)["cause"]


def expect(made: Log, wanted: str, *, line: str, alone: str = "confirmed", here: str = "confirmed") -> None:
    """Diagnose a log alone and in place: the same cause at the same line, as certain as it should be."""
    log, env = made
    for words, certainty in (((), alone), (("--here",), here)):
        found = diagnosed(log, *words, env=env)
        assert (found["id"], found["certainty"]) == (wanted, certainty)
        assert line.lower() in found["text"].lower()


@pytest.fixture(scope="module")
def stack(stacks: real.Site, installed: Callable[[str], str]) -> dict[str, Path]:
    """Folders of packages of a stack (of PyTorch, of Horovod), and its sources."""
    installed(STACK)
    horovod = Path(json.loads(stacks.envkit("show", STACK, "--json").stdout)["horovod"])
    [torch] = horovod.parents[5].glob("PyTorch/*/lib/python*/site-packages")
    return {"horovod": horovod, "torch": torch, "sources": stacks.prefix / "sources"}


@pytest.fixture(scope="module")
def python(stack: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Python with PyTorch and what building wheels needs, in a folder of its own."""
    folder = tmp_path_factory.mktemp("python") / "v"
    subprocess.run([sys.executable, "-m", "venv", folder], check=True)
    pip: list[str | Path] = [folder / "bin" / "pip", "install", "-q", "--no-index", "-f", stack["sources"]]
    subprocess.run([*pip, "setuptools", "wheel", "packaging"], check=True)
    [packages] = folder.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(f"{stack['torch']}\n")
    return folder / "bin" / "python"


@pytest.fixture(scope="module")
def source(stack: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Horovod 0.28.1 as it was published, unpacked."""
    folder = tmp_path_factory.mktemp("source")
    subprocess.run(["tar", "-xzf", stack["sources"] / "horovod-0.28.1.tar.gz", "-C", folder], check=True)
    return folder / "horovod-0.28.1"


def configure(log: Path, source: Path, python: Path, *before: str, cmake: str | Path = "cmake", **env: str) -> Log:
    """Configure Horovod as its setup.py does; what is to fail fails."""
    build = log.parent / "build"
    path = f"{python.parent}:{SYSTEM_PATH}"
    words = [*before, cmake, "-S", source, "-B", build, f"-DPYTHON_EXECUTABLE:FILEPATH={python}"]
    return attempt(log, *words, env={**env, "PATH": path})


def test_published_horovod_for_a_new_torch(tmp_path: Path, source: Path, python: Path) -> None:
    needs("cmake", "mpicxx", "g++", "make")
    log = tmp_path / "build.log"
    env = {**NO_FRAMEWORK, **NO_GLOO, "HOROVOD_WITH_PYTORCH": "1", "HOROVOD_WITHOUT_PYTORCH": "0"}
    env["PATH"] = f"{python.parent}:{SYSTEM_PATH}"
    words: list[str | Path] = [
        "-S",
        source,
        "-B",
        tmp_path / "b",
        f"-DPYTHON_EXECUTABLE={python}",
        "-DCMAKE_CXX_FLAGS=-Wfatal-errors",
    ]
    attempt(log, "cmake", *words, status=0, env=env)
    made = attempt(log, "make", "-C", tmp_path / "b" / "horovod" / "torch", "adapter_v2.o", env=env)
    expect(made, "cxx17", line="C++17 or later compatible compiler is required")
    assert diagnosed(log, env=made[1])["line"] < log.read_text().count("\n")

    alone = tmp_path / "errors.log"
    alone.write_text("".join(line for line in log.read_text().splitlines(keepends=True) if "error:" in line))
    expect((alone, made[1]), "cxx17", line="C++17 or later", alone="likely", here="confirmed")

    packed = tmp_path / "build.log.gz"
    packed.write_bytes(gzip.compress(log.read_bytes()))
    assert diagnosed(packed)["id"] == "cxx17"


def test_build_isolation_builds_nothing(tmp_path: Path, stack: dict[str, Path], python: Path) -> None:
    needs("cmake", "mpicxx", "g++")
    target, sources = tmp_path / "target", stack["sources"]
    words: list[str | Path] = [
        "--use-pep517",
        "--no-index",
        "-f",
        sources,
        "--no-deps",
        "--no-cache-dir",
        "--target",
        target,
    ]
    words += [sources / "horovod-0.28.1.tar.gz"]
    env = {"PATH": f"{python.parent}:{SYSTEM_PATH}", "PYTHONPATH": str(target), **NO_GLOO}
    made = attempt(tmp_path / "pip.log", python, "-m", "pip", "install", "-v", *words, status=0, env=env)
    assert not list(target.glob("horovod/*/mpi_lib*.so"))
    expect(made, "pip-isolation", line="Successfully installed horovod-0.28.1")

    quiet = tmp_path / "quiet.log"
    quiet.write_text("Processing horovod-0.28.1.tar.gz\nSuccessfully installed horovod-0.28.1\n")
    assert diagnosed(quiet, status=1, env=made[1]) is None
    assert diagnosed(quiet, "--here", env=made[1])["id"] == "nothing-built"


def test_no_cmake(tmp_path: Path, stack: dict[str, Path], python: Path) -> None:
    words: list[str | Path] = [
        "-v",
        "--no-index",
        "--no-build-isolation",
        "--no-deps",
        "--no-cache-dir",
        "--target",
        tmp_path / "t",
    ]
    words += [stack["sources"] / "horovod-0.28.1.tar.gz"]
    made = attempt(
        tmp_path / "pip.log",
        python,
        "-m",
        "pip",
        "install",
        *words,
        env={"PATH": str(python.parent), "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(stack["sources"])},
    )
    expect(made, "cmake-missing", line="CMake")


def test_cmake_4(tmp_path: Path, source: Path, python: Path) -> None:
    needs("mpicxx", "g++")
    pip: list[str | Path] = [
        python,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-deps",
        "--target",
        tmp_path / "cmake",
        "cmake>=4,<5",
    ]
    if subprocess.run(pip, capture_output=True).returncode:
        pytest.skip("the package index has no CMake 4")
    (tmp_path / "cmake" / "bin" / "cmake").unlink()
    (tmp_path / "cmake" / "bin" / "cmake").symlink_to(tmp_path / "cmake" / "cmake" / "data" / "bin" / "cmake")
    cmake = tmp_path / "cmake" / "cmake" / "data" / "bin" / "cmake"
    made = configure(tmp_path / "cmake.log", source, python, cmake=cmake, **NO_FRAMEWORK)
    expect(made, "cmake-4", line="Compatibility with CMake < 3.5 has been removed")


def test_no_mpicxx(tmp_path: Path, source: Path, python: Path) -> None:
    needs("cmake", "g++", "mpicxx")
    packages = f"/usr/lib/{os.uname().machine}-linux-gnu/pkgconfig"  # CMake asks pkg-config, too
    log, env = tmp_path / "cmake.log", {**NO_FRAMEWORK, **NO_GLOO, "HOROVOD_WITH_MPI": "1"}
    made = configure(log, source, python, *hidden(place("mpicxx"), packages), **env)
    expect((log, {**made[1], "PATH": str(python.parent)}), "mpi-not-found", line="Could NOT find MPI")


def test_no_nccl_header(tmp_path: Path, source: Path) -> None:
    needs("g++", "mpicxx")
    if Path("/usr/include/nccl.h").exists():
        pytest.skip("NCCL's header is installed")
    cuda = tmp_path / "cuda_runtime.h"
    cuda.touch()
    words = ["-std=c++17", "-DHAVE_NCCL=1", "-DHAVE_GPU=1", "-DHAVE_CUDA=1", f"-I{tmp_path}", f"-I{source}"]
    words += [f"-I{source}/third_party/{name}" for name in ("boost/assert/include", "flatbuffers/include")]
    operations = source / "horovod" / "common" / "ops" / "nccl_operations.cc"
    made = attempt(tmp_path / "make.log", "g++", *words, "-c", operations, "-o", tmp_path / "o", env={})
    expect(made, "nccl-header", line="nccl.h: No such file", alone="likely")


def test_wrong_checksum(tmp_path: Path) -> None:
    needs("eb", "lmod")
    shutil.copytree(TOYS, tmp_path / "toys")
    (tmp_path / "toys" / "toy.c").write_text("int main(void) { return 0; }\n")
    recipe = tmp_path / "toys" / "toy-base-1.0.eb"
    recipe.write_text(recipe.read_text().replace("/toy-sources", str(tmp_path / "toys")))
    tool = host.detect().modules_tool
    assert tool is not None
    env = {
        "LMOD_CMD": str(tool.command),
        "EASYBUILD_PREFIX": str(tmp_path / "prefix"),
        "EASYBUILD_ALLOW_USE_AS_ROOT_AND_ACCEPT_CONSEQUENCES": "1",
        "EB_SCRIPT_PATH": str(resources.easybuild_collection().parents[1] / "bin" / "eb"),
    }
    made = attempt(tmp_path / "eb.log", sys.executable, "-m", "easybuild.main", recipe, env=env)
    expect(made, "checksum", line="Checksum verification for")


def test_disk_full(tmp_path: Path) -> None:
    needs("mount", "g++")
    small = tmp_path / "small"
    small.mkdir()
    code = tmp_path / "big.cc"
    code.write_text("char big[4 << 20] = {1};\nint main() {}\n")
    script = 'mount -t tmpfs -o size=1m none "$1"; exec g++ "$2" -o "$1/big"'
    words: list[str | Path] = ["unshare", "--mount", "sh", "-ec", script, "sh", small, code]
    made = attempt(tmp_path / "make.log", *words, env={"TMPDIR": str(tmp_path)})
    expect(made, "disk-full", line="No space left on device")


def test_killed_compiler(tmp_path: Path) -> None:
    needs("g++")
    compiler = tmp_path / "cc1plus"
    compiler.write_text("#!/bin/sh\nkill -9 $$\n")
    compiler.chmod(0o755)
    (tmp_path / "x.cc").write_text("int main() {}\n")
    made = attempt(tmp_path / "make.log", "g++", f"-B{tmp_path}/", "-c", "x.cc", env={})
    expect(made, "out-of-memory", line="Killed signal terminated program cc1plus")


@pytest.fixture
def broken(tmp_path: Path, stack: dict[str, Path]) -> Path:
    """A copy of the Python part of Horovod, whose extension is to be broken; return the extension's place."""
    ignore = shutil.ignore_patterns("mpi_lib*")
    shutil.copytree(stack["horovod"], tmp_path / "lib" / "horovod", ignore=ignore, dirs_exist_ok=True)
    [extension] = stack["horovod"].glob("torch/mpi_lib_v2*.so")
    return tmp_path / "lib" / "horovod" / "torch" / extension.name


def imported(broken: Path, stack: dict[str, Path], words: Sequence[str | Path]) -> Log:
    """Import Horovod from the copy, which fails."""
    env = {
        "PYTHONPATH": f"{broken.parents[2]}:{stack['horovod'].parent}",
        "PATH": f"{Path(words[0]).parent}:{SYSTEM_PATH}",
    }
    return attempt(broken.parents[3] / "run.log", *words, env=env)


def test_truncated_extension(broken: Path, stack: dict[str, Path], python: Path) -> None:
    whole = (stack["horovod"] / "torch" / broken.name).read_bytes()
    broken.write_bytes(whole[:40])
    made = imported(broken, stack, [python, "-c", "import horovod.torch.mpi_lib_v2"])
    expect(made, "extension-cut", line="file too short")

    broken.write_bytes(whole[:100_000])
    made[0].unlink()
    script = f"{python} -c 'import horovod.torch.mpi_lib_v2'; exit $?"
    log, env = imported(broken, stack, ["bash", "-c", script])
    assert diagnosed(log, env=env)["id"] == "bus-error"
    here = diagnosed(log, "--here", env=env)
    assert (here["id"], here["certainty"]) == ("extension-cut-seen", "confirmed")
    assert f"100000 bytes instead of {len(whole)}" in here["confirmed"][0]


def test_other_framework_than_built_for(broken: Path, stack: dict[str, Path], python: Path) -> None:
    needs("gcc")
    code = broken.parents[3] / "stub.c"
    code.write_text(
        "extern void _ZN3c106detail4goneEv(void);\nvoid PyInit_mpi_lib_v2(void) { _ZN3c106detail4goneEv(); }\n"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-z,now", code, "-o", broken], check=True)
    metadata = broken.parents[1] / "metadata.json"
    words: list[str | Path] = [python, "-c", "import horovod.torch.mpi_ops"]
    made = imported(broken, stack, words)
    expect(made, "undefined-symbol", line="_ZN3c106detail4goneEv")
    assert "PyTorch" in diagnosed(made[0])["cause"]

    metadata.write_text(metadata.read_text().replace("2.13.0", "2.12.0"))
    made[0].unlink()
    made = imported(broken, stack, words)
    expect(made, "framework-changed", line="installed with version 2.12.0+cpu but found version 2.13.0+cpu")


def test_install_gives_the_same_cause(site: Site) -> None:
    if Path("/usr/include/nccl.h").exists():
        pytest.skip("NCCL's header is installed")
    site = site.own_recipes()
    recipe = site.recipe("toy-base")
    recipe.write_text(recipe.read_text().replace("gcc %%(source)s", "gcc -include nccl.h %%(source)s"))
    said = site.install("toy-base").expect(5).err
    assert "NCCL's header is not found where Horovod is built" in said
    assert "fatal error: nccl.h: No such file or directory" in said
    assert "What to do: export HOROVOD_NCCL_HOME=DIR" in said


def test_good_logs_have_no_finding(stacks: real.Site, installed: Callable[[str], str]) -> None:
    installed(STACK)
    trees = [tree for tree in stacks.prefix.iterdir() if (tree / "software").is_dir()]
    logs = [log for tree in trees for log in tree.glob("software/*/*/easybuild/easybuild-*.log*")]
    logs += stacks.prefix.glob("logs/*/eb.log")
    assert any("Horovod" in log.name for log in logs)
    for log in logs:
        assert diagnosed(log, status=1) is None, log
        assert diagnosed(log, "--here", status=1, env={**os.environ, "PATH": SYSTEM_PATH}) is None, log
