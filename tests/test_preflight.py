import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envkit.environments.prefix import Prefix
from envkit.errors import HostProblem, NotWritable, Problem, SourcesMissing
from envkit.machine.host import Accelerator, Host, Interpreter
from envkit.planning import preflight
from envkit.planning.plan import Plan, Step
from envkit.planning.stack import Stack
from envkit.sources.availability import Answers
from envkit.sources.fetch import Source

Fake = Callable[..., Path]
Machine = Callable[..., Host]
STACK = Stack(
    name="toy-cpu",
    method="easybuild",
    framework="pytorch",
    accelerator=Accelerator.CPU,
    easyconfig="Toy-1.0.eb",
    module="Toy/1.0",
    pythons={"x86_64": ("3.11", "3.12"), "aarch64": ("3.10", "3.11")},
)
PYTHON = Interpreter(path=Path("/usr/bin/python3"), version="3.10.2", headers=True)


def said(problems: Any) -> list[str]:
    return [problem.what for problem in problems]


def plan(**changes: Any) -> Plan:
    steps = (
        Step(module="Base/1", easyconfig="/Base-1.eb", eula="CUDA", os_dependencies=(("absent",),)),
        msgspec.structs.replace(Step(module="Toy/1.0", easyconfig="/Toy-1.0.eb"), **changes),
    )
    return Plan(stack="toy-cpu", steps=steps, robot=())


def test_nothing_is_missing(machine: Machine, fake: Fake) -> None:
    for tool in ("make", "tar", "patch"):
        folder = fake(tool).parent
    assert said(preflight.host_problems(machine(env={"PATH": str(folder)}), STACK)) == []


@pytest.mark.parametrize(
    ("easyconfig", "needed"),
    [
        ("Horovod-0.28.1-foss-2023a-CUDA-12.1.1-PyTorch-2.1.2.eb", False),
        ("Horovod-0.28.1-gompi-system-PyTorch-2.13.0.eb", True),
        ("/own/my.eb", True),
    ],
)
def test_the_headers_of_a_python_that_is_not_used_may_lack(
    easyconfig: str, needed: bool, machine: Machine, fake: Fake
) -> None:
    for tool in ("make", "tar", "patch"):
        folder = fake(tool).parent
    here = machine(env={"PATH": str(folder)}, python=Interpreter(path=Path("/p"), version="3.11.7", headers=False))
    stack = msgspec.structs.replace(STACK, easyconfig=easyconfig, pythons={})
    assert bool(said(preflight.host_problems(here, stack))) is needed


@pytest.mark.parametrize(
    ("changes", "what", "fix"),
    [
        ({"modules_tool": None}, "Neither Lmod nor Environment Modules was found.", "apt install lmod"),
        ({"compiler": None}, "There is no gcc and g++ that compile C++17.", "apt install g++"),
        ({"machine": "ppc64le"}, "toy-cpu has no wheels for ppc64le.", "installed on x86_64, aarch64."),
        (
            {"python": PYTHON},
            "Python 3.10.2 (/usr/bin/python3) is not one that toy-cpu has wheels for.",
            "under Python 3.11, 3.12,",
        ),
        (
            {"python": Interpreter(path=Path("/p"), version="3.11.7", headers=False)},
            "The headers of /p are missing (Python.h).",
            "python3-dev",
        ),
    ],
)
def test_what_a_machine_lacks(changes: dict[str, Any], what: str, fix: str, machine: Machine, fake: Fake) -> None:
    for tool in ("make", "tar", "patch"):
        folder = fake(tool).parent
    [problem] = preflight.host_problems(machine(env={"PATH": str(folder)}, **changes), STACK)
    assert problem.what == what
    assert fix in problem.fix


@pytest.mark.parametrize(
    ("pythons", "fix"),
    [
        (("3.9", "3.10"), "Load a Python 3.9, 3.10 with --load."),
        (
            ("3.10", "3.11", "3.12"),
            "Install envkit under Python 3.11, 3.12, or load a Python 3.10, 3.11, 3.12 with --load.",
        ),
    ],
)
def test_envkit_is_to_be_installed_under_a_python_that_it_runs_on(
    pythons: tuple[str, ...], fix: str, machine: Machine
) -> None:
    stack = msgspec.structs.replace(STACK, pythons={"x86_64": pythons})
    newer = Interpreter(path=Path("/p"), version="3.14.1", headers=True)
    assert fix in [problem.fix for problem in preflight.host_problems(machine(python=newer), stack)]


def test_a_python_that_another_machine_type_has_wheels_for(machine: Machine) -> None:
    found = said(preflight.host_problems(machine(machine="aarch64", python=PYTHON), STACK))
    assert not [what for what in found if "wheels" in what]


def test_all_problems_are_found_at_once(machine: Machine, tmp_path: Path) -> None:
    found = said(
        preflight.host_problems(
            machine(modules_tool=None, compiler=None, machine="riscv64", env={"PATH": str(tmp_path)}), STACK
        )
    )
    assert len(found) == 6
    assert [what for what in found if what.startswith("The program")] == [
        f"The program {tool} is missing." for tool in ("make", "tar", "patch")
    ]


def test_room_for_what_is_not_built_yet(prefix: Prefix) -> None:
    large = msgspec.structs.replace(STACK, disk_mb=10**12, inodes=10**15)
    found = said(preflight.prefix_problems(prefix, large, 1.0))
    assert "MB free; toy-cpu takes about 1000000000000 MB." in found[0]
    assert len(found) == 1 or "inodes left; toy-cpu takes about" in found[1]
    assert said(preflight.prefix_problems(prefix, large, 0.0)) == []
    assert said(preflight.prefix_problems(prefix, STACK, 1.0)) == []


def test_a_prefix_that_does_not_exist_yet(tmp_path: Path) -> None:
    assert said(preflight.prefix_problems(Prefix(root=tmp_path / "a" / "b"), STACK, 1.0)) == []


def test_licences_of_the_steps_that_are_left(machine: Machine) -> None:
    both = plan(eula="Intel-oneAPI")
    left = said(preflight.plan_problems(both, ["Toy/1.0"], (), machine()))
    assert left == ["The licence of Intel-oneAPI has to be accepted."]
    assert said(preflight.plan_problems(both, ["Toy/1.0"], ("Intel-oneAPI",), machine())) == []
    assert said(preflight.plan_problems(both, [], (), machine())) == []


def test_packages_of_the_system(machine: Machine, fake: Fake, tmp_path: Path) -> None:
    fake("dpkg-query", '[ "$3" != there ] || printf "install ok installed"')
    path = fake("rpm", '[ "$3" = provided ]').parent
    header = tmp_path / "header.h"
    header.touch()
    needed = (("a", "there"), ("provided",), (str(header),), ("gone", "b"), ("c",), ("rpm",))
    host = machine(env={"PATH": f"{path}:/usr/bin:/bin"})
    assert said(preflight.plan_problems(plan(os_dependencies=needed), ["Toy/1.0"], (), host)) == [
        "A package or program of the system is missing: c.",
        "A package or program of the system is missing: gone or b.",
    ]


def test_sources_without_a_checksum(machine: Machine) -> None:
    source = Source(filename="toy.tar.gz", sha256=None, needed_by="Toy-1.0.eb")
    [problem] = preflight.plan_problems(plan(sources=(source,)), ["Toy/1.0"], (), machine())
    assert problem.what == "Toy-1.0.eb pins no SHA-256 for toy.tar.gz."
    assert problem.fix.endswith("eb --inject-checksums Toy-1.0.eb")


def test_sources_that_an_offline_installation_lacks(prefix: Prefix) -> None:
    source = Source(filename="toy.tar.gz", sha256="0" * 64, needed_by="Toy-1.0.eb")
    [problem] = preflight.source_problems([source], prefix, STACK)
    assert problem.what.startswith("1 of 1 sources missing from ")
    assert "envkit fetch toy-cpu" in problem.fix
    assert "caches" not in problem.fix
    [problem] = preflight.source_problems([source], prefix, STACK, has_caches=True)
    assert problem.fix.endswith("Without --offline they are sought in your caches ('cache.from'), too.")
    assert said(preflight.source_problems([], prefix, STACK)) == []
    assert preflight.refusal([problem]) is SourcesMissing


@pytest.mark.integration
def test_sources_that_no_place_has(prefix: Prefix, machine: Machine) -> None:
    """Each is named with each place, as long as they are few, and what can be done; what is here is not asked for."""
    base = Source(filename="x", sha256="0" * 64, urls=("http://127.0.0.1:9/whl",), needed_by="Toy-1.0.eb")
    many = [msgspec.structs.replace(base, filename=f"toy-{number}.whl") for number in range(8)]
    [problem] = preflight.refused_sources(preflight.ask(many, prefix), STACK, machine())
    assert problem.what.startswith("8 of 8 sources cannot be fetched from any place where they are sought:\ntoy-")
    assert problem.what.count("(for Toy-1.0.eb)\n    http://127.0.0.1:9/whl/toy-") == 5
    assert problem.what.endswith("\nand 3 more")
    assert "Another Python may have other files (3.12)." in problem.fix
    assert "envkit install toy-cpu --bundle FILE.tar" in problem.fix
    with pytest.raises(SourcesMissing) as refused:
        preflight.require([problem], STACK)
    assert refused.value.exit_code == 4
    assert preflight.refusal([problem, Problem(what="A.", fix="Do a.")]) is HostProblem
    prefix.create()
    (prefix.sources / "toy.c").write_bytes(b"")
    empty = msgspec.structs.replace(base, filename="toy.c", sha256=hashlib.sha256(b"").hexdigest())
    assert said(preflight.refused_sources(preflight.ask([empty], prefix), STACK, machine())) == []


def test_who_does_not_answer_is_named_with_what_can_be_done() -> None:
    base = Source(filename="x", sha256="0" * 64, needed_by="Toy-1.0.eb")
    many = tuple(msgspec.structs.replace(base, filename=f"toy-{number}.whl") for number in range(8))
    answers = Answers(number=9, unanswered=many, silent=("files.example",))
    [problem] = preflight.silent_places(answers, STACK)
    assert problem.what == (
        "files.example did not answer within 5 s about toy-0.whl, toy-1.whl, toy-2.whl, toy-3.whl, toy-4.whl, "
        "and 3 more."
    )
    assert "Downloads wait longer" in problem.fix and "envkit install toy-cpu --bundle FILE.tar" in problem.fix
    assert not list(preflight.silent_places(Answers(number=9), STACK))
    [slow] = preflight.silent_places(Answers(number=40, unanswered=many[:1], unasked=many[1:]), STACK)
    assert slow.what == (
        "There was no answer within 5 s about toy-0.whl. 7 more of 40 files were not asked about in that time."
    )


def test_demand_lists_every_problem_with_its_remedy() -> None:
    preflight.require([], STACK)
    with pytest.raises(HostProblem) as refused:
        preflight.require([Problem(what="A.", fix="Do a."), Problem(what="B.", fix="Do b.")], STACK)
    assert refused.value.why == "1. A.\n   -> Do a.\n2. B.\n   -> Do b."
    assert refused.value.exit_code == 3


def test_a_prefix_that_cannot_be_written_has_its_own_exit_code() -> None:
    with pytest.raises(NotWritable):
        preflight.require([Problem(what="/x cannot be written to.", fix="Choose.")], STACK)


def test_shared_memory_that_cannot_be_written_to_is_a_matter_of_the_machine() -> None:
    what = "/dev/shm is not there, or cannot be written to: ranks of MPICH fail without it."
    assert preflight.refusal([Problem(what=what, fix="Mount it.")]) is HostProblem
