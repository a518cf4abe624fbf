"""Launches that go wrong: who is missing, who is late, which worlds there are, and why."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from envkit.system.stopped import Stopped
from envkit.verify.causes import ranked
from envkit.verify.checks import Expected, Result, Status, check, process
from envkit.verify.checks.process import telling
from envkit.verify.checks.world import family
from envkit.verify.facts import Ended, Fact, Machine, Phase, RankFacts, Started, World
from envkit.verify.outcome import Setting
from envkit.verify.presence import GONE, LATE, STOPPED, Absent

from . import recorded

GOOD = recorded.case("pytorch-4ranks").facts
ASKED = Expected(size=4, frameworks=("torch",), shared="/shared")


def found(facts: Sequence[RankFacts], check_id: str, **asked: Any) -> Result:
    return next(r for r in check(facts, replace(ASKED, **asked)) if r.id == check_id)


def each(**facts: Any) -> tuple[RankFacts, ...]:
    return tuple(replace(one, **facts) for one in GOOD)


def started(launcher: str, title: str) -> tuple[RankFacts, ...]:
    """Four ranks by that launcher, each alone in its world."""
    alone = World(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    return tuple(
        replace(one, world=alone, started=Started(launcher=launcher, title=title, rank=rank, size=4))
        for rank, one in enumerate(GOOD)
    )


def on_hosts(*hosts: str) -> tuple[RankFacts, ...]:
    """The ranks on those hosts, numbered there as Horovod should."""
    return tuple(
        replace(
            one,
            host=host,
            world=World(rank=rank, size=4, local_rank=hosts[:rank].count(host), local_size=hosts.count(host)),
        )
        for rank, (one, host) in enumerate(zip(GOOD, hosts, strict=True))
    )


OPEN_MPI = {"libmpi": ("/usr/lib/libmpi.so.40.30.4",)}
MPICH = {"libmpi": ("/usr/lib/libmpi.so.12.3.0",)}
CRAY = {"libmpi": ("/opt/cray/pe/mpich/8.1.32/ofi/gnu/12.3/lib/libmpi_gnu_123.so.12",)}
MVAPICH = {"libmpi": ("/opt/mvapich2/2.3.7/lib/libmpi.so.12",)}
IMAGE = Machine(container="apptainer")
INTEL = {"libmpi": ("/opt/intel/oneapi/mpi/lib/libmpi.so.12",)}


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/opt/intel/oneapi/mpi/2021.18/lib/libmpi.so.12.0.0", "Intel MPI"),
        ("/opt/intel/compilers_and_libraries_2020.4.304/linux/mpi/intel64/lib/release/libmpi.so.12", "Intel MPI"),
        ("/apps/easybuild/software/impi/2021.9.0-intel-compilers-2023.1.0/mpi/2021.9.0/lib/libmpi.so.12", "Intel MPI"),
        ("/spack/oneapi-2023.1.0/intel-oneapi-mpi-2021.10.0-abc/mpi/2021.10.0/lib/libmpi.so.12", "Intel MPI"),
        ("/apps/oneapi/2023.1/mpi/2021.9/lib/libmpi.so.12", "Intel MPI"),
        ("/opt/intel-oneapi/2023.1/mpi/2021.9.0/lib/release/libmpi.so.12", "Intel MPI"),
        ("/opt/intel_2020/compilers_and_libraries/linux/mpi/intel64/lib/libmpi.so.12", "Intel MPI"),
        ("/spack/2020.4-abc/compilers_and_libraries_2020.4.304/linux/mpi/intel64/lib/libmpi.so.12", "Intel MPI"),
        ("/spack/intel-mpi-2019.10.317-abc/compilers/linux/mpi/intel64/lib/release/libmpi.so.12", "Intel MPI"),
        ("/spack/linux-almalinux8-zen/intel-2021.10.0/openmpi-4.1.6-abc/lib/libmpi.so.40.30.6", "Open MPI"),
        ("/opt/apps/intel19/mvapich2/2.3.7/lib/libmpi.so.12", "MVAPICH"),
        ("/opt/aurora/25.1/spack/oneapi-2025.2.0/mpich-develop-git-abc/lib/libmpi.so.12", "MPICH"),
        ("/opt/intel/mpich-4.2/lib/libmpi.so.12", "MPICH"),
        ("/opt/cray/pe/mpich/8.1.32/ofi/intel/2022.1/lib/libmpi_intel.so.12", "Cray MPICH"),
    ],
)
def test_the_family_of_an_mpi_by_its_path(path: str, name: str) -> None:
    """A folder that is named after Intel's compiler holds any MPI. The paths are those of clusters."""
    assert family(path) == name


@pytest.mark.parametrize(
    ("launcher", "title", "facts", "cause", "remedy"),
    [
        ("mpiexec", "mpiexec of MPICH", {"libraries": OPEN_MPI}, "does not understand that launcher", "own mpirun"),
        ("srun", "srun", {"libraries": MPICH, "environment": {"SLURM_MPI_TYPE": "none"}}, "--mpi=none", "--mpi=pmi2"),
        ("srun", "srun", {"libraries": CRAY, "environment": {"SLURM_MPI_TYPE": "pmix"}}, "Cray MPICH", "cray_shasta"),
        ("srun", "srun", {"libraries": MVAPICH, "environment": {"SLURM_MPI_TYPE": "pmix"}}, "MVAPICH", "mpirun_rsh"),
        ("mpirun", "mpirun of Open MPI", {"libraries": INTEL}, "Intel MPI", "I_MPI_PMI_LIBRARY"),
        ("mpirun", "mpirun of Open MPI", {"libraries": MPICH}, "does not understand that launcher", "mpirun.mpich"),
        ("srun", "srun", {"environment": {"HOROVOD_CONTROLLER": "gloo"}}, "HOROVOD_CONTROLLER=gloo", "Unset"),
        ("flux", "flux run", {"libraries": OPEN_MPI}, "flux run", "mpirun of that MPI"),
        ("mpirun", "mpirun of Open MPI 5 or later", {"libraries": OPEN_MPI, "machine": IMAGE}, "the image", "inside"),
    ],
)
def test_singletons_have_the_cause_of_their_launcher_and_their_mpi(
    launcher: str, title: str, facts: dict[str, Any], cause: str, remedy: str
) -> None:
    result = found([replace(one, **facts) for one in started(launcher, title)], "world-size")
    assert result.status is Status.FAIL
    assert "4 processes each ran alone" in result.message
    assert cause in result.cause
    assert remedy in result.remedy


def test_singletons_of_a_build_without_mpi() -> None:
    flags = GOOD[0].flags
    assert flags is not None
    alone = [replace(one, flags=replace(flags, mpi=False)) for one in started("srun", "srun")]
    assert "built without MPI" in found(alone, "world-size").cause


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/usr/lib/x86_64-linux-gnu/openmpi/lib/libmpi.so.40.30.4", "Open MPI"),
        ("/apps/openmpi/5.0/lib/libmpi.so.40", "Open MPI"),
        ("/usr/lib/x86_64-linux-gnu/libmpich.so.12.2.1", "MPICH"),
        ("/opt/cray/pe/mpich/lib/libmpi_gnu_112.so.12", "Cray MPICH"),
        ("/opt/cray/pe/mpich/8.1/ofi/gnu/12.3/lib-abi-mpich/libmpi.so.12", "Cray MPICH"),
        ("/sw/libmpi_nvidia.so.12", "Cray MPICH"),
        ("/opt/mvapich2/2.3.7/lib/libmpi.so.12", "MVAPICH"),
        ("/opt/mpich/lib/libmpi.so.12", "MPICH"),
        ("/opt/intel/oneapi/mpi/2021/lib/libmpi.so.12", "Intel MPI"),
        ("none", ""),
    ],
)
def test_the_family_of_an_mpi_library(path: str, name: str) -> None:
    assert family(path) == name


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("ssh: Could not resolve hostname x: Name or service not known", "a host does not answer"),
        ("ssh: connect to host 10.0.0.9 port 22: No route to host", "a host does not answer"),
        ("root@n1: Permission denied (publickey).", "refuses ssh"),
        ("There are not enough slots available in the system", "no room"),
        ("srun: error: Unable to create step for job 3: More processors requested than permitted", "no room"),
        (
            "envkit: the module Horovod/0.28.1 could not be loaded.",
            "could not be entered: the module Horovod/0.28.1 could not be loaded.",
        ),
        ("", "none of 4 ranks left a record"),
    ],
)
def test_where_no_rank_came_the_launcher_says_why(said: str, words: str) -> None:
    result = found([], "rank-missing", launcher_said=said, launcher_status=1)
    assert words in result.message
    assert result.remedy


@pytest.mark.parametrize(
    ("said", "case"),
    [
        ("/p/bin/mpiexec: 2: exec: /usr/bin/mpiexec.mpich: not found", "launcher-gone"),
        ("/p/bin/mpiexec: 2: exec: /usr/bin/mpiexec.mpich: Permission denied", "not-executable"),
        ("bash: line 1: exec: mpirun: not found", "not-executable"),
    ],
)
def test_a_launcher_that_has_gone_is_not_to_be_made_executable(said: str, case: str) -> None:
    result = found([], "rank-missing", launcher_said=said, launcher_status=127)
    assert result.case == case
    assert ("chmod" in result.remedy) is (case == "not-executable")


def test_what_entering_says_to_type_can_be_typed() -> None:
    said = "Lmod says this.\nenvkit: the module Toy/1.0 could not be loaded.\n\n  The tool failed.\n\nWhat to do: {}\n"
    for fix, typed in (("'unset ${!_A@}', or start a new shell.", ("unset ${!_A@}",)), ("See 'module avail'.", ())):
        result = found([], "rank-missing", launcher_said=said.format(fix), launcher_status=92)
        assert (result.cause, result.commands) == ("The tool failed. It said: Lmod says this.", typed)
        assert result.remedy.startswith(fix)


def test_ranks_whose_node_sees_another_folder_are_told_from_ranks_that_never_were() -> None:
    unseen = found(GOOD[:2], "rank-missing")
    assert "missing are ranks 2-3" in unseen.message
    assert "/shared is not shared" in unseen.cause
    never = found([replace(one, world=None) for one in GOOD[:2]], "rank-missing")
    assert "started fewer" in never.cause


def test_two_launchers_one_in_the_other() -> None:
    assert "one inside the other" in found((*GOOD, *GOOD), "rank-missing").cause


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (range(9), ""),
        ({0, 1, 2, 4, 5, 6, 7, 8}, "3"),
        ({3, 4, 6}, "0-2, 5, 7-8"),
        ((), "0-8"),
        ({8}, "0-7"),
        ({-1, 0, 99}, "1-8"),
    ],
)
def test_ranks_that_are_missing_in_short(seen: Iterable[int], text: str) -> None:
    assert process.gaps(set(seen), 9) == text


def test_a_world_of_absurd_size_takes_no_memory() -> None:
    assert process.gaps({1}, 10**15) == f"0, 2-{10**15 - 1}"


@pytest.mark.parametrize(
    ("hosts", "nodes", "status", "words"),
    [
        ("a a b b", 2, Status.PASS, "2 hosts"),
        ("a a a a", 2, Status.FAIL, "all ranks ran on one host"),
        ("a a b b", 4, Status.FAIL, "ran on 2 hosts"),
    ],
)
def test_the_hosts_that_were_asked_for(hosts: str, nodes: int, status: Status, words: str) -> None:
    result = found(on_hosts(*hosts.split()), "hosts-used", nodes=nodes)
    assert result.status is status
    assert words in result.message


def test_the_hosts_of_a_slurm_step_are_those_asked_for() -> None:
    by_srun = Started(launcher="srun", title="srun", rank=0, size=4)
    step = {"SLURM_STEP_NUM_NODES": "2"}
    facts = [replace(one, environment=step, started=by_srun) for one in on_hosts("a", "a", "a", "a")]
    assert found(facts, "hosts-used").status is Status.FAIL


@pytest.mark.parametrize("launcher", [None, "mpirun"])
def test_the_nodes_of_a_step_count_only_for_what_srun_has_started(launcher: str | None) -> None:
    by = Started(launcher=launcher, title=launcher, rank=0, size=4) if launcher else None
    step = {"SLURM_STEP_NUM_NODES": "2"}
    facts = [replace(one, environment=step, started=by) for one in on_hosts("a", "a", "a", "a")]
    assert not [result for result in check(facts, ASKED) if result.id == "hosts-used"]


@pytest.mark.parametrize(("nodes", "warns"), [(2, True), (1, False), (8, False), (0, False)])
def test_fewer_hosts_than_the_job_has(nodes: int, warns: bool) -> None:
    """Of 8 nodes, 4 ranks cannot be on each."""
    facts = on_hosts("a", "a", "a", "a")
    told = [result for result in check(facts, replace(ASKED, granted=nodes)) if result.id == "hosts-used"]
    assert [result.status for result in told] == [Status.WARN] * warns


def test_the_hosts_of_an_lsf_with_jsrun_are_not_counted() -> None:
    """Its file of hosts begins with the node that jsrun is called on, which has no rank."""
    by = Started(launcher="jsrun", title="jsrun", rank=0, size=4)
    facts = [replace(one, started=by) for one in on_hosts("a", "a", "b", "b")]
    assert not [one for one in check(facts, replace(ASKED, granted=3)) if one.id == "hosts-used"]


def test_the_launcher_of_an_mpijob_that_ran_all_ranks_itself() -> None:
    facts = each(environment={"OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile"})
    result = found(facts, "hosts-used")
    assert result.status is Status.FAIL
    assert "PRTE_MCA_prte_default_hostfile" in result.remedy


def test_no_hosts_were_asked_for() -> None:
    assert not [r for r in check(GOOD, ASKED) if r.id == "hosts-used"]


def test_hosts_that_share_a_name() -> None:
    world = [World(rank=rank, size=4, local_rank=rank % 2, local_size=2) for rank in range(4)]
    facts = [replace(one, world=w) for one, w in zip(GOOD, world, strict=True)]
    result = found(facts, "local-ranks")
    assert result.status is Status.FAIL
    assert "there are 4 ranks, but Horovod counts them as 0 of 2, 0 of 2, 1 of 2, 1 of 2" in result.message
    assert found(GOOD, "local-ranks").status is Status.PASS


def arriving(*seconds: float) -> tuple[RankFacts, ...]:
    """Ranks that began together and came to hvd.init() so much later."""
    return tuple(
        replace(one, phases=(Phase(name="start", at=100.0), Phase(name="init", at=100.0 + later)))
        for one, later in zip(GOOD, seconds, strict=True)
    )


def test_a_late_rank_is_named() -> None:
    result = found(arriving(2, 2, 2, 25), "rank-late")
    assert result.status is Status.WARN
    assert "rank 3" in result.message
    assert "23 s after the others" in result.message


@pytest.mark.parametrize("seconds", [(2, 2, 2, 11), (30, 30, 30, 55), (1, 1, 1, 1)])
def test_a_rank_that_is_a_little_later_is_not(seconds: tuple[float, ...]) -> None:
    assert found(arriving(*seconds), "rank-late").status is Status.PASS


@pytest.mark.parametrize(
    ("ended", "words"),
    [
        (Ended(how="signal", signal="SIGSEGV"), "do not fit together"),
        (Ended(how="signal", signal="SIGBUS"), "/dev/shm"),
        (Ended(how="signal", signal="SIGILL"), "another CPU"),
        (Ended(how="signal", signal="SIGKILL"), "memory"),
        (Ended(how="signal", signal="SIGUSR2"), "nobody handled"),
        (Ended(how="exit", status=1, said="but OMPI was not built with SLURM's PMI support"), "--mpi type"),
        (Ended(how="exit", status=1, said="GTL library is not linked"), "fabric"),
        (Ended(how="exit", status=3, said="----\nlast words\n----"), "A library ended the process"),
        (None, "The node failed"),
    ],
)
def test_how_a_rank_died_tells_why(ended: Ended | None, words: str) -> None:
    facts = (*GOOD[:3], replace(GOOD[3], ended=ended, phase="init"))
    result = found(facts, "rank-died")
    assert result.status is Status.FAIL
    assert "rank 3" in result.message
    assert "'init'" in result.message
    assert words in result.cause


@pytest.mark.parametrize(("started", "case"), [(1, "as-started"), (4, "singletons")])
def test_a_launcher_around_it_that_was_given_another_number(started: int, case: str) -> None:
    assert GOOD[0].started and GOOD[0].world
    alone = replace(GOOD[0], world=replace(GOOD[0].world, size=1), started=replace(GOOD[0].started, size=started))
    assert found((alone,), "world-size").case.startswith(case)


@pytest.mark.parametrize(
    "line",
    [
        "I tensorflow/core/util/port.cc:113] oneDNN custom operations are on. You may see slightly different errors",
        "2026-11-23 03:00:00.123456: W tensorflow/stream_executor/x.cc:1] Could not load dynamic library",
        "I0000 00:00:1732330000.1 1 port.cc:113] error",
    ],
)
def test_what_tensorflow_notes_is_no_last_word(line: str) -> None:
    said = f"{line}\nAt least one pair of MPI processes are unable to reach each other for MPI communications."
    assert telling(said).startswith("At least one pair")


OF_MPICH = "[unset]: launcher not compatible with PMI1 client\nAbort(337242639): Fatal error in internal_Init_thread"
OF_OPEN_MPI = (
    'The application appears to have been direct launched using "srun",\nbut OMPI was not built with SLURM\'s PMI'
)


@pytest.mark.parametrize(
    ("said", "launcher", "case"),
    [
        (OF_MPICH, "mpirun", "other-launcher"),
        (OF_MPICH, "srun", "no-pmi"),
        (OF_OPEN_MPI, "mpiexec", "other-launcher"),  # in a job of Slurm
        (OF_OPEN_MPI, "srun", "no-pmi"),
    ],
)
def test_a_launcher_of_another_mpi(said: str, launcher: str, case: str) -> None:
    """As MPICH 4.3 says it under mpirun of Open MPI, and aborts, and Open MPI under mpiexec of MPICH."""
    assert GOOD[0].started
    ended = Ended(how="aborted", said=said)
    facts = tuple(replace(one, ended=ended, phase="init", world=None) for one in GOOD)
    facts = tuple(replace(one, started=replace(GOOD[0].started, launcher=launcher, title="That")) for one in facts)
    result = found(facts, "rank-died")
    assert result.case == case and ("That started it" in result.cause) == (case == "other-launcher")
    assert "None" not in result.message


@pytest.mark.parametrize(("launcher", "phase", "words"), [
    ("srun", "init", "SLURM_PMIX_FENCE=ring"),
    ("mpirun", "init", "build Horovod again"),
    ("srun", "import", "build Horovod again"),
])  # fmt: skip
def test_a_crash_that_the_barrier_of_slurm_can_cause(launcher: str, phase: str, words: str) -> None:
    assert GOOD[0].started
    facts = tuple(
        replace(one, host=f"node{number}", started=replace(GOOD[0].started, launcher=launcher))
        for number, one in enumerate(GOOD)
    )
    dead = replace(facts[3], ended=Ended(how="signal", signal="SIGSEGV"), phase=phase)
    assert words in found((*facts[:3], dead), "rank-died").remedy
    on_one_node = tuple(replace(one, host="node0") for one in (*facts[:3], dead))
    assert "build Horovod again" in found(on_one_node, "rank-died").remedy


def test_the_last_words_of_a_rank_are_told() -> None:
    ended = Ended(how="exit", status=3, said="first\n-----\nlast words\n-----\n")
    assert "it said: last words" in found((*GOOD[:3], replace(GOOD[3], ended=ended)), "rank-died").message


def test_ranks_stopped_because_another_died_are_not_to_blame() -> None:
    stopped = Ended(how="stopped", stack='  File "x.py", line 1 in allreduce\n')
    facts = tuple(replace(one, ended=stopped) for one in GOOD[:3])
    facts += (replace(GOOD[3], ended=Ended(how="signal", signal="SIGSEGV")),)
    assert "see rank-died" in found(facts, "rank-hung").cause
    assert "rank 3" in found(facts, "rank-died").message


def test_the_rank_that_others_wait_for_is_named_with_its_place() -> None:
    where = '  File "/x/site.py", line 7 in read_slowly\n'
    stuck = replace(GOOD[3], phase="import", phases=GOOD[3].phases[:4], ended=Ended(how="stopped", stack=where))
    waiting = tuple(replace(one, ended=Ended(how="timeout", limit=60.0, stack=where)) for one in GOOD[:3])
    result = found((*waiting, stuck), "rank-hung")
    assert result.message.startswith("rank 3")
    assert "3 waiting" in result.message
    assert "read_slowly" in result.message


@pytest.mark.parametrize(
    ("stacks", "words"),
    [
        (["", "", "", ""], "an unknown place"),
        (["a", "a", "a", "a"], 'File "a.py", line 1 in f'),
        (["a", "a", "b", ""], 'File "a.py", line 1 in f (RANK0); File "b.py", line 1 in f (RANK2); an unknown place'),
    ],
)
def test_each_place_where_ranks_were_stuck_is_told_with_a_rank(stacks: list[str], words: str) -> None:
    """The innermost call of each; the stack has its innermost call first."""
    facts = []
    for one, name in zip(GOOD, stacks, strict=True):
        stack = f'Thread 1:\n  File "{name}.py", line 1 in f\n  File "outer.py", line 2 in g\n' if name else ""
        facts.append(replace(one, ended=Ended(how="timeout", limit=60.0, stack=stack)))
    for number in (0, 2):
        words = words.replace(f"RANK{number}", facts[number].label)
    message = found(facts, "rank-hung").message
    assert words in message
    assert "outer.py" not in message


@pytest.mark.parametrize(
    ("said", "launcher", "phase", "case", "words"),
    [
        ("MPIR_pmi_init(180)....: PMI2_Job_GetId returned 14", "srun", "init", "pmi-library", "I_MPI_PMI_LIBRARY"),
        ("*** An error occurred in MPI_Init_thread", "srun", "init", "aborted-at-start", "an srun of its own"),
        ("*** An error occurred in MPI_Init_thread", "mpirun", "init", "aborted", "last words"),
        ("*** An error occurred in MPI_Allreduce", "srun", "collectives_cpu", "aborted", "last words"),
    ],
)
def test_how_mpi_cannot_start_under_srun(said: str, launcher: str, phase: str, case: str, words: str) -> None:
    assert GOOD[0].started
    by = replace(GOOD[0].started, launcher=launcher)
    facts = [replace(one, ended=Ended(how="aborted", said=said), phase=phase, started=by) for one in GOOD]
    result = found(facts, "rank-died")
    assert result.case == case and words in result.remedy


def test_ranks_that_wait_for_one_that_never_came() -> None:
    waiting = tuple(replace(one, world=None, ended=Ended(how="timeout", limit=60.0)) for one in GOOD[:3])
    result = found(waiting, "rank-hung")
    assert "left no record (3)" in result.message


def test_a_launcher_that_said_nothing_is_said_to_have() -> None:
    assert "it said nothing" in found([], "rank-missing", launcher_status=1).message
    assert "it said: some word" in found([], "rank-missing", launcher_said="some word", launcher_status=1).message


def test_ranks_that_ended_early_with_an_error_are_told_from_ranks_that_were_not_seen() -> None:
    early = [replace(one, world=None) for one in GOOD[:2]]
    said = "first\nImportError: no such library\n"
    result = found(early, "rank-missing", launcher_said=said)
    assert result.case == "ended-early"
    assert "ImportError: no such library" in f"{result.message} {result.cause}"
    assert found(early, "rank-missing", launcher_said="first").case == "fewer"
    assert found(GOOD[:2], "rank-missing", launcher_said=said).case == "not-shared"


@pytest.mark.parametrize("count", [0, 2])
def test_ranks_that_do_not_find_the_folder_where_they_meet(count: int) -> None:
    """As where the home is on a local disk of each node: nothing that Python loads is missing."""
    folder = "/home/me/.cache/envkit/envkit-verify-0-of-node0.1.2.abcd"
    said = f"FileNotFoundError: [Errno 2] No such file or directory: '{folder}/node1.json.partial'"
    facts = [replace(one, world=None, init=None) for one in GOOD[:count]]
    asked = replace(ASKED, size=4, launcher_said=said, launcher_status=1, shared="/home/me/.cache/envkit")
    [first, *_] = [result for result in ranked(check(facts, asked)) if result.status is Status.FAIL]
    assert (first.id, first.case) == ("rank-missing", "unseen-folder")
    assert "/home/me/.cache/envkit is not shared" in first.cause and "--shared DIR" in first.remedy


def test_a_named_host_that_the_job_does_not_have() -> None:
    said = "All nodes which are allocated for this job are already filled."
    asked = replace(ASKED, launcher_said=said, launcher_status=1, outside=("node1",))
    [first, *_] = [result for result in ranked(check([], asked)) if result.status is Status.FAIL]
    assert (first.id, first.case) == ("rank-missing", "not-granted")
    assert "node1" in first.message and "slots" not in first.remedy


def test_more_ranks_than_asked_for_of_one_launcher() -> None:
    """mpirun -n 4 envkit verify -n 2: there are no two launchers."""
    results = ranked(check(GOOD, replace(ASKED, size=2)))
    [first, *_] = [result for result in results if result.status is Status.FAIL]
    assert (first.id, first.case) == ("world-size", "as-started")
    assert all("Two launchers" not in result.cause for result in results)


def test_a_rank_that_was_stopped_is_not_its_launcher() -> None:
    """What was stopped is the rank's where it is the rank's process, or below that, on the rank's host."""
    pid, host = GOOD[1].pid, GOOD[1].host
    own = Stopped(pid=pid, program="python", above=(70001,), host=host)
    below = Stopped(pid=999, program="python", above=(pid, 70001), host=host)
    launcher = Stopped(pid=70001, program="mpirun", above=(70000,), host=host)
    elsewhere = Stopped(pid=pid, program="orted", above=(70000,), host="another")
    for one in (own, below):
        result = found(GOOD, "rank-hung", stopped=(one,))
        assert (result.case, result.status) == ("stopped", Status.FAIL)
        what = f"was stopped during '{GOOD[1].phase}' and did not go on for some seconds (state T)"
        assert result.message == f"rank 1 ({host}, pid {one.pid}) {what}"
        assert found(GOOD, "launcher-ended", stopped=(one,), launcher_status=0).case == "pass"
    both = found(GOOD, "rank-hung", stopped=(below, own)).message
    assert str(own.pid) in both and str(below.pid) not in both
    for one in (launcher, elsewhere):
        assert found(GOOD, "rank-hung", stopped=(one,)).case == "pass"
        result = found(GOOD, "launcher-ended", stopped=(own, one), launcher_status=0)
        assert (result.case, result.message.split(",")[0]) == ("stopped", one.program)
        assert f"state T of process {one.pid})" in result.message


def test_a_rank_that_was_stopped_before_it_left_a_record_is_not_its_launcher() -> None:
    early = Stopped(pid=4711, program="python", above=(70001,), host="n1", rank=1)
    left = [replace(one, ended=None, phase="init") for one in GOOD if one.rank != 1]
    for facts in (left, []):  # also where no rank left one
        results = ranked(check(facts, replace(ASKED, stopped=(early,), launcher_status=0)))
        [first, *others] = [result for result in results if result.status is Status.FAIL]
        assert (first.id, first.case) == ("rank-hung", "stopped-early")
        assert first.message.startswith("rank 1 (process 4711 on n1) was stopped before it left a record")
        assert all(result.because_of == "rank-hung" for result in others)
        assert not {"launcher-ended", "rank-died"} & {result.id for result in others}


MPIRUN = "mpirun noticed that process rank 1 with PID 0 on node n1 exited on signal 9 (Killed)."
HYDRA = "=   RANK 1 PID 71 RUNNING AT n1\n=   KILLED BY SIGNAL: 9 (Killed)\n"


@pytest.mark.parametrize("said", [MPIRUN, HYDRA])
def test_a_rank_that_was_killed_before_it_left_a_record_is_named(said: str) -> None:
    told = [replace(one, ended=Ended(how="terminated", signal="SIGTERM")) for one in GOOD if one.rank != 1]
    asked = replace(ASKED, launcher_status=137, launcher_said=said, launcher="mpirun")
    for facts in (told, []):
        [first, *others] = [result for result in ranked(check(facts, asked)) if result.status is Status.FAIL]
        assert (first.id, first.case) == ("rank-died", "unrecorded-killed")
        assert first.message.startswith("rank 1 on n1 was killed (SIGKILL) before it left a record")
        assert all(result.because_of == "rank-died" for result in others)
    crashed = replace(asked, launcher_said=said.replace(" 9 (Killed)", " 11 (Segmentation fault)"))
    [died] = [result for result in check(told, crashed) if result.id == "rank-died"]
    assert "rank 1 on n1 was ended by SIGSEGV" in died.message


def test_a_launcher_without_room_resumes_nothing() -> None:
    tmpdir = Setting(kind="variable", name="TMPDIR", value="/scratch")
    said = "mkdir failed:\n  Error:     No space left on device\n"
    [result] = [one for one in check([], replace(ASKED, launcher_status=1, launcher_said=said, settings=(tmpdir,)))
                if one.id == "launcher-ended"]  # fmt: skip
    assert result.case == "no-room" and "/scratch" in result.cause and "df -i /scratch" in result.remedy
    assert "resumes" not in result.remedy and result.message.endswith("it said: Error: No space left on device")


def test_nobody_told_a_launcher_to_end_that_says_which_rank_was_killed() -> None:
    told = each(ended=Ended(how="terminated", signal="SIGTERM"))
    assert found(told, "rank-died", launcher_status=137).case == "outside"
    assert found(told, "rank-died", launcher_status=137, launcher_said=MPIRUN).case == "terminated"


def test_the_process_is_named_that_was_killed() -> None:
    ended = Ended(how="signal", signal="SIGKILL", pid=GOOD[1].pid + 1)
    dead = [replace(one, phase="init", ended=ended) if one.rank == 1 else one for one in GOOD]
    assert f"pid {GOOD[1].pid + 1})" in found(dead, "rank-died").message


def test_up_to_four_ranks_that_were_stopped_are_named() -> None:
    for result in (found(each(state="T"), "rank-hung"), found(each(ended=Ended(how="exit", state="T")), "rank-hung")):
        assert result.case == "stopped"
        assert all(one.label in result.message for one in GOOD)


def test_ranks_in_an_image_that_see_no_launcher() -> None:
    alone = World(rank=0, size=1, local_rank=0, local_size=1, cross_rank=0, cross_size=1)
    inside = each(world=alone, started=None, machine=Machine(container="apptainer"))
    assert found(inside, "world-size").case == "singletons-walled"
    assert found(each(world=alone, started=None, machine=None), "world-size").case == "singletons"


def test_a_rank_that_failed_while_others_waited_is_named_with_its_error() -> None:
    waiting = [replace(one, phase="init", ended=Ended(how="timeout", limit=60.0)) for one in GOOD[:3]]
    failed = replace(GOOD[3], init=Fact(error="RuntimeError: broken"))
    result = found((*waiting, failed), "rank-hung")
    assert (result.case, result.status) == ("raised", Status.FAIL)
    said = f"{GOOD[3].label} failed in 'init': RuntimeError: broken; 3 waited for it in vain"
    assert result.message == said


@pytest.mark.parametrize(
    ("why", "check_id", "case", "said"),
    [
        (GONE, "rank-died", "envkit", "was killed (SIGKILL)"),
        (STOPPED, "rank-hung", "envkit-stopped", "(state T)"),
        (LATE, "rank-hung", "envkit-late", "has not come to its end"),
    ],
)
def test_there_is_no_pass_before_the_envkit_of_each_rank_has_come_to_its_end(
    why: str, check_id: str, case: str, said: str
) -> None:
    absent = (Absent(rank=2, why=why, pid=71),)
    first = check(GOOD, replace(ASKED, absent=absent))[0]
    assert (first.id, first.case, first.status) == (check_id, case, Status.FAIL)
    assert said in first.message and f"the envkit of {replace(GOOD[2], pid=71).label} " in first.message
    assert ("kill -CONT 71'" in first.remedy) is (why == STOPPED)


def test_where_a_rank_was_killed_what_its_launcher_told_the_others_is_no_cause() -> None:
    told = each(ended=Ended(how="terminated", signal="SIGTERM"))
    first = check(told, replace(ASKED, told="SIGTERM", absent=(Absent(rank=1, why=GONE),)))[0]
    assert (first.id, first.case) == ("rank-died", "envkit") and GOOD[1].label in first.message


def test_of_ranks_that_are_at_work_when_another_is_told_to_stop_none_has_vanished() -> None:
    told = (replace(GOOD[0], ended=Ended(how="terminated", signal="SIGTERM")), *each(ended=None)[1:])
    alone = found(told, "rank-died", told="SIGTERM")
    assert alone.case == "alone" and f"rank 0 on {GOOD[0].host} was told to stop by SIGTERM" in alone.message
    several = (replace(GOOD[1], ended=Ended(how="terminated", signal="SIGTERM")), told[0], *told[2:])
    assert found(several, "rank-died", told="SIGTERM").case == "terminated"
    assert found(told, "rank-died").case == "killed"
    of_another_node = found(told, "rank-died", told="SIGTERM", absent=(Absent(rank=1, why=LATE),))
    assert of_another_node.case == "killed" and GOOD[1].label in of_another_node.message
    of_this = tuple(Absent(rank=rank, why=LATE, pid=71) for rank in range(1, len(GOOD)))
    assert found(told, "rank-died", told="SIGTERM", absent=of_this).case == "alone"
    result = found(each(ended=None), "rank-died", told="SIGINT")
    assert (result.case, result.status) == ("terminated", Status.FAIL) and "by SIGINT" in result.message
