"""envkit install without --method: what is taken on this machine, and on one that lacks things."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from envkit.environments.prefix import Prefix
from envkit.install import select
from envkit.machine.host import Accelerator, Host
from envkit.planning.request import Request
from envkit.sources import fetch

from .. import stacks as real
from ..conftest import Fake
from .site import SYSTEM_PATH, needs
from .test_install_refusals import unprivileged

ENVKIT = Path(sys.executable).with_name("envkit")
METHODS = ("easybuild", "apptainer", "eessi")

pytestmark = pytest.mark.integration
Envkit = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def envkit(tmp_path: Path) -> Envkit:
    """Run it in a prefix that is not there; programs of the test's own come first on PATH."""

    def run(
        *words: str, path: str = SYSTEM_PATH, before: Sequence[str] = (), **changes: str
    ) -> subprocess.CompletedProcess[str]:
        env = {"PATH": f"{tmp_path}/bin:{path}", "HOME": str(tmp_path), "ENVKIT_PREFIX": str(tmp_path / "prefix")}
        kept = {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_CERT"))}
        argv = [*before, str(ENVKIT), *words]
        return subprocess.run(
            argv, env={**env, **kept, **changes}, cwd="/", capture_output=True, text=True, timeout=120, check=False
        )

    return run


def test_what_is_taken_here(envkit: Envkit, tmp_path: Path) -> None:
    """It is a method that works by the doctor's verdict, and the plan is that of the same with --method."""
    needs("lmod", "g++")
    planned = envkit("install", "--method", "easybuild", "--framework", "pytorch", "--dry-run", "--json")
    assert planned.returncode == 0, planned.stderr
    for source in json.loads(planned.stdout)["sources"]:  # files of these names: no server has to answer in time
        (tmp_path / "links" / source["name"]).parent.mkdir(exist_ok=True)
        (tmp_path / "links" / source["name"]).touch()
    here = {"PIP_CONFIG_FILE": os.devnull, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path / "links")}
    done = envkit("install", "--framework", "pytorch", "--accelerator", "cpu", "--dry-run", **here)
    assert done.returncode == 0, done.stderr
    method, stack, because = (line.removeprefix("envkit: ") for line in done.stderr.splitlines())
    assert method.startswith("method   easybuild: ") and stack.startswith("stack    pytorch-2.13-cpu: ")
    assert because == "because  it comes first, before apptainer and eessi, and nothing is lacking"
    named = envkit("install", "--method", "easybuild", "--framework", "pytorch", "--dry-run", **here)
    assert (named.stdout, named.stderr) == (done.stdout, "") and "No answer" not in done.stdout
    verdicts = {one["method"]: one["state"] for one in json.loads(envkit("doctor", "--json").stdout)["methods"]}
    assert verdicts["easybuild"] == "works"
    assert not (tmp_path / "prefix").exists()


def test_a_machine_with_a_gpu(
    machine: Callable[..., Host],
    prefix: Prefix,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """The plan is made by the real eb; the GPU is one on paper, with no driver to ask, and no server is asked."""
    needs("lmod", "g++")
    monkeypatch.setattr(fetch, "ask", lambda *_: fetch.Answers())
    work = select.select(Request(prefix=prefix, method="auto"), machine(accelerator=Accelerator.CUDA))
    assert (work.stack.name, work.request.wanted, work.request.method) == (*["pytorch-2.13-cuda"] * 2, "easybuild")
    assert "there is a GPU (cuda); it comes first, before apptainer and eessi" in capsys.readouterr().err


def test_without_a_compiler_it_is_an_image(envkit: Envkit, fake: Fake) -> None:
    needs("apptainer", "debootstrap")
    fake("g++", "exit 1")
    path = f"{os.environ['PATH']}:/usr/sbin"
    done = envkit("install", "tensorflow", "--accelerator", "cpu", "--dry-run", path=path)
    assert done.returncode == 0, done.stderr
    method, stack, because = done.stderr.splitlines()
    assert "apptainer: " in method and "tensorflow-2.21-cpu-image: " in stack
    said = "not tensorflow-2.21-cpu, tensorflow-2.15-cpu (easybuild): There is no gcc and g++ that compile C++17"
    assert because.endswith(said)
    assert "Stack:    tensorflow-2.21-cpu-image (cpu.def)" in done.stdout


@pytest.mark.parametrize("words", [[], ["--dry-run"], ["--accelerator", "cuda"], ["--submit"]])
def test_where_nothing_works_each_method_says_why(envkit: Envkit, fake: Fake, tmp_path: Path, words: list[str]) -> None:
    for tool in ("g++", "apptainer", "singularity"):
        fake(tool, "exit 1")
    done = envkit("install", "pytorch", *words, ENVKIT_EESSI_DIR="")
    assert (done.returncode, done.stdout) == (3, "")
    listed = done.stderr.splitlines()
    assert [m for m in METHODS if any(line.startswith(f"  {m} (pytorch-2.") for line in listed)] == list(METHODS)
    problems = [number for number, line in enumerate(listed) if line.startswith(tuple(f"  {m} (" for m in METHODS))]
    assert all(listed[number + 1].startswith("     -> ") for number in problems)
    assert listed[-1].startswith("What to do: One method is enough:")
    assert not list(tmp_path.glob("prefix/*py*"))


def test_a_prefix_that_cannot_be_written_to_is_no_matter_of_the_method(envkit: Envkit, tmp_path: Path) -> None:
    (tmp_path / "others").mkdir(mode=0o555)
    done = envkit("install", "pytorch", "--prefix", f"{tmp_path}/others/prefix", before=unprivileged())
    assert (done.returncode, done.stdout) == (7, "")
    assert (
        f"{tmp_path}/others cannot be written to." in done.stderr
        and "Choose another folder with --prefix." in done.stderr
    )


def test_where_no_package_index_answers(envkit: Envkit) -> None:
    needs("lmod", "g++")
    silent = {"PIP_CONFIG_FILE": os.devnull, "PIP_INDEX_URL": "http://127.0.0.1:9/simple", "PIP_FIND_LINKS": ""}
    done = envkit("install", "pytorch", "--accelerator", "cpu", **silent)
    assert done.returncode == 3
    assert "easybuild (pytorch-2.13-cpu): None of the places that pip takes packages from answers" in done.stderr
    assert "envkit fetch pytorch-2.13-cpu --bundle FILE.tar" in done.stderr


def test_what_is_there_is_not_chosen_anew(installed: Callable[[str], str], stacks: real.Site) -> None:
    installed("pytorch-2.13-cpu")
    done = stacks.envkit("install", "--framework", "pytorch", "--accelerator", "cpu")
    assert (done.returncode, done.stderr) == (0, "")
    assert "pytorch-2.13-cpu is installed already" in done.stdout


def test_a_job_builds_what_was_chosen(installed: Callable[[str], str], stacks: real.Site, fake: Fake) -> None:
    """The node is not asked again: the name of the stack is in its command line."""
    installed("pytorch-2.13-cpu")
    script = fake("sbatch", 'cat "$2" >&2; exit 1')
    env = {"PATH": f"{script.parent}:{os.environ['PATH']}"}
    words = ("--accelerator", "cpu", "--rebuild", "--offline", "--submit")
    done = stacks.envkit("install", "pytorch", *words, env=env)
    assert done.returncode == 3, done.stdout
    assert len([line for line in done.stderr.splitlines() if line.startswith("envkit: ")]) == 4
    assert " install pytorch-2.13-cpu --accelerator cpu --rebuild --method easybuild --offline --jobs 8" in done.stderr
