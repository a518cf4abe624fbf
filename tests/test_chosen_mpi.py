"""The MPI that is asked for, and the one that only the modules of the caller's session bring."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from envkit.doctor import gather, questions
from envkit.environments.prefix import Prefix
from envkit.errors import HostProblem
from envkit.install import needs
from envkit.machine import host, modules_tool
from envkit.machine.host import Host, Program
from envkit.planning import chosen_mpi
from envkit.planning.request import Request

from .test_mpi import INTEL, MPICH, OPEN_MPI

Machine = Callable[..., Host]
SESSION = "gcc/12:mpich/5.0.2:python/3"


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Mapping[str, str]:
    """A session with three modules, of which mpich/5.0.2 alone has an MPI in its folder."""
    folder = tmp_path / "mpich" / "bin"
    folder.mkdir(parents=True)
    (folder / "mpicxx").touch(mode=0o755)
    found = Program(path=folder / "mpirun", version="5.0.2", family="MPICH")
    monkeypatch.setattr(host, "mpis", lambda _: iter([OPEN_MPI, found]))
    monkeypatch.setattr(modules_tool, "clean", loading(folder, {"mpich/5.0.2"}))
    return {"PATH": f"{folder}:/usr/bin", "LOADEDMODULES": SESSION}


def loading(folder: Path, needed: set[str]) -> Callable[..., dict[str, str]]:
    """A modules tool by which these modules together put a folder on PATH."""

    def clean(_env: Mapping[str, str], _tool: object, load: Sequence[str]) -> dict[str, str]:
        return {"PATH": f"{folder}:/usr/bin" if needed <= {*load} else "/usr/bin"}

    return clean


def seen(machine: Machine, *programs: Program, path: str = "/usr/bin") -> Host:
    chosen, *others = (*programs, None)
    return machine(mpi=chosen, other_mpis=tuple(filter(None, others)), env={"PATH": path})


def test_an_mpi_that_only_the_session_has_is_named_with_its_module(
    session: Mapping[str, str], machine: Machine
) -> None:
    for here in (seen(machine), seen(machine, OPEN_MPI)):
        offered = chosen_mpi.unloaded(here, env=session, family="MPICH")
        assert offered and offered.load == ("mpich/5.0.2",)
        assert offered.what == "Your session has mpich/5.0.2 loaded (MPICH 5.0.2), which envkit unloads."
        assert offered.fix == "Add --load mpich/5.0.2 to build with it."
        fact = questions.session_mpi(here, session)
        assert fact and (fact.family, fact.load, fact.fix) == ("MPICH", ("mpich/5.0.2",), offered.fix)


def test_nothing_is_said_of_what_a_build_sees_as_well(session: Mapping[str, str], machine: Machine) -> None:
    assert chosen_mpi.unloaded(seen(machine, path=session["PATH"]), env=session) is None
    assert chosen_mpi.unloaded(seen(machine), env={**session, "LOADEDMODULES": ""}) is None
    assert chosen_mpi.unloaded(seen(machine), "Intel MPI", session) is None


@pytest.mark.parametrize(
    ("loaded", "needed", "load"),
    [
        ("gcc/12:mpich/5.0.2", "gcc/12 mpich/5.0.2", "gcc/12 mpich/5.0.2"),
        ("x/1:PrgEnv-gnu/8:cray-mpich/8", "PrgEnv-gnu/8 cray-mpich/8", "PrgEnv-gnu/8 cray-mpich/8"),
        ("site/1", "site/1", "site/1"),
        ("site/1", "gone/1", ""),
    ],
)
def test_the_fewest_modules_that_bring_it(
    loaded: str, needed: str, load: str, session: Mapping[str, str], machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(session["PATH"].partition(":")[0])
    monkeypatch.setattr(modules_tool, "clean", loading(folder, {*needed.split()}))
    offered = chosen_mpi.unloaded(seen(machine, OPEN_MPI), env={**session, "LOADEDMODULES": loaded})
    assert offered and offered.load == tuple(load.split())
    assert ("--load" in offered.fix) and (not load or f"--load {load.split()[-1]} " in offered.fix)


def test_a_family_that_only_the_session_has(
    session: Mapping[str, str], machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for name, value in session.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(HostProblem) as refused:
        chosen_mpi.require(Request(prefix=Prefix(root=tmp_path), mpi="MPICH"), seen(machine, OPEN_MPI))
    assert "mpich/5.0.2" in refused.value.why and refused.value.fix == "Add --load mpich/5.0.2 to build with it."
    with pytest.raises(HostProblem) as refused:
        chosen_mpi.require(Request(prefix=Prefix(root=tmp_path), mpi="Intel MPI"), seen(machine, OPEN_MPI))
    assert "mpich/5.0.2" not in refused.value.why and "oneAPI" in refused.value.fix


def test_doctor_and_list_take_the_family_of_the_configuration(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked, prefix = list[Request](), Prefix(root=tmp_path)

    def detect(request: Request) -> Host:
        asked.append(request)
        return seen(machine)

    monkeypatch.setenv("ENVKIT_MPI", "mpich")
    monkeypatch.setattr(chosen_mpi, "detect", detect)
    monkeypatch.setenv("ENVKIT_LOAD", "mpi/1.0")
    needs.lacking(prefix, [])
    gather.all_questions(prefix, ("gcc",), {"ENVKIT_MPI": "mpich"})["host"]({})
    assert [one.load for one in asked] == [("mpi/1.0",), ("gcc",)]
    assert all((one.mpi, one.configured) == ("MPICH", frozenset({"mpi"})) for one in asked)


def test_the_family_that_is_asked_for_comes_first(
    machine: Machine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(host, "detect", lambda _: seen(machine, OPEN_MPI, MPICH, INTEL))
    for family, order in (
        ("", [OPEN_MPI, MPICH, INTEL]),
        ("Intel MPI", [INTEL, OPEN_MPI, MPICH]),
        ("MVAPICH", [OPEN_MPI, MPICH, INTEL]),
    ):
        found = chosen_mpi.detect(Request(prefix=Prefix(root=tmp_path), mpi=family))
        assert chosen_mpi.programs(found) == order
