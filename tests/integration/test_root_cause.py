"""One root cause, found by trial where ranks really fail, and the commands that mend it."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from ..stacks import ENVKIT, Site

pytestmark = pytest.mark.integration
STACK = "pytorch-2.13-cpu"


def verified(stacks: Site, before: Sequence[str], home: Path, *options: str) -> tuple[int, dict[str, Any], str]:
    """The status, report and standard error of a verification in a shell that ran some commands before."""
    (home / ".openmpi").mkdir(parents=True, exist_ok=True)
    script = "\n".join([*before, 'exec "$0" "$@"'])
    argv = ["bash", "-c", script, str(ENVKIT), "verify", STACK, "-n", "2", "--json", *options]
    env = {**os.environ, "HOME": str(home), "ENVKIT_PREFIX": str(stacks.prefix)}
    done = subprocess.run(argv, env=env, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=300)
    return done.returncode, json.loads(done.stdout), done.stderr


@pytest.mark.parametrize(
    ("before", "named"),
    [
        (["export OMPI_MCA_btl=openib HOROVOD_CYCLE_TIME=2"], "OMPI_MCA_btl=openib"),
        (["export HOROVOD_CPU_OPERATIONS=GLOO"], "HOROVOD_CPU_OPERATIONS=GLOO"),
        (["export OPAL_PREFIX=/nowhere OMPI_MCA_mpi_yield_when_idle=1"], "OPAL_PREFIX=/nowhere"),
        (["echo 'btl = openib' >~/.openmpi/mca-params.conf"], ".openmpi/mca-params.conf"),
        (["mkdir ~/bin", r"printf '#!/bin/sh\nexit 3\n' >~/bin/mpirun", "chmod +x ~/bin/mpirun", "PATH=~/bin:$PATH"],
         "bin/mpirun in PATH"),
    ],
)  # fmt: skip
def test_a_setting_of_the_user_is_found_by_trial_and_its_commands_mend_it(
    before: list[str], named: str, stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(STACK)
    status, report, said = verified(stacks, before, tmp_path)
    cause = report["cause"]
    assert (status, cause["id"]) == (1, "settings"), report["results"][:3]
    assert named in cause["message"] and report["results"][0] == cause
    assert report["more"] == "envkit verify --explain settings"
    assert "The ranks fail (" in said
    assert {result["because_of"] for result in report["results"] if result["status"] == "fail"} == {"", "settings"}
    assert report["trials"][-1]["passed"]
    assert cause["case"] == ("without" if len(report["trials"][-1]["without"]) == 1 else "together")  # no time for more
    status, report, said = verified(stacks, [*before, *cause["commands"]], tmp_path)
    assert (status, report["cause"], report["trials"]) == (0, None, []), said


def test_python_that_would_ask_for_more_at_the_end_does_no_harm(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    """Nor does it to a script: only to one that ends by SystemExit."""
    installed(STACK)
    status, report, said = verified(stacks, ["export PYTHONINSPECT=1"], tmp_path, "--quick")
    assert (status, report["verdict"]) == (0, "pass"), said


def test_nothing_is_tried_that_was_not_asked_for(stacks: Site, installed: Callable[[str], str], tmp_path: Path) -> None:
    installed(STACK)
    status, report, _ = verified(stacks, ["export OMPI_MCA_btl=openib"], tmp_path, "--quick")
    assert (status, report["trials"]) == (1, []) and report["cause"]["id"] != "settings"
    [told] = [result for result in report["results"] if result["id"] == "settings"]
    assert (told["case"], told["status"]) == ("in-force", "warn") and "OMPI_MCA_btl=openib" in told["message"]


def test_a_damaged_file_is_the_cause_whatever_follows_from_it(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(STACK)
    receipt = json.loads(stacks.envkit("show", STACK, "--json").stdout)
    library = next(Path(receipt["tree"]).glob("software/PyTorch/*/lib/python3*/site-packages/torch/lib/libc10.so"))
    empty = tmp_path / "empty"
    empty.touch()
    done = stacks.envkit("verify", STACK, "--json", instead={library: empty})
    report = json.loads(done.stdout)
    assert (done.returncode, report["cause"]["id"], report["trials"]) == (1, "damage", [])
    assert str(library) in report["cause"]["message"]
    assert report["cause"]["commands"] == [f"envkit repair {STACK}"]
    ids = {result["id"] for result in report["results"] if result["because_of"] == "damage"}
    assert "framework-present" in ids


@pytest.mark.parametrize(
    ("lines", "case"),
    [
        ('{real} "$@"; {real} "$@"', ("rank-missing", "again")),
        ('trap "" TERM; {real} "$@"; sleep 300; sleep 300', ("launcher-ended", "stays")),
        ("", ("rank-missing", "not-executable")),
    ],
    ids=["twice", "stays", "empty"],
)
def test_what_stands_in_the_place_of_a_launcher_is_found_out(
    lines: str, case: tuple[str, str], stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    installed(STACK)
    own = tmp_path / "bin/mpirun"
    own.parent.mkdir()
    own.write_text(f"#!/bin/sh\n{lines.format(real=shutil.which('mpirun'))}\n" if lines else "")
    own.chmod(0o755)
    status, report, said = verified(stacks, [f"export PATH={own.parent}:$PATH"], tmp_path, "--quick", "--timeout", "20")
    assert (status, report["cause"]["id"], report["cause"]["case"]) == (1, *case), said
    assert f"{own} is the first on PATH" in report["started"]["why"] or lines


def test_nothing_is_left_of_a_launcher_that_is_killed(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    """Open MPI removes its folder only where it ends by itself."""
    installed(STACK)
    own, place, real = tmp_path / "bin/mpirun", tmp_path / "t", shutil.which("mpirun")
    own.parent.mkdir()
    own.write_text(f'#!/bin/sh\n(sleep 1; kill -KILL $$) &\nexec {real} "$@"\n')
    own.chmod(0o755)
    place.mkdir(mode=0o700)
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TMPDIR": str(place)}
    done = subprocess.run([own, "-n", "1", "sleep", "4"], env={**os.environ, **root}, capture_output=True)
    assert done.returncode == -signal.SIGKILL
    [theirs] = place.glob("ompi.*")
    shutil.rmtree(theirs)
    before = [f"export PATH={own.parent}:$PATH TMPDIR={place}"]
    status, report, said = verified(stacks, before, tmp_path, "--quick")
    assert (status, report["cause"]["id"]) == (1, "launcher-ended"), said
    assert "SIGKILL" in report["cause"]["message"]
    assert not list(place.iterdir())


KILLS_ALL = """#!{python}
import contextlib, os, pathlib, re, signal, subprocess, sys, time

def below(pid):
    for path in pathlib.Path(f"/proc/{{pid}}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in path.read_text().split():
                yield from below(child)
    yield int(pid)

def segments(pid):
    try:
        return set(re.findall(r"/dev/shm/vader_segment\\S+", pathlib.Path(f"/proc/{{pid}}/maps").read_text()))
    except OSError:
        return set()

started = subprocess.Popen(["{mpirun}", *sys.argv[1:]])
while len(found := set().union(*map(segments, below(started.pid)))) < 2 and started.poll() is None:
    time.sleep(0.05)
time.sleep(0.3)
with open("{told}", "a") as told:
    print(*found, sep="\\n", file=told)
for pid in reversed(list(below(started.pid))):  # the launcher first: it would tidy up
    with contextlib.suppress(OSError):
        os.kill(pid, signal.SIGKILL)
sys.exit(started.wait() and 1)
"""


def test_no_shared_memory_is_left_of_ranks_that_are_killed(
    stacks: Site, installed: Callable[[str], str], tmp_path: Path
) -> None:
    """Open MPI removes its segments only where its launcher ends by itself."""
    installed(STACK)
    own, told, place = tmp_path / "bin/mpirun", tmp_path / "told", tmp_path / "t"
    own.parent.mkdir()
    own.write_text(KILLS_ALL.format(python=sys.executable, mpirun=shutil.which("mpirun"), told=told))
    own.chmod(0o755)
    ranks = "import horovod.torch as hvd, time; hvd.init(); time.sleep(20)"
    root = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "TMPDIR": str(place)}
    place.mkdir(mode=0o700)
    argv = [str(ENVKIT), "run", STACK, "--", str(own), "-n", "2", "--oversubscribe", "python", "-c", ranks]
    env = {**os.environ, **root, "ENVKIT_PREFIX": str(stacks.prefix)}
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=120)
    theirs = [Path(line) for line in told.read_text().split()]
    assert theirs and all(path.exists() for path in theirs), f"mpirun has left nothing to be found: {done.stderr}"
    for path in theirs:
        path.unlink()
    told.unlink()
    status, report, said = verified(stacks, [f"export PATH={own.parent}:$PATH"], tmp_path, "--quick")
    assert (status, report["verdict"]) == (1, "fail"), said
    assert told.read_text().split(), said
    assert not [line for line in told.read_text().split() if Path(line).exists()]
