"""The main job, for real: each stack is built by the real eb, verified on two ranks, and used."""

import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.easybuild import eb_command
from envkit.environments.prefix import Prefix
from envkit.machine import host
from envkit.planning.stack import select
from envkit.system.resources import recipes

from ..stacks import BUILD_S, ENVKIT, Site

SCRIPTS = Path(__file__).parent / "scripts"
STACKS = {
    "pytorch-2.13-cpu": ("torch", "PyTorch"),
    "tensorflow-2.21-cpu": ("tensorflow", "TensorFlow"),
    "tensorflow-2.15-cpu": ("tensorflow", "TensorFlow"),
}
SELDOM = "tensorflow-2.15-cpu"  # test_built.py has it built and verified when it has changed
SELDOM_GROUP = pytest.mark.xdist_group("tensorflow-2-15")  # two tests build it with --all, and one of them anew
CASES = [pytest.param(name, marks=[pytest.mark.all, SELDOM_GROUP] if name == SELDOM else []) for name in STACKS]
TENSORFLOW = [case for case in CASES if str(case.values[0]).startswith("tensorflow")]
# TensorFlow 2.15 has the legacy Keras itself, and no tf_keras, which TF_USE_LEGACY_KERAS=1 asks for.
KERAS = [
    pytest.param(*case.values, legacy, marks=case.marks)
    for case in TENSORFLOW
    for legacy in ("0", "1")
    if (case.values[0], legacy) != (SELDOM, "1")
]

pytestmark = pytest.mark.integration


@pytest.mark.builds
@pytest.mark.parametrize("stack", CASES)
def test_install_ends_with_a_verdict(stack: str, stacks: Site, installed: Callable[[str], str]) -> None:
    said = installed(stack)
    assert f"PASS  {stack}: 2 ranks" in said
    assert f"Installed {stack}." in said
    [line] = re.findall(r"In this shell: (.+)", said)
    told = stacks.envkit("run", stack, "--", "printenv", "EBROOTHOROVOD").stdout
    entered = subprocess.run(
        ["bash", "--norc", "-c", f"{line}; printenv EBROOTHOROVOD"], capture_output=True, text=True, timeout=300,
        env={**os.environ, "ENVKIT_PREFIX": str(stacks.prefix)}, check=False,
    )  # fmt: skip
    assert told and entered.stdout == told, entered.stderr
    again = stacks.envkit("install", stack)
    assert again.returncode == 0
    assert "Nothing to do." in again.stdout
    listed = json.loads(stacks.envkit("list", "--json").stdout)
    states = {entry["name"]: entry["state"] for entry in listed["environments"]}
    assert states[stack].startswith("installed")


@pytest.mark.parametrize("stack", CASES)
def test_verify_tells_the_truth(stack: str, stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    """Whatever the user's keras.json says of numbers."""
    installed(stack)
    (tmp_path / "keras.json").write_text('{"floatx": "float16"}')
    package, _ = STACKS[stack]
    of_a_busy_machine = {("rank-late", "warn"), ("message-sizes", "warn")}
    for _ in range(4):
        done = stacks.envkit("verify", stack, "-n", "2", "--json", env={"KERAS_HOME": str(tmp_path)})
        report = json.loads(done.stdout)
        wrong = [result for result in report["results"] if result["status"] in ("fail", "warn")]
        if not wrong or {(result["id"], result["status"]) for result in wrong} - of_a_busy_machine:
            break
    assert (done.returncode, report["verdict"], wrong) == (0, "pass", [])
    assert sorted((rank["rank"], rank["size"]) for rank in report["ranks"]) == [(0, 2), (1, 2)]
    passed = {result["id"] for result in report["results"] if result["status"] == "pass"}
    training = {"training-truth-torch"} if package == "torch" else {"training-truth-tensorflow", "training-truth-keras"}
    assert {"allreduce", "broadcast", "flags-agree", "mpi-threads", "world-size", *training} <= passed
    types = next(result["message"] for result in report["results"] if result["id"] == "message-sizes")
    assert ("not there: bfloat16" in types) == (package == "tensorflow"), types
    flags = report["frameworks"][0]["flags"]
    assert {name: bool(value) for name, value in flags.items()} == {
        "rocm": False, "cuda": False, "nccl": False, "mpi": True, "gloo": True, "ddl": False, "ccl": False,
    }  # fmt: skip


@pytest.mark.parametrize("stack", CASES)
def test_verify_fails_for_a_flag_that_is_not_built(stack: str, stacks: Site, installed: Callable[[str], str]) -> None:
    installed(stack)
    done = stacks.envkit("verify", stack, "--require", "nccl")
    assert done.returncode == 1
    assert done.stdout.startswith("FAIL")
    assert "nccl" in done.stdout


@pytest.mark.parametrize("stack", CASES)
def test_check_build_is_the_block_of_horovodrun_but_true(
    stack: str, stacks: Site, installed: Callable[[str], str]
) -> None:
    installed(stack)
    package, title = STACKS[stack]
    ours = stacks.envkit("check-build", stack)
    theirs = stacks.envkit("run", stack, "--", "horovodrun", "--check-build")
    assert ours.returncode == 0
    assert f"[X] {title}" in ours.stdout
    true = theirs.stdout if package == "torch" else theirs.stdout.replace("[X] PyTorch", "[ ] PyTorch")
    assert ours.stdout.rstrip() == true.rstrip()


def test_check_build_says_when_an_extension_is_missing(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed("pytorch-2.13-cpu")
    receipt = json.loads(stacks.envkit("show", "pytorch-2.13-cpu", "--json").stdout)
    whole = Path(receipt["horovod"], "torch")
    without = shutil.copytree(whole, tmp_path / "torch", ignore=shutil.ignore_patterns("mpi_lib_v2*.so"))
    block = stacks.envkit("check-build", "pytorch-2.13-cpu", instead={whole: without})
    verdict = stacks.envkit("verify", "pytorch-2.13-cpu", instead={whole: without})
    assert block.returncode == 1
    assert "[ ] PyTorch" in block.stdout
    assert verdict.returncode == 1
    assert "extension-present" in verdict.stdout


def test_what_has_changed_since_the_installation_is_named(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed("pytorch-2.13-cpu")
    receipt = json.loads(stacks.envkit("show", "pytorch-2.13-cpu", "--json").stdout)
    file = Path(receipt["horovod"], "torch", "functions.py")
    record = next(Path(receipt["site_packages"][0]).glob("cloudpickle-*.dist-info/RECORD"))
    changed, by_pip, other_times = (tmp_path / name for name in ("functions.py", "RECORD", "other_times.py"))
    changed.write_bytes(file.read_bytes() + b"\n# by hand\n")
    by_pip.write_bytes(record.read_bytes() + b"by/pip.py,,\n")
    other_times.write_bytes(file.read_bytes())
    done = stacks.envkit("verify", "pytorch-2.13-cpu", "--json", instead={file: changed, record: by_pip})
    drift = [result for result in json.loads(done.stdout)["results"] if result["id"] == "drift"]
    assert (done.returncode, [result["status"] for result in drift]) == (1, ["fail", "warn"])
    assert str(file.relative_to(receipt["tree"])) in drift[0]["message"]
    assert record.parent.name.removesuffix(".dist-info") in drift[1]["message"]
    again = json.loads(stacks.envkit("verify", "pytorch-2.13-cpu", "--json", instead={file: other_times}).stdout)
    assert [result["status"] for result in again["results"] if result["id"] == "drift"] == ["pass"]


def test_a_script_that_nobody_prepared_for(stacks: Site, installed: Callable[[str], str]) -> None:
    installed("pytorch-2.13-cpu")
    done = stacks.envkit("run", "pytorch-2.13-cpu", "-n", "2", "--", "python", str(SCRIPTS / "train.py"))
    assert done.returncode == 0, done.stderr
    told = re.findall(r"\d of \d: \[[^]]*\]", done.stdout)  # mpirun may put the lines of two ranks on one
    assert sorted(told) == ["0 of 2: [0.0, 3.0, 6.0, 9.0]", "1 of 2: [0.0, 3.0, 6.0, 9.0]"]


def test_a_rank_may_use_its_share_of_the_cores_and_is_not_bound(stacks: Site, installed: Callable[[str], str]) -> None:
    installed("pytorch-2.13-cpu")
    said = "import os, torch; print(len(os.sched_getaffinity(0)), torch.get_num_threads())"
    done = stacks.envkit("run", "pytorch-2.13-cpu", "-n", "2", "--", "python", "-c", said)
    share = f"{host.cores()} {max(1, host.physical_cores() // 2)}"
    assert (done.returncode, done.stdout.splitlines()) == (0, [share, share]), done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh"])
def test_without_envkit_as_the_page_says(shell: str, stacks: Site, installed: Callable[[str], str]) -> None:
    """By the commands of docs/modules.md, which 'envkit show' has, after Lmod's own start of the shell."""
    installed("pytorch-2.13-cpu")
    shown = stacks.envkit("show", "pytorch-2.13-cpu").stdout
    [hand] = re.findall(r"By hand: +(module use .+)", shown)
    page = (Path(__file__).parents[2] / "docs/modules.md").read_text()
    assert [re.sub(r" \S+/modules/all", " DIR", line) for line in hand.split(" && ")] == [
        re.sub(r" \S+/modules/all", " DIR", line) for line in re.findall(r"^\$ (module \S+ \S+)$", page, re.MULTILINE)
    ]
    lines = [
        "set -e",
        ". /usr/share/lmod/lmod/init/$0",
        "module purge",
        hand,
        f"mpirun -n 2 python {SCRIPTS / 'train.py'}",
    ]
    clean = {"HOME": os.environ["HOME"], "PATH": "/usr/local/bin:/usr/bin:/bin", "TERM": "dumb"}
    words = [shell, "--norc" if shell == "bash" else "-f", "-c", "\n".join(lines), shell]
    if os.geteuid() == 0:
        clean |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(words, env=clean, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"\d of \d: \[[^]]*\]", done.stdout)
    assert sorted(told) == ["0 of 2: [0.0, 3.0, 6.0, 9.0]", "1 of 2: [0.0, 3.0, 6.0, 9.0]"]


def test_horovodrun_with_gloo(stacks: Site, installed: Callable[[str], str]) -> None:
    installed("pytorch-2.13-cpu")
    script = ["python", str(SCRIPTS / "train.py")]
    done = stacks.envkit("run", "pytorch-2.13-cpu", "--", "horovodrun", "--gloo", "-np", "2", *script)
    assert done.returncode == 0, done.stderr
    assert "0 of 2: [0.0, 3.0, 6.0, 9.0]" in done.stdout


@pytest.mark.parametrize("stack", CASES)
def test_ranks_that_start_again_over_gloo_do_not_meet_old_addresses(
    stack: str, stacks: Site, installed: Callable[[str], str]
) -> None:
    installed(stack)
    done = stacks.envkit("run", stack, "--", "python", str(SCRIPTS / "gloo_again.py"))
    assert (done.returncode, done.stdout) == (0, "left: nothing\n"), done.stderr


@pytest.mark.parametrize("stack", TENSORFLOW)
def test_the_config_of_the_data_service_is_whole_when_others_see_it(
    stack: str, stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(stack)
    done = stacks.envkit("run", stack, "--", "python", str(SCRIPTS / "whole_config.py"), str(tmp_path / "config"))
    assert (done.returncode, done.stdout) == (0, "whole\n"), done.stderr


@pytest.mark.all
@pytest.mark.builds
def test_the_patches_serve_a_build_with_pip(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    """By the commands of the series' README.md, on top of the environment's PyTorch alone."""
    installed("pytorch-2.13-cpu")
    folder, venv = tmp_path / "series", tmp_path / "venv"
    assert stacks.envkit("export", "patches", str(folder), "pytorch-2.13-cpu").returncode == 0
    where = "import pathlib, torch; print(pathlib.Path(torch.__file__).parents[1])"
    torch = stacks.envkit("run", "pytorch-2.13-cpu", "--", "python", "-c", where).stdout.strip()
    assert stacks.envkit("run", "pytorch-2.13-cpu", "--", "python", "-m", "venv", str(venv)).returncode == 0
    blocks = re.findall(r"^```sh\n(.+?)^```$", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    apply, build = [block.replace("/path/to/this/folder", str(folder)) for block in blocks]
    env = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "HOROVOD", "OMPI_"))}
    env |= {"PATH": f"{venv}/bin:/usr/local/bin:/usr/bin:/bin", "PYTHONPATH": torch}
    if os.geteuid() == 0:
        env |= {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
    done = subprocess.run(
        ["bash", "-ec", apply + build], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=BUILD_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    assert sorted(re.findall(r"\d of 2", done.stdout)) == ["0 of 2", "1 of 2"]
    said = subprocess.run(
        [venv / "bin/python", "-c", "import horovod; print(horovod.__file__)"], env=env, capture_output=True, text=True,
        timeout=60, check=True,
    ).stdout  # fmt: skip
    assert said.startswith(str(venv))


@pytest.mark.about("training")
@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("library", ["mpi", "gloo"])
def test_bfloat16_bit_by_bit(library: str, ranks: int, stacks: Site, installed: Callable[[str], str]) -> None:
    installed("pytorch-2.13-cpu")
    own = ["horovodrun", "--gloo", "-np", str(ranks), "-H", f"localhost:{ranks}"]
    words = ["-n", str(ranks), "--"] if library == "mpi" else ["--", *own]
    script = ["python", str(SCRIPTS / "bfloat16.py"), library, str(ranks)]
    done = stacks.envkit("run", "pytorch-2.13-cpu", *words, *script)
    assert done.returncode == 0, done.stdout + done.stderr
    told = re.findall(r"\d of \d: (\d+) checks, 0 bad", done.stdout)
    assert len(told) == ranks and min(map(int, told)) > 150, done.stdout


@pytest.mark.parametrize(("stack", "legacy"), KERAS)
def test_keras_as_the_tutorials_write_it(
    stack: str, legacy: str, stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(stack)
    script = ["env", f"TF_USE_LEGACY_KERAS={legacy}", "python", str(SCRIPTS / "keras_fit.py"), str(tmp_path)]
    done = stacks.envkit("run", stack, "-n", "2", "--", *script)
    assert done.returncode == 0, done.stderr
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["size"] == second["size"] == 2
    assert first["weights"] == second["weights"]
    assert first["loss"] == pytest.approx(second["loss"])
    assert first["rates"][0] < first["rates"][1] < first["rates"][2] == pytest.approx(0.1)


OF_EACH_KERAS = ("Adam", "clipnorm", "tape", "callbacks", "a second model", "load_model", "two passes", "elastic")
OF_KERAS_3 = ("sum", "accumulation", "own loop", "overflow in fit", "XLA", "a copy", "twice")


@pytest.mark.about("tensorflow")
@pytest.mark.parametrize(("legacy", "package"), [("0", "keras"), ("1", "tf_keras")])
def test_ranks_train_with_keras_as_one_would(
    legacy: str,
    package: str,
    stacks: Site,
    installed: Callable[[str], str],
    tmp_path: Path,
    pytestconfig: pytest.Config,
) -> None:
    """All there is, which takes minutes, with --all."""
    installed("tensorflow-2.21-cpu")
    script = ["env", f"TF_USE_LEGACY_KERAS={legacy}", "python", str(SCRIPTS / "keras_equal.py"), str(tmp_path)]
    script += [] if pytestconfig.getoption("all") else ["sparse", "local layer", *OF_EACH_KERAS, *OF_KERAS_3]
    done = stacks.envkit("run", "tensorflow-2.21-cpu", "-n", "2", "--", *script, timeout_s=900)
    assert done.returncode == 0, done.stdout + done.stderr
    told = json.loads((tmp_path / "found.json").read_text())
    assert told["keras"].split(".")[0] == package
    right = {name for name, apart in told["found"].items() if isinstance(apart, list) and apart <= [0, 1e-6]}
    assert told["found"].keys() - right == set(), told["found"]
    assert {*OF_EACH_KERAS} <= right
    assert ({*OF_KERAS_3} <= right) == (package == "keras")


@pytest.mark.about("wheels")
@pytest.mark.builds(after=True)
def test_without_mpi_cmake_and_network(tmp_path: Path, stacks: Site, installed: Callable[[str], str]) -> None:
    """A machine without MPI and CMake gets both from wheels; sources come from a bundle, the rest is as locked."""
    installed("pytorch-2.13-cpu")
    lock = tmp_path / "pytorch.lock"
    lock.write_text(stacks.envkit("show", "pytorch-2.13-cpu", "--lock").stdout)
    programs = tmp_path / "bin"
    programs.mkdir()
    hidden = ("mpi", "orte", "ompi", "prte", "cmake", "ctest", "cpack", "opal", "shmem", "osh")
    for folder in ("/bin", "/usr/bin"):
        for program in Path(folder).iterdir():
            link = programs / program.name
            if not program.name.startswith(hidden) and not os.path.lexists(link):
                link.symlink_to(program)
    bare = Site(tmp_path / "bare")
    env = {"PATH": str(programs)}
    bundle = tmp_path / "bundle.tar"
    fetched = bare.envkit("fetch", "pytorch-2.13-cpu", "--bundle", str(bundle), env=env)
    assert fetched.returncode == 0, fetched.stderr
    shutil.rmtree(bare.prefix)
    lonely = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--net"]
    done = subprocess.run(
        [*lonely, "sh", "-c", 'ip link set lo up 2>/dev/null; exec "$@"', "sh",
         ENVKIT, "install", "--locked", str(lock), "--bundle", str(bundle)],
        env={**os.environ, **env, "ENVKIT_PREFIX": str(bare.prefix)},
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=BUILD_S, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS" in done.stdout
    receipt = json.loads(bare.envkit("show", "--json", env=env).stdout)
    assert receipt["mpi"]["embedded"] is True
    assert re.search(r"Differs:  MPI: Open MPI \S+ in the lock, from a wheel here", done.stdout)
    there, here = json.loads(lock.read_text()), json.loads(bare.envkit("show", "--lock", env=env).stdout)
    same = {part["name"]: part for part in here["parts"] if "embedded" not in part["recipe"]}
    assert same == {part["name"]: part for part in there["parts"] if part["name"] in same}
    assert same.keys() == {part["name"] for part in there["parts"]} - {"CMake/system", "OpenMPI/system"}
    assert {**here["flags"], **there["flags"]} == there["flags"]


def test_the_cpu_wheel_of_pytorch_is_sought_where_pytorch_publishes_it(tmp_path: Path) -> None:
    """The plain wheel of the package index is the CUDA build; this one has a name of its own."""
    machine = host.detect()
    stack = select("pytorch-2.13-cpu", platform=machine.platform)
    eb = eb_command.bundled_eb(machine, stack, Prefix(root=tmp_path).tree(machine.platform))
    sources = eb_command.plan(eb, stack).sources
    [wheel] = [source for source in sources if source.project == "torch"]
    name = f"torch-2.13.0+cpu-cp{machine.python.minor.replace('.', '')}"
    assert wheel.filename.startswith(name)
    [url] = wheel.urls
    assert url == f"https://download.pytorch.org/whl/cpu/{wheel.filename.replace('+', '%2B')}"


SPAN = """\
#include "flatbuffers/flatbuffers.h"
void assign(flatbuffers::span<int> &one, const flatbuffers::span<int> &other) { one = other; }
"""
COMPILERS = sorted(
    {
        path.name
        for folder in os.get_exec_path()
        for path in Path(folder).glob("g++*")
        if re.fullmatch(r"g\+\+(-\d+)?", path.name)
    }
)


@pytest.mark.parametrize("compiler", COMPILERS)
@pytest.mark.parametrize("standard", ["c++14", "c++17"])
def test_the_span_of_flatbuffers_is_assignable_by_the_patch_alone(
    compiler: str, standard: str, stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    """GCC 14 looks into the template even where nothing assigns; here something does, so that any compiler tells."""
    installed("pytorch-2.13-cpu")
    folder = "horovod-0.28.1/third_party/flatbuffers"
    archive = stacks.prefix / "sources" / "horovod-0.28.1.tar.gz"
    subprocess.run(["tar", "-xzf", archive, "-C", tmp_path, folder], check=True)
    (tmp_path / "span.cc").write_text(SPAN)
    argv = [compiler, f"-std={standard}", "-fsyntax-only", f"-I{tmp_path / folder}/include", str(tmp_path / "span.cc")]
    refused = subprocess.run(argv, capture_output=True, text=True, check=False)
    assert refused.returncode and "read-only member" in refused.stderr
    with (recipes("easyconfigs") / "Horovod-0.28.1_assignable-span.patch").open() as patch:
        subprocess.run(
            ["patch", "-p1", "-d", tmp_path / "horovod-0.28.1"], stdin=patch, check=True, capture_output=True
        )
    done = subprocess.run([*argv, "-Wall", "-Werror"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
