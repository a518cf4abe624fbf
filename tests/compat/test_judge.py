"""Verdicts on combinations, what is asked for and how, and the best complete one."""

import json
from typing import Any

import pytest

from envkit.cli import run
from envkit.compat.complete import Complete, Here, best
from envkit.compat.judge import Verdict, judge, parse
from envkit.compat.known import known
from envkit.errors import UsageProblem

Output = pytest.CaptureFixture[str]
CPU = Here(accelerator="cpu", parts={"machine": "x86_64", "python": "3.11.7", "gcc": "12.2.0"})


def verdict(text: str) -> str:
    return judge(parse(text.split())).verdict.value


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("torch=2.0", "works"),
        ("torch=2.13 python=3.11 gcc=12.2", "works"),
        ("torch=2.13 cuda=13", "works"),
        ("torch=2.13 cuda=13 gcc=14 python=3.12", "works"),
        ("torch=2.13 gcc=15", "unknown"),
        ("torch=2.14", "unknown"),
        ("torch=2.13 gcc=9", "unknown"),
        ("torch=2.13 python=3.13", "works"),
        ("torch=2.13 python=3.14", "risky"),
        ("torch=2.13 gcc=16 cuda=13.0", "fails"),
        ("tensorflow=2.21", "works"),
        ("tensorflow=2.17 numpy=2.0", "fails"),
        ("tensorflow=2.10 gcc=7", "fails"),
        ("torch=2.13 openmpi=3.1.3", "fails"),
        ("torch=1.13.1 cuda=11.7 gcc=11.3 python=3.10", "works"),
        ("torch=1.13.1 cuda=11.7 capability=9.0", "fails"),
        ("torch=1.13.1 cuda=11.7 capability=8.0", "works"),
        ("horovod=0.29 torch=2.0", "unknown"),
        ("machine=aarch64", "risky"),
    ],
)
def test_verdicts(text: str, expected: str) -> None:
    assert verdict(text) == expected


def test_what_a_complete_combination_proves() -> None:
    """GCC 11.3 is known by EasyBuild's recipes alone, and so with what these have."""
    assert verdict("gcc=11.3 torch=1.12.0") == "works"
    judged = judge(parse(["gcc=11.3", "torch=2.13"]))
    assert (judged.verdict, judged.unproven) == (Verdict.UNKNOWN, ("gcc",))


def test_measures_that_are_taken() -> None:
    parts = parse(["torch=2.13", "gcc=13.2"])
    assert judge(parts).verdict is Verdict.WORKS
    assert judge(parts, ["cxx17", "missing-includes"]).verdict is Verdict.WORKS
    assert judge(parts, ["cxx17"]).verdict is Verdict.FAILS
    newer = parse(["torch=2.13", "gcc=14.2"])
    assert judge(newer, ["cxx17", "missing-includes"]).verdict is Verdict.FAILS
    assert judge(newer, ["cxx17", "missing-includes", "assignable-span"]).verdict is Verdict.WORKS
    assert judge(parse(["tensorflow=2.21"]), ["legacy-keras", "no-xla-ops"]).verdict is Verdict.WORKS
    assert judge(parse(["tensorflow=2.21"]), ["legacy-keras", "xla-headers"]).verdict is Verdict.WORKS
    assert judge(parse(["tensorflow=2.21"]), ["legacy-keras"]).verdict is Verdict.FAILS


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["PyTorch=2.13"], {"torch": "2.13"}),
        (["tf=2.15.1", "sm=9.0"], {"tensorflow": "2.15.1", "capability": "9.0"}),
        (["g++= 12.2", "arch=aarch64"], {"gcc": "12.2", "machine": "aarch64"}),
        (["torch=2.13.0+cpu"], {"torch": "2.13.0+cpu"}),
        ([], {}),
    ],
)
def test_how_versions_are_written(words: list[str], expected: dict[str, str]) -> None:
    assert parse(words) == expected


@pytest.mark.parametrize(
    ("words", "what", "fix"),
    [
        (["trch=2"], "There is no component 'trch'. Did you mean 'torch'?", "torch=2.13"),
        (["xyzzy=1"], "There is no component 'xyzzy'.", "torch=2.13"),
        (["torch"], "'torch' has no version.", "torch=VERSION"),
        (["torch="], "'torch=' has no version.", "torch=VERSION"),
        (["torch=new"], "torch=new: 'new' is no version.", "numbers with dots"),
        (["torch=2.1", "pytorch=2.2"], "torch is given twice.", "one version"),
        (["machine=z80"], "machine=z80: 'z80' is none.", "x86_64, aarch64, ppc64le"),
    ],
)
def test_what_cannot_be_understood(words: list[str], what: str, fix: str) -> None:
    with pytest.raises(UsageProblem) as refused:
        parse(words)
    assert refused.value.what == what
    assert fix in refused.value.fix
    assert "component" not in what or all(name in refused.value.why for name in known().component)


def chosen(text: str, here: Here = CPU) -> Complete:
    found = best(parse(text.split()), here)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("text", "stack"),
    [
        ("", "pytorch-2.13-cpu"),
        ("tensorflow=2", "tensorflow-2.21-cpu"),
        ("tensorflow=2.15", "tensorflow-2.15-cpu"),
        ("keras=2.15", "tensorflow-2.15-cpu"),
        ("torch=2.13 cuda=13", "pytorch-2.13-cuda"),
        ("rocm=5.7", "tensorflow-2.13-rocm-image"),
    ],
)
def test_the_best_that_has_what_is_asked_for(text: str, stack: str) -> None:
    found = chosen(text)
    assert (found.combination.stack, found.differs) == (stack, ())
    assert found.judgement.verdict is Verdict.WORKS


def test_the_best_is_of_this_machine() -> None:
    assert chosen("").judgement.parts["gcc"] == "12.2.0"
    gpu = Here(accelerator="cuda", parts={**CPU.parts, "capability": "9.0"})
    assert chosen("", gpu).combination.stack == "pytorch-2.13-cuda"
    assert chosen("torch=1", gpu).combination.accelerator == "cpu"  # CUDA 11.7 does not know Hopper
    older = Here(accelerator="cuda", parts={**CPU.parts, "capability": "8.0"})
    assert chosen("torch=1", older).judgement.parts["cuda"] == "11.7.0"
    newer = Here(accelerator="cpu", parts={**CPU.parts, "gcc": "15.1"})
    assert chosen("", newer).combination.stack == "pytorch-2.13-cpu-image"  # whose compiler is its own
    assert best({}, Here(accelerator="cpu", parts={"machine": "aarch64"})) is None
    assert best({"machine": "aarch64"}, CPU) is None


def test_the_nearest_where_none_has_it_all() -> None:
    assert chosen("torch=2.13 cuda=13 gcc=14 python=3.12").combination.stack == "pytorch-2.13-cuda"
    found = chosen("torch=2.13 cuda=13 gcc=16 python=3.12")
    assert (found.combination.stack, found.differs) == ("pytorch-2.13-cuda-image", ("gcc", "python"))
    assert chosen("openmpi=3.1.3").differs == ("openmpi",)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        ([], 0),
        (["torch=2.13"], 0),
        (["openmpi=3.1.3"], 1),
        (["torch=2.15"], 9),
        (["python=3.13"], 0),
        (["python=3.14"], 9),
        (["trch=2"], 2),
        (["torch=two"], 2),
    ],
)
def test_exit_codes(words: list[str], code: int, capsys: Output) -> None:
    assert run(["compat", *words]) == code
    said = capsys.readouterr()
    assert said.out.startswith(("works", "fails", "risky", "unknown")) == (code != 2)
    assert said.err.startswith("envkit: ") == (code == 2)


def test_for_people(capsys: Output) -> None:
    run(["compat", "numpy=2.0", "tensorflow=2.17"])
    said = " ".join(capsys.readouterr().out.split())
    assert said.startswith("fails Horovod 0.28.1, NumPy 2.0, TensorFlow 2.17")
    assert "inferred NumPy >=2, TensorFlow <2.18 fails: compiled against NumPy 1" in said
    assert "with Keras 2: tf-keras with TF_USE_LEGACY_KERAS=1" in said
    assert "nearest Horovod 0.28.1, TensorFlow 2." in said and "not as asked" in said


def test_json(capsys: Output) -> None:
    run(["compat", "torch=2.13", "gcc=15", "--json"])
    told: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert set(told) == {"version", "verdict", "parts", "rules", "cures", "unproven", "example", "best"}
    assert (told["version"], told["verdict"], told["unproven"]) == (1, "unknown", ["gcc"])
    assert told["parts"] == {"horovod": "0.28.1", "torch": "2.13", "gcc": "15"}
    by_id = {rule["id"]: rule for rule in told["rules"]}
    assert by_id["torch-2.13"]["evidence"] == "observed"
    assert by_id["gcc-includes"]["source"] == "https://github.com/horovod/horovod/pull/3957"
    assert [["missing-includes"]] in told["cures"] and [["assignable-span"]] in told["cures"]
    assert told["best"]["stack"].startswith("pytorch-2.13-cpu")


def test_the_help_names_every_component(capsys: Output) -> None:
    run(["compat", "--help"])
    said = " ".join(capsys.readouterr().out.split())
    assert f"Names: {', '.join(known().component)}. " in said


def test_one_message_of_each_kind(capsys: Output) -> None:
    run(["compat", "tensorlfow=2.15"])
    said = capsys.readouterr().err
    assert said.count("envkit:") == 1
    assert "Did you mean 'tensorflow'?" in said
