"""From recorded facts to verdicts: what this machine was for root, for a plain user, in a bare container, with a
driver that hangs, on a cluster whose nodes reach no package index; and each changed in one thing."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from envkit.doctor.facts import (
    Driver,
    Facts,
    Missing,
    PackageIndex,
    Preflight,
    RepositoryAccess,
    SchedulerClient,
    SessionMpi,
    Tool,
)
from envkit.doctor.report import MethodState, MethodVerdict, Report
from envkit.doctor.rules import RULES, judge, words
from envkit.doctor.terminal import render
from envkit.errors import Problem
from envkit.report.paper import Paper

RECORDED = sorted(path.stem for path in Path(__file__).parent.glob("*.json"))
SILENT = (PackageIndex(url="https://index.example.org/simple", problem="Connection refused"),)
REFUSED = Problem(what="ada has no range of subordinate ids in /etc/subuid.", fix="usermod --add-subuids")


def facts(name: str = "root", **changes: Any) -> Facts:
    """Recorded facts, changed."""
    text = Path(__file__).with_name(f"{name}.json").read_text()
    return msgspec.structs.replace(msgspec.json.decode(text, type=Facts), **changes)


def inner(name: str, field: str, **changes: Any) -> Facts:
    """Recorded facts with one of them changed within."""
    found = facts(name)
    return msgspec.structs.replace(found, **{field: msgspec.structs.replace(getattr(found, field), **changes)})


def of(report: Report, method: str) -> MethodVerdict:
    return next(verdict for verdict in report.methods if verdict.method == method)


def states(found: Facts) -> dict[str, str]:
    """The verdicts on the methods that have a rule of their own."""
    return {verdict.method: verdict.state.value for verdict in judge(found).methods if verdict.method in RULES}


def noted(found: Facts) -> set[str]:
    return {note.id for note in judge(found).notes}


def test_the_mpi_that_horovod_would_be_compiled_with() -> None:
    there = inner("root", "builder", mpi=Tool(path="/opt/mpich/bin/mpirun", family="MPICH", version="4.3.2"))
    assert "MPICH 4.3.2" in of(judge(there), "easybuild").why and "no-mpi" not in noted(there)
    for mpi in (None, Tool(path="/opt/hp/bin/mpirun", family="unknown", version="unknown")):
        assert "no-mpi" in noted(inner("root", "builder", mpi=mpi))


def test_an_mpi_that_only_the_session_has() -> None:
    own = SessionMpi(family="MPICH", version="5", path="/m/mpirun", load=("mpich/5",), what="It is loaded.", fix="Add.")
    found = msgspec.structs.replace(inner("root", "builder", mpi=None), session_mpi=own)
    [note] = [note for note in judge(found).notes if note.id in ("session-mpi", "no-mpi")]
    assert (note.id, note.what, note.fix) == ("session-mpi", "It is loaded.", "Add.")


@pytest.mark.parametrize(
    ("name", "easybuild", "eessi", "apptainer", "works"),
    [
        ("root", "works", "fails", "works", True),
        ("user", "works", "fails", "partly", True),
        ("container", "fails", "fails", "fails", False),
        ("hanging", "works", "fails", "works", True),
        ("login", "partly", "fails", "partly", True),
        ("job", "partly", "fails", "partly", True),
    ],
)
def test_what_was_recorded(name: str, easybuild: str, eessi: str, apptainer: str, works: bool) -> None:
    assert states(facts(name)) == {"easybuild": easybuild, "eessi": eessi, "apptainer": apptainer}
    assert judge(facts(name)).works is works


@pytest.mark.parametrize("name", RECORDED)
@pytest.mark.parametrize("width", [40, 80, 200])
def test_what_fails_has_a_reason_and_a_remedy(name: str, width: int) -> None:
    report = judge(facts(name))
    for verdict in (of(report, method) for method in RULES):
        assert verdict.why and "{" not in verdict.why
        assert verdict.problems or verdict.state is MethodState.WORKS
        assert all(problem.what and problem.fix for problem in verdict.problems)
    said = render(report, Paper(width=width))
    assert all(len(line) <= max(width, 60) or " " not in line.strip() for line in said.splitlines())
    plain = " ".join(said.split())
    assert all(" ".join(f"{one.method}: {one.why}".split()) in plain for one in report.methods if width == 200)


def test_a_problem_of_the_preflight_is_told_as_it_is() -> None:
    verdict = of(judge(facts("container")), "easybuild")
    assert "There is no gcc and g++ that compile C++17." in [one.what for one in verdict.problems]
    assert verdict.why.endswith(f"{len(verdict.problems)} things stand in its way")


def test_no_package_index_answers() -> None:
    silent = facts(indexes=SILENT)
    assert states(silent) == {"easybuild": "partly", "eessi": "fails", "apptainer": "partly"}
    [problem] = of(judge(silent), "easybuild").problems
    assert "index.example.org/simple: Connection refused" in problem.what
    assert "envkit fetch pytorch-2.13-cpu --bundle" in problem.fix
    assert states(facts(indexes=()))["easybuild"] == "partly"
    assert states(facts(indexes=(*SILENT, PackageIndex(url="/opt/packages"))))["easybuild"] == "works"


def test_a_source_that_no_place_has() -> None:
    """An index that answers is not enough where it has not the files for this Python."""
    told = facts(sources=(Problem(what="torch.whl cannot be fetched.", fix="Carry it over."),))
    assert states(told)["easybuild"] == "partly"
    verdict = of(judge(told), "easybuild")
    assert verdict.why == "pytorch-2.13-cpu can be built from a bundle"
    assert [one.what for one in verdict.problems] == ["torch.whl cannot be fetched."]
    assert states(facts(sources=()))["easybuild"] == "works"
    assert "sources-not-asked" not in noted(facts(sources=()))
    assert (states(facts())["easybuild"], "sources-not-asked" in noted(facts())) == ("works", True)
    assert "sources-not-asked" not in noted(facts("container"))  # where nothing can be built
    late = facts(missing=(Missing(probe="sources", why="it has not answered in 5 s", hung=True),))
    assert noted(late) & {"missing-sources", "missing", "sources-not-asked"} == {"missing"}


def test_an_index_that_was_cut_off_is_named_and_condemns_nothing() -> None:
    cut = facts(indexes=None, missing=(Missing(probe="indexes", why="it has not answered in 5 s", hung=True),))
    assert states(cut)["easybuild"] == "works"
    assert noted(cut) >= {"missing-indexes"}


def test_images_that_can_be_run_and_not_built() -> None:
    refused = {"apptainer": Preflight(stack="toy-image", accelerator="cpu", problems=(REFUSED,))}
    runs = msgspec.structs.replace(inner("root", "container", building=(REFUSED,)), preflights=refused, uid=1000)
    assert states(runs)["apptainer"] == "partly"
    assert "--from FILE.sif" in of(judge(runs), "apptainer").problems[0].fix
    assert REFUSED in of(judge(runs), "apptainer").problems
    walled = msgspec.structs.replace(runs, namespaces="no user namespace can be made")
    assert states(walled)["apptainer"] == "fails"
    setuid = msgspec.structs.replace(inner("root", "container", building=(REFUSED,), setuid=True), preflights=refused)
    assert states(msgspec.structs.replace(setuid, uid=1000, namespaces="none"))["apptainer"] == "partly"
    full = Problem(what="/home is full.", fix="Free space.")
    both = {"apptainer": Preflight(stack="toy-image", accelerator="cpu", problems=(REFUSED, full))}
    assert states(msgspec.structs.replace(runs, preflights=both))["apptainer"] == "fails"


def test_one_way_to_eessi_is_enough() -> None:
    way = RepositoryAccess(access="dir", why="/data/eessi is a copy of it", refusal=None)
    verdict = of(judge(facts("container", ways=(*facts().ways[:1], way))), "eessi")
    assert (verdict.state, verdict.why) == (MethodState.WORKS, "/data/eessi is a copy of it (--access dir)")
    assert "No release of EESSI has Horovod" in verdict.problems[0].what


def test_a_way_to_eessi_that_was_cut_off() -> None:
    cut = facts(ways=facts().ways[1:], missing=(Missing(probe="eessi native", why="it has not answered", hung=True),))
    verdict = of(judge(cut), "eessi")
    assert verdict.state is MethodState.UNKNOWN
    assert "--access native: it has not answered" in verdict.why


def test_what_cannot_be_found_out_is_unknown() -> None:
    cut = Missing(probe="host", why="'mpirun --version' has not ended in 5 s", hung=True)
    found = facts(builder=None, preflights={}, missing=(cut,))
    assert states(found) == {"easybuild": "unknown", "eessi": "fails", "apptainer": "unknown"}
    assert "'mpirun --version' has not ended in 5 s" in of(judge(found), "easybuild").why
    assert not judge(found).works


def test_what_hangs_is_named_with_its_remedy() -> None:
    [note] = [note for note in judge(facts("hanging")).notes if note.id == "missing-nvidia smi"]
    assert "nvidia-smi -L' has not ended in 5 s" in note.what
    assert "Xid" in note.fix


def test_a_login_node_is_told_to_ask_in_a_job() -> None:
    slurm = SchedulerClient(
        name="Slurm", version="24.05.1", job=False, mpi=("pmix",), attempt="srun -N 1 -n 1 {command}"
    )
    [note] = [note for note in judge(facts(schedulers=(slurm,))).notes if note.id == "login-node"]
    assert "srun -N 1 -n 1 envkit doctor" in note.fix
    assert note.what.startswith("Slurm is installed, and you are not in a Slurm job: this may be a login node.")
    assert "login-node" not in noted(facts(schedulers=(msgspec.structs.replace(slurm, job=True),)))
    assert "login-node" not in noted(facts(schedulers=()))
    assert "login-node" in noted(facts("login")) - noted(facts("job"))


def test_gpus_that_do_not_work_or_are_not_used() -> None:
    gpus = msgspec.structs.replace(facts().node.gpus, nvidia=("NVIDIA H100",) * 4, nvidia_files=4)  # type: ignore[union-attr]
    found = msgspec.structs.replace(inner("root", "node", gpus=gpus), nvidia_smi="Driver/library version mismatch")
    driver = Driver(cuda="12.4", devices=(), problem="cuInit ended with status 803")
    found = msgspec.structs.replace(found, gpu_driver=driver)
    assert noted(found) >= {"gpu-driver", "no-smi"}
    said = render(judge(found), Paper(width=200))
    assert "4 x NVIDIA H100, for CUDA up to 12.4" in said
    unused = inner("root", "builder", accelerator="cuda")
    assert [note.what for note in judge(unused).notes if note.id == "gpu-unused"] == [
        f"This machine has a GPU (cuda); what {method} installs is for cpu." for method in ("easybuild", "apptainer")
    ]


def test_locked_memory_beside_a_fast_fabric() -> None:
    assert "memlock" not in noted(facts())
    fabric = msgspec.structs.replace(facts().node.fabric, rdma={"mlx5_0": ("InfiniBand",)})  # type: ignore[union-attr]
    found = inner("root", "node", fabric=fabric)
    assert "memlock" in noted(found)
    assert "InfiniBand: mlx5_0" in render(judge(found), Paper(width=200))
    limits = inner("root", "limits", memlock=None).limits
    assert "memlock" not in noted(msgspec.structs.replace(found, limits=limits))


def test_words_have_what_and_fix() -> None:
    assert all(set(one) == {"what", "fix"} for one in words().values())
