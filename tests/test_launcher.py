import os
import shutil
import socket
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import ClassVar

import pytest

from envkit.environments.eessi import EessiEnvironment
from envkit.environments.environment import ContainerEnvironment, CurrentEnvironment, ModuleEnvironment, MpiModel
from envkit.environments.receipt import Mpi
from envkit.errors import EnvironmentDamaged, EnvkitError, HostProblem, UsageProblem
from envkit.launch import hosts, image_launch, launcher, own_launcher, srun_mpi
from envkit.launch.launcher import Launch, LaunchRequest
from envkit.launch.table import table
from envkit.machine.host import Program, cores, physical_cores
from envkit.machine.modules_tool import ModulesTool

Fake = Callable[..., Path]
MANY = cores() + 1
OPEN_MPI_4 = Mpi(family="Open MPI", version="4.1.4")
OPEN_MPI_5 = Mpi(family="Open MPI", version="5.0.0rc12")
MPICH = Mpi(family="MPICH", version="4.0.2")
INTEL = Mpi(family="Intel MPI", version="2021.11")
INTEL_OLD = Mpi(family="Intel MPI", version="2021.9")
CRAY = Mpi(family="Cray MPICH", version="8.1.32")
PLAIN = CurrentEnvironment(name="plain")
PMI2, PMIX = "lib64/slurm/libpmi2.so", "lib/libpmix.so.2"  # libraries of Slurm
LIBRARY, ASKED = "I_MPI_PMI_LIBRARY", "I_MPI_PMI"


def words(mpi: Mpi | None, wanted: LaunchRequest, env: Mapping[str, str] = MappingProxyType({})) -> str:
    return " ".join(launcher.select(mpi, wanted, env).argv)


@pytest.mark.parametrize(
    ("mpi", "ranks", "argv"),
    [
        (OPEN_MPI_4, 1, "mpirun -np 1 --oversubscribe --bind-to none"),
        (OPEN_MPI_4, MANY, f"mpirun -np {MANY} --oversubscribe --bind-to none"),
        (OPEN_MPI_5, 1, "mpirun -np 1 --map-by :OVERSUBSCRIBE --bind-to none"),
        (OPEN_MPI_5, MANY, f"mpirun -np {MANY} --map-by :OVERSUBSCRIBE --bind-to none"),
        (MPICH, 1, "mpiexec -n 1"),
        (MPICH, MANY, f"mpiexec -n {MANY}"),
        (INTEL, 2, "mpiexec -n 2"),
        (None, 2, "horovodrun -np 2"),
    ],
)
def test_on_one_machine_the_launcher_of_the_mpi(mpi: Mpi | None, ranks: int, argv: str) -> None:
    assert words(mpi, LaunchRequest(ranks=ranks)) == argv


HOSTS = (("a", 2), ("b", 1))
OF_GPUS = {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_GPUS_ON_NODE": "4"}


@pytest.mark.parametrize(
    ("mpi", "argv"),
    [
        (OPEN_MPI_4, "mpirun -np 3 --host a:2,b:1 --map-by slot --oversubscribe --bind-to none"),
        (OPEN_MPI_5, "mpirun -np 3 --host a:2,b:1 --map-by slot:OVERSUBSCRIBE --bind-to none"),
        (MPICH, "mpiexec -n 3 -hosts a:2,b:1"),
        (INTEL, "mpiexec -n 3 -hosts a,a,b -ppn 1"),
        (CRAY, "mpiexec -n 3 --hosts a,b --ppn 2"),
        (None, "horovodrun -np 3 -H a:2,b:1"),
    ],
)
def test_hosts_are_named_as_the_launcher_wants_them(mpi: Mpi | None, argv: str) -> None:
    chosen = launcher.select(mpi, LaunchRequest(ranks=3, hosts=HOSTS), {})
    assert " ".join(chosen.argv) == argv
    assert chosen.remote


JOB = MappingProxyType({"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_CPUS_PER_NODE": "2(x2)"})


@pytest.mark.parametrize(
    ("ranks", "nodes", "env", "threads"),
    [
        (2, None, {}, "4"),
        (8, None, {}, "1"),
        (9, None, {}, "1"),
        (2, None, {"OMP_NUM_THREADS": "7"}, "7"),
        (2, None, {"OMP_NUM_THREADS": ""}, ""),  # as the caller has it
        (4, None, {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "64(x2)"}, "32"),
        (4, 1, {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "64(x2)"}, "16"),
        (3, None, {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "6,4"}, "2"),
        (1, None, {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "6(x2)"}, "6"),
        (2, None, {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "64", "SLURM_CPUS_PER_TASK": "8"}, "8"),
        (16, None, {"SLURM_JOB_ID": "7", "SLURM_JOB_CPUS_PER_NODE": "64", "SLURM_CPUS_PER_TASK": "8"}, "4"),
        (2, None, {"SLURM_CPUS_PER_TASK": "2"}, "4"),  # no job
    ],
)
def test_each_rank_has_the_threads_of_its_share_of_the_cores(
    ranks: int, nodes: int | None, env: dict[str, str], threads: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "physical_cores", lambda: 8)
    assert launcher.threads(LaunchRequest(ranks=ranks, nodes=nodes), env) == {"OMP_NUM_THREADS": threads}
    named = LaunchRequest(ranks=3, hosts=(("a", 2), ("b", 1)))
    if not env:
        assert launcher.threads(named, env) == {"OMP_NUM_THREADS": "4"}


def test_a_core_with_two_threads_is_one() -> None:
    assert 1 <= physical_cores() <= cores()


def test_who_says_how_ranks_are_bound_has_them_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    binding = {"OMPI_MCA_hwloc_base_binding_policy": "core"}
    assert words(OPEN_MPI_4, LaunchRequest(ranks=2), binding) == "mpirun -np 2 --oversubscribe"


@pytest.fixture
def slurm(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    """A Slurm whose srun speaks what is given."""

    def make(speaks: str) -> None:
        srun = fake("srun", f"echo 'MPI plugin types are...'; printf '\\t%s\\n' none {speaks}")
        monkeypatch.setenv("PATH", f"{srun.parent}:{os.environ['PATH']}")
        srun_mpi.listed.cache_clear()

    yield make
    srun_mpi.listed.cache_clear()


@pytest.mark.parametrize(
    ("mpi", "speaks", "argv"),
    [
        (OPEN_MPI_4, "pmi2 pmix pmix_v4", "srun --mpi=pmix --kill-on-bad-exit=0 -n 4 -N 2"),
        (OPEN_MPI_5, "pmi2 pmix_v3", "srun --mpi=pmix_v3 --kill-on-bad-exit=0 -n 4 -N 2"),
        (MPICH, "pmi2 pmix", "srun --mpi=pmi2 --kill-on-bad-exit=0 -n 4 -N 2"),
        (CRAY, "cray_shasta", "srun --mpi=cray_shasta --kill-on-bad-exit=0 -n 4 -N 2"),
        (MPICH, "cray_shasta", "mpiexec -n 4"),
        (OPEN_MPI_4, "pmi2", "mpirun -np 4 --oversubscribe"),
    ],
)
def test_in_a_slurm_job_what_srun_and_the_mpi_both_speak(
    mpi: Mpi, speaks: str, argv: str, slurm: Callable[[str], None]
) -> None:
    slurm(speaks)
    chosen = launcher.select(mpi, LaunchRequest(ranks=4, nodes=2), JOB)
    assert " ".join(chosen.argv).replace(" --bind-to none", "") == argv
    assert mpi.family in chosen.why
    assert chosen.launcher == argv.split()[0]
    if chosen.launcher != "srun":
        assert chosen.why == f"srun here does not speak what {mpi.family} does ({speaks})"
    else:
        kind = argv.split()[1].removeprefix("--mpi=")
        assert chosen.why == f"this is a Slurm job, and {mpi.family} and srun both speak {kind}"
        assert not chosen.remote


@pytest.mark.parametrize(
    ("mpi", "nodes", "argv"),
    [
        (OPEN_MPI_4, 2, "mpirun -np 4 --host n1:2,n2:2 --map-by slot --oversubscribe --bind-to none"),
        (OPEN_MPI_4, None, "mpirun -np 4 --host n1:2,n2:1,n3:1 --map-by slot --oversubscribe --bind-to none"),
        (INTEL_OLD, 2, "mpiexec -n 4 -hosts n1,n1,n2,n2 -ppn 1"),
        (MPICH, None, "mpiexec -n 4 -hosts n1:2,n2:1,n3:1"),
    ],
)
def test_the_own_launcher_is_told_the_hosts_of_a_slurm_job(
    mpi: Mpi, nodes: int | None, argv: str, slurm: Callable[[str], None], fake: Fake
) -> None:
    slurm("none")
    scontrol = fake("scontrol", "printf 'n1\\nn2\\nn3\\n'")
    env = {**JOB, "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_JOB_NUM_NODES": "3", "PATH": str(scontrol.parent)}
    assert words(mpi, LaunchRequest(ranks=4, nodes=nodes), env) == argv
    assert "n1" not in words(mpi, LaunchRequest(ranks=4), {**env, "SLURM_JOB_NUM_NODES": "1"})


@pytest.mark.parametrize(
    ("nodes", "tasks", "ranks", "slots"),
    [
        (None, "3,1", 4, "n1:3,n2:1"),
        (None, "2(x2)", 4, "n1:2,n2:2"),
        (None, "3,1", 3, "n1:2,n2:1"),
        (1, "3,1", 3, "n1:3"),
        (None, "", 4, "n1:2,n2:2"),
        (None, "3", 3, "n1:2,n2:1"),
    ],
)
def test_each_host_of_a_slurm_job_has_the_tasks_that_slurm_gave_it(
    nodes: int | None, tasks: str, ranks: int, slots: str, slurm: Callable[[str], None], fake: Fake
) -> None:
    """On the second node it may have no more than one CPU, or GPU."""
    slurm("none")
    scontrol = fake("scontrol", "printf 'n1\\nn2\\n'")
    env = {**JOB, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "PATH": str(scontrol.parent)}
    env, wanted = {**env, "SLURM_TASKS_PER_NODE": tasks}, LaunchRequest(ranks=ranks, nodes=nodes)
    assert f" --host {slots} " in words(OPEN_MPI_4, wanted, env)
    assert f" -H {slots}" in words(None, wanted, env)


def test_a_host_that_is_named_twice_is_one() -> None:
    assert LaunchRequest(ranks=2, hosts=(("a", 1), ("a", 1))).on == 1
    assert LaunchRequest(ranks=2, hosts=(("a", 1), ("b", 1))).on == 2
    assert LaunchRequest(ranks=2, nodes=3).on == 3
    assert LaunchRequest(ranks=2).on is None


def test_hosts_that_a_slurm_job_does_not_have(fake: Fake) -> None:
    scontrol = fake("scontrol", "printf 'n1\\nn2.cluster\\n'")
    env = {**JOB, "SLURM_JOB_NODELIST": "n[1-2]", "PATH": str(scontrol.parent)}
    named = (("n1.cluster", 1), ("n2", 1), ("n3", 2), ("10.0.0.3", 1))
    assert hosts.outside(named, env) == ("n3",)
    assert hosts.outside(named, {"PATH": env["PATH"]}) == hosts.outside((), env) == ()


def test_ranks_that_are_started_in_a_step_of_one_task_do_not_get_its_world() -> None:
    """As in the terminal of a notebook, which Slurm runs in a step."""
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1"}
    ours, theirs = socket.socketpair()
    with ours, theirs:
        of_step = {"PMI_FD": str(ours.fileno()), "PMI_RANK": "0", "PMI_SIZE": "1", "PMIX_RANK": "0"}
        assert not of_step.keys() & launcher.variables({**step, **of_step}).keys()
        two = {**step, **of_step, "SLURM_STEP_NUM_TASKS": "2", "PMI_SIZE": "2"}
        assert of_step.keys() <= launcher.variables(two).keys()


@pytest.mark.parametrize(
    ("said", "passed_on"),
    [("NONE", "ALL"), ("NIL", "ALL"), ("PATH,JUPYTERHUB_API_TOKEN", "ALL"), ("ALL,A=1", "ALL,A=1"), ("all", "all")],
)
def test_what_sbatch_was_told_to_keep_from_the_ranks_they_get_all_the_same(said: str, passed_on: str) -> None:
    """The environment is entered before srun, or before mpirun, which calls it."""
    assert launcher.variables({"SLURM_EXPORT_ENV": said})["SLURM_EXPORT_ENV"] == passed_on
    assert "SLURM_EXPORT_ENV" not in launcher.variables({})


def test_ranks_do_not_get_the_cpus_and_the_terminal_of_the_shell_that_starts_them() -> None:
    own = {"SLURM_CPU_BIND": "quiet,mask_cpu:0x1", "SLURM_CPU_BIND_TYPE": "mask_cpu:", "SLURM_PTY_PORT": "34889"}
    passed_on = launcher.variables({**own, "SLURM_JOB_ID": "7", "SLURM_STEP_ID": "4294967290"})
    assert not own.keys() & passed_on.keys()
    assert launcher.variables({"SLURM_CPU_BIND": "none"})["SLURM_CPU_BIND"] == "none"  # a batch script's own


def test_a_rank_that_fails_ends_the_others_where_that_is_asked_for(slurm: Callable[[str], None]) -> None:
    slurm("pmix")
    argv = launcher.select(OPEN_MPI_4, LaunchRequest(ranks=4, ends_together=True), JOB).argv
    assert "--kill-on-bad-exit=1" in argv


@pytest.mark.parametrize(
    ("mpi", "own", "is_image", "kind", "others"),
    [
        (OPEN_MPI_4, [], False, "pmix", []),
        (OPEN_MPI_4, ["--mpi=pmix_v4", "-u"], False, "pmix_v4", ["-u"]),
        (OPEN_MPI_4, ["--mpi", "pmix_v4"], False, "pmix_v4", []),
        (MPICH, ["--mpi=pmix"], False, "pmix", []),  # one that was configured with PMIx
        (None, ["--mpi=pmix"], False, "", []),
        (INTEL, [], False, "pmi2", ["--export=ALL,I_MPI_PMI_LIBRARY={root}/" + PMI2]),
        (INTEL, ["--mpi=pmix"], False, "pmix", ["--export=ALL,I_MPI_PMI_LIBRARY={root}/" + PMIX]),
        (INTEL, ["--export", "ALL,X=1"], False, "pmi2", ["--export=ALL,X=1,I_MPI_PMI_LIBRARY={root}/" + PMI2]),
        (INTEL, ["--export=ALL,I_MPI_PMI_LIBRARY=/l"], False, "pmi2", ["--export=ALL,I_MPI_PMI_LIBRARY=/l"]),
        (INTEL, [], True, "", []),
        (OPEN_MPI_4, [], True, "pmix", []),
    ],
)
def test_what_srun_is_told_in_a_job(
    mpi: Mpi | None, own: list[str], is_image: bool, kind: str, others: list[str],
    slurm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """A type that the site names is taken, with the library for that; an image has none of Slurm's in it."""
    root = slurm_with([PMI2, PMIX], "pmi2 pmix", slurm, monkeypatch)
    speaks, words = srun_mpi.for_job(mpi, own, is_image=is_image)
    assert (speaks, [*words]) == (kind, [word.format(root=root) for word in others])


@pytest.mark.parametrize(
    ("cpus", "per_task", "words"),
    [("8(x2)", "4", ["--cpus-per-task=4"]), ("8(x2)", "", []), ("2(x2)", "4", []), ("8(x2)", "many", [])],
)
def test_srun_is_told_again_what_the_job_has_for_each_rank(
    cpus: str, per_task: str, words: list[str], slurm: Callable[[str], None]
) -> None:
    slurm("pmix")
    job = {**JOB, "SLURM_JOB_CPUS_PER_NODE": cpus, "SLURM_CPUS_PER_TASK": per_task}
    argv = launcher.select(OPEN_MPI_4, LaunchRequest(ranks=4), job).argv
    assert [word for word in argv if word.startswith("--cpus-per-task")] == words


@pytest.mark.parametrize(
    ("mpi", "speaks", "kind"),
    [
        (OPEN_MPI_4, "pmi2 pmix_v4", "pmix_v4"),
        (OPEN_MPI_4, "pmi2", ""),
        (OPEN_MPI_4, "", "pmix"),
        (MPICH, "", "pmi2"),
        (Mpi(family="another", version="1"), "pmix", ""),
        (None, "pmix", ""),
        (None, "", ""),
    ],
)
def test_what_a_job_is_told_that_srun_speaks(
    mpi: Mpi | None, speaks: str, kind: str, slurm: Callable[[str], None]
) -> None:
    """Where no srun here tells it, the first that the MPI speaks."""
    slurm(speaks)
    assert srun_mpi.chosen_for_job(mpi) == kind


@pytest.mark.parametrize(
    ("mpi", "types", "libraries", "settings", "kind", "library"),
    [
        (INTEL, "pmi2 pmix", [PMI2], {}, "pmi2", PMI2),
        (INTEL, "pmi2 pmix", ["lib/libpmi2.so.0"], {}, "pmi2", "lib/libpmi2.so.0"),
        (INTEL, "pmi2 pmix", ["lib/x86_64-linux-gnu/libpmi2.so.0"], {}, "pmi2", "lib/x86_64-linux-gnu/libpmi2.so.0"),
        (INTEL, "pmi2 pmix", [PMI2, PMIX], {}, "pmi2", PMI2),
        (INTEL, "pmi2 pmix pmix_v4", [PMIX], {}, "pmix", PMIX),
        (INTEL, "pmi2 pmix_v4", [PMIX], {}, "pmix_v4", PMIX),
        (INTEL, "pmix", [PMI2, PMIX], {}, "pmix", PMIX),
        (INTEL_OLD, "pmi2 pmix", [PMI2, PMIX], {}, "pmi2", PMI2),
        # what the caller's own settings name decides
        (INTEL, "pmi2 pmix", [PMI2, PMIX], {LIBRARY: PMIX}, "pmix", PMIX),
        (INTEL, "pmi2 pmix", [PMI2, PMIX], {LIBRARY: PMI2}, "pmi2", PMI2),
        (INTEL, "pmi2 pmix", [PMI2, "pmix/libpmi2.so"], {LIBRARY: "pmix/libpmi2.so"}, "pmi2", "pmix/libpmi2.so"),
        (INTEL, "pmi2 pmix", [PMI2, PMIX], {ASKED: "pmix"}, "pmix", PMIX),
        (INTEL, "pmi2 pmix", [PMI2, PMIX], {ASKED: "auto"}, "pmi2", PMI2),
        # an empty one is none, and with one of PMI-1 only one rank of a node starts
        (INTEL, "pmi2 pmix", [PMIX], {LIBRARY: "", ASKED: ""}, "pmix", PMIX),
        (INTEL, "pmi2 pmix", [PMI2], {LIBRARY: " "}, "pmi2", PMI2),
        (INTEL, "pmi2 pmix", [PMIX, "lib/libpmi.so"], {LIBRARY: "lib/libpmi.so"}, "pmix", PMIX),
    ],
)
def test_intel_mpi_is_told_the_library_of_slurm(
    mpi: Mpi, types: str, libraries: list[str], settings: dict[str, str], kind: str, library: str,
    slurm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """In the command itself, so that it does not depend on who has written a script, and where it is sent from."""
    root = slurm_with(libraries, types, slurm, monkeypatch)
    for name, value in settings.items():
        monkeypatch.setenv(name, str(root / value) if "/" in value else value)
    chosen = launcher.select(mpi, LaunchRequest(ranks=4, nodes=2), {**os.environ, **JOB})
    exported = [word for word in chosen.argv if word.startswith("--export=")]
    assert chosen.argv[:2] == ("srun", f"--mpi={kind}") and srun_mpi.chosen_for_job(mpi) == kind
    assert exported == [f"--export=ALL,I_MPI_PMI_LIBRARY={root / library}"] == [*srun_mpi.exported(mpi)]


ABSENT = "Slurm has no {} here, which Intel MPI asks for under srun"
RULED_OUT = "{} is {{root}}{}, by which Intel MPI does not start under srun here ({})"


@pytest.mark.parametrize(
    ("mpi", "types", "libraries", "settings", "why"),
    [
        (INTEL, "pmi2 pmix", [], {}, ABSENT.format("libpmi2.so or libpmix.so.2")),
        (INTEL, "pmi2 pmix", ["a,b/lib/libpmi2.so"], {}, ABSENT.format("libpmi2.so or libpmix.so.2")),
        (INTEL, "pmix_v3 pmix_v4", [PMI2], {}, ABSENT.format("libpmix.so.2")),
        (INTEL_OLD, "pmi2 pmix", [PMIX], {}, ABSENT.format("libpmi2.so")),
        (INTEL_OLD, "pmix", [PMI2, PMIX], {}, "srun here does not speak what Intel MPI does (pmix)"),
        (INTEL, "pmix", [PMIX, PMI2], {LIBRARY: PMI2}, RULED_OUT.format(LIBRARY, f"/{PMI2}", "pmix")),
        (INTEL, "pmix", [PMIX], {LIBRARY: "no/libpmix.so.2"}, RULED_OUT.format(LIBRARY, "/no/libpmix.so.2", "pmix")),
        (INTEL, "pmix", [PMIX], {ASKED: "pmi1"}, RULED_OUT.format(ASKED, "", "pmix").replace("{root}", "pmi1")),
    ],
)
def test_intel_mpi_without_a_library_of_slurm_starts_its_ranks_itself(
    mpi: Mpi, types: str, libraries: list[str], settings: dict[str, str], why: str,
    slurm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """Under srun without it each rank would be a world of its own."""
    root = slurm_with(libraries, types, slurm, monkeypatch)
    for name, value in settings.items():
        monkeypatch.setenv(name, str(root / value) if "/" in value else value)
    chosen = launcher.select(mpi, LaunchRequest(ranks=4), {**os.environ, **JOB})
    assert chosen.argv == ("mpiexec", "-n", "4") and chosen.why == why.format(root=root)
    assert srun_mpi.chosen_for_job(mpi) == "" and srun_mpi.exported(mpi) == ()


def test_what_is_asked_of_srun_goes_by_the_settings_that_are_given(
    slurm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = slurm_with([PMI2, PMIX], "pmi2 pmix", slurm, monkeypatch)
    env = {**os.environ, **JOB, LIBRARY: str(root / PMIX)}
    assert launcher.select(INTEL, LaunchRequest(ranks=4), env).argv[1] == "--mpi=pmix"


@pytest.mark.parametrize(
    ("prints", "types"),
    [
        ("echo 'MPI plugin types are...'; echo none; echo pmi2; echo pmix", ("pmi2", "pmix")),
        ("echo 'srun: MPI types are...' >&2; echo 'srun: pmix_v3' >&2; echo 'srun: pmi2' >&2", ("pmix_v3", "pmi2")),
        ("echo cray_shasta; echo 'specific pmix plugin versions available: pmix_v4'", ("cray_shasta", "pmix_v4")),
        ("echo 'srun: error: mpi/pmix_v4: init: can not load PMIx library' >&2; echo none", ()),
    ],
)  # fmt: skip
def test_what_srun_lists(prints: str, types: tuple[str, ...], fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", f"{fake('srun', prints).parent}:{os.environ['PATH']}")
    srun_mpi.listed.cache_clear()
    assert srun_mpi.listed()[0] == types
    srun_mpi.listed.cache_clear()


def test_an_srun_that_fails_is_quoted(fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    failing = fake("srun", "echo 'srun: fatal: Could not establish a configuration source' >&2; exit 1")
    monkeypatch.setenv("PATH", f"{failing.parent}:{os.environ['PATH']}")
    srun_mpi.listed.cache_clear()
    why = launcher.select(OPEN_MPI_4, LaunchRequest(ranks=2), JOB).why
    assert why == "srun --mpi=list names no type here: srun: fatal: Could not establish a configuration source"
    srun_mpi.listed.cache_clear()


@pytest.mark.parametrize(
    ("words", "merged"),
    [
        (["-u"], "-u"),
        (["--export=ALL,A=1", "-u"], "--export=ALL,A=1 -u"),
        (["--export=ALL,A=1", "-u", "--export=ALL,B=2"], "-u --export=ALL,B=2,A=1"),
        (["--export=ALL,A=1", "--export=ALL"], "--export=ALL,A=1"),
        (["--export=ALL,A=1", "--export=NONE"], "--export=A=1"),
        (["--export=ALL", "--export=NONE"], "--export=NONE"),
        (["--export=ALL,A=1", "--export=HOME"], "--export=HOME,A=1"),
        (["--export=ALL,A=1,B=2", "--export=ALL,A=3"], "--export=ALL,A=3,B=2"),
        (["--export=ALL,A=1", "--export", "ALL,B=2"], "--export=ALL,B=2,A=1"),
    ],
)
def test_of_several_exports_srun_gets_one(words: list[str], merged: str) -> None:
    """It heeds the last alone."""
    assert " ".join(srun_mpi.merged(words)) == merged


def slurm_with(libraries: list[str], types: str, slurm: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> Path:
    """Make a Slurm with these libraries, whose srun speaks these types; return the folder that it is in."""
    slurm(types)
    monkeypatch.setattr(srun_mpi, "LOADER_CACHE", Path("/proc/nonexistent"))
    root = Path(str(shutil.which("srun"))).parents[1]
    for library in libraries:
        (root / library).parent.mkdir(parents=True, exist_ok=True)
        (root / library).touch()
    return root


def test_gloo_in_a_slurm_job_is_told_the_hosts(slurm: Callable[[str], None], fake: Fake) -> None:
    slurm("pmix")
    scontrol = fake("scontrol", '[ "$*" = "show hostnames n[1-2]" ] && printf \'n1\\nn2\\n\'')
    env = {**JOB, "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "PATH": str(scontrol.parent)}
    assert words(None, LaunchRequest(ranks=4), env) == "horovodrun -np 4 -H n1:2,n2:2"


@pytest.mark.parametrize(
    ("mpi", "nodes", "argv"),
    [
        (OPEN_MPI_4, None, "mpirun -np 3 --host n1:2,n2:1 --map-by slot --oversubscribe --bind-to none"),
        (MPICH, 2, "mpiexec -n 3 -hosts n1:2,n2:1"),
        (None, None, "horovodrun -np 3 -H n1:2,n2:1"),
    ],
)
def test_in_a_pbs_job_the_launcher_is_told_the_hosts(
    mpi: Mpi | None, nodes: int | None, argv: str, tmp_path: Path
) -> None:
    (tmp_path / "nodes").write_text("n1\nn1\nn2\nn2\n")
    env = {"PBS_JOBID": "1.pbs", "PBS_NODEFILE": str(tmp_path / "nodes")}
    chosen = launcher.select(mpi, LaunchRequest(ranks=3, nodes=nodes), env)
    assert " ".join(chosen.argv) == argv
    assert chosen.remote
    assert not launcher.select(mpi, LaunchRequest(ranks=1, nodes=1), env).remote


def test_a_step_inside_a_step_shares_its_cpus(slurm: Callable[[str], None]) -> None:
    slurm("pmix")
    assert words(OPEN_MPI_4, LaunchRequest(ranks=2), {**JOB, "SLURM_STEP_ID": "0"}).endswith("-n 2 --overlap")


@pytest.mark.parametrize("name", ["mpirun", "mpiexec"])
def test_a_launcher_that_was_asked_for(name: str) -> None:
    chosen = launcher.select(MPICH, LaunchRequest(ranks=2, launcher=name), {})
    assert chosen.argv == (name, "-n", "2")
    assert chosen.why == "you asked for it"


TOY = {"job": "TOY_JOB", "spans": True, "words": ["toyrun", "-n", "{ranks}"], "nodes": ["-N", "{nodes}"]}


def test_every_launcher_of_the_table_is_whole() -> None:
    """A row says all that a command line takes, but for those that launcher.py has a function for."""
    for name, row in {**table()["launcher"], "toyrun": TOY}.items():
        needed = {"spans"} if name in {"srun", "horovodrun"} else {"spans", "words", "nodes"}
        assert needed <= row.keys() <= needed | {"job"}, name
    for name, row in table()["mpi"].items():
        needed = {"program", "speaks", "hosts"}
        assert needed <= row.keys() <= needed | {"since", "library", "variable", "chosen_by"}, name


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch, fake: Fake) -> dict[str, str]:
    """The settings of a job in which there is a launcher that only the table names."""
    whole = {**table(), "launcher": {**table()["launcher"], "toyrun": TOY}}
    monkeypatch.setattr(launcher, "table", lambda: whole)
    monkeypatch.setattr(hosts, "table", lambda: whole)
    return {"PATH": str(fake("toyrun", "exit 0").parent), "TOY_JOB": "7"}


def test_a_launcher_takes_a_row_of_the_table_and_no_more(toy: dict[str, str]) -> None:
    assert "toyrun" in launcher.names()
    chosen = launcher.select(OPEN_MPI_4, LaunchRequest(ranks=4, nodes=2, launcher="toyrun"), toy)
    assert chosen.argv == ("toyrun", "-n", "4", "-N", "2")
    assert chosen.spans and not chosen.remote
    assert launcher.select(None, LaunchRequest(ranks=4, launcher="toyrun"), toy).argv == ("toyrun", "-n", "4")
    image = ContainerEnvironment(name="toy", image=Path("/toy.sif"), runtime=Path("/usr/bin/apptainer"))
    wanted = LaunchRequest(ranks=4, nodes=2, launcher="toyrun")
    made, launch = image_launch.plan_launch(image, OPEN_MPI_4, wanted, toy)
    assert isinstance(made, ContainerEnvironment)
    assert (made.model, launch.argv) == (MpiModel.HYBRID, chosen.argv)
    mounted = EessiEnvironment(name="toy", version="2023.06", modules=("Toy/1",), way=("mount",), cpu="zen3")
    with pytest.raises(HostProblem, match="The ranks that toyrun starts would not find EESSI"):
        image_launch.plan_launch(mounted, OPEN_MPI_4, wanted, toy)


def test_where_a_launcher_of_the_table_cannot_be_used(toy: dict[str, str]) -> None:
    wanted = LaunchRequest(ranks=4, launcher="toyrun")
    with pytest.raises(HostProblem, match="toyrun cannot be used here") as outside:
        launcher.select(OPEN_MPI_4, wanted, {"PATH": toy["PATH"]})
    assert outside.value.why == "This is no job of its scheduler: TOY_JOB is not set."
    with pytest.raises(HostProblem) as absent:
        launcher.select(OPEN_MPI_4, wanted, {**toy, "PATH": os.defpath})
    assert absent.value.why == "There is no toyrun on PATH."
    with pytest.raises(UsageProblem, match="--hosts does not go with toyrun"):
        launcher.select(OPEN_MPI_4, LaunchRequest(ranks=2, launcher="toyrun", hosts=HOSTS), toy)
    with pytest.raises(UsageProblem, match="no launcher named 'toyrum'"):
        launcher.select(OPEN_MPI_4, LaunchRequest(ranks=2, launcher="toyrum"), toy)


@pytest.mark.parametrize(
    ("mpi", "wanted", "env", "what"),
    [
        (OPEN_MPI_4, LaunchRequest(ranks=4, hosts=HOSTS), {}, "4 ranks do not fit into 3 slots."),
        (OPEN_MPI_4, LaunchRequest(ranks=1, nodes=2), {}, "1 rank cannot fill 2 nodes."),
        (OPEN_MPI_4, LaunchRequest(ranks=4, nodes=2), {}, "There are no 2 nodes here."),
        (
            OPEN_MPI_4,
            LaunchRequest(ranks=4, nodes=2),
            {**JOB, "SLURM_JOB_NUM_NODES": "1"},
            "There are no 2 nodes here.",
        ),
        (OPEN_MPI_4, LaunchRequest(ranks=5), JOB, "5 ranks do not fit this Slurm job."),
        (OPEN_MPI_4, LaunchRequest(ranks=2, launcher="srun"), {}, "srun cannot be used here."),
        (OPEN_MPI_4, LaunchRequest(ranks=2, launcher="srun", hosts=HOSTS), JOB, "--hosts does not go with srun."),
        (INTEL_OLD, LaunchRequest(ranks=2, launcher="srun"), JOB, "srun cannot start these ranks as one world."),
        (None, LaunchRequest(ranks=2, launcher="srun"), JOB, "srun cannot start these ranks as one world."),
    ],
)
def test_what_cannot_be_is_refused(
    mpi: Mpi | None, wanted: LaunchRequest, env: Mapping[str, str], what: str, slurm: Callable[[str], None]
) -> None:
    slurm("pmix")
    with pytest.raises(EnvkitError) as refused:
        launcher.select(mpi, wanted, env)
    assert refused.value.what == what
    assert refused.value.fix


def test_without_srun_on_path_it_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/proc/nonexistent")
    with pytest.raises(HostProblem, match=r"srun cannot be used here\.") as refused:
        launcher.select(OPEN_MPI_4, LaunchRequest(ranks=2, launcher="srun"), JOB)
    assert refused.value.why == "There is no srun on PATH."


@pytest.mark.parametrize(
    ("mpi", "wanted", "env", "why"),
    [
        (OPEN_MPI_4, LaunchRequest(ranks=2, launcher="srun"), {}, "This is no Slurm job."),
        (OPEN_MPI_4, LaunchRequest(ranks=4, hosts=HOSTS), {}, "--hosts a:2,b:1"),
        (
            OPEN_MPI_4,
            LaunchRequest(ranks=4, nodes=2),
            {**JOB, "SLURM_JOB_NUM_NODES": "1"},
            "This job has 1 node.",
        ),
        (OPEN_MPI_4, LaunchRequest(ranks=5), JOB, "It was granted 4 (SLURM_NTASKS, SLURM_JOB_CPUS_PER_NODE)."),
        (OPEN_MPI_4, LaunchRequest(ranks=4, nodes=2), {}, "This is not a job of a scheduler, and --hosts names none."),
        (
            INTEL_OLD,
            LaunchRequest(ranks=2, launcher="srun"),
            JOB,
            "srun here does not speak what Intel MPI does (pmix, pmix_v4).",
        ),
        (
            None,
            LaunchRequest(ranks=2, launcher="srun"),
            JOB,
            "Gloo, which this Horovod uses, speaks nothing that srun has here: pmix, pmix_v4.",
        ),
    ],
)
def test_why_it_is_refused(
    mpi: Mpi | None, wanted: LaunchRequest, env: Mapping[str, str], why: str, slurm: Callable[[str], None]
) -> None:
    slurm("pmix pmix_v4")
    with pytest.raises(EnvkitError) as refused:
        launcher.select(mpi, wanted, env)
    assert refused.value.why == why


@pytest.mark.parametrize(
    ("mpi", "wanted", "env", "why"),
    [
        (OPEN_MPI_4, LaunchRequest(ranks=1), {}, "it belongs to Open MPI, which this Horovod was built with"),
        (None, LaunchRequest(ranks=1), {}, "this Horovod has Gloo and no MPI"),
        (MPICH, LaunchRequest(ranks=1, launcher="horovodrun"), {}, "you asked for it"),
    ],
)
def test_why_a_launcher_was_chosen(mpi: Mpi | None, wanted: LaunchRequest, env: Mapping[str, str], why: str) -> None:
    chosen = launcher.select(mpi, wanted, env)
    assert (chosen.why, chosen.remote) == (why, False)


@pytest.mark.parametrize(
    ("tasks", "cpus", "slots"), [("4", "2(x2)", 4), ("6", "2(x2)", 6), ("2", "3(x2),1", 7), ("", "", 0)]
)
def test_a_slurm_job_has_room_for_its_tasks_or_its_cpus(tasks: str, cpus: str, slots: int) -> None:
    env = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": tasks, "SLURM_JOB_CPUS_PER_NODE": cpus}
    assert hosts.slurm_slots(env) == slots
    assert hosts.slurm_slots({**env, "SLURM_JOB_ID": ""}) == 0


@pytest.mark.parametrize(
    ("ranks", "nodes", "argv"),
    [
        (3, None, "horovodrun -np 3 -H n1:1,n2:1,n3:1"),
        (4, None, "horovodrun -np 4 -H n1:2,n2:1,n3:1"),
        (3, 2, "horovodrun -np 3 -H n1:2,n2:1"),
        (1, 1, "horovodrun -np 1"),
    ],
)
def test_the_hosts_of_a_pbs_job_get_even_slots(ranks: int, nodes: int | None, argv: str, tmp_path: Path) -> None:
    (tmp_path / "nodes").write_text("n1\nn2\nn3\n")
    env = {"PBS_JOBID": "1.pbs", "PBS_NODEFILE": str(tmp_path / "nodes")}
    assert words(None, LaunchRequest(ranks=ranks, nodes=nodes), env) == argv


def test_the_hosts_of_a_pbs_job_have_the_slots_that_it_lists(tmp_path: Path) -> None:
    """Chunks may differ: select=1:mpiprocs=6+1:mpiprocs=2."""
    (tmp_path / "nodes").write_text("n1\n" * 6 + "n2\n" * 2)
    env = {"PBS_JOBID": "1.pbs", "PBS_NODEFILE": str(tmp_path / "nodes")}
    assert hosts.ranks(env) == 8 and hosts.nodes(env) == 2
    assert words(None, LaunchRequest(ranks=8), env) == "horovodrun -np 8 -H n1:6,n2:2"
    assert words(None, LaunchRequest(ranks=4), env) == "horovodrun -np 4 -H n1:2,n2:2"


def test_launchers_ask_lsf_for_the_hosts(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("n1\nn1\nn2\nn2\n")
    env = {"LSB_JOBID": "1", "LSB_DJOB_NUMPROC": "4", "LSB_DJOB_HOSTFILE": str(tmp_path / "hosts")}
    assert hosts.nodes(env) == 2
    assert not launcher.select(OPEN_MPI_4, LaunchRequest(ranks=4), env).remote


@pytest.mark.parametrize("user", [0, 1000])
def test_ranks_get_nothing_that_another_launch_has_left(user: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: user)
    left = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "1", "HOROVOD_LOCAL_RANK": "0"}
    root = ("OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT")
    allowed = {f"{name}{end}": "1" for name in root for end in ("", "_CONFIRM")} if user == 0 else {}
    assert launcher.variables({"PATH": "/bin", **left}) == {"PATH": "/bin", **allowed}


@pytest.mark.parametrize(
    ("env", "ranks"),
    [
        ({}, 2),
        (JOB, 4),
        ({"SLURM_NTASKS": "4"}, 2),
        ({"PBS_JOBID": "1.pbs", "PBS_NP": "6"}, 6),
        ({"LSB_JOBID": "1", "LSB_DJOB_NUMPROC": "3"}, 3),
        ({"PBS_JOBID": "1.pbs"}, 2),
        ({"PBS_JOBID": "1.pbs", "PBS_NODEFILE": "/nonexistent"}, 2),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS_PER_NODE": "4"}, 8),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "3"}, 3),
        ({"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"}, 2),
        ({**OF_GPUS, "SLURM_JOB_CPUS_PER_NODE": "16(x2)"}, 8),
        ({**OF_GPUS, "SLURM_JOB_CPUS_PER_NODE": "1(x2)"}, 2),
    ],
)
def test_as_many_ranks_as_the_scheduler_granted(env: Mapping[str, str], ranks: int) -> None:
    assert hosts.ranks(env) == ranks


def test_on_fewer_nodes_there_are_fewer_ranks(tmp_path: Path) -> None:
    gpus = {**OF_GPUS, "SLURM_JOB_CPUS_PER_NODE": "16(x2)"}
    assert [hosts.ranks(gpus, on=nodes) for nodes in (1, 2, 3, None)] == [4, 8, 8, 8]
    assert [hosts.ranks({**JOB, "SLURM_JOB_NUM_NODES": "2"}, on=nodes) for nodes in (1, 2)] == [2, 4]
    (tmp_path / "nodes").write_text("n1\n" * 6 + "n2\n" * 2)
    assert hosts.ranks({"PBS_JOBID": "1.pbs", "PBS_NODEFILE": str(tmp_path / "nodes")}, on=1) == 6


@pytest.mark.parametrize(
    ("launch", "env", "may"),
    [
        (Launch(argv=("mpirun",), why=""), {}, False),
        (Launch(argv=("srun",), why=""), {}, True),
        (Launch(argv=("mpirun",), why="", remote=True), {}, True),
        (Launch(argv=("mpirun",), why=""), {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "2"}, True),
        (Launch(argv=("mpirun",), why=""), {"SLURM_JOB_ID": "1", "SLURM_JOB_NUM_NODES": "1"}, False),
    ],
)
def test_whether_ranks_may_come_to_other_nodes(launch: Launch, env: Mapping[str, str], may: bool) -> None:
    assert launcher.may_leave(launch, env) is may


def test_hosts_are_read() -> None:
    assert hosts.parse("node1:2, node-2.site,n3:10") == (("node1", 2), ("node-2.site", 1), ("n3", 10))
    assert hosts.parse("") == ()


@pytest.mark.parametrize("text", ["a:0", "a:b", "-x", "a b", "a:1:2", "a;b"])
def test_what_is_no_host(text: str) -> None:
    with pytest.raises(UsageProblem, match="is no host"):
        hosts.parse(text)


def test_what_open_mpi_wants_from_root_is_given_to_root_only() -> None:
    given = {"PATH": "/bin", "OMPI_MCA_btl": "self"}
    added = launcher.variables(given).items() - given.items()
    assert given.items() <= launcher.variables(given).items()
    if os.geteuid() != 0:
        assert not added
    else:
        assert {name for name, _ in added} == {
            f"{part}_ALLOW_RUN_AS_ROOT{end}" for part in ("OMPI", "PRTE") for end in ("", "_CONFIRM")
        }
    assert given == {"PATH": "/bin", "OMPI_MCA_btl": "self"}


@pytest.mark.parametrize("embedded", [True, False])
def test_the_mpi_that_an_environment_brings(embedded: bool, fake: Fake) -> None:
    program = fake("mpirun", "echo 'mpirun (Open MPI) 4.1.4'")
    env = {"PATH": f"{program.parent}:{os.environ['PATH']}"}
    found = launcher.mpi_of(PLAIN, env, embedded=embedded)
    assert found == Mpi(family="Open MPI", version="4.1.4", embedded=embedded)


@pytest.mark.parametrize("body", ["exit 1", "echo 'mpirun: error while loading shared libraries'; exit 127"])
def test_an_environment_whose_launcher_does_not_answer(body: str, fake: Fake) -> None:
    program = fake("mpirun", body)
    with pytest.raises(EnvironmentDamaged, match=r"The environment has no MPI launcher\.") as damaged:
        launcher.mpi_of(PLAIN, {"PATH": f"{program.parent}:{os.environ['PATH']}"})
    assert str(program) in damaged.value.why


def test_an_environment_without_a_launcher(fake: Fake) -> None:
    shell = fake("sh", 'exec /bin/sh "$@"')
    with pytest.raises(EnvironmentDamaged) as damaged:
        launcher.mpi_of(PLAIN, {"PATH": str(shell.parent)})
    assert damaged.value.why == "mpirun was not found in it."


def test_a_pbs_job_that_is_none(tmp_path: Path) -> None:
    """Its variables are left over, and its list of hosts has gone."""
    env = {"PBS_JOBID": "1.pbs", "PBS_NODEFILE": str(tmp_path / "gone")}
    with pytest.raises(HostProblem) as told:
        launcher.placed(LaunchRequest(ranks=2), env)
    assert told.value.why == f"PBS_NODEFILE names {tmp_path}/gone: No such file or directory."
    assert "unset PBS_JOBID PBS_NODEFILE" in told.value.fix


def test_only_an_mpi_that_asks_for_a_library_of_slurm_is_told_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/proc/nonexistent")
    monkeypatch.setattr(srun_mpi, "LOADER_CACHE", Path("/proc/nonexistent"))
    assert srun_mpi.exported(OPEN_MPI_4) == srun_mpi.exported(None) == srun_mpi.exported(INTEL) == ()
    assert srun_mpi.library(INTEL, "pmix", {"I_MPI_PMI_LIBRARY": "libpmix.so.2"}) == "libpmix.so.2"


class Entered(ModuleEnvironment):
    """An environment whose modules put nothing on PATH; it counts how often it was entered."""

    entries: ClassVar[list[Sequence[str]]] = []

    def command(
        self,
        argv: Sequence[str],
        launcher: Sequence[str] = (),
        *,
        remote: bool = False,
        visible: Sequence[Path] = (),
    ) -> list[str]:
        self.entries.append(argv)
        return [*launcher, *argv]


SAYS_OPEN_MPI, SAYS_MPICH = "echo 'mpirun (Open MPI) 5.0.7'", "echo 'HYDRA build details:'; echo '  Version: 4.2.1'"
OF_SYSTEM = Mpi(family="Open MPI", version="5.0.7")
UNKNOWN = Program(path=Path("/m"), version="unknown", family="unknown")
OTHERS = "it belongs to Open MPI, which this Horovod was built with; {mpirun} is of MPICH 4.2.1"


@pytest.fixture
def entered(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Entered:
    monkeypatch.setattr(Entered, "entries", [])
    (tmp_path / "OpenMPI").mkdir()
    (tmp_path / "OpenMPI" / "system.lua").touch()
    tool = ModulesTool(kind="Lmod", command=Path("/lmod"))
    return Entered(name="plain", tool=tool, modulepath=tmp_path, modules=("Horovod/1",))


def started(inside: Entered, mpi: Mpi, program: Path, **env: str) -> Launch:
    env = {"PATH": f"{program.parent}:/proc/nonexistent", **env}
    shell = program.with_name("sh")
    shell.unlink(missing_ok=True)
    shell.symlink_to("/bin/sh")
    return image_launch.plan_launch(inside, mpi, LaunchRequest(ranks=2), env)[1]


def test_mpirun_of_the_same_mpi_is_asked_once_and_without_entering(
    entered: Entered, fake: Fake, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = fake("asked", "")
    program = fake("mpirun", f"echo 1 >> {asked}; {SAYS_OPEN_MPI}")
    asked.write_text("")
    assert started(entered, OF_SYSTEM, program).argv[0] == "mpirun"
    assert asked.read_text() == "1\n" and entered.entries == []
    assert started(entered, OF_SYSTEM, program, LOADEDMODULES="mpich").argv[0] == "mpirun"
    assert len(entered.entries) == 1
    monkeypatch.setattr(own_launcher, "SYSTEM", (str(program.parent),))
    assert started(entered, OF_SYSTEM, program, LOADEDMODULES="mpich").argv[0] == "mpirun"
    assert len(entered.entries) == 1


def test_mpirun_that_has_become_another_mpi_s(entered: Entered, fake: Fake) -> None:
    fake("mpirun.mpich", SAYS_MPICH)
    fake("mpirun.openmpi", SAYS_OPEN_MPI)
    program = fake("mpirun", SAYS_MPICH)
    launch = started(entered, OF_SYSTEM, program)
    assert launch.argv[:3] == ("mpirun.openmpi", "-np", "2")
    assert launch.why == OTHERS.format(mpirun=program)


def test_the_launcher_where_the_mpi_was_when_its_module_was_built(entered: Entered, fake: Fake, tmp_path: Path) -> None:
    (tmp_path / "openmpi").mkdir()
    fake("mpirun", SAYS_OPEN_MPI, folder="openmpi/bin")
    program = fake("mpirun", SAYS_MPICH)
    launch = started(entered, OF_SYSTEM, program, EBROOTOPENMPI=str(tmp_path / "openmpi"))
    assert launch.argv[0] == f"{tmp_path}/openmpi/bin/mpirun"


def test_no_launcher_of_the_mpi(entered: Entered, fake: Fake) -> None:
    program = fake("mpirun", SAYS_MPICH)
    with pytest.raises(HostProblem, match=r"^There is no launcher of Open MPI 5\.0\.7 here") as told:
        started(entered, OF_SYSTEM, program)
    assert told.value.why == f"{program} is of MPICH 4.2.1: it would start each rank as a world of its own."


@pytest.mark.parametrize("mpi", [MPICH, INTEL, CRAY, Mpi(family="Open MPI", version="4.1.8", embedded=True)])
def test_an_mpi_whose_launcher_lies_in_the_environment_is_not_asked(mpi: Mpi, entered: Entered, fake: Fake) -> None:
    launch = started(entered, mpi, fake("mpirun", "echo asked >&2; exit 1"))
    assert launch.argv[0] in own_launcher.NAMES and not entered.entries


def test_a_stack_with_its_own_open_mpi_is_not_asked(entered: Entered, fake: Fake) -> None:
    (entered.modulepath / "OpenMPI" / "system.lua").rename(entered.modulepath / "OpenMPI" / "4.1.5-GCC-12.3.0.lua")
    assert started(entered, OF_SYSTEM, fake("mpirun", SAYS_MPICH)).argv[0] == "mpirun" and not entered.entries


@pytest.mark.parametrize("body", ["exit 1", "echo 'of a site'"])
def test_a_launcher_that_does_not_tell_is_left_as_it_is(body: str, entered: Entered, fake: Fake) -> None:
    fake("mpirun.openmpi", SAYS_OPEN_MPI)
    program = fake("mpirun", body)
    why = f"{program} is the first on PATH; it does not say of which MPI it is"
    launch = started(entered, OF_SYSTEM, program)
    assert (launch.argv[0], launch.why) == ("mpirun", why) and not entered.entries
    launch = started(entered, OF_SYSTEM, program, LOADEDMODULES="site")
    assert (launch.argv[0], launch.why) == ("mpirun", why)
    asked = own_launcher.of_unknown(Launch(argv=("mpirun",), why="you asked for it"), OF_SYSTEM, UNKNOWN)
    assert asked.why == "you asked for it; /m is the first on PATH; it does not say of which MPI it is"
