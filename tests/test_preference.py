"""Which stack is taken, and what is said of it: from facts of many kinds of host."""

from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from rich.console import Console

from envkit.apptainer.receipt import ImageReceipt
from envkit.cli import run
from envkit.doctor import rules
from envkit.doctor.facts import Driver, Facts
from envkit.easybuild.receipt import ModuleReceipt
from envkit.environments.prefix import Prefix
from envkit.errors import HostProblem, Problem, UnknownStack, UsageProblem
from envkit.install import install as installation
from envkit.install import preference, select
from envkit.machine.host import Accelerator, Host, Interpreter
from envkit.methods import registry
from envkit.planning.request import Request
from envkit.planning.stack import Stack, stacks
from envkit.sources.fetch import Source

CPU, CUDA, ROCM = Accelerator
Machine = Callable[..., Host]
Output = pytest.CaptureFixture[str]
STACKS = {stack.name: stack for stack in stacks()}
LACKS = Problem(what="There is\nno gcc.", fix="apt install g++")
NOWHERE = Prefix(root=Path("/nowhere"))


def asked(**changes: Any) -> Request:
    return Request(**{"prefix": NOWHERE, "method": "auto", **changes})


def names(found: Sequence[Stack]) -> list[str]:
    return [stack.name for stack in found]


def lacking_by(*methods: str) -> Callable[[Stack], Sequence[Problem]]:
    """What a host lacks on which these methods do not work."""
    return lambda stack: [LACKS] if stack.method in methods else []


def test_each_place_is_that_of_a_stack() -> None:
    for accelerator, named in preference.table().order.items():
        assert {STACKS[name].accelerator for name in named} == {accelerator}
        assert names(preference.ordered(accelerator))[: len(named)] == [*named]


def test_a_stack_without_a_place_comes_last(monkeypatch: pytest.MonkeyPatch) -> None:
    toys = [msgspec.structs.replace(STACKS["pytorch-2.13-cpu"], name=f"toy-{number}") for number in (2, 1)]
    monkeypatch.setattr(preference, "stacks", lambda: (*toys, *stacks()))
    order = preference.table().order[CPU]
    found = names(preference.ordered(CPU))
    assert found[: len(order)] == [*order] and {"toy-2", "toy-1"} <= {*found[len(order) :]}


def test_what_is_built_and_verified_comes_before_what_is_planned() -> None:
    for accelerator in Accelerator:
        for framework in ("pytorch", "tensorflow"):
            own = [stack for stack in preference.ordered(accelerator) if stack.framework == framework]
            planned = [stack.status.startswith("planned") for stack in own]
            assert planned == sorted(planned)


@pytest.mark.parametrize(
    ("request_", "devices", "first", "last"),
    [
        ({}, [CPU], "pytorch-2.13-cpu", "pytorch-2.1-eessi"),
        ({"framework": "tensorflow"}, [CPU], "tensorflow-2.21-cpu", "tensorflow-2.13-eessi"),
        ({"wanted": "tensorflow"}, [CPU], "tensorflow-2.21-cpu", "tensorflow-2.13-eessi"),
        ({}, [CUDA, CPU], "pytorch-2.13-cuda", "pytorch-2.1-eessi"),
        ({"accelerator": "cuda"}, [CUDA], "pytorch-2.13-cuda", "pytorch-2.1-foss-2023a-cuda"),
        ({"framework": "tensorflow"}, [CUDA, CPU], "tensorflow-2.15-foss-2023a-cuda", "tensorflow-2.13-eessi"),
        ({}, [ROCM, CPU], "tensorflow-2.13-rocm-image", "pytorch-2.1-eessi"),
        ({"framework": "pytorch"}, [ROCM, CPU], "pytorch-2.13-cpu", "pytorch-2.1-eessi"),
        ({"sandbox": True}, [CPU], "pytorch-2.13-cpu-image", "pytorch-2.13-cpu-image"),
        ({"base": "registry"}, [CUDA, CPU], "pytorch-2.13-cuda-image", "pytorch-2.13-cpu-image"),
        ({"site": "lumi"}, [ROCM], "tensorflow-2.13-rocm-image", "tensorflow-2.13-rocm-image"),
        ({"site": "polaris"}, [CPU], "pytorch-2.13-cpu", "pytorch-2.1-eessi"),
        ({"access": "native"}, [CUDA, CPU], "pytorch-2.1-eessi-cuda", "pytorch-2.1-eessi"),
        ({"release": "2023.06"}, [CPU], "pytorch-2.1-eessi", "pytorch-2.1-eessi"),
        ({"load": ("PrgEnv-gnu/8.5", "cray-python")}, [CPU], "pytorch-2.13-cpu", "pytorch-2.1-eessi"),
    ],
)
def test_what_comes_into_question(request_: dict[str, Any], devices: list[Accelerator], first: str, last: str) -> None:
    placed = {name for order in preference.table().order.values() for name in order}
    found = [stack for stack in preference.candidates(asked(**request_), devices) if stack.name in placed]
    assert (found[0].name, found[-1].name) == (first, last)
    assert len({stack.framework for stack in found if stack.accelerator == devices[-1]}) == 1


@pytest.mark.parametrize(
    ("request_", "device", "error", "what"),
    [
        ({"framework": "pytorch", "accelerator": "rocm"}, ROCM, UnknownStack, "no stack for pytorch on rocm."),
        ({"release": "2099.01"}, CPU, UnknownStack, "There is no stack for any framework on cpu with --release."),
        ({"sandbox": True, "access": "dir"}, CPU, UsageProblem, "--sandbox of apptainer, --access of eessi."),
        ({"wanted": "pytorch", "framework": "tensorflow"}, CPU, UnknownStack, "contradict each other"),
        ({"site": "no\nsuch"}, CPU, UsageProblem, "There is no site"),
    ],
)
def test_what_nothing_is_for(request_: dict[str, Any], device: Accelerator, error: type[Exception], what: str) -> None:
    with pytest.raises(error, match=what):
        preference.candidates(asked(**request_), [device])


@pytest.mark.parametrize(
    ("devices", "fails", "stack", "said"),
    [
        ([CPU], (), "pytorch-2.13-cpu", "there is no GPU; it comes first, before apptainer and eessi"),
        ([CPU], ("easybuild",), "pytorch-2.13-cpu-image", "not pytorch-2.13-cpu (easybuild): There is no gcc"),
        ([CPU], ("easybuild", "apptainer"), "pytorch-2.1-eessi", "not pytorch-2.13-cpu-image (apptainer): "),
        ([CUDA, CPU], (), "pytorch-2.13-cuda", "there is a GPU (cuda); it comes first, before apptainer and eessi"),
        ([CUDA, CPU], ("easybuild",), "pytorch-2.13-cuda-image", "not pytorch-2.13-cuda (easybuild)"),
        ([ROCM, CPU], (), "tensorflow-2.13-rocm-image", "there is a GPU (rocm); it comes first, before easybuild"),
        ([ROCM, CPU], ("apptainer",), "tensorflow-2.13-rocm", "not tensorflow-2.13-rocm-image (apptainer)"),
    ],
)
def test_the_first_that_lacks_nothing(
    devices: list[Accelerator], fails: tuple[str, ...], stack: str, said: str
) -> None:
    request = asked()
    found = preference.first(request, preference.candidates(request, devices), lacking_by(*fails))
    assert found.stack.name == stack
    lines = preference.lines(found.stack, preference.because(found, request, devices[0]))
    assert lines[0].startswith(f"method   {found.stack.method}: ")
    assert lines[1] == f"stack    {stack}: {found.stack.status}"
    assert lines[2].startswith("because  ") and said in lines[2]
    assert not any("\n" in line for line in lines)


@pytest.mark.parametrize(
    ("request_", "devices", "first"),
    [
        ({}, [CPU], "tensorflow-2.21-cpu"),
        ({}, [CUDA, CPU], "tensorflow-2.15-foss-2023a-cuda"),
        ({"sandbox": True}, [CPU], "tensorflow-2.21-cpu-image"),
        ({"framework": "pytorch"}, [CPU], ""),
        ({"wanted": "pytorch"}, [CPU], ""),
    ],
)
def test_another_framework_comes_last_and_only_where_none_was_named(
    request_: dict[str, Any], devices: list[Accelerator], first: str
) -> None:
    request = asked(**request_)
    found = preference.others(request, devices)
    assert [stack.name for stack in found[:1]] == [first] * bool(first)
    assert not {*names(found)} & {*names(preference.candidates(request, devices))}
    assert {stack.framework for stack in found} == ({"tensorflow"} if first else set())


def test_a_machine_without_pytorch_gets_tensorflow(
    prefix: Prefix, machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And is told so."""

    def lacking(seen: select.Look, stack: Stack) -> list[Problem]:
        seen.works[stack.name] = SimpleNamespace(stack=stack)
        return [Problem(what="No wheel of torch.", fix="")] if stack.framework == "pytorch" else []

    monkeypatch.setattr(select.Look, "lacking", lacking)
    said = list[str]()
    work = select.select(asked(prefix=prefix, tell=said.append), machine(accelerator=CPU))
    assert work.stack.name == "tensorflow-2.21-cpu"
    assert "not pytorch-2.13-cpu (easybuild): No wheel of torch" in said[-1]
    with pytest.raises(HostProblem, match="for pytorch on this machine"):
        select.select(asked(prefix=prefix, wanted="pytorch", tell=said.append), machine(accelerator=CPU))


def test_what_comes_after_is_not_looked_at() -> None:
    looked = list[str]()

    def lacking(stack: Stack) -> Sequence[Problem]:
        looked.append(stack.name)
        return []

    preference.first(asked(), preference.candidates(asked(), [CUDA, CPU]), lacking)
    assert looked == ["pytorch-2.13-cuda"]


def test_no_method_works() -> None:
    request = asked(framework="tensorflow", accelerator="rocm")
    with pytest.raises(HostProblem) as error:
        preference.first(request, preference.candidates(request, [ROCM]), lacking_by(*registry.NAMES))
    listed = error.value.why.splitlines()
    assert error.value.exit_code == 3
    told = [line.split(" ")[0].rstrip(":") for line in listed if not line.startswith((" ", "no"))]
    assert told == [*registry.NAMES]
    assert sum(line.startswith("   -> ") for line in listed) == len(told)
    assert "eessi: envkit has no stack for tensorflow on rocm." in error.value.why


def test_a_reason_that_several_stacks_share_is_told_once() -> None:
    request = asked(framework="tensorflow")
    with pytest.raises(HostProblem) as error:
        preference.first(request, preference.candidates(request, [CPU]), lacking_by(*registry.NAMES))
    assert error.value.why.count("easybuild (tensorflow-2.21-cpu)") == 1
    assert "tensorflow-2.15-cpu" not in error.value.why


def test_an_option_of_one_method_is_named_where_it_leaves_none() -> None:
    request = asked(sandbox=True)
    with pytest.raises(HostProblem) as error:
        preference.first(request, preference.candidates(request, [CPU]), lacking_by("apptainer"))
    assert "eessi: it has no --sandbox, which is only for apptainer.\n   -> Leave it out." in error.value.why


@pytest.mark.parametrize("why", ["a\nb", "a\r\n\tb", "a\x1b]0;title\x07 b", "a\u2028b", "a\x85 b", "a\x00 b", "{a}\n"])
def test_three_lines_whatever_is_in_them(why: str) -> None:
    said = "\n".join(preference.lines(STACKS["pytorch-2.13-cpu"], why))
    assert len(said.splitlines()) == 3 and all(letter.isprintable() or letter == "\n" for letter in said)


@pytest.mark.parametrize(
    ("cuda", "kernel", "problem", "stack", "said"),
    [
        ("13.0", "580.65.06", "", "pytorch-2.13-cuda", ""),
        ("13.1", "590.1", "", "pytorch-2.13-cuda-image", ""),
        ("12.4", "550.54", "", "pytorch-2.13-cuda", "NVIDIA's driver 550.54 takes CUDA up to 12.4, and"),
        ("12.4", "550.54", "", "pytorch-2.13-cuda-image", "is for CUDA 13.0."),
        ("12.0", "525.60", "", "pytorch-2.9-foss-2024a-cuda", ""),
        ("11.8", "520.61", "", "pytorch-2.1-eessi-cuda", "is for CUDA 12.1.1."),
        ("11.8", "520.61", "", "pytorch-2.13-cpu", ""),
        ("", "", "cuInit ended with status 803", "pytorch-2.13-cuda", "does not work: cuInit ended with status 803."),
    ],
)
def test_the_driver(cuda: str, kernel: str, problem: str, stack: str, said: str, machine: Machine) -> None:
    driver = Driver(cuda=cuda, devices=("NVIDIA H100",), problem=problem)
    found = preference.driver_problems(STACKS[stack], machine(accelerator=CUDA), driver, kernel)
    assert bool(found) == bool(said) and all(said in one.what and one.fix for one in found)
    assert preference.driver_problems(STACKS[stack], machine(accelerator=CUDA), None, "") == []


def recorded(name: str) -> Facts:
    """Facts that the doctor has found on a machine."""
    return msgspec.json.decode((Path(__file__).parent / "doctor" / f"{name}.json").read_bytes(), type=Facts)


@pytest.mark.parametrize(
    ("name", "stack"),
    [("root", "pytorch-2.13-cpu"), ("user", "pytorch-2.13-cpu"), ("container", ""), ("login", ""), ("job", "")],
)
def test_from_what_the_doctor_has_found(name: str, stack: str) -> None:
    """On machines without a network nothing can be had, unless there is a bundle."""
    facts = recorded(name)

    def lacking(stack: Stack) -> list[Problem]:
        found = facts.preflights.get(stack.method)
        if found is None:
            return [way.refusal for way in facts.ways if way.refusal]
        return [*found.problems, *filter(None, [rules.no_index(facts, found)])]

    request = asked()
    if stack:
        assert preference.first(request, preference.candidates(request, [CPU]), lacking).stack.name == stack
        return
    with pytest.raises(HostProblem) as error:
        preference.first(request, preference.candidates(request, [CPU]), lacking)
    assert all(f"\n{method} (" in f"\n{error.value.why}" for method in registry.NAMES)


@pytest.mark.parametrize(
    ("changes", "name", "what"),
    [
        ({"compiler": None}, "pytorch-2.13-cpu", "There is no gcc and g++ that compile C++17."),
        ({"modules_tool": None}, "pytorch-2.13-cpu", "Neither Lmod nor Environment Modules was found."),
        ({"machine": "ppc64le"}, "pytorch-2.13-cpu", "pytorch-2.13-cpu has no wheels for ppc64le."),
        ({"machine": "ppc64le"}, "pytorch-2.13-cuda", "pytorch-2.13-cuda has no wheels for ppc64le."),
        ({"machine": "aarch64"}, "pytorch-2.13-cuda-image", "pytorch-2.13-cuda-image cannot be built on aarch64."),
        ({"machine": "arm64"}, "pytorch-2.13-cpu", "pytorch-2.13-cpu has no wheels for arm64."),
        (
            {"python": Interpreter(path=Path("/p"), version="3.14.1", headers=True)},
            "pytorch-2.13-cpu",
            "Python 3.14.1 (/p) is not one that pytorch-2.13-cpu has wheels for.",
        ),
        ({}, "pytorch-2.1-eessi", "native: /cvmfs/software.eessi.io is not mounted on this machine."),
    ],
)
def test_what_hosts_lack(
    changes: dict[str, Any], name: str, what: str, machine: Machine, prefix: Prefix, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ENVKIT_EESSI_DIR", raising=False)
    seen = select.Look(request=asked(prefix=prefix), machine=machine(**changes))
    found = seen.lacking(STACKS[name])
    assert what in [problem.what for problem in found] and all(problem.fix for problem in found)


@pytest.mark.parametrize(("files", "is_asked"), [(("a.whl",), True), ((), False)])
def test_no_network_is_missed_where_nothing_is_fetched(
    files: tuple[str, ...], is_asked: bool, machine: Machine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As where an image comes from a cache in a folder."""
    monkeypatch.setattr(rules, "no_index", lambda *_: Problem(what="nothing answers", fix=""))
    seen = select.Look(request=asked(prefix=Prefix(root=tmp_path / "new")), machine=machine())
    seen.__dict__["indexes"] = ()
    wanted = tuple(Source(filename=name, sha256="0" * 64, needed_by="toy") for name in files)
    work = SimpleNamespace(missing=["image"], sources=wanted, stack=STACKS["pytorch-2.13-cpu-image"])
    assert [one.what for one in seen.network(work)] == ["nothing answers"] * is_asked


def test_modules_of_a_site_are_not_for_eessi(machine: Machine, prefix: Prefix) -> None:
    request = asked(prefix=prefix, load=("gcc",))
    assert "pytorch-2.1-eessi" not in [one.wanted for one in select.installed(request, CPU)]
    seen = select.Look(request=request, machine=machine())
    assert [one.what for one in seen.lacking(STACKS["pytorch-2.1-eessi"])] == [
        "a site's modules (--load) are not seen in EESSI."
    ]


def test_what_is_installed_by_any_method_will_do(
    install: Callable[..., ModuleReceipt],
    install_image: Callable[..., ImageReceipt],
    prefix: Prefix,
    capsys: Output,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delattr("envkit.install.install.install_now")
    install_image("pytorch-2.13-cpu-image")
    install("tensorflow-2.15-cpu", framework="tensorflow")
    where = ["--prefix", str(prefix.root), "--accelerator", "cpu"]
    for words, name in (([], "pytorch-2.13-cpu-image"), (["tensorflow"], "tensorflow-2.15-cpu")):
        assert run(["install", *words, *where]) == 0
        said = capsys.readouterr()
        assert f"{name} is installed already" in said.out and said.err == ""


def test_what_is_installed_for_something_else_will_not_do(
    install: Callable[..., ModuleReceipt], prefix: Prefix
) -> None:
    install("pytorch-2.13-cpu")
    assert names(preference.candidates(asked(), [CPU]))[0] == "pytorch-2.13-cpu"
    for changes in ({"accelerator": "cuda"}, {"framework": "tensorflow"}, {"sandbox": True}):
        others = select.installed(asked(prefix=prefix, **changes), CPU)
        assert "pytorch-2.13-cpu" not in [one.wanted for one in others]


@pytest.mark.parametrize(
    ("there", "request_", "first"),
    [
        (CUDA, {}, "pytorch-2.13-cuda"),
        (ROCM, {}, "tensorflow-2.13-rocm-image"),
        (ROCM, {"framework": "pytorch"}, "pytorch-2.13-cpu"),
        (CUDA, {"accelerator": "cpu"}, "pytorch-2.13-cpu"),
    ],
)
def test_what_would_do_is_for_the_best_that_computes(there: Accelerator, request_: dict[str, Any], first: str) -> None:
    found = [STACKS[str(one.wanted)] for one in select.installed(asked(**request_), there)]
    assert found[0].name == first and {stack.accelerator for stack in found} == {STACKS[first].accelerator}


@pytest.mark.parametrize(
    "request_", [{"wanted": "pytorch-2.13-cpu"}, {"method": "easybuild"}, {"method": None}, {"source": "a.sif"}]
)
def test_what_is_named_is_left_as_it_is(request_: dict[str, Any]) -> None:
    request = asked(**request_)
    assert not preference.is_open(request) and select.installed(request, CPU) == [request]


@pytest.mark.parametrize(
    ("request_", "tensorflow", "named"),
    [
        ({"method": "easybuild", "framework": "pytorch"}, [], "install tensorflow --method easybuild"),
        ({"wanted": "pytorch"}, [], "install tensorflow"),
        ({"wanted": "pytorch"}, [LACKS], ""),
        ({"wanted": "pytorch-2.13-cpu"}, [], ""),
        ({}, [], ""),
    ],
)
def test_the_framework_that_can_be_had_is_named(
    request_: dict[str, Any], tensorflow: list[Problem], named: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the one that was asked for cannot be."""

    def prepare(request: Request) -> SimpleNamespace:
        return SimpleNamespace(stack=STACKS["pytorch-2.13-cpu"], request=request)

    def problems(work: SimpleNamespace) -> list[Problem]:
        return tensorflow if work.request.framework == "tensorflow" else [LACKS]

    monkeypatch.setattr(installation, "prepare", prepare)
    monkeypatch.setattr(installation, "problems", problems)
    with pytest.raises(HostProblem) as error:
        installation.ready(asked(**request_), Console(quiet=True))
    told = error.value.fix.partition("\nNothing is known to be lacking for tensorflow: ")[2]
    assert told.endswith(named) and bool(told) == bool(named)
