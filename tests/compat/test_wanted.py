"""What is asked for: words, ranges, toolchains, and what pip and modules tools print."""

import contextlib
import time
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.compat.evidence import known
from envkit.compat.judge import Verdict
from envkit.compat.wanted import Query, inside, judge_asked, of_file
from envkit.compat.wanted import parse as asked_for
from envkit.errors import UsageProblem

Output = pytest.CaptureFixture[str]


def parse(words: list[str]) -> dict[str, str]:
    asked = asked_for(words)
    assert asked.ranges == {}
    return asked.parts


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["PyTorch=2.13"], {"torch": "2.13"}),
        (["tf=2.15.1", "sm=9.0"], {"tensorflow": "2.15.1", "capability": "9.0"}),
        (["g++= 12.2", "arch=aarch64"], {"gcc": "12.2", "machine": "aarch64"}),
        (["torch=2.13.0+cpu"], {"torch": "2.13.0+cpu"}),
        (["torch=v2.01"], {"torch": "2.1"}),
        (["torch==2.13", "python == 3.11"], {"torch": "2.13", "python": "3.11"}),
        (["cu121", "torch=2.1"], {"cuda": "12.1", "torch": "2.1"}),
        (["cuda=cu118"], {"cuda": "11.8"}),
        (["torch=2.1.2+cu121"], {"torch": "2.1.2+cu121", "cuda": "12.1"}),
        (["foss=2023a"], {"gcc": "12.3.0", "openmpi": "4.1.5", "python": "3.11.3"}),
        (["foss=2023a", "gcc=12", "python=3.12"], {"gcc": "12.3.0", "openmpi": "4.1.5", "python": "3.12"}),
        (["intel=2023a"], {"impi": "2021.9.0", "python": "3.11.3"}),
        (["cuda=12.1", "cu121"], {"cuda": "12.1"}),
        (["torch==2.1.*"], {"torch": "2.1"}),
        (["torch=2.1", "pytorch=2.1.2"], {"torch": "2.1.2"}),
        (["torch=2.1.2+cu121", "cuda=12.4"], {"torch": "2.1.2+cu121", "cuda": "12.4"}),
        (["nvcc=12.4", "ompi=4.1"], {"cuda": "12.4", "openmpi": "4.1"}),
        (["impi=2021.9"], {"impi": "2021.9"}),
        (["gpu=H100", "arch=arm64"], {"capability": "9.0", "machine": "aarch64"}),
        (["gpu=sm_90a"], {"capability": "9.0"}),
        (["sm=120"], {"capability": "12.0"}),
        (["gpu=RTX 4090"], {"capability": "8.9"}),
        (["gpu=NVIDIA GeForce RTX 3080 Ti Laptop GPU"], {"capability": "8.6"}),
        (["gpu=RTX4070Ti"], {"capability": "8.9"}),
        (["gpu=NVIDIA A100-SXM4-80GB"], {"capability": "8.0"}),
        (["gpu=NVIDIA H100 80GB HBM3"], {"capability": "9.0"}),
        (["gpu=Tesla V100-SXM2-32GB"], {"capability": "7.0"}),
        (["gpu=NVIDIA RTX 6000 Ada Generation"], {"capability": "8.9"}),
        (["gpu=Quadro RTX 6000"], {"capability": "7.5"}),
        (["gpu=NVIDIA RTX PRO 6000 Blackwell Server Edition"], {"capability": "12.0"}),
        (["gpu=gh200"], {"capability": "9.0", "machine": "aarch64"}),
        (["capability=8.7"], {"capability": "8.7", "machine": "aarch64"}),
        (["gpu=AMD Instinct MI250X"], {"gfx": "gfx90a"}),
        (["gpu=gfx942"], {"gfx": "gfx942"}),
        (["driver=535.104.05"], {"driver": "535.104.5"}),
        (["os=ubuntu22.04"], {"glibc": "2.35"}),
        (["os=Ubuntu 22.04"], {"glibc": "2.35"}),
        (["os=rocky9.4"], {"glibc": "2.34"}),
        (["os=el8"], {"glibc": "2.28"}),
        (["os=trixie"], {"glibc": "2.41"}),
        (["os=sles15-sp5"], {"glibc": "2.31"}),
        (["glibc=2.17"], {"glibc": "2.17"}),
        (["capability=8.6"], {"capability": "8.6"}),
        ([], {}),
    ],
)
def test_how_versions_are_written(words: list[str], expected: dict[str, str]) -> None:
    assert parse(words) == expected


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["trch=2"], "There is no component 'trch'. Did you mean 'torch'?", "torch=2.13"),
        (["torch=2.1", "pytorch=2.2"], "PyTorch is asked for twice: 2.1 and 2.2.", "one of them"),
        (["cuda=12.1", "cu118"], "CUDA is asked for twice: 12.1 and 11.8.", "one of them"),
        (["torch=2.1.2+cu118", "cuda=12.1"], "CUDA is asked for twice: 12.1 and 11.8 (torch=2.1.2+cu118).", "one"),
        (["foss=2023a", "gcc=11"], "GCC is asked for twice: 12.3.0 and 11.", "one of them"),
        (["gcc=11", "foss=2023a"], "GCC is asked for twice: 11 and 12.3.0 (foss=2023a).", "one of them"),
        (["foss=2099a"], "No toolchain foss=2099a is known.", "2023a"),
        (["gpu=voodoo"], "gpu=voodoo: no GPU of that name is known.", "nvidia-smi"),
        (["gpu=RTX 6000"], "gpu=RTX 6000: no GPU of that name is known, or several are.", "capability=9.0"),
        (["os=beos5"], "os=beos5: envkit does not know its glibc.", "ldd --version"),
        (["os=ubuntu21.04"], "os=ubuntu21.04: envkit does not know its glibc.", "glibc=VERSION"),
        (["gpu=gh200", "machine=x86_64"], "machine type is asked for twice: aarch64 and x86_64.", "one of them"),
        (["torch>=2.1", "torch=2.0"], "PyTorch is asked for twice: 2.0 and >=2.1.", "one of them"),
        (["torch<2", "torch>=2.0"], "PyTorch is asked for twice: <2 and >=2.0.", "one of them"),
        (["torch>2", "torch<2"], "PyTorch is asked for twice: >2 and <2.", "one of them"),
        (["torch>=2.1,<2.3", "pytorch>2.4"], "PyTorch is asked for twice: >=2.1,<2.3 and >2.4.", "one of them"),
        (["torch<2.3", "torch=2.3.0"], "PyTorch is asked for twice: 2.3.0 and <2.3.", "one of them"),
        (["torch<1.13", "torch==2.*"], "PyTorch is asked for twice: 2 and <1.13.", "one of them"),
        (["torch>=9"], "torch>=9: no release of PyTorch is in it.", "2.0-2.15"),
        (["torch>=2,,<3"], "torch>=2,,<3: this is no range of versions.", "torch>=2.1,<2.3"),
        (["torch>=2,===2.1"], "torch>=2,===2.1: this is no range of versions.", "torch>=2.1,<2.3"),
        (["torch>=2,===x"], "torch>=2,===x: this is no range of versions.", "torch>=2.1,<2.3"),
        (["torch=,<3"], "torch==,<3: this is no range of versions.", "torch>=2.1,<2.3"),
        (["torch>=x"], "torch>=x: this is no range of versions.", "torch>=2.1,<2.3"),
        (["cmake>=3.13"], "A range of CMake cannot be judged: envkit has no list of its releases.", "one version"),
        (["xyzzy=1"], "There is no component 'xyzzy'.", "torch=2.13"),
        (["mpi=1"], "There is no component 'mpi'.", "torch=2.13"),
        (["torch"], "'torch' has no version.", "torch=VERSION"),
        (["torch="], "'torch=' has no version.", "torch=VERSION"),
        (["torch=new"], "torch=new: 'new' is no version.", "numbers with dots"),
        (["torch=1!2.0"], "torch=1!2.0: '1!2.0' is no version.", "numbers with dots"),
        (["machine=z80"], "machine=z80: 'z80' is none.", "x86_64, aarch64, ppc64le"),
    ],
)
def test_what_cannot_be_understood(words: list[str], what: str, fix: str) -> None:
    with pytest.raises(UsageProblem) as refused:
        asked_for(words)
    assert refused.value.what == what
    assert fix in refused.value.fix
    assert "component" not in what or all(name in refused.value.why for name in known().component)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("torch>=9", "torch>=9: no release of PyTorch is in it."),
        ("cmake>=3.13", "A range of CMake cannot be judged: envkit has no list of its releases."),
        ("torch==new", "torch=new: 'new' is no version."),
    ],
)
def test_what_cannot_be_understood_in_a_file_is_said_with_its_line(line: str, what: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(f"horovod==0.28.1\n{line}\n")
    with pytest.raises(UsageProblem) as refused:
        asked_for(of_file(file))
    assert refused.value.what == f"{file}:2: {what}"


def test_a_file_in_the_place_of_a_version(tmp_path: Path) -> None:
    file = tmp_path / "my requirements.txt"
    file.write_text("torch==2.13.0\n")
    with pytest.raises(UsageProblem) as refused:
        asked_for([str(file)])
    assert refused.value.fix == f"Read it: envkit compat --from '{file}'"


def test_versions_without_end(tmp_path: Path, capsys: Output) -> None:
    endless = "1" * 5000
    for name in ("torch", "cuda", "glibc"):
        with pytest.raises(UsageProblem, match="is no version"):
            asked_for([f"{name}={endless}"])
    with pytest.raises(UsageProblem, match="this is no range of versions"):
        asked_for([f"torch<{endless}"])
    for line, said in (
        (f"torch=={endless}", "is no version."),
        (f"torch @ https://x/torch-{endless}-py3-none-any.whl", "which version it is, this does not say."),
    ):
        (tmp_path / "file").write_text(f"{line}\n")
        assert run(["compat", "--from", str(tmp_path / "file")]) == 2
        assert said in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("words", "parts", "ranges"),
    [
        (["torch>=2.1,<2.3"], {}, {"torch": ">=2.1,<2.3"}),
        (["torch~=2.1", "gcc=12"], {"gcc": "12"}, {"torch": "~=2.1"}),
        (["torch=>2"], {}, None),
        (["torch>=2.1", "torch=2.13"], {"torch": "2.13"}, {}),
        (["torch != 2.13"], {}, {"torch": "!=2.13"}),
        (["torch>=2.1, <2.3,"], {}, {"torch": ">=2.1, <2.3"}),
        (["torch>=2.1", "torch<2.3"], {}, {"torch": ">=2.1,<2.3"}),
        (["torch>=2.1,<2.3", "torch<2.3"], {}, {"torch": ">=2.1,<2.3"}),
        (["torch>=2.1.1", "torch<2.1.3"], {}, {"torch": ">=2.1.1,<2.1.3"}),
        (["torch>2.1.1", "torch=2.1", "torch<2.1.3"], {"torch": "2.1"}, {}),
        (["torch=2", "torch>2.1,<2.3"], {}, {"torch": ">2.1,<2.3,==2.*"}),
        (["horovod<0.28.1", "horovod=0.28"], {}, {"horovod": "<0.28.1,==0.28.*"}),
        (["horovod>=0.28", "horovod=0.28+own"], {"horovod": "0.28+own"}, {}),
        (["gcc>12.2.1", "gcc=12.2"], {"gcc": "12.2"}, {}),
        (["gcc>12.1,<12.3", "gcc=12"], {"gcc": "12"}, {}),
        (["torch>=2.1", "torch=2.14.0rc1"], {"torch": "2.14.0rc1"}, {}),
        (["foss=2023a", "python>=3.12"], {"gcc": "12.3.0", "openmpi": "4.1.5"}, {"python": ">=3.12"}),
    ],
)
def test_ranges(words: list[str], parts: dict[str, str], ranges: dict[str, str] | None) -> None:
    if ranges is None:
        with pytest.raises(UsageProblem):
            asked_for(words)
    else:
        assert asked_for(words) == Query(parts=parts, ranges=ranges)


def test_which_releases_are_in_a_range() -> None:
    assert inside("torch", ">=2.1,<2.3") == ["2.2", "2.1"]
    assert inside("torch", "<=1.0") == ["1.0", "0.4", "0.3", "0.2", "0.1"]
    assert inside("torch", "~=2.12.1") == ["2.12"]
    assert inside("gcc", ">=14") == ["16", "15", "14"]
    assert inside("horovod", ">0.27") == ["0.28.1", "0.28.0"]
    assert inside("cuda", ">=12.6,<13") == ["12.9", "12.8", "12.6"]


@pytest.mark.parametrize(
    ("words", "verdict", "name", "version"),
    [
        (["torch>=2.1,<2.14", "python=3.11"], "works", "torch", "2.13.0"),
        (["torch<2.1", "python=3.8"], "works", "torch", "2.0.1"),
        (["torch>=1.5", "python=3.10"], "works", "torch", "2.12"),
        (["torch<2.1", "python=3.12"], "fails", "torch", "2.0"),
        (["torch>=2.14"], "unknown", "torch", "2.15"),
        (["python>=3.9,<3.12", "torch=2.13"], "works", "python", "3.11"),
        (["cuda>=12", "capability=3.7"], "fails", "cuda", "13.0"),
    ],
)
def test_of_a_range_the_version_that_goes_best(words: list[str], verdict: str, name: str, version: str) -> None:
    found = judge_asked(asked_for(words))
    assert (found.verdict.value, found.parts[name]) == (verdict, version)


def test_two_ranges_of_one_thing_are_joined_in_any_order(tmp_path: Path, capsys: Output) -> None:
    for words in (["torch<2", "torch>1.9"], ["torch>1.9", "torch<2"]):
        assert judge_asked(asked_for(words)) == judge_asked(asked_for(["torch>1.9,<2"]))
    (tmp_path / "file").write_text("torch>2\ntorch<2\n")
    assert run(["compat", "--from", str(tmp_path / "file")]) == 2
    assert "asked for twice: >2 and <2" in capsys.readouterr().err


def test_a_file_of_ranges_without_end() -> None:
    before = time.process_time()
    with pytest.raises(UsageProblem, match="more than 50 conditions"):
        asked_for(f"torch!=1.{number}" for number in range(500, 5000))
    with pytest.raises(UsageProblem, match="more than 50 conditions"):
        asked_for(["torch" + ",".join(f"!=1.{number}" for number in range(500, 5000))])
    assert time.process_time() - before < 2


def test_ranges_that_are_too_wide() -> None:
    with pytest.raises(UsageProblem, match="combinations") as refused:
        judge_asked(asked_for(["torch>=0.1", "tensorflow>=1.0", "python>=3.0", "numpy>=2.0"]))
    assert "Narrow them" in refused.value.fix


def test_wide_ranges_are_not_too_wide_where_somebody_had_what_is_in_them() -> None:
    found = judge_asked(asked_for(["torch>=0.1", "python>=3.0", "horovod>=0.18"]))
    assert found.verdict is Verdict.WORKS
    assert found.parts.keys() == {"torch", "python", "horovod"}


def test_what_is_said_of_a_range(capsys: Output) -> None:
    assert run(["compat", "torch>=2.1,<2.14", "python=3.11"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "of PyTorch >=2.1,<2.14: judged is 2.13.0, the newest in it that is known to work with the rest" in said
    run(["compat", "torch<2.1", "python=3.12", "--json"])
    assert '"torch": "<2.1"' in capsys.readouterr().out


FREEZE = """\
# of an environment
certifi==2024.2.2
horovod==0.28.1
numpy==1.26.4
nvidia-cudnn-cu12==8.9.2.26
nvidia-cuda-runtime-cu12==12.1.105
nvidia_nccl_cu12==2.18.1
torch==2.1.2
-e git+https://example.org/own.git#egg=own
"""
MODULES = """\
Currently Loaded Modules:
  1) GCCcore/12.3.0                 4) OpenMPI/4.1.5-GCC-12.3.0
  2) zlib/1.2.13-GCCcore-12.3.0     5) foss/2023a
  3) Python/3.11.3-GCCcore-12.3.0   6) PyTorch/2.1.2-foss-2023a-CUDA-12.1.1
"""


SITE = """\
Currently Loaded Modulefiles:
 1) gcc/12.2.0(default)   3) openmpi/5.0.3       5) zlib/1.2.13
 2) cuda/12.4.1 <aL>      4) python/3.11.6       6) pytorch/2.1.2-cuda
"""
CRAY = """\
Currently Loaded Modulefiles:
 1) craype-x86-rome         4) cray-mpich/8.1.27   7) PrgEnv-gnu/8.4.0
 2) libfabric/1.15.2.0      5) cudatoolkit/12.2    8) gcc-native/12.3
 3) PrgEnv-gnu              6) cray-python/3.11.5  9) rocm/5.7.1
"""
MIXED = {"gcc": "12.2.0", "cudnn": "8.9.2.26", "impi": "2021.9.0", "openmpi": "4.1.4", "python": "3.10.8"}
BY_EASYBUILD = """\
horovod @ file:///home/me/.local/share/envkit/build/Horovod/0.28.1/gompi-system-PyTorch-2.13.0/horovod/horovod-0.28.1
numpy==2.2.6
torch @ file:///home/me/.local/share/envkit/sources/torch-2.13.0%2Bcpu-cp311-cp311-manylinux_2_28_x86_64.whl#sha256=00
"""
TORCH_NUMPY = {"torch": "2.13.0", "numpy": "1.26.4"}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            FREEZE,
            {
                "horovod": "0.28.1",
                "numpy": "1.26.4",
                "cudnn": "8.9.2.26",
                "cuda": "12.1.105",
                "nccl": "2.18.1",
                "torch": "2.1.2",
            },
        ),
        (MODULES, {"gcc": "12.3.0", "openmpi": "4.1.5", "python": "3.11.3", "torch": "2.1.2"}),
        (SITE, {"gcc": "12.2.0", "cuda": "12.4.1", "openmpi": "5.0.3", "python": "3.11.6", "torch": "2.1.2"}),
        (CRAY, {"cray-mpich": "8.1.27", "cuda": "12.2", "gcc": "12.3", "python": "3.11.5", "rocm": "5.7.1"}),
        ("gcc/12.2.0 GCCcore/12.2.0 cudnn/8.9.2.26-cuda12 impi/2021.9.0 FOSS/2022b", MIXED),
        ("arch/9 gpu/1.0 cmake/3.27 pip/24.0 opt/gcc/12.2.0 nccl/2.18.1\n", {"nccl": "2.18.1"}),
        ("Package Version\n------- -------\ntorch   2.13.0\npip     26.1\n", {"torch": "2.13.0", "pip": "26.1"}),
        ("numpy  1.26.4  py311h64a7726_0  conda-forge\n", {"numpy": "1.26.4"}),
        (
            "py==1.11.0\narch==5.3\ntorch==2.13.0\ngpu @ https://example.org/gpu-1.0-py3-none-any.whl",
            {"torch": "2.13.0"},
        ),
        ("torch[opt] == 2.13.0 \\\n    --hash=sha256:00\n", {"torch": "2.13.0"}),
        (
            "torch @ https://example.org/whl/torch-2.1.2%2Bcu121-cp311-cp311-linux_x86_64.whl#sha256=00",
            {"torch": "2.1.2+cu121", "python": "3.11", "cuda": "12.1"},
        ),
        ("\ufefftorch==1.14.0\n", {"torch": "1.14.0"}),
        ("to\\\nrch==1.14.0\n", {"torch": "1.14.0"}),
        ("torch \\\n  --hash=sha256:00\nnumpy==1.26.4\n".replace("torch", "torch==2.13.0"), TORCH_NUMPY),
        ("torch==2.13.0\t--hash=sha256:00\nnumpy (==1.26.4)\n", TORCH_NUMPY),
        ("numpy==1.26.4\ntorch==2.13.0 \\", TORCH_NUMPY),
        ("# numpy \\\ntorch==2.13.0\nnumpy==1.26.4", TORCH_NUMPY),
        ("./torch-2.13.0-cp311-none-any.whl\n", {"torch": "2.13.0", "python": "3.11"}),
        ("-e ./torch-2.13.0-cp311-none-any.whl[opt]\n", {"torch": "2.13.0", "python": "3.11"}),
        ("torch-2.13.0-py3-none-any.whl --hash=sha256:00\n", {"torch": "2.13.0"}),
        (
            "https://example.org/whl/2/torch-1.14.0%2Bcpu-cp310-cp310-linux_x86_64.whl#sha256=00\n",
            {"torch": "1.14.0+cpu", "python": "3.10"},
        ),
        ("https://example.org/horovod-0.28.1.tar.gz\n", {"horovod": "0.28.1"}),
        ("https://example.org/mpich-5.0-py3-none-any.whl\n", {"mpich": "5.0"}),
        ("https://example.org/mpich-5.0\npip==26.1", {"pip": "26.1"}),
        (BY_EASYBUILD, {"horovod": "0.28.1", "torch": "2.13.0+cpu", "python": "3.11", "numpy": "2.2.6"}),
        ("horovod @ file:///sources/horovod-0.28.1/#egg=horovod\n", {"horovod": "0.28.1"}),
        ("-e ../horovod-0.28.1\n", {"horovod": "0.28.1"}),
        ("# Editable install with no version control (torch==1.14.0)\n-e /home/me/torch\n", {"torch": "1.14.0"}),
        ("# Editable Git install with no remote (own==1.0)\n-e /home/me/torch\npip==26.1", {"pip": "26.1"}),
        ("./other-2.13.0-py3-none-any.whl\n-e .\n-e /home/me/python\npip==26.1", {"pip": "26.1"}),
    ],
)
def test_what_tools_print(text: str, expected: dict[str, str], tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert parse(of_file(file)) == expected


def test_an_environment_file_of_conda(tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "environment.yml"
    file.write_text("name: x\ndependencies:\n  - pytorch=1.7\n  - python=3.8\n")
    assert run(["compat", "--from", str(file)]) == 2
    assert "give what 'conda list' prints" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("torch\n", ":1: torch has no version"),
        ("# x\ntorch==2.1; python_version < '3.12'\n", ":2: torch depends on python_version < '3.12'"),
        ("torch @ git+https://example.org/torch.git\n", ":1: torch comes from git+https://example.org/torch.git"),
        (
            "-e git+https://github.com/pytorch/pytorch@v2.1#egg=torch\n",
            ":1: torch comes from git+https://github.com/pytorch/pytorch@v2.1#egg=torch: which version it is",
        ),
        ("-e git+ssh://git@example.org/me/pytorch.git@fix/x\n", ":1: pytorch comes from git+ssh:"),
        ("--editable=git+https://example.org/x#subdirectory=y&egg=torch\n", ":1: torch comes from git+https:"),
        ("git+https://github.com/horovod/horovod.git@v0.28.1\n", ":1: horovod comes from git+https:"),
        ("pip==26.1\n-e /home/me/torch/\n", ":2: torch comes from /home/me/torch/"),
        ("horovod @ file:///home/me/horovod\n", ":1: horovod comes from file:///home/me/horovod: which version"),
        ("horovod @ file:///home/me/torch-2.13.0\n", ":1: horovod comes from file:///home/me/torch-2.13.0: which"),
        ("horovod @ https://example.org/horovod-0.28.1\n", ":1: horovod comes from https://example.org/horovod"),
        ("./torch\n", ":1: torch comes from ./torch"),
        ("# x\n\\\nto\\\nrch\n", ":2: torch has no version"),
        ("torch \\\n --hash=sha256:00\n", ":1: torch has no version"),
        ("./torch-2.13.0-cp311.whl\n", ":1: torch comes from ./torch-2.13.0-cp311.whl"),
        ("./torch-2.13.0-py3-none-any.whl ; python_version < '3.12'\n", ":1: torch depends on python_version"),
        ("torch @ https://x/torch-2.13.0-py3-none-any.whl ; os_name == 'nt'\n", ":1: torch depends on os_name"),
        ("torch @ https://example.org/other-2.1-py3-none-any.whl\n", ":1: torch comes from https://example.org"),
        ("torch@https://example.org/v2.1.zip", ":1: torch comes from https://example.org/v2.1.zip"),
        ("https://example.org/horovod/horovod/archive/v0.28.1.tar.gz", ":1: horovod comes from https:"),
        ("-rother.txt\n", ":1: '-rother.txt' names another file"),
        ("-r other.txt\n", ":1: '-r other.txt' names another file"),
        ("pandas==2.0\n", "names nothing that envkit compat knows"),
        ("", "names nothing that envkit compat knows"),
    ],
)
def test_files_that_do_not_say_which_version(text: str, what: str, tmp_path: Path, capsys: Output) -> None:
    file = tmp_path / "file"
    file.write_text(text)
    assert run(["compat", "--from", str(file)]) == 2
    assert what in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("torch @ git+https://ada:hunter2@host/torch", "torch comes from git+https://***@host/torch"),
        ("-e git+https://ada:hunter2@host/torch.git@v2#egg=torch", "comes from git+https://***@host/torch.git@v2#egg"),
        ("https://ada:hunter2@host/x#egg=torch", "torch comes from https://***@host/x#egg=torch"),
        ("-r https://ada:hunter2@host/r.txt", "'-r https://***@host/r.txt' names another file"),
        ("torch==2.1@https://ada:hunter2@host/x", "is no version"),
    ],
)
def test_no_password_of_an_address_is_shown(text: str, what: str, tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "file").write_text(text)
    assert run(["compat", "--from", str(tmp_path / "file")]) == 2
    said = " ".join(capsys.readouterr().err.split())
    assert what in said and "hunter2" not in said and "ada" not in said


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("torch==2.1\npip==26.1\ntorch==2.2\n", "PyTorch is asked for twice: 2.1 and 2.2 (FILE:3)."),
        ("torch>=2.1\n\ntorch<2.1\n", "PyTorch is asked for twice: >=2.1 and <2.1 (FILE:3)."),
        ("torch>=2.1\ntorch==2.0\n", "PyTorch is asked for twice: 2.0 and >=2.1 (FILE:2)."),
        ("gcc/11.3.0\nfoss/2023a\n", "GCC is asked for twice: 11.3.0 and 12.3.0 (foss=2023a, FILE:2)."),
    ],
)
def test_a_file_that_contradicts_itself(text: str, what: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(UsageProblem) as refused:
        asked_for(of_file(tmp_path / "file"))
    assert refused.value.what.replace(str(tmp_path / "file"), "FILE") == what


def test_files_that_cannot_be_read(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\x00")
    for name in ("none", "binary", "."):
        assert run(["compat", "--from", str(tmp_path / name)]) == 2
        assert "cannot be read" in capsys.readouterr().err


@pytest.mark.integration
@pytest.mark.parametrize(
    "text",
    [
        "a-" * 400_000,
        "torch==1" + " " * 900_000 + "x",
        "a/" * 400_000,
        "torch" + "[" * 900_000,
        "./" + "[" * 900_000,
        "-e " + "/archive/" * 100_000,
        ".whl[" * 190_000,
        "-e " + "#egg=" * 190_000,
        "# Editable (" + "a=" * 400_000,
        "\\\n" * 400_000,
        "-e x #" + " ;" * 400_000,
        "./torch" + " --" * 300_000 + " ;" * 10,
        "./torch-" + "-1" * 400_000 + ".whl",
    ],
    ids=range(13),
)
def test_a_file_takes_a_time_that_grows_as_it_does(text: str, tmp_path: Path) -> None:
    (tmp_path / "file").write_text(text)
    before = time.process_time()
    with contextlib.suppress(UsageProblem):
        of_file(tmp_path / "file")
    assert time.process_time() - before < 2


def test_a_file_that_is_too_large(tmp_path: Path, capsys: Output) -> None:
    (tmp_path / "file").write_text("torch==2.13\n" * 100_000)
    assert run(["compat", "--from", str(tmp_path / "file")]) == 2
    assert "larger than 1 MB" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("wanted", "label", "said"),
    [
        ("torch>=2.11", "best ", "PyTorch 2.13.0"),
        (
            "torch>=2.1,<2.3",
            "nearest ",
            "PyTorch 2.13.0 is not in >=2.1,<2.3, of which no way to install one",
        ),
        ("torch>=2.12,<2.13.5", "best ", "PyTorch 2.13.0"),
    ],
)
def test_the_best_is_in_the_range_or_it_is_said(wanted: str, label: str, said: str, capsys: Output) -> None:
    """What goes best of a range may be another of its versions than the one of a complete combination."""
    run(["compat", wanted])
    [best] = [part for part in capsys.readouterr().out.split("\n\n") if part.startswith(label)]
    assert said in " ".join(best.split())


@pytest.mark.parametrize(
    "words", ["torch=2.13+rocm6.4 gpu=h100", "torch=2.13+cpu cuda=13", "torch=2.13+cpu driver=580.65"]
)
def test_a_build_without_cuda_goes_with_nothing_of_cuda(words: str) -> None:
    with pytest.raises(UsageProblem, match="has no CUDA"):
        asked_for(words.split())


def test_a_build_for_rocm_is_one_for_rocm() -> None:
    assert asked_for(["torch=2.13+rocm6.4"]).parts["rocm"] == "6.4"


def test_the_cuda_that_a_build_names() -> None:
    assert asked_for(["torch=2.1.2+cu121"]).parts["cuda"] == "12.1"
    assert asked_for(["torch=2.1.2+cu12"]).parts["cuda"] == "12"
    with pytest.raises(UsageProblem):
        asked_for(["torch=2.1.2+cu1"])
