"""What is compiled before anything is built: kept where it compiles, asked again where it does not."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.easybuild import trial_compiles
from envkit.easybuild.trial_compiles import TrialProgram, compiled
from envkit.machine.host import Host, Program
from envkit.planning.plan import Plan, Step
from envkit.planning.stack import Stack, stacks

Fake = Callable[..., Path]
Machine = Callable[..., Host]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where trials that have passed are kept."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "envkit" / "trials"


def stack(name: str) -> Stack:
    return next(one for one in stacks() if one.name == name)


def counting(fake: Fake, tmp_path: Path, body: str = "") -> Path:
    """A compiler that notes each call."""
    return fake("g++", f"echo called >>{tmp_path}/calls\n{body}")


def calls(tmp_path: Path) -> int:
    return (tmp_path / "calls").read_text().count("called")


def test_what_compiles_is_asked_once_until_the_compiler_or_its_settings_change(
    fake: Fake, tmp_path: Path, cache: Path
) -> None:
    compiler = counting(fake, tmp_path)
    trial = TrialProgram(argv=(str(compiler), "a.cc"), files={"a.cc": "x"}, env={"PATH": "/bin", "TERM": "a"})
    for _ in range(2):
        assert compiled(trial).said == ""
    assert (calls(tmp_path), len(list(cache.iterdir()))) == (1, 1)
    changed = [
        TrialProgram(argv=(*trial.argv, "-O2"), files=trial.files, env=trial.env),
        TrialProgram(argv=trial.argv, files={"a.cc": "y"}, env=trial.env),
        TrialProgram(argv=trial.argv, files=trial.files, env={**trial.env, "CPATH": "/opt/include"}),
    ]
    for number, other in enumerate(changed, start=2):
        compiled(other)
        assert calls(tmp_path) == number
    compiled(TrialProgram(argv=trial.argv, files=trial.files, env={**trial.env, "TERM": "b"}))
    assert calls(tmp_path) == 4
    os.utime(compiler, ns=(1, 1))
    compiled(trial)
    assert calls(tmp_path) == 5


def test_a_failure_is_asked_again_and_told_by_its_first_error(fake: Fake, tmp_path: Path) -> None:
    compiler = counting(fake, tmp_path, "echo 'In file included from x:' >&2; echo 'a.cc:1: error: no' >&2; exit 1")
    trial = TrialProgram(argv=(str(compiler), "a.cc"), files={"a.cc": "x"}, env={"PATH": "/bin"})
    for _ in range(2):
        assert compiled(trial).said == "a.cc:1: error: no"
    assert calls(tmp_path) == 2
    gone = TrialProgram(argv=(str(tmp_path / "gone"), "a.cc"), files={}, env={"PATH": "/bin"})
    assert compiled(gone).said


def test_what_somebody_else_may_have_written_is_not_believed(fake: Fake, tmp_path: Path, cache: Path) -> None:
    compiler = counting(fake, tmp_path)
    trial = TrialProgram(argv=(str(compiler), "a.cc"), files={}, env={"PATH": "/bin"})
    compiled(trial)
    cache.chmod(0o777)
    compiled(trial)
    assert calls(tmp_path) == 2


def test_a_cache_that_cannot_be_written_is_no_failure(fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("")
    trial = TrialProgram(argv=(str(counting(fake, tmp_path)), "a.cc"), files={}, env={"PATH": "/bin"})
    assert compiled(trial).said == "" and compiled(trial).said == "" and calls(tmp_path) == 2


@pytest.mark.parametrize(
    ("setting", "says"), [("CPATH", "of_the_framework"), ("CPLUS_INCLUDE_PATH", ""), ("LIBRARY_PATH", "")]
)
def test_another_flatbuffers_before_that_of_tensorflow(
    setting: str, says: str, tmp_path: Path, machine: Machine
) -> None:
    """By the real compiler: what CPATH names comes before system headers, as TensorFlow's are to Horovod."""
    header = tmp_path / "include" / "flatbuffers" / "flatbuffers.h"
    header.parent.mkdir(parents=True)
    header.write_text("#define FLATBUFFERS_VERSION_MAJOR 24\n")
    env = {"PATH": os.environ["PATH"], setting: str(tmp_path / "include")}
    seen, plan = machine(env=env), Plan(stack="", steps=(), robot=())
    found = list(trial_compiles.problems(seen, stack("tensorflow-2.21-cpu"), plan))
    assert [says in one.what for one in found] == ([True] if says else [])
    assert not list(
        trial_compiles.problems(seen, stack("pytorch-2.13-cpu"), plan)
    )  # whose flatbuffers is Horovod's, by -I


@pytest.mark.parametrize(("release", "status", "refused"), [("13.0", 0, False), ("13.0", 1, True), ("12.4", 1, False)])
def test_a_kernel_where_the_nvcc_of_the_plan_is_here(
    release: str, status: int, refused: bool, fake: Fake, machine: Machine
) -> None:
    body = f'[ "$1" != --version ] || {{ echo "Cuda compilation tools, release {release}, V{release}.88"; exit; }}\n'
    nvcc = fake("nvcc", f"{body}echo '#error -- unsupported GNU version!' >&2; exit {status}")
    seen = machine(env={"PATH": f"{nvcc.parent}:{os.environ['PATH']}"})
    steps = (Step(module="nvcc/13.0.88", easyconfig="/nvcc-13.0.88.eb"),)
    found = list(trial_compiles.problems(seen, stack("pytorch-2.13-cuda"), Plan(stack="", steps=steps, robot=())))
    assert bool(found) is refused
    if refused:
        assert found[0].what.startswith("nvcc 13.0.88 does not compile a kernel with g++ 12.2.0: #error -- unsupported")
        assert "--accelerator cpu" in found[0].fix


@pytest.mark.integration
def test_the_real_nvcc_with_the_real_compiler() -> None:
    """Where there is one; no GPU is needed."""
    env, compiler = {"PATH": os.environ["PATH"]}, Program(path=Path("/usr/bin/g++"), version="")
    if nvcc := next(
        filter(None, (trial_compiles.of_release(one, env) for one in ("12.8", "12.9", "13.0", "13.1"))), ""
    ):
        assert compiled(trial_compiles.kernel(nvcc, compiler, env)).said == ""
