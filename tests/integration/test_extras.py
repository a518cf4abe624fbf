"""What is added to stacks: eb resolves all of it; ranks import it and agree, and what is broken of it is said."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.easybuild import eb_command, installation, mpi
from envkit.environments.prefix import Prefix
from envkit.machine import host
from envkit.planning import extras
from envkit.planning.stack import Stack, select, stacks
from envkit.sources.source_cache import distinct

from ..stacks import BUILD_S, Site

STACK = "pytorch-2.13-cpu"
AGREE = """
import h5py, horovod.torch as hvd, matplotlib, torch, tqdm
from mpi4py import MPI
from torch.utils.tensorboard import SummaryWriter
hvd.init()
world = MPI.COMM_WORLD
same = (world.Get_rank(), world.Get_size()) == (hvd.rank(), hvd.size())
total = hvd.allreduce(torch.ones(1) * hvd.rank(), op=hvd.Sum).item()
SummaryWriter(f"{OUT}/{hvd.rank()}").add_scalar("loss", total)
print(f"{same} {world.allreduce(hvd.rank())} {total:.0f}\\n", end="", flush=True)
"""

pytestmark = pytest.mark.integration


def with_all(name: str) -> list[Stack]:
    """A stack with all its extras, by the recipes of each MPI."""
    stack = extras.added(select(name, platform=host.Platform.own()), extras.of_stack(name))
    return [*mpi.variants(stack).values()]


@pytest.mark.parametrize(
    "stack", [one for stack in stacks() if extras.of_stack(stack.name) for one in with_all(stack.name)]
)
def test_eb_resolves_them_with_every_source_pinned(stack: Stack, tmp_path: Path) -> None:
    machine = host.detect()
    made = eb_command.plan(eb_command.bundled_eb(machine, stack, Prefix(root=tmp_path).tree(machine.platform)), stack)
    assert made.steps[-1].module == stack.module
    assert list(installation.modules_of(made, stack)) == extras.of_stack(stack.name)
    assert [source.filename for source in distinct(made.sources) if source.sha256 is None] == []


@pytest.mark.all
def test_they_are_added_to_what_is_there_and_ranks_agree(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(STACK)
    (tmp_path / "cache").mkdir()
    own = {"XDG_STATE_HOME": str(tmp_path / "state")}  # apart from what other tests have it fail by just now
    assert stacks.envkit("verify", STACK, "--quick", env=own).returncode == 0
    done = stacks.envkit("cache", "push", STACK, "--unsigned", "--to", str(tmp_path / "cache"), env=own)
    assert done.returncode == 0, done.stderr
    site, env = Site(tmp_path / "prefix"), {"ENVKIT_CACHE_FROM": str(tmp_path / "cache")}
    site.prefix.mkdir()
    (site.prefix / "sources").symlink_to(stacks.prefix / "sources")
    done = site.envkit("install", STACK, "--unsigned-cache", env=env, timeout_s=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr

    done = site.envkit("install", STACK, "--with", "mpi4py,tutorials,lightning", timeout_s=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "Building 3 of 10 modules" in done.stdout
    assert "is installed already" in site.envkit("install", STACK, "--with", "mpi4py").stdout
    done = site.envkit("run", STACK, "-n", "2", "--", "python", "-c", f"OUT = {str(tmp_path / 'runs')!r}{AGREE}")
    assert done.stdout.split() == ["True", "1", "1"] * 2, done.stderr
    assert len([*(tmp_path / "runs").glob("*/events*")]) == 2
    bill = site.envkit("show", STACK, "--sbom").stdout
    assert all(f"pkg:pypi/{name}@" in bill for name in ("mpi4py", "tensorboard", "lightning"))

    [broken] = site.prefix.glob("*/software/lightning/*/lib/python*/site-packages/tqdm/std.py")
    text = broken.read_text()
    broken.write_text("raise ImportError('cut')\n")
    done = site.envkit("verify", STACK)
    assert done.returncode == 1 and "cannot import tqdm of the extra tutorials" in " ".join(done.stdout.split())
    broken.write_text(text)
    assert site.envkit("remove", STACK).returncode == 0
    assert not [*site.prefix.glob("*/software/mpi4py/*"), *site.prefix.glob("*/software/lightning/*")]


READ = """
import horovod.tensorflow as hvd, tensorflow as tf, tensorflow_datasets as tfds
hvd.init()
made = tfds.testing.DummyDataset(data_dir=f"{OUT}/{hvd.rank()}")
made.download_and_prepare()
part = made.as_dataset(split="train").shard(hvd.size(), hvd.rank())
print(f"{int(hvd.allreduce(tf.constant(len([*part])), op=hvd.Sum))} {tfds.__version__}\\n", end="", flush=True)
"""


@pytest.mark.all
def test_ranks_read_a_tensorflow_data_set_in_parts(tmp_path: Path) -> None:
    """And what they import is the environment's, which verify says."""
    site = Site(tmp_path / "prefix")
    done = site.envkit("install", "tensorflow-2.21-cpu", "--with", "tensorflow-datasets,tutorials", timeout_s=BUILD_S)
    assert done.returncode == 0, done.stdout + done.stderr
    script = f"OUT = {str(tmp_path / 'data')!r}{READ}"
    done = site.envkit("run", "tensorflow-2.21-cpu", "-n", "2", "--", "python", "-c", script)
    assert done.stdout.count("3 4.9.10\n") == 2, done.stdout + done.stderr
    told = json.loads(site.envkit("verify", "tensorflow-2.21-cpu", "--json").stdout)
    [imported] = [result["message"] for result in told["results"] if result["id"] == "extras"]
    assert imported.startswith("every rank imports what was added: ")
    assert "tensorflow-datasets" in imported and "tutorials" in imported
