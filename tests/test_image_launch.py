"""Which MPI model is chosen, and what is refused before anything is started."""

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from envkit.environments.eessi import EessiEnvironment
from envkit.environments.environment import ContainerEnvironment, CurrentEnvironment, Environment, MpiModel
from envkit.environments.receipt import Mpi
from envkit.errors import HostProblem, UsageProblem
from envkit.launch import image_launch
from envkit.launch.launcher import LaunchRequest
from envkit.launch.srun_mpi import listed

Fake = Callable[..., Path]
OPEN_MPI = Mpi(family="Open MPI", version="4.1.4")
MPICH = Mpi(family="MPICH", version="4.0.2")
MVAPICH = Mpi(family="MVAPICH", version="3.0")
INSIDE = ContainerEnvironment(name="toy", runtime=Path("/bin/apptainer"), image=Path("/toy.sif"))
SAYS = {
    "Open MPI 4": "mpirun (Open MPI) 4.1.4",
    "Open MPI 5": "mpirun (Open MPI) 5.0.7",
    "Open MPI 3": "mpirun (Open MPI) 3.1.6",
    "MPICH": "HYDRA build details:\n    Version:                                 4.0.2",
    "Intel": "Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005",
}


@pytest.fixture
def host(fake: Fake) -> Callable[[str], dict[str, str]]:
    """A machine whose mpirun is of a kind; none for an empty one."""

    def make(kind: str) -> dict[str, str]:
        if not kind:
            return {"PATH": "/proc/nonexistent"}
        if kind == "MVAPICH":
            fake("mpiname", "echo 'MVAPICH 3.0 Thu Feb 22 00:00:00 EST 2024 ch4:ofi'")
            kind = "MPICH"
        return {"PATH": f"{fake('mpirun', f'echo {SAYS[kind]!r}').parent}:{os.defpath}"}

    return make


@pytest.mark.parametrize(
    ("kind", "image", "model"),
    [
        ("Open MPI 4", OPEN_MPI, MpiModel.HYBRID),
        ("Open MPI 4", Mpi(family="Open MPI", version="5.0.7"), MpiModel.HYBRID),
        ("Open MPI 5", OPEN_MPI, MpiModel.INSIDE),
        ("Open MPI 5", Mpi(family="Open MPI", version="5.0.7"), MpiModel.HYBRID),
        ("Open MPI 3", OPEN_MPI, MpiModel.INSIDE),
        ("MPICH", OPEN_MPI, MpiModel.INSIDE),
        ("Intel", OPEN_MPI, MpiModel.INSIDE),
        ("MPICH", MPICH, MpiModel.HYBRID),
        ("Intel", MPICH, MpiModel.HYBRID),
        ("Open MPI 4", MPICH, MpiModel.INSIDE),
        ("MVAPICH", MPICH, MpiModel.HYBRID),
        ("MVAPICH", MVAPICH, MpiModel.HYBRID),
        ("MPICH", MVAPICH, MpiModel.HYBRID),
        ("MVAPICH", OPEN_MPI, MpiModel.INSIDE),
        ("", OPEN_MPI, MpiModel.INSIDE),
        ("Open MPI 4", None, MpiModel.INSIDE),
    ],
)
def test_the_model_by_what_host_and_image_have(
    kind: str, image: Mpi | None, model: MpiModel, host: Callable[[str], dict[str, str]]
) -> None:
    inside, launch = image_launch.plan_launch(INSIDE, image, LaunchRequest(ranks=2), host(kind))
    assert isinstance(inside, ContainerEnvironment)
    assert inside.model is model
    assert launch.why
    first = "/bin/apptainer" if model is MpiModel.INSIDE else "mpirun" if kind.startswith("Open") else "mpiexec"
    assert inside.command(["python"], launch.argv)[0] == first


def test_the_hosts_launcher_is_told_the_hosts_of_a_slurm_job(host: Callable[[str], dict[str, str]], fake: Fake) -> None:
    env = host("Open MPI 4")
    scontrol = fake("scontrol", "printf 'n1\\nn2\\n'")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOB_NODELIST": "n[1-2]", "SLURM_JOB_NUM_NODES": "2", "SLURM_NTASKS": "4"}
    env |= {**job, "PATH": f"{scontrol.parent}:{env['PATH']}"}
    wanted = LaunchRequest(ranks=4, nodes=2, launcher="mpirun")
    _, launch = image_launch.plan_launch(INSIDE, OPEN_MPI, wanted, env)
    assert "--host n1:2,n2:2" in " ".join(launch.argv) and launch.remote


@pytest.mark.parametrize(
    ("kind", "inside", "wanted", "model", "may"),
    [
        ("Open MPI 4", INSIDE, LaunchRequest(ranks=2), None, True),
        ("Open MPI 4", INSIDE, LaunchRequest(ranks=2, nodes=2), None, False),
        ("Open MPI 4", INSIDE, LaunchRequest(ranks=2, hosts=(("n1", 2),)), None, False),
        ("Open MPI 4", INSIDE, LaunchRequest(ranks=2), MpiModel.INSIDE, False),
        ("Open MPI 5", INSIDE, LaunchRequest(ranks=2), None, False),
        ("Open MPI 5", INSIDE, LaunchRequest(ranks=2), MpiModel.BIND, True),
        ("Open MPI 4", CurrentEnvironment(name="here"), LaunchRequest(ranks=2), None, False),
    ],
)
def test_whether_the_image_could_start_its_ranks_instead(
    kind: str, inside: Environment, wanted: LaunchRequest, model: MpiModel | None, may: bool,
    host: Callable[[str], dict[str, str]],
) -> None:  # fmt: skip
    assert image_launch.may_start_its_own(inside, OPEN_MPI, wanted, host(kind), model) is may


def test_why_the_image_starts_its_own_ranks(host: Callable[[str], dict[str, str]]) -> None:
    _, launch = image_launch.plan_launch(INSIDE, OPEN_MPI, LaunchRequest(ranks=2), host("MPICH"))
    assert "the host's MPICH 4.0.2 does not start ranks of the image's Open MPI 4.1.4 as one world" in launch.why
    _, launch = image_launch.plan_launch(INSIDE, OPEN_MPI, LaunchRequest(ranks=2), host(""))
    assert "this host has no mpirun" in launch.why
    _, launch = image_launch.plan_launch(INSIDE, OPEN_MPI, LaunchRequest(ranks=2), host("Open MPI 4"), MpiModel.INSIDE)
    assert "you asked for it" in launch.why


def test_a_launcher_that_does_not_fit_is_refused(host: Callable[[str], dict[str, str]]) -> None:
    with pytest.raises(HostProblem, match=r"The ranks of toy would not become one world\.") as refused:
        image_launch.plan_launch(INSIDE, OPEN_MPI, LaunchRequest(ranks=2), host("MPICH"), MpiModel.HYBRID)
    assert "MPICH 4.0.2" in refused.value.why


@pytest.mark.parametrize("model", [MpiModel.HYBRID, MpiModel.BIND])
def test_without_mpi_only_the_image_can_start_them(model: MpiModel, host: Callable[[str], dict[str, str]]) -> None:
    with pytest.raises(HostProblem, match="has no MPI"):
        image_launch.plan_launch(INSIDE, None, LaunchRequest(ranks=2), host("Open MPI 4"), model)


@pytest.mark.parametrize("wall", ["APPTAINER_CLEANENV", "SINGULARITY_CLEANENV", "APPTAINER_CONTAIN"])
def test_a_wall_between_launcher_and_rank(wall: str, host: Callable[[str], dict[str, str]]) -> None:
    env = host("Open MPI 4") | {wall: "1"}
    with pytest.raises(HostProblem, match=f"{wall} is set, so that each rank would be a world of its own"):
        image_launch.plan_launch(INSIDE, OPEN_MPI, LaunchRequest(ranks=2), env)
    with pytest.raises(HostProblem, match=wall):
        image_launch.enter_as_rank(INSIDE, OPEN_MPI, env)
    inside, _ = image_launch.plan_launch(INSIDE, OPEN_MPI, LaunchRequest(ranks=2), env, MpiModel.INSIDE)
    assert isinstance(inside, ContainerEnvironment) and inside.model is MpiModel.INSIDE
    image_launch.plan_launch(INSIDE, OPEN_MPI, LaunchRequest(ranks=2), env | {wall: "false"})


def test_ranks_inside_an_image_reach_no_other_node(host: Callable[[str], dict[str, str]]) -> None:
    for wanted in (LaunchRequest(ranks=2, hosts=(("a", 1), ("b", 1))), LaunchRequest(ranks=2, nodes=2)):
        with pytest.raises(HostProblem, match="on its own node only"):
            image_launch.plan_launch(INSIDE, OPEN_MPI, wanted, host("MPICH"))


@pytest.mark.parametrize(("types", "model"), [("pmix pmix_v4 pmi2", MpiModel.HYBRID), ("none pmi2", MpiModel.INSIDE)])
def test_in_a_slurm_job(types: str, model: MpiModel, fake: Fake, monkeypatch: pytest.MonkeyPatch) -> None:
    lines = "; ".join(f"echo {kind}" for kind in types.split())
    program = fake("srun", lines)
    monkeypatch.setenv("PATH", f"{program.parent}:{os.defpath}")
    listed.cache_clear()
    env = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "2", "PATH": os.environ["PATH"]}
    site = ContainerEnvironment(
        name="toy", runtime=Path("/bin/apptainer"), image=Path("/t.sif"), srun=("--cpu-bind=x",)
    )
    inside, launch = image_launch.plan_launch(site, OPEN_MPI, LaunchRequest(ranks=2), env)
    listed.cache_clear()
    assert isinstance(inside, ContainerEnvironment) and inside.model is model
    assert (launch.launcher == "srun") == (model is MpiModel.HYBRID)
    assert ("--cpu-bind=x" in launch.argv) == (model is MpiModel.HYBRID)


def test_ranks_of_somebody_elses_launcher() -> None:
    env = {"PATH": os.defpath}
    assert image_launch.enter_as_rank(INSIDE, OPEN_MPI, env) == INSIDE
    standing = CurrentEnvironment(name="here")
    assert image_launch.enter_as_rank(standing, OPEN_MPI, env, MpiModel.INSIDE) == standing
    with pytest.raises(UsageProblem, match="this process is one already"):
        image_launch.enter_as_rank(INSIDE, OPEN_MPI, env, MpiModel.INSIDE)


def test_the_table_says_what_each_row_rests_on() -> None:
    for row in image_launch.table()["hybrid"]:
        assert row["evidence"].startswith(("tried: ", "documented: "))


def test_a_library_that_this_host_does_not_have(host: Callable[[str], dict[str, str]]) -> None:
    cray = Mpi(family="Cray something", version="8")
    with pytest.raises(HostProblem, match="cannot take the place of the image's Cray something 8"):
        image_launch.by_binding(INSIDE, cray, host("Open MPI 4"))


def test_ranks_in_eessi_start_where_it_is_mounted() -> None:
    inside = EessiEnvironment(name="toy", version="2023.06", modules=("Toy/1",), way=("mount",), cpu="zen3")
    _, launch = image_launch.plan_launch(
        inside, OPEN_MPI, LaunchRequest(ranks=2), {"SLURM_JOB_ID": "1", "PATH": os.defpath}
    )
    assert (launch.launcher, launch.why) == ("mpirun", "EESSI is mounted for this command, on this node")
    argv = inside.command(["python"], launch.argv)
    assert argv[0] == "mount" and argv[-1] == "python" and argv.index("mpirun") > argv.index("--")
    assert inside.variables({})["OMPI_MCA_ras"].startswith("^slurm")
    elsewhere = LaunchRequest(ranks=2, hosts=(("node1", 1), ("node2", 1)))
    with pytest.raises(HostProblem, match="The ranks that mpirun starts would not find EESSI"):
        image_launch.plan_launch(inside, OPEN_MPI, elsewhere, {"PATH": os.defpath})
    native = replace(inside, way=())
    _, launch = image_launch.plan_launch(native, OPEN_MPI, elsewhere, {"PATH": os.defpath})
    assert native.command(["python"], launch.argv, remote=True).count("Toy/1") == 2  # each host enters
    assert "OMPI_MCA_ras" not in native.variables({})


def test_an_image_in_a_job_of_several_nodes_keeps_to_its_own(host: Callable[[str], dict[str, str]]) -> None:
    """Its mpirun would start daemons on the others by an srun that is not in it."""
    job = {"SLURM_JOB_ID": "7", "SLURM_NTASKS": "4", "SLURM_JOB_CPUS_PER_NODE": "2(x2)"}
    env = host("MPICH") | job
    inside, launch = image_launch.plan_launch(INSIDE, OPEN_MPI, LaunchRequest(ranks=4), env, MpiModel.INSIDE)
    words = inside.command(["python"], launch.argv)
    assert "OMPI_MCA_ras=^slurm,tm,lsf,gridengine,alps" in words and words.index("mpirun") > words.index("--env")
    outside, _ = image_launch.plan_launch(INSIDE, OPEN_MPI, LaunchRequest(ranks=4), host("MPICH"), MpiModel.INSIDE)
    assert not any("OMPI_MCA_ras" in word for word in outside.command(["python"]))


def test_a_bound_library_of_crays_speaks_its_own_pmi(tmp_path: Path) -> None:
    (tmp_path / "lib-abi-mpich").mkdir()
    (tmp_path / "lib-abi-mpich" / "libmpi.so.12").touch()
    env = {"PATH": "/proc/nonexistent", "MPICH_DIR": str(tmp_path), "CRAY_MPICH_VERSION": "8.1.32"}
    assert image_launch.of_bound(MPICH, env) == Mpi(family="Cray MPICH", version="8.1.32")
    assert image_launch.of_bound(OPEN_MPI, env) == OPEN_MPI
    assert image_launch.of_bound(None, env) is None


def test_what_srun_is_told_in_the_job_of_an_image(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own = ["--mpi=pmix", "-u"]
    assert image_launch.for_job(OPEN_MPI, "", own, is_image=True) == ("pmix", ("-u",))
    assert image_launch.for_job(OPEN_MPI, "inside", own, is_image=True) == ("", ("-u",))
    (tmp_path / "lib-abi-mpich").mkdir()
    (tmp_path / "lib-abi-mpich" / "libmpi.so.12").touch()
    monkeypatch.setenv("MPICH_DIR", str(tmp_path))
    monkeypatch.setenv("PATH", "/proc/nonexistent")
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    listed.cache_clear()
    assert image_launch.for_job(MPICH, "bind", [], is_image=True) == ("cray_shasta", ())
    assert image_launch.for_job(MPICH, "", [], is_image=True) == ("pmi2", ())
    listed.cache_clear()
