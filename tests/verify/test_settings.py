"""The user's own settings: which are in force, what it is to be without them, and what that tells."""

from __future__ import annotations

import os
import resource
import socket
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from envkit.environments.manifest import Damage
from envkit.launch.launcher import LaunchRequest
from envkit.system import process
from envkit.system.process import Completed
from envkit.verify import settings
from envkit.verify.checks import Expected, Status, check, verdict
from envkit.verify.explain import asked_hosts, cut_libraries, interposed, is_plain, unreachable
from envkit.verify.facts import Ended, Fact, Import, RankFacts
from envkit.verify.outcome import EndedJob, HostFile, Result, SessionLimit, Setting, Trial, UnusablePlace
from envkit.verify.trials import INSIDE, MPI_ALONE, NAMED

from . import recorded
from .compile_c import shared_object

if TYPE_CHECKING:
    from envkit.verify.target import Target

GOOD = recorded.case("pytorch-4ranks").facts
ASKED = Expected(size=4, frameworks=("torch",), environment="toy-cpu --prefix /p")
DEAD = replace(GOOD[1], phase="init", init=None, world=None, ended=Ended(how="signal", signal="SIGSEGV"))
BROKEN = (GOOD[0], DEAD, *GOOD[2:])


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home folder with settings of Open MPI, packages, and something else."""
    made = tmp_path / "home"
    (made / ".openmpi").mkdir(parents=True)
    (made / ".openmpi" / "mca-params.conf").write_text("# mine\nbtl = openib\n  pml=ob1 # why\nnothing\n")
    (made / ".openmpi" / "other").write_text("kept")
    (made / ".local/lib/python3.11/site-packages/numpy").mkdir(parents=True)
    (made / "data").mkdir()
    return made


def named(found: list[Setting]) -> list[str]:
    return [str(one) for one in found]


def test_what_is_in_force(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpirun").write_text("#!/bin/sh\n")
    (tmp_path / "bin" / "mpirun").chmod(0o755)
    env = {
        "HOME": str(home),
        "PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin",
        "LANG": "C.UTF-8",
        "OMPI_MCA_btl": "openib",
        "OMPI_COMM_WORLD_RANK": "",
        "HOROVOD_CONTROLLER": "gloo",
        "EDITOR": "vi",
    }
    conf = home / ".openmpi/mca-params.conf"
    assert named(settings.in_force(env)) == [
        "OMPI_MCA_btl=openib",
        "HOROVOD_CONTROLLER=gloo",
        f"btl=openib (set in {conf})",
        f"pml=ob1 (set in {conf})",
        f"{tmp_path / 'bin'}/mpirun in PATH",
        f"the packages in {home}/.local/lib/python3.11/site-packages",
        "LANG=C.UTF-8",
    ]
    assert not settings.in_force({"PATH": "/usr/bin", "HOME": str(tmp_path / "nothing")})


@pytest.mark.parametrize(("inside", "shown"), [(True, ["OMPI_MCA_btl=self", "PMIX_MCA_gds=hash"]), (False, 7)])
def test_what_mpirun_sets_for_its_ranks_is_not_the_users(inside: bool, shown: list[str] | int, home: Path) -> None:
    env = {"HOME": str(home / "nothing"), "PATH": "/usr/bin", "OMPI_MCA_ess": "^singleton", "OMPI_MCA_btl": "self"}
    env |= {"OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_hwloc_base_binding_policy": "core"}
    env |= {"OMPI_MCA_orte_num_nodes": "1", "OMPI_MCA_orte_node_regex": "node[1:0-1]@0(2)", "PMIX_MCA_gds": "hash"} | (
        {"OMPI_COMM_WORLD_SIZE": "2"} if inside else {}
    )
    found = named(list(settings.variables(env, env)))
    assert found == shown if inside else len(found) == shown


OF_OPEN_MPI_5 = """
OMPI_ARGV OMPI_COMMAND OMPI_COMM_WORLD_LOCAL_RANK OMPI_COMM_WORLD_LOCAL_SIZE OMPI_COMM_WORLD_NODE_RANK
OMPI_COMM_WORLD_RANK OMPI_FILE_LOCATION OMPI_MCA_PREFIXES OMPI_MCA_cpu_type
OMPI_MCA_initial_wdir OMPI_MCA_num_procs OMPI_NUM_APP_CTX OMPI_TOOL_NAME OMPI_UNIVERSE_SIZE OMPI_VERSION
OMPI_WORLD_LOCAL_SIZE OMPI_WORLD_SIZE OPAL_USER_PARAMS_GIVEN PMIX_BFROP_BUFFER_TYPE PMIX_GDS_MODULE PMIX_HOSTNAME
PMIX_NAMESPACE PMIX_PARAM_FILE_PASSED PMIX_PREFIX PMIX_RANK PMIX_SECURITY_MODE PMIX_SERVER_TMPDIR PMIX_SERVER_URI2
PMIX_SERVER_URI21 PMIX_SERVER_URI3 PMIX_SERVER_URI4 PMIX_SERVER_URI41 PMIX_SYSTEM_TMPDIR PMIX_VERSION PRTE_LAUNCHED
PRTE_SHARED_FS OMPI_MCA_mca_base_param_file_path OMPI_MCA_mca_base_param_file_path_force
"""


@pytest.mark.parametrize(("place", "shown"), [("/mpi/lib/openmpi", []), ("/mine", ["/mine"])])
def test_what_mpirun_of_open_mpi_5_sets_for_its_ranks_is_not_the_users(place: str, shown: list[str]) -> None:
    """As of 5.0.11, and the files and folders of components as of Debian's 5.0.7."""
    env = {**dict.fromkeys(OF_OPEN_MPI_5.split(), "1"), "OMPI_COMM_WORLD_SIZE": "2", "OMPI_LIBDIR_LOC": "/mpi/lib"}
    env |= {"OMPI_MCA_mca_base_component_path": place, "PRTE_MCA_plm": "ssh"}
    found = {setting.name: setting.value for setting in settings.variables(env, env)}
    assert found.pop("PRTE_MCA_plm") == "ssh"
    assert list(found.values()) == shown


@pytest.mark.parametrize("is_here", [True, False])
def test_what_hydra_sets_for_its_ranks_is_not_the_users(is_here: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """As of MPICH 4.2.3; 5.0.2 does not set it any more."""
    monkeypatch.setattr("envkit.verify.settings.is_unseen", lambda *_: not is_here)
    env = {"PMI_RANK": "1", "PMI_SIZE": "2", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
    env |= {"MPIR_CVAR_CH3_INTERFACE_HOSTNAME": "node1", "MPIR_CVAR_DEBUG_SUMMARY": "1"}
    found = [setting.name for setting in settings.variables(env, env)]
    assert found == [*(() if is_here else ("MPIR_CVAR_CH3_INTERFACE_HOSTNAME",)), "MPIR_CVAR_DEBUG_SUMMARY"]


@pytest.mark.parametrize("job", [True, False])
def test_what_slurm_sets_in_its_jobs_is_not_the_users(job: bool, home: Path) -> None:
    """As of Slurm 23.11. Without CUDA_VISIBLE_DEVICES, where nothing else keeps jobs apart, GPUs of others are used."""
    env = {"HOME": str(home / "nothing"), "PATH": "/usr/bin", "NCCL_DEBUG": "INFO"} | (
        {"SLURM_JOB_ID": "7"} if job else {}
    )
    of_slurm = {
        "OMPI_MCA_plm_slurm_args": "--external-launcher", "PRTE_MCA_plm_slurm_args": "--external-launcher",
        "HYDRA_BOOTSTRAP": "slurm", "HYDRA_LAUNCHER_EXTRA_ARGS": "--external-launcher",
        "I_MPI_HYDRA_BOOTSTRAP": "slurm", "I_MPI_HYDRA_BOOTSTRAP_EXEC_EXTRA_ARGS": "--external-launcher",
        "CUDA_VISIBLE_DEVICES": "2", "ROCR_VISIBLE_DEVICES": "2",
    }  # fmt: skip
    found = {setting.name for setting in settings.variables(env | of_slurm, env | of_slurm)}
    assert found == ({"NCCL_DEBUG"} if job else {"NCCL_DEBUG", *of_slurm})


@pytest.mark.parametrize("listens", [True, False])
def test_what_horovodrun_sets_for_its_ranks_is_not_the_users(listens: bool) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        if not listens:
            server.close()
        env = {"HOROVOD_RANK": "0", "HOROVOD_SIZE": "2", "HOROVOD_LOCAL_RANK": "0", "HOROVOD_LOCAL_SIZE": "2"}
        env |= {"HOROVOD_GLOO_RENDEZVOUS_ADDR": "127.0.0.1", "HOROVOD_GLOO_RENDEZVOUS_PORT": str(port)}
        env |= {"HOROVOD_CONTROLLER": "gloo", "HOROVOD_CYCLE_TIME": "5"}
        found = named(list(settings.variables(env, env)))
    assert "HOROVOD_CYCLE_TIME=5" in found
    assert ("HOROVOD_CONTROLLER=gloo" in found) is not listens  # left over from a launcher that has gone


@pytest.mark.parametrize(
    ("squeue", "ended"),
    [("echo '4711 R'", False), ("exit 0", True), ("echo 'Invalid job id specified' >&2; exit 1", True), ("", False)],
)
def test_what_is_left_of_a_job_that_has_ended(squeue: str, ended: bool, tmp_path: Path) -> None:
    """Hydra believes it, and starts nothing; where there is no squeue, as in an image, nobody can tell."""
    if squeue:
        (tmp_path / "squeue").write_text(f"#!/bin/sh\n{squeue}\n")
        (tmp_path / "squeue").chmod(0o755)
    env = {"PATH": str(tmp_path), "SLURM_JOB_ID": "4711", "SLURM_NODELIST": "n1"}
    env |= {"SLURM_CONF": "/shared/slurm.conf", "SLURM_PMIX_FENCE": "ring"}  # a user's own: no Slurm without the first
    assert named(list(settings.of_ended_job(env))) == (["SLURM_JOB_ID=4711", "SLURM_NODELIST=n1"] if ended else [])
    assert not list(settings.of_ended_job({"PATH": str(tmp_path)}))


def test_shared_memory_is_not_mended_by_another_folder() -> None:
    places = (
        UnusablePlace(path="/dev/shm", error="No space left on device"),
        UnusablePlace(path="/tmp", error="Read-only"),
    )
    shm, tmp = (one for one in found(BROKEN, places=places) if one.id == "places")
    assert "--shm-size" in shm.remedy and "TMPDIR" not in shm.remedy and "TMPDIR" in tmp.remedy


def test_what_is_damaged_is_told_where_all_passes_too() -> None:
    broken = Damage(module="MPICH/system", path="/p/software/MPICH/system/bin/mpirun", how="gone")
    [told] = [one for one in found(GOOD, broken=broken) if one.id == "damage"]
    assert (told.status, told.case) == ("warn", "unused") and "bin/mpirun" in told.message
    assert verdict(found(GOOD, broken=broken)) is Status.PASS


def test_what_this_user_may_not_read_is_not_built_again() -> None:
    access = "mode 600, owner ada"
    closed = Damage(module="PyTorch/2.13", path="/p/lib/libtorch.so", how="unreadable", access=access)
    first = found(BROKEN, damage=(closed,))[0]
    assert (first.id, first.case, first.commands) == ("damage", "unreadable", ())
    assert f"/p/lib/libtorch.so ({access})" in first.message and "chmod a+rx /p/lib/libtorch.so" in first.remedy
    [told] = [one for one in found(GOOD, broken=closed) if one.id == "damage"]
    assert (told.status, told.case) == ("warn", "unused-unreadable") and access in told.message
    assert not any("repair" in one.remedy for one in (first, told))


def test_notes_of_a_package_explain_nothing() -> None:
    notes = Damage(module="PyTorch/2.13.0", path="/p/lib/torch-2.13.0.dist-info/RECORD", how="changed")
    assert not [one for one in found(BROKEN, damage=(notes,)) if one.id == "damage"]
    library = Damage(module="PyTorch/2.13.0", path="/p/lib/torch/lib/libtorch.so", how="changed")
    [told] = [one for one in found(BROKEN, damage=(notes, library)) if one.id == "damage"]
    assert "libtorch.so" in told.message and "RECORD" not in told.message


def test_secrets_are_not_shown_and_another_programs_settings_not_taken() -> None:
    env = {"HOROVOD_SECRET_KEY": "s3cret", "TF_VAR_password": "s3cret", "TF_CLI_CONFIG_FILE": "x", "PATH": "/usr/bin"}
    assert named(settings.in_force(env)) == ["HOROVOD_SECRET_KEY (its value is not shown)"]


def test_being_without_them(home: Path, tmp_path: Path) -> None:
    env = {"HOME": str(home), "PATH": "/mine:/usr/bin", "OMPI_MCA_btl": "openib", "EDITOR": "vi"}
    dropped = [
        Setting(kind="variable", name="OMPI_MCA_btl", value="openib"),
        Setting(kind="line", name="btl", value="openib", where=str(home / ".openmpi/mca-params.conf")),
        Setting(kind="folder", name="PATH", value="mpirun", where="/mine"),
        Setting(kind="packages", name="PYTHONNOUSERSITE", value="", where="x"),
    ]
    other = tmp_path / "other"
    other.mkdir()
    left = settings.without(env, dropped, other)
    assert left == {"HOME": str(other), "PATH": "/usr/bin", "EDITOR": "vi", "PYTHONNOUSERSITE": "1"}
    assert (other / ".openmpi/mca-params.conf").read_text() == "# mine\n  pml=ob1 # why\nnothing\n"
    assert (other / ".openmpi/other").read_text() == "kept"
    assert (other / "data").resolve() == home / "data"
    assert "btl = openib" in (home / ".openmpi/mca-params.conf").read_text()
    assert settings.without(env, [], other) == env


def test_being_without_a_setting_of_the_machine(home: Path, tmp_path: Path) -> None:
    etc = tmp_path / "mpi" / "etc"
    etc.mkdir(parents=True)
    (etc / "openmpi-mca-params.conf").write_text("btl = ^ofi\npml = ob1\npml = ucx\n")
    of_machine = settings.of_machine([str(tmp_path / "mpi/lib/libmpi.so.40")])
    mine = [one for one in of_machine if one.where.startswith(str(tmp_path))]
    assert [(one.kind, one.name, one.value) for one in mine] == [("machine", "btl", "^ofi"), ("machine", "pml", "ucx")]
    other = tmp_path / "other"
    other.mkdir()
    left = settings.without({"HOME": str(home)}, mine[1:], other)
    own, copy = left["OMPI_MCA_mca_base_param_files"].split(",")
    assert own == f"{home}/.openmpi/mca-params.conf" and Path(copy).read_text() == "btl = ^ofi\npml = ob1\n"
    assert list(settings.commands(mine[1:])) == [rf"sed -E -i.before '/^\s*pml\s*=\s*ucx\s*(#.*)?$/d' {mine[1].where}"]


LACKS = """A requested component was not found, or was unable to be opened.  This
means that this component is either not installed or is unable to be used.

Host:      n1
Framework: pml
Component: nope
"""


def test_open_mpi_says_which_setting_asks_for_what_it_lacks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = tmp_path / "openmpi-mca-params.conf"
    file.write_text("pml = ^ucx\n# pml = nope\nosc = nope\npml = nope # mine\nbtl = ^nope.so\n")
    all_lines = list(settings.lines_of(file, "machine"))
    [unknown] = settings.of_unknown_components(LACKS, all_lines)
    assert (unknown.name, unknown.value) == ("pml", "nope")
    variable = Setting(kind="variable", name="OMPI_MCA_pml", value="ob1,nope")
    assert list(settings.of_unknown_components(LACKS, [variable])) == [variable]
    [command] = settings.commands([unknown])
    subprocess.run(command, shell=True, check=True)
    assert file.read_text() == "pml = ^ucx\n# pml = nope\nosc = nope\nbtl = ^nope.so\n"
    file.write_text("pml = ^ucx\npml = nope\n")
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert list(settings.commands([unknown])) == ["export OMPI_MCA_pml='^ucx'"]
    file.write_text("pml = nope\n")
    assert list(settings.commands([unknown])) == [
        'export OMPI_MCA_mca_base_param_files="$HOME/.openmpi/mca-params.conf"'
    ]


def test_a_setting_that_open_mpi_names_is_the_cause_unless_a_trial_says_otherwise() -> None:
    unknown = Setting(kind="machine", name="pml", value="nope", where="/etc/openmpi/openmpi-mca-params.conf")
    first = found(BROKEN, unknown=(unknown,))[0]
    assert (first.id, first.case) == ("settings", "unknown") and "pml=nope (set in /etc" in first.message
    trial = Trial(name=NAMED, without=(unknown,), passed=True, seconds=1.0, is_least=True)
    assert found(BROKEN, unknown=(unknown,), trials=(trial,))[0].case == "without"
    assert (
        found(BROKEN, unknown=(unknown,), trials=(replace(trial, passed=False, is_least=False),))[0].id == "rank-died"
    )


def test_the_commands_do_what_the_trial_did(home: Path) -> None:
    conf = home / ".openmpi/mca-params.conf"
    dropped = [
        Setting(kind="variable", name="OMPI_MCA_btl", value="openib"),
        Setting(kind="line", name="btl", value="openib", where=str(conf)),
        Setting(kind="folder", name="PATH", value="mpirun", where="/mi ne"),
        Setting(kind="packages", name="PYTHONNOUSERSITE", value="", where="x"),
    ]
    script = "\n".join([*settings.commands(dropped), 'echo "$PATH|$PYTHONNOUSERSITE|${OMPI_MCA_btl-none}"'])
    env = {"PATH": "/mi ne:/usr/bin:/bin:/mi ne", "OMPI_MCA_btl": "openib"}
    done = subprocess.run(["/bin/bash", "-c", script], env=env, capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("/usr/bin:/bin|1|none\n", "")
    assert conf.read_text() == "# mine\n  pml=ob1 # why\nnothing\n"
    assert conf.with_name("mca-params.conf.before").read_text().startswith("# mine\nbtl = openib\n")


@pytest.fixture
def few_files() -> Iterator[int]:
    """A low limit on open files, which may be raised again."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (200, before[1]))
    yield before[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


def test_a_limit_is_raised_for_a_trial_and_low_again_after_it(few_files: int) -> None:
    [low] = settings.limits()
    assert str(low) == "the limit 'ulimit -n 200'"
    assert list(settings.commands([low])) == ["ulimit -Sn hard"]
    with pytest.raises(ZeroDivisionError), settings.raised([low]):
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == few_files
        raise ZeroDivisionError
    assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 200
    assert SessionLimit(name="RLIMIT_NOFILE", value=200) in settings.low_limits()


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    [place] = settings.unwritable({"TMPDIR": str(tmp_path / "absent")})
    assert (place.path, place.error) == (str(tmp_path / "absent"), os.strerror(2))
    assert not list(settings.unwritable({"TMPDIR": str(tmp_path)}))


def test_the_folder_that_tmpdir_names_is_told_for_what_it_is() -> None:
    named = Setting(kind="variable", name="TMPDIR", value="/scratch/ada")
    for error, case in ((os.strerror(2), "missing"), ("Read-only file system", "of-user")):
        place = UnusablePlace(path="/scratch/ada", error=error)
        first = found((), places=(place,), settings=(named,), launcher_status=1)[0]
        assert (first.id, first.case, first.commands) == ("places", case, ("unset TMPDIR",))
        assert "TMPDIR" in first.message and "/scratch/ada" in first.message
        asked = Expected(size=2, frameworks=("torch",), places=(place,), settings=(named,))
        assert is_plain(asked, 0) and not is_plain(asked, 2)
        full = UnusablePlace(path="/tmp", error="No space left on device")
        assert not is_plain(replace(asked, places=(place, full)), 0)


def found(facts: tuple[RankFacts, ...], **asked: Any) -> list[Result]:
    return check(facts, replace(ASKED, **asked))


BTL = Setting(kind="variable", name="OMPI_MCA_btl", value="openib")
LINE = Setting(kind="line", name="btl", value="openib", where="/home/me/.openmpi/mca-params.conf")


def test_a_setting_without_which_the_ranks_pass_is_the_cause() -> None:
    trials = (
        Trial(name="without your settings", without=(BTL, LINE), passed=True, seconds=2.0),
        Trial(name="without some", without=(LINE,), passed=True, seconds=2.0, is_least=True),
    )
    first = found(BROKEN, settings=(BTL, LINE), trials=trials)[0]
    assert (first.id, first.case) == ("settings", "without")
    assert first.message == "the ranks pass without btl=openib (set in /home/me/.openmpi/mca-params.conf)"
    assert first.commands == (
        r"sed -E -i.before '/^\s*btl\s*=\s*openib\s*(#.*)?$/d' /home/me/.openmpi/mca-params.conf",
    )


def test_where_no_rank_started_it_is_said_that_they_start() -> None:
    least = Trial(name="without some", without=(BTL,), passed=True, seconds=2.0, is_least=True)
    first = found((), launcher_status=1, trials=(least,))[0]
    assert first.message == "the ranks start without OMPI_MCA_btl=openib"


def test_settings_that_nothing_is_known_of_are_no_cause() -> None:
    failing = (Trial(name="without your settings", without=(BTL,), passed=False, seconds=2.0),)
    results = found(BROKEN, settings=(BTL,), trials=failing)
    assert results[0].id == "rank-died"
    [told] = [one for one in results if one.id == "settings"]
    assert (told.case, told.status, told.commands) == ("in-force", "warn", ())
    assert not [one for one in found(GOOD, settings=(BTL,)) if one.id == "settings"]


@pytest.mark.parametrize(("value", "is_told"), [("python, python3", False), ("mpirun, python", True)])
def test_a_folder_with_a_python_only_is_no_news(value: str, is_told: bool) -> None:
    """Everybody with pyenv or conda has one; the environment's own Python comes before it."""
    shims = Setting(kind="folder", name="PATH", value=value, where="/home/ada/.pyenv/shims")
    assert bool([one for one in found(BROKEN, settings=(shims,)) if one.id == "settings"]) is is_told


@pytest.mark.parametrize(
    ("how", "words"), [("on one node", "nodes"), (INSIDE, "launcher"), ("with Gloo in place of MPI", "MPI")]
)
def test_what_passes_otherwise_is_told(how: str, words: str) -> None:
    results = found(BROKEN, trials=(Trial(name=how, passed=True, seconds=2.0),))
    [told] = [one for one in results if one.id == "trials"]
    assert how in told.message and words in told.cause and told.remedy


@pytest.mark.parametrize(
    ("value", "error", "case"),
    [
        (40, "OSError: [Errno 24] Too many open files: '/x'", "met"),
        (40, "ImportError: no", "few"),
        (900, "OSError: [Errno 24] Too many open files: '/x'", "met"),
        (900, "ImportError: no", "low"),
    ],
)
def test_a_limit_is_the_cause_where_a_rank_has_met_it_or_nothing_could_start(value: int, error: str, case: str) -> None:
    facts = (GOOD[0], replace(GOOD[1], init=Fact(error=error), world=None), *GOOD[2:])
    results = found(facts, limits=(SessionLimit(name="RLIMIT_NOFILE", value=value),))
    [told] = [one for one in results if one.id == "limits"]
    assert told.case == case and f"{value} (ulimit -n)" in told.message
    assert (results[0].id == "limits") is (case in ("met", "few"))
    if case == "met":
        assert told.commands == ("ulimit -Sn hard",) and "Too many open files" in told.cause


def test_a_folder_without_room_is_the_cause() -> None:
    first = found(BROKEN, places=(UnusablePlace(path="/tmp", error="No space left on device"),))[0]
    assert first.message == "/tmp cannot be written to: No space left on device"


def test_damage_is_the_cause_and_its_remedy_names_the_environment() -> None:
    gone = Damage(module="PyTorch/2.13", path="/t/software/PyTorch/2.13/lib/libtorch.so", how="gone")
    first = found(BROKEN, damage=(gone,))[0]
    assert (first.id, first.commands) == ("damage", ("envkit repair toy-cpu --prefix /p",))
    assert "libtorch.so (gone)" in first.message and "PyTorch/2.13" in first.message
    assert "NAME" not in first.remedy
    assert found(BROKEN, damage=(gone,), environment="")[0].commands == ()


def test_what_was_added_matters_only_where_a_rank_met_it() -> None:
    path = "/t/software/PyTorch/2.13/lib/python3.11/site-packages/typing.py"
    extra = (Damage(module="PyTorch/2.13", path=path, how="added"),)
    assert found(BROKEN, damage=extra)[0].id == "rank-died"
    error = Fact(error="ImportError: x", traceback=f'  File "{path}", line 3')
    facts = (GOOD[0], replace(GOOD[1], load=error, init=None, world=None), *GOOD[2:])
    assert found(facts, damage=extra)[0].id == "damage"


SITE = "/t/software/PyTorch/2.13/lib/python3.11/site-packages"


@pytest.mark.parametrize(
    ("file", "error"),
    [
        ("numpy", "AttributeError: module 'numpy' has no attribute 'ndarray'"),
        ("numpy", "ModuleNotFoundError: No module named 'numpy.core'"),
        ("numpy.py", "ModuleNotFoundError: No module named 'numpy.core'; 'numpy' is not a package"),
        ("numpy.cpython-311-x86_64-linux-gnu.so", "ImportError: cannot import name 'y' from 'numpy' (x)"),
        ("numpy", "ImportError: cannot import name 'y' from partially initialized module 'numpy.z' (x)"),
    ],
)
def test_what_was_added_is_met_where_python_names_the_module_alone(file: str, error: str) -> None:
    """A package is told by its folder, and is another than one of a longer name."""
    extra = (Damage(module="PyTorch/2.13", path=f"{SITE}/{file}", how="added"),)
    facts = tuple(replace(one, imported=Import(error=error), load=None, init=None, world=None) for one in GOOD)
    first = found(facts, damage=extra)[0]
    assert (first.id, f"{SITE}/{file} (added)" in first.message) == ("damage", True)
    for other in ("pandas", "num", "numpy_financial", "libnumpy.so"):
        beside = (Damage(module="PyTorch/2.13", path=f"{SITE}/{other}", how="added"),)
        assert found(facts, damage=beside)[0].id == "framework-present", other


def test_hosts_that_ssh_does_not_reach_are_named(tmp_path: Path) -> None:
    ssh = tmp_path / "ssh"
    ssh.write_text('#!/bin/sh\n[ "$5" = up ] && exit\necho "ssh: Could not resolve hostname $5" >&2\nexit 255\n')
    ssh.chmod(0o755)
    found_mute = unreachable(dict.fromkeys(("up", "down", "gone"), ("", "")), {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    assert [(one.path, one.error) for one in found_mute] == [
        ("down", "ssh: Could not resolve hostname down"),
        ("gone", "ssh: Could not resolve hostname gone"),
    ]
    first = found((), mute=tuple(found_mute), launcher_status=1, launcher_said="ssh: connect to host down port 22")[0]
    assert first.id == "hosts" and "down (ssh: Could not" in first.message and "gone" in first.message


def test_a_host_of_the_default_hostfile_that_does_not_answer_is_named_with_that_file(tmp_path: Path) -> None:
    file, target = tmp_path / "hosts", cast("Target", SimpleNamespace(known_mpi=None, built=None))
    file.write_text("# nodes\nnode1 slots=4\nnode2:2 # new\nlocalhost\n")
    said, env = (
        "ssh: Could not resolve hostname node2: unknown; localhost",
        {"OMPI_MCA_orte_default_hostfile": str(file)},
    )
    wanted = LaunchRequest(ranks=2, hosts=())
    name = "OMPI_MCA_orte_default_hostfile"
    assert asked_hosts(wanted, target, said, env) == {"node2": (str(file), name)}
    assert asked_hosts(LaunchRequest(ranks=2, hosts=(("node1", 1),)), target, said, env) == {"node1": ("", "")}
    of_5 = {"PRTE_MCA_prte_default_hostfile": str(file)}
    assert asked_hosts(wanted, target, said, of_5) == {"node2": (str(file), "PRTE_MCA_prte_default_hostfile")}
    mute = (UnusablePlace(path="node2", error="unknown", where=str(file), variable=name),)
    first = found((), mute=mute, launcher_status=1, launcher_said=said)[0]
    assert (first.id, first.commands) == ("hosts", ("export OMPI_MCA_orte_default_hostfile=none",))
    assert "node2" in first.message and str(file) in first.message
    assert is_plain(Expected(size=2, frameworks=("torch",), mute=mute), 0)


@pytest.mark.parametrize(("passed", "case"), [(True, "mpi-passes"), (False, "mpi-fails")])
def test_what_a_plain_mpi_program_tells(passed: bool, case: str) -> None:
    results = found(BROKEN, trials=(Trial(name=MPI_ALONE, passed=passed, seconds=1.0),))
    [told] = [one for one in results if one.id == "trials"]
    assert (told.case, told.status) == (case, "warn") and "MPI" in told.cause


def test_a_plain_mpi_program_that_was_given_no_time_tells_nothing() -> None:
    trial = Trial(name=MPI_ALONE, passed=False, seconds=3.0, was_cut=True)
    assert not [one for one in found(BROKEN, trials=(trial,)) if one.id == "trials"]


def test_several_settings_are_told_together_with_what_mends_them() -> None:
    trials = (Trial(name="without some", without=(BTL, LINE), passed=True, seconds=2.0, is_least=True),)
    first = found(BROKEN, settings=(BTL, LINE), trials=trials)[0]
    assert (first.case, len(first.commands)) == ("together", 2) and "/home/me/.openmpi" in first.remedy


def test_where_all_is_well_nothing_of_it_is_told() -> None:
    told = found(
        GOOD,
        settings=(BTL,),
        limits=(SessionLimit(name="RLIMIT_NOFILE", value=1),),
        places=(UnusablePlace(path="/x", error="y"),),
    )
    assert not {one.id for one in told} & {"settings", "limits", "places", "damage", "trials"}


def test_a_library_of_the_mpi_that_is_cut_is_the_cause() -> None:
    path = "/usr/lib/openmpi3/mca_btl_vader.so"
    first = found(BROKEN, host_files=(HostFile(path=path, how="cut"),))[0]
    assert (first.id, first.case) == ("damage", "mpi") and path in first.message and path in first.remedy
    first = found(BROKEN, host_files=(HostFile(path=path, how="gone", package="libopenmpi3"),))[0]
    assert (first.id, first.case) == ("damage", "mpi-package") and f"{path} (gone)" in first.message
    assert "--reinstall libopenmpi3'" in first.remedy


def test_a_file_system_from_which_nothing_may_be_run_comes_before_what_follows_from_it() -> None:
    gone = Damage(module="PyTorch/2", path="/t/software/PyTorch/2/lib/x.so", how="gone")
    first = found(BROKEN, noexec=("/t/software",), damage=(gone,))[0]
    assert (first.id, first.case) == ("places", "noexec") and "/t/software" in first.message


def test_a_limit_of_one_rank_alone_is_told_of_that_rank() -> None:
    error = Fact(error="ImportError: mpi_lib_v2.so: failed to map segment from shared object")
    limited = replace(
        GOOD[1], phase="exit", load=error, init=None, world=None, limits={"RLIMIT_AS": 700 << 20, "RLIMIT_NOFILE": 4096}
    )
    [first, *_] = found((GOOD[0], limited, *GOOD[2:]))
    assert (first.id, first.case, first.commands) == ("limits", "met", ())
    assert first.message.startswith("rank 1") and "address space: 700 MB" in first.message
    low = replace(GOOD[1], limits={"RLIMIT_NOFILE": 600})
    assert "limits" not in {one.id for one in found((GOOD[0], low, *GOOD[2:]))}


def test_a_preloaded_library_that_stands_before_mpi_is_the_cause_of_a_death_in_init(tmp_path: Path) -> None:
    before = shared_object(
        tmp_path / "libtuned.so", "int MPI_Init_thread(void *a, void *b, int c, int *d) { return 16; }"
    )
    other = shared_object(tmp_path / "libother.so", "int other(void) { return 0; }")
    env = {"LD_PRELOAD": f"{other}:{before} /proc/nonexistent.so libm.so.6"}
    assert list(interposed(env)) == [str(before)] and list(interposed({})) == []
    ended = Ended(how="exit", status=1, said="*** The MPI_Comm_dup() function was called before MPI_INIT was invoked.")
    dead = replace(DEAD, ended=ended)
    [first, *_] = found((dead, dead, *GOOD[2:]), interposed=(str(before),))
    assert (first.id, first.commands) == ("preloaded-mpi", ("unset LD_PRELOAD",)) and str(before) in first.message


def test_a_cut_library_that_ld_library_path_leads_to_is_no_damage_of_the_machine() -> None:
    cut = HostFile(path="/mine/lib/libmpi.so.40", how="cut")
    path = Setting(kind="variable", name="LD_LIBRARY_PATH", value="/other:/mine/lib")
    first = found(BROKEN, host_files=(cut,), settings=(path,))[0]
    assert (first.case, first.commands) == ("mpi-search-path", ("unset LD_LIBRARY_PATH",))
    assert "--reinstall" not in first.remedy
    asked = Expected(size=2, frameworks=("torch",), host_files=(cut,))
    assert is_plain(asked, 2) and not is_plain(replace(asked, settings=(path,)), 2)  # then it is tried
    trial = Trial(name="without your settings", without=(path,), passed=True, seconds=1.0, is_least=True)
    first = found(BROKEN, host_files=(cut,), settings=(path,), trials=(trial,))[0]
    assert (first.id, first.commands) == ("settings", ("unset LD_LIBRARY_PATH",))


def test_a_cut_library_of_an_mpi_is_found_where_the_loader_is_told_to_look(tmp_path: Path) -> None:
    whole = shared_object(tmp_path / "whole" / "libmpi.so.40", "int nothing(void) { return 0; }")
    short = shared_object(tmp_path / "short" / "libmpi.so.40", "int nothing(void) { return 0; }")
    os.truncate(short, short.stat().st_size // 2)
    assert list(cut_libraries([], {"LD_LIBRARY_PATH": f"{whole.parent}:{short.parent}:/proc/nonexistent:."})) == [
        str(short)
    ]
    assert list(cut_libraries([str(whole)], {})) == []


def test_a_rank_whose_python_does_not_start_is_the_cause() -> None:
    said = (
        "Traceback (most recent call last):\n"
        '  File "/usr/lib/python3.11/tempfile.py", line 45, in <module>\n    from random import Random as _Random\n'
        "ImportError: cannot import name 'Random' from 'random' (/home/me/mine/random.py)\n"
    )
    waiting = replace(GOOD[0], phase="init", init=None, world=None, ended=Ended(how="stopped"))
    [first, *_] = found((waiting, *(replace(waiting, pid=n) for n in (2, 3))), launcher_said=said)
    assert (first.id, first.case) == ("rank-missing", "ended-early") and "/home/me/mine/random.py" in first.message
    assert "PYTHONPATH" in first.remedy


def test_a_network_that_is_not_there_is_taken_away_where_it_was_set() -> None:
    said = (
        "None of the TCP networks specified to be included for out-of-band communications\n"
        "could be found:\n\n  Value given: ib7\n"
    )
    given = Setting(kind="variable", name="OMPI_MCA_oob_tcp_if_include", value="ib7")
    [first, *_] = found((), launcher_status=1, launcher_said=said, settings=(BTL, given))
    assert (first.case, first.commands) == ("named-interface", ("unset OMPI_MCA_oob_tcp_if_include",))


def test_the_variables_of_a_job_that_has_ended_are_the_cause_where_no_rank_starts() -> None:
    job = EndedJob(scheduler="Slurm", job="4711", variables=("SLURM_JOB_ID", "SLURM_NNODES"))
    first = found((), launcher_status=1, launcher_said="unable to find SLURM_NODELIST", ended_job=job)[0]
    assert (first.id, first.commands) == ("ended-job", ("unset SLURM_JOB_ID SLURM_NNODES",))
    told = found(BROKEN, ended_job=job)
    assert told[0].id != "ended-job" and "ended-job" in {one.id for one in told if one.status is Status.WARN}


@pytest.mark.parametrize(
    ("status", "stdout", "stderr", "above", "over"),
    [
        (0, "4711 gpu train ada R 1:02\n", "", ["bash"], False),
        (0, "", "", ["bash", "slurmstepd"], True),
        (1, "", "slurm_load_jobs error: Invalid job id specified", ["bash"], True),
        (1, "", "slurm_load_jobs error: Unable to contact slurm controller", ["bash", "slurmstepd"], False),
        (1, "", "slurm_load_jobs error: Unable to contact slurm controller", ["bash", "sshd"], True),
    ],
)
def test_whether_a_job_has_ended(
    status: int, stdout: str, stderr: str, above: list[str], over: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    told = Completed(argv=(), status=status, stdout=stdout, stderr=stderr, seconds=0.0)
    monkeypatch.setattr(process, "which", lambda *_args, **_options: "/usr/bin/squeue")
    monkeypatch.setattr(process, "capture", lambda *_args, **_options: told)
    monkeypatch.setattr(settings, "ancestors", lambda: (above, True))
    env = {"SLURM_JOB_ID": "4711", "SLURM_NNODES": "2", "HOME": "/x"}
    found = settings.ended_job(env)
    assert (found is not None) is over
    if found:
        assert found.variables == ("SLURM_JOB_ID", "SLURM_NNODES")
    assert settings.ended_job({"HOME": "/x"}) is None


@pytest.mark.parametrize("name", ["sitecustomize.py", "zz.pth"])
def test_what_every_python_runs_matters_though_no_rank_tells_of_it(name: str) -> None:
    path = f"/t/software/Python/3.11/lib/python3.11/site-packages/{name}"
    assert found(BROKEN, damage=(Damage(module="Python/3.11", path=path, how="added"),))[0].id == "damage"
