"""The examples of training, and timelines, in real environments: two ranks learn, agree, and do what one would do."""

import json
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.training import example, mnist

from ..stacks import Site

pytestmark = pytest.mark.integration
SCRIPTS = Path(__file__).parent / "scripts"
PYTORCH, TENSORFLOW = "pytorch-2.13-cpu", "tensorflow-2.21-cpu"
CASES = [(PYTORCH, "pytorch-mnist"), (PYTORCH, "pytorch-ddp-mnist"), (TENSORFLOW, "tf-mnist")]
ONE_THREAD = {"OMP_NUM_THREADS": "1", "TF_NUM_INTRAOP_THREADS": "1"}
TOLERANCE = 1e-5


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small stand-in of MNIST."""
    return mnist.generate(tmp_path_factory.mktemp("data"), train=1280, test=250)


@pytest.fixture(scope="module")
def few(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Enough for four steps."""
    return mnist.generate(tmp_path_factory.mktemp("few"), train=128, test=250)


def run(site: Site, stack: str, *words: str, status: int = 0, legacy: str = "0") -> subprocess.CompletedProcess[str]:
    done = site.envkit("run", stack, *words, env={**ONE_THREAD, "TF_USE_LEGACY_KERAS": legacy})
    assert done.returncode == status, done.stdout + done.stderr
    return done


def trained(site: Site, stack: str, name: str, folder: Path, ranks: int, *words: str, legacy: str = "0") -> list[float]:
    """Train with an example, and keep the weights of each rank; return the losses."""
    folder.mkdir()
    script = ["python", str(SCRIPTS / "weights.py"), str(folder), str(example.find(name).path)]
    done = run(site, stack, "-n", str(ranks), "--", *script, *words, legacy=legacy)
    assert "data: generated stand-in, not MNIST: " in done.stdout
    return [float(loss) for loss in re.findall(r"^epoch \d+: loss ([\d.]+)", done.stdout, re.MULTILINE)]


def difference(site: Site, stack: str, one: Path, other: Path) -> float:
    """How far two files of weights are apart, relative to the largest weight."""
    said = run(site, stack, "--", "python", str(SCRIPTS / "compare.py"), str(one), str(other)).stdout
    apart, largest = (float(line) for line in said.split())
    assert largest > 0.1
    return apart / largest


@pytest.mark.parametrize(("stack", "name"), CASES)
def test_two_ranks_learn_and_agree(
    stack: str, name: str, data: Path, stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(stack)
    losses = trained(
        stacks, stack, name, tmp_path / "two", 2, "--data", str(data), "--epochs", "3", "--batch-size", "16"
    )
    assert len(losses) == 3 and losses == sorted(losses, reverse=True) and losses[-1] < 0.8 * losses[0], losses
    assert difference(stacks, stack, tmp_path / "two" / "rank0.npz", tmp_path / "two" / "rank1.npz") == 0


@pytest.mark.parametrize(("stack", "name", "legacy"), [*((*case, "0") for case in CASES), (*CASES[-1], "1")])
def test_two_ranks_do_what_one_does_with_the_whole_batch(
    stack: str, name: str, legacy: str, few: Path, stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(stack)
    fixed = ["--data", str(few), "--epochs", "1", "--warmup-epochs", "0"]  # four steps: rounding has no time to grow
    two, one = (
        trained(stacks, stack, name, tmp_path / folder, ranks, *fixed, *words, legacy=legacy)
        for folder, ranks, words in (
            ("two", 2, ["--batch-size", "16", "--lr", "0.02"]),
            ("one", 1, ["--batch-size", "32", "--lr", "0.04"]),
        )
    )
    assert difference(stacks, stack, tmp_path / "two" / "rank0.npz", tmp_path / "one" / "rank0.npz") < TOLERANCE
    assert two == pytest.approx(one, abs=2e-4)


@pytest.mark.parametrize(("stack", "name"), CASES)
def test_it_goes_on_from_a_checkpoint(
    stack: str, name: str, data: Path, stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(stack)
    kept = tmp_path / "kept"
    words = ["-n", "2", "--example", name, "--", "--data", str(data), "--checkpoint", str(kept)]
    first = run(stacks, stack, *words, "--epochs", "1").stdout
    rest = run(stacks, stack, *words, "--epochs", "2").stdout
    assert [path.name for path in tmp_path.iterdir()] == ["kept"]
    assert "epoch 1:" not in rest
    losses = [float(one) for one in re.findall(r"^epoch \d: loss ([\d.]+)", first + rest, re.MULTILINE)]
    assert len(losses) == 2 and losses[1] < losses[0]


@pytest.mark.parametrize(("stack", "name", "kinds"), [
    (PYTORCH, "pytorch-synthetic", ["Horovod", "DDP"]),
    (TENSORFLOW, "tf-synthetic", ["Horovod"]),
])  # fmt: skip
def test_images_per_second(
    stack: str, name: str, kinds: list[str], stacks: Site, installed: Callable[[str], str]
) -> None:
    installed(stack)
    said = run(stacks, stack, "-n", "2", "--example", name, "--", "--epochs", "2", "--steps", "1").stdout
    found = re.findall(r"^(\w+): images/s per rank: ([\d.]+), ([\d.]+); in all ([\d.]+)", said, re.MULTILINE)
    assert [row[0] for row in found] == kinds
    for _, *speeds in found:
        one, other, both = map(float, speeds)
        assert both == pytest.approx(one + other, abs=0.2)


REDUCE = """
import sys, time, torch, horovod.torch as hvd
hvd.init()
for step in range(20):
    time.sleep(0.2 * hvd.rank() * (step == 0))
    hvd.allreduce(torch.ones(1000), name="first" if step == 0 else "ones<script>")
hvd.shutdown()
sys.exit(int(sys.argv[1]))
"""


def test_a_timeline_is_left_as_it_is_and_summed_up(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(PYTORCH)
    path = tmp_path / "out.json"
    page = tmp_path / "out.html"
    words = ["-n", "2", "--timeline", str(path), "--html", str(page), "--", "python", "-c", REDUCE]
    done = run(stacks, PYTORCH, *words, "0")
    assert done.stdout == ""
    names = {
        event["args"].get("name") for event in json.loads(path.read_text()) if event["ph"] == "M" and "args" in event
    }
    assert {"allreduce.first", "allreduce.ones<script>"} <= names
    assert re.search(r"(19|20) operations on 2 tensors\n", done.stderr)  # Horovod's shutdown may leave the last one out
    assert re.search(r"negotiation +\d+\.\d+ s", done.stderr) and re.search(r"MPI_ALLREDUCE +\d+\.\d+ s", done.stderr)
    assert "allreduce.ones<script>" in done.stderr and "rank 1: " in done.stderr
    text = page.read_text()
    assert "allreduce.ones&lt;script&gt;" in text and "<script>" not in text
    assert "MPI_ALLREDUCE" in text and "Who came last" in text


def test_the_status_is_the_commands_also_where_horovod_did_not_come_to_its_end(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(PYTORCH)
    path = tmp_path / "out.json"
    ending = REDUCE.replace("hvd.shutdown()", "import os; time.sleep(1); os._exit(int(sys.argv[1]))")
    done = run(stacks, PYTORCH, "--timeline", str(path), "--", "python", "-c", ending, "5", status=5)
    assert "20 operations on 2 tensors" in done.stderr


def test_no_timeline_without_horovod(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    installed(PYTORCH)
    path = tmp_path / "out.json"
    page = tmp_path / "out.html"
    words = ["--timeline", str(path), "--html", str(page), "--", "sh", "-c", "echo said; exit 3"]
    done = run(stacks, PYTORCH, *words, status=3)
    assert done.stdout == "said\n"
    said = f"envkit: there is no timeline in {path}: the command did not start Horovod (hvd.init).\n"
    assert done.stderr == f"{said}envkit: so {page} was not written.\n" and not path.exists() and not page.exists()
    done = run(stacks, PYTORCH, "--timeline", str(tmp_path / "no" / "out.json"), "--", "true", status=7)
    assert f"There is no folder {tmp_path}/no." in done.stderr
    words = ["--timeline", str(path), "--html", str(tmp_path), "--", "true"]
    assert f"The page cannot be written to {tmp_path}." in run(stacks, PYTORCH, *words, status=7).stderr
