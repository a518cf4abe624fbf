"""Entering EESSI, for real: a tree of its shape with the machine's Lmod, namespaces, FUSE and Apptainer; no network."""

import json
import os
import pwd
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from envkit.system.resources import data

from .. import cvmfs2, eessi_tree
from ..conftest import Fake
from ..eessi_tree import REPOSITORY, write
from .conftest import Handler
from .site import FUSE_FOR_ALL, SYSTEM_PATH, needs, until
from .terminal import Terminal

ENVKIT = Path(sys.executable).with_name("envkit")
NAMESPACE = [sys.executable, "-I", "-S", str(data("system/mount_namespace.py"))]
AWKWARD = ["two words", "$(touch made) `id` $HOME *", "", "line\nline", "--", "--version", "é"]
MACHINE = os.uname().machine
LOADING = "CernVM-FS: loading Fuse module... done"

pytestmark = [
    pytest.mark.integration,
    pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning"),
]


@dataclass(frozen=True, kw_only=True)
class Place:
    """A user with a home, programs of their own, and a copy of the repository that they may name."""

    home: Path
    tree: Path

    def env(self, **changes: str) -> dict[str, str]:
        """The settings; the copy is named unless they say otherwise."""
        path = f"{self.home}/bin:{SYSTEM_PATH}"
        given = {"PATH": path, "HOME": str(self.home), "USER": "u", "LANG": "C.UTF-8", "TMPDIR": str(self.home / "tmp")}
        given |= {"XDG_STATE_HOME": str(self.home / "state"), "XDG_CACHE_HOME": str(self.home / "cache")}
        return given | {"ENVKIT_EESSI_DIR": str(self.tree)} | changes

    def envkit(self, *words: str, before: tuple[str, ...] = (), **changes: str) -> subprocess.CompletedProcess[str]:
        """Run envkit to its end."""
        argv = [*before, str(ENVKIT), *words]
        env = self.env(**changes)
        return subprocess.run(argv, env=env, cwd=self.home, capture_output=True, text=True, timeout=120, check=False)

    def run(self, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
        """Run ``envkit run eessi``."""
        return self.envkit("run", "eessi", *words, before=(), **changes)

    def sessions(self) -> dict[str, dict[str, object]]:
        """What ``envkit eessi list`` says, by name."""
        listed = json.loads(self.envkit("eessi", "list", "--json").stdout)
        return {session["name"]: session for session in listed["sessions"]}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the repository."""
    needs("lmod")
    return eessi_tree.make(tmp_path_factory.mktemp("eessi") / "repository")


@pytest.fixture
def place(tmp_path: Path, tree: Path) -> Place:
    """A user who has entered nothing yet."""
    for name in ("bin", "tmp"):
        (tmp_path / name).mkdir()
    return Place(home=tmp_path, tree=tree)


def seen_at(folder: Path) -> tuple[str, ...]:
    """What stands before a command to which a folder is mounted where EESSI is."""
    return (*NAMESPACE, "bind", str(folder), REPOSITORY, "--")


def mounts_of(place: Place) -> list[str]:
    """The namespaces of mounts in which processes of a user see EESSI."""
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            is_own = f"HOME={place.home}".encode() in (process / "environ").read_bytes().split(b"\0")
            if is_own and f" {REPOSITORY} " in (process / "mountinfo").read_text():
                found.add(str((process / "ns/mnt").readlink()))
    return sorted(found)


def test_arguments_status_and_output_are_the_commands(place: Place) -> None:
    code = "import json, sys; print(json.dumps(sys.argv[1:])); sys.exit(7)"
    done = place.run("--", sys.executable, "-c", code, *AWKWARD)
    assert (done.returncode, json.loads(done.stdout)) == (7, AWKWARD), done.stderr
    assert "EESSI 2023.06 for x86_64/" in done.stderr.replace(MACHINE, "x86_64")
    assert "which its archdetect chose; archspec calls this CPU" in done.stderr
    assert not (place.home / "made").exists()
    assert not place.sessions()  # nobody has named one, and there is no cache to keep


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_death_by_a_signal(place: Place, number: signal.Signals) -> None:
    assert place.run("--", "sh", "-c", f"kill -{int(number)} $$").returncode == -number


def test_the_command_runs_as_the_caller_in_the_callers_folder(place: Place) -> None:
    done = place.run("--", "sh", "-c", "id -u; pwd; echo $BASH_ENV; cat", BASH_ENV="/nowhere/rc")
    assert done.stdout.splitlines() == [str(os.getuid()), str(place.home), "/nowhere/rc"], done.stderr


def test_options_of_the_callers_shell(place: Place) -> None:
    """The start file would end a shell that had these set."""
    done = place.run("--load", "Tool/1.0", "--", "tool", "5", SHELLOPTS="braceexpand:errexit:nounset")
    assert (done.returncode, done.stdout) == (5, "tool 1.0\n"), done.stderr


def test_output_of_the_modules_tool_is_not_the_commands(place: Place) -> None:
    done = place.run("--load", "Tool/1.0", "--", "true", LMOD_REDIRECT="yes", LMOD_TRACING="yes")
    assert (done.returncode, done.stdout) == (0, ""), done.stderr


def test_modules_are_loaded(place: Place) -> None:
    done = place.run("--load", "Tool/1.0", "--load", "foss", "--", "sh", "-c", "echo $LOADEDMODULES; tool 5")
    assert (done.returncode, done.stdout.splitlines()[-1]) == (5, "tool 1.0"), done.stderr
    assert {"EESSI/2023.06", "Tool/1.0", "foss/2023a", "OpenMPI/4.1.5-GCC-12.3.0"} <= set(
        done.stdout.splitlines()[0].split(":")
    )


@pytest.mark.parametrize(
    ("module", "said"),
    [
        ("Horovod/0.28.1-foss-2022a-CUDA-11.7.0-TensorFlow-2.11.0", "No release of EESSI has Horovod."),
        ("PyTorch/2.0.1", "The nearest: PyTorch/2.1.2-foss-2023a"),
        ("Tol", "The nearest: Tool/"),
        ("Xyzzyx", "No name is near it."),
    ],
)
def test_a_module_that_is_not_there(place: Place, module: str, said: str) -> None:
    done = place.run("--load", module, "--", "echo", "reached")
    assert (done.returncode, done.stdout) == (92, "")
    assert f"envkit: there is no module {module}." in done.stderr and said in done.stderr


def test_the_callers_settings_that_get_in_the_way(place: Place) -> None:
    show = "echo ${LD_PRELOAD-none}"
    done = place.run("--", "sh", "-c", show, LD_PRELOAD="/nowhere/libxalt_init.so", LD_LIBRARY_PATH="/opt/lib")
    assert done.stdout == "none\n"
    assert "LD_PRELOAD has XALT's library" in done.stderr
    assert "LD_LIBRARY_PATH is set, and takes libraries in before EESSI's own: /opt/lib" in done.stderr


def test_a_release_of_eessis_own_variables_is_said_not_to_count(place: Place) -> None:
    done = place.run("--", "sh", "-c", "echo $EESSI_VERSION", EESSI_VERSION="2025.06")
    assert done.stdout == "2023.06\n", done.stderr
    assert "EESSI_VERSION=2025.06 is set, and does not count: --release 2025.06 enters that one" in done.stderr
    named = place.run("--release", "2023.06", "--", "true", EESSI_VERSION="2025.06")
    assert (named.returncode, "does not count" in named.stderr) == (0, False)


def test_no_search_path(place: Place) -> None:
    done = place.envkit("run", "eessi", "--", "/bin/echo", "in", before=seen_at(place.tree), PATH="")
    assert (done.returncode, done.stdout) == (0, "in\n"), done.stderr
    assert "is mounted (--access native)" in done.stderr


def test_the_other_release(place: Place) -> None:
    done = place.run("--release", "2025.06", "--", "sh", "-c", "echo $EESSI_VERSION")
    assert (done.stdout, done.returncode) == ("2025.06\n", 0), done.stderr


def test_one_release_within_another(place: Place) -> None:
    """What was loaded and set before is gone, and does not steer what is entered now."""
    inner = [
        str(ENVKIT),
        "run",
        "eessi",
        "--load",
        "Tool/1.0",
        "--",
        "sh",
        "-c",
        "echo $EESSI_VERSION $LOADEDMODULES",
    ]
    done = place.run("--release", "2025.06", "--load", "foss", "--", *inner)
    assert (done.returncode, done.stdout) == (0, "2023.06 EESSI/2023.06:Tool/1.0\n"), done.stderr
    stale = {"EESSI_VERSION": "2025.06", "EESSI_SOFTWARE_PATH": "/usr", "LOADEDMODULES": "old/1", "MODULEPATH": "/old"}
    show = "echo $EESSI_VERSION $LOADEDMODULES; echo $MODULEPATH"
    told = place.run("--", "sh", "-c", show, **stale).stdout.splitlines()
    assert (told[0], "/old" in told[1]) == ("2023.06 EESSI/2023.06", False)


@pytest.mark.parametrize("access", ["auto", "dir", "native"])
def test_a_release_that_there_is_none_of(place: Place, access: str) -> None:
    before = seen_at(place.tree) if access == "native" else ()
    done = place.envkit("run", "eessi", "--release", "2021.12", "--access", access, "--", "true", before=before)
    assert done.returncode == 2
    assert done.stderr == (
        "envkit: EESSI has no release 2021.12.\n\nWhat to do: Use --release with one of: 2023.06, 2025.06.\n"
    )


def test_a_native_mount(place: Place) -> None:
    done = place.envkit("run", "eessi", "--", "sh", "-c", "echo $EESSI_VERSION", before=seen_at(place.tree))
    assert (done.returncode, done.stdout) == (0, "2023.06\n"), done.stderr
    assert f"envkit: {REPOSITORY} is mounted (--access native)" in done.stderr


def test_an_empty_mount(place: Place, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    before = seen_at(tmp_path / "empty")
    done = place.envkit("run", "eessi", "--access", "native", "--", "true", before=before)
    assert (done.returncode, done.stdout) == (3, "")
    assert "is there, and empty: the CernVM-FS client has ended, or was never started." in done.stderr
    fallen_back = place.envkit("run", "eessi", "--", "echo", "by the copy", before=before)
    assert (fallen_back.returncode, fallen_back.stdout) == (0, "by the copy\n"), fallen_back.stderr


def test_a_dead_mount(place: Place, fake: Fake) -> None:
    """A FUSE client that was killed, so that each look at its mount gives ENOTCONN."""
    needs("fuse-overlayfs")
    pid = place.home / "pid"
    client = fake("client", f'echo $$ >{pid}; exec fuse-overlayfs -f -o lowerdir={place.tree} "$1"')
    ready = "ls $0/versions; kill -9 $(cat $1); shift; while ls $0; do sleep 0.1; done"
    words = ["mount", str(place.home / "log"), REPOSITORY, str(client), REPOSITORY, "--"]
    before = (*NAMESPACE, *words, "sh", "-c", f'{{ {ready}; }} >/dev/null 2>&1; exec "$@"', REPOSITORY, str(pid))
    done = place.envkit("run", "eessi", "--access", "native", "--", "true", before=before)
    assert done.returncode == 3
    assert "is mounted, but the CernVM-FS client behind it has died (ENOTCONN)." in done.stderr
    fallen_back = place.envkit("run", "eessi", "--", "echo", "by the copy", before=before)
    assert (fallen_back.returncode, fallen_back.stdout) == (0, "by the copy\n"), fallen_back.stderr


def hung_below(place: Place, fake: Fake, below: str) -> tuple[str, ...]:
    """What stands before a command that sees EESSI mounted, where a part of it waits for a client that is stopped."""
    needs("fuse-overlayfs")
    pid, target = place.home / "pid", f"{REPOSITORY}/{below}"
    client = fake("client", f'echo $$ >{pid}; exec fuse-overlayfs -f -o lowerdir={place.tree}/{below} "$1"')
    words = ["bind", str(place.tree), REPOSITORY, "mount", str(place.home / "log"), target, str(client), target]
    return (*NAMESPACE, *words, "--", "sh", "-c", 'kill -STOP "$(cat "$0")"; exec "$@"', str(pid))


DEEP = f"versions/2023.06/software/linux/{MACHINE}/generic/modules/all"


@pytest.mark.parametrize(
    ("words", "below", "named"),
    [
        (("run", "eessi", "--access", "native", "--", "true"), "versions/2023.06/init", "versions/2023.06/init"),
        (("shell", "eessi", "--access", "native", "--", "true"), "versions/2023.06/init", "versions/2023.06/init"),
        (("eessi", "modules", "--access", "native"), DEEP, DEEP),
        (("run", "eessi", "--access", "native", "--load", "Tool", "--", "true"), DEEP, REPOSITORY),
    ],
    ids=["run", "shell", "modules", "load"],
)
def test_a_mount_that_does_not_answer(place: Place, fake: Fake, words: tuple[str, ...], below: str, named: str) -> None:
    """Wherever it is, it is named after ten seconds."""
    generic = {"EESSI_ARCHDETECT_OPTIONS_OVERRIDE": f"{MACHINE}/generic"}
    done = place.envkit(*words, before=hung_below(place, fake, below), **generic)
    assert done.returncode == 3 and not done.stdout, done.stderr
    assert "has not answered in 10 s" in done.stderr and named in done.stderr


def test_ctrl_c_while_a_mount_does_not_answer(place: Place, fake: Fake) -> None:
    argv = [*hung_below(place, fake, DEEP), str(ENVKIT), "eessi", "modules", "--access", "native"]
    env = place.env(EESSI_ARCHDETECT_OPTIONS_OVERRIDE=f"{MACHINE}/generic")
    running = subprocess.Popen(argv, env=env, cwd=place.home, stderr=subprocess.PIPE, text=True)
    told = Path(f"/proc/{running.pid}/task")
    until(lambda: len(list(told.iterdir())) > 1, "the thread that looks", 60)
    running.send_signal(signal.SIGINT)
    _, said = running.communicate(timeout=60)
    assert running.returncode == 130 and "stopped by Ctrl-C" in said, said
    assert "has not answered" not in said


@pytest.mark.parametrize(
    ("access", "said"),
    [
        ("native", f"--access native: {REPOSITORY} is not mounted on this machine."),
        ("dir", "--access dir: no local copy is named."),
        ("dir:/usr", "--access dir: /usr is no copy of software.eessi.io: it has no versions/2023.06/init."),
        ("userns", "--access userns: neither cvmfs2 nor cvmfsexec is on PATH."),
        ("apptainer", "--access apptainer: neither apptainer nor singularity is on PATH."),
    ],
)
def test_a_way_that_is_forced_and_does_not_fit(place: Place, access: str, said: str) -> None:
    done = place.run("--access", access, "--", "true", ENVKIT_EESSI_DIR="")
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr.startswith(f"envkit: {said}\n") and "What to do: " in done.stderr


def test_no_way_at_all(place: Place) -> None:
    done = place.run("--", "true", ENVKIT_EESSI_DIR="")
    assert done.returncode == 3
    for access in ("native: ", "dir: ", "userns: ", "apptainer: "):
        assert f"\n  {access}" in done.stderr


def test_no_user_namespaces(place: Place) -> None:
    """Within one that allows no more of them."""
    none_left = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    before = ("unshare", "--user", "--map-root-user", "sh", "-c", none_left, "sh")
    done = place.envkit("run", "eessi", "--access", "dir", "--", "true", before=before)
    assert done.returncode == 3
    assert "this user can make no user namespace here: No space left on device" in done.stderr
    assert "sysctl user.max_user_namespaces" in done.stderr


def test_binds_of_the_variables_and_of_the_command_line(place: Place) -> None:
    (place.home / "scripts").mkdir()
    (place.home / "scripts" / "test.sh").write_text("echo scripted\n")
    done = place.run(
        *("--bind", f"{place.home}/scripts:/opt/mine", "--", "sh", "-c"),
        "sh /scripts/test.sh; ls /opt/mine; touch /fixed/x || echo refused; tool=$SINGULARITY_BIND; echo $tool",
        SINGULARITY_BIND=f"{place.home}:/scripts,/tmp",
        APPTAINER_BIND=f"{place.home}/scripts:/scripts,{place.home}/scripts:/fixed:ro",
    )
    assert done.stdout.splitlines() == ["scripted", "test.sh", "refused", f"{place.home}:/scripts,/tmp"], done.stderr
    native = place.envkit(
        *("run", "eessi", "--bind", f"{place.home}/scripts:/scripts", "--", "cat", "/scripts/test.sh"),
        before=seen_at(place.tree),
    )
    assert native.stdout == "echo scripted\n", native.stderr


@pytest.mark.parametrize("bind", ["/tmp:/a,/tmp:/b", "/tmp:/a:/b", "/tmp:/a:x", ":/a", "/tmp:", "/tmp:a", "/none:/a"])
def test_binds_that_cannot_be(place: Place, bind: str) -> None:
    done = place.run("--bind", bind, "--", "true")
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"envkit: --bind {bind}: ")


def test_binds_of_a_site_do_not_block_entering(place: Place) -> None:
    """What its images need may be missing here, or be for images alone; nor does it need user namespaces."""
    site = f"/none/at/all,{place.home}:/site:ro,/tmp:/a:/b:/c,/etc/passwd:/img:image-src=/x,/tmp:/far/far/away"
    for before in (seen_at(place.tree), ()):
        done = place.envkit("run", "eessi", "--", "sh", "-c", "ls /site", before=before, APPTAINER_BIND=site)
        assert done.returncode == 0 and "bin" in done.stdout, done.stderr
        assert "envkit: APPTAINER_BIND: /tmp:/a:/b:/c: it cannot be understood." in done.stderr
        assert done.stderr.count("left out") == 4, done.stderr
    none_left = 'echo 0 >/proc/sys/user/max_user_namespaces && exec "$@"'
    before = (*seen_at(place.tree), "unshare", "--user", "--map-root-user", "sh", "-c", none_left, "sh")
    alone = place.envkit("run", "eessi", "--", "echo", "in", before=before, APPTAINER_BIND=f"{place.home}:/site")
    assert (alone.returncode, alone.stdout) == (0, "in\n"), alone.stderr
    assert "needs a user namespace, of which this user can make none here" in alone.stderr


@pytest.mark.parametrize("option", ["--release=2023.06", "--load=x", "--access=dir", "--nvidia", "--resume=x"])
def test_options_of_eessi_are_refused_for_other_names(place: Place, option: str) -> None:
    for words in (["shell", "toy", option], ["run", "toy", option, "--", "true"]):
        done = place.envkit(*words)
        assert done.returncode == 2
        assert f"{option.partition('=')[0]} goes only with the name 'eessi'." in done.stderr
    for words in (["shell", "eessi", "--prefix", "/x"], ["run", "eessi", "--mpi-model", "inside", "--", "true"]):
        done = place.envkit(*words)
        assert (done.returncode, f"{words[2]} does not go with the name 'eessi'." in done.stderr) == (2, True)


@pytest.mark.parametrize("access", ["cvmfs", "native:/x", "dir:", ""])
def test_ways_that_there_are_not(place: Place, access: str) -> None:
    done = place.run("--access", access, "--", "true")
    assert done.returncode == (2 if access else 0)


def test_ranks_are_started_inside_by_eessis_own_launcher(place: Place) -> None:
    needs("mpirun")
    show = "echo $OMPI_COMM_WORLD_RANK $OMPI_COMM_WORLD_SIZE $EESSI_VERSION $(readlink /proc/self/ns/mnt)"
    done = place.run("-n", "2", "--load", "foss/2023a", "--", "sh", "-c", show)
    assert done.returncode == 0, done.stderr
    ranks = sorted(line.split() for line in done.stdout.splitlines())
    assert [rank[:3] for rank in ranks] == [["0", "2", "2023.06"], ["1", "2", "2023.06"]]
    assert len({rank[3] for rank in ranks}) == 1  # one mount, not one per rank
    assert done.stderr.count("which its archdetect chose") == 1  # entered once
    refused = place.run("-n", "2", "--", "true")
    assert refused.returncode == 3
    assert "The modules loaded bring no MPI" in refused.stderr and "--load foss/2023a" in refused.stderr


def test_ranks_stay_on_this_node_though_the_job_has_others(place: Place) -> None:
    needs("mpirun")
    job = {"SLURM_JOB_ID": "7", "SLURM_JOBID": "7", "SLURM_NNODES": "2", "SLURM_JOB_NUM_NODES": "2"}
    job |= dict.fromkeys(("SLURM_NODELIST", "SLURM_JOB_NODELIST"), "far[1-2]") | {"SLURM_TASKS_PER_NODE": "2(x2)"}
    words = ["-n", "2", "--load", "foss/2023a", "--", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK"]
    done = place.run(*words, **job)
    assert (done.returncode, sorted(done.stdout.split())) == (0, ["0", "1"]), done.stderr


def test_ranks_that_are_started_outside(place: Place) -> None:
    """By a copy each may enter, and none tries to read the memory of another."""
    rank = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"}
    show = ["--", "sh", "-c", "echo ${OMPI_MCA_btl_vader_single_copy_mechanism-as it was}"]
    assert place.run(*show, **rank).stdout == "none\n"
    assert place.run(*show).stdout == "as it was\n"


def test_nvidia(place: Place, fake: Fake) -> None:
    none = place.run("--nvidia", "--", "true")
    assert none.returncode == 3
    assert "--nvidia: nvidia-smi finds no NVIDIA GPU here." in none.stderr and "There is no nvidia-smi" in none.stderr
    fake("nvidia-smi", 'case $1 in -L) echo "GPU 0: NVIDIA A100";; *) echo 8.0;; esac')
    changes = {"EESSI_ARCHDETECT_OPTIONS_OVERRIDE": f"{MACHINE}/amd/zen2"}
    done = place.run("--nvidia", "--load", "CUDA", "--", "sh", "-c", "command -v nvcc", **changes)
    assert done.stdout.endswith("/accel/nvidia/cc80/software/CUDA/12.1.1/bin/nvcc\n"), done.stderr
    assert "; GPU: accel/nvidia/cc80" in done.stderr
    assert "CUDA/12.1.1\n" in place.envkit("eessi", "modules", before=(), **changes).stdout
    fake("nvidia-smi", 'case $1 in -L) echo "GPU 0: NVIDIA A40";; *) echo 8.6;; esac')
    fallen_back = place.run("--nvidia", "--load", "CUDA", "--", "true", **changes)
    assert "; GPU: accel/nvidia/cc80" in fallen_back.stderr  # as EESSI has nothing for 8.6
    assert "CUDA/12.1.1\n" in place.envkit("eessi", "modules", before=(), **changes).stdout
    fake("nvidia-smi", 'case $1 in -L) echo "GPU 0: NVIDIA V100";; *) echo 7.0;; esac')
    assert "; it has nothing for the GPU, accel/nvidia/cc70" in place.run("--nvidia", "--", "true").stderr
    fake("nvidia-smi", "echo 'NVIDIA-SMI has failed' >&2; exit 9")
    assert "NVIDIA-SMI has failed" in place.run("--nvidia", "--", "true").stderr


@pytest.mark.parametrize(
    ("spoilt", "said"),
    [
        ("compat", "has set no EESSI_SOFTWARE_PATH. It has said:"),
        ("compat", f"/versions/2025.06/compat/linux/{MACHINE} is not there"),
        ("target", "has no CPU target future/cpu (EESSI_ARCHDETECT_OPTIONS_OVERRIDE)."),
        ("target", "there is no software for any of future/cpu"),
        ("target", f"choose one that it has: {MACHINE}/generic {MACHINE}/amd/zen2"),
        ("cpu", f"has no software for this kind of CPU, {MACHINE} ("),
        ("storage", "could not be read to its end."),
        ("storage", "detect.sh: Input/output error"),
        ("path", "The modules of EESSI 2023.06 cannot be found."),
        ("version", "EESSI 2025.06 was entered in place of 2023.06."),
    ],
)
def test_an_activation_that_fails_in_silence(place: Place, spoilt: str, said: str, tmp_path: Path) -> None:
    tree = shutil.copytree(place.tree, tmp_path / "spoilt", symlinks=True)
    changes = {"ENVKIT_EESSI_DIR": str(tree)}
    module = tree / "init" / "modules" / "EESSI" / "2023.06.lua"
    if spoilt == "compat":
        shutil.rmtree(tree / "versions" / "2025.06" / "compat")
    elif spoilt == "target":
        changes["EESSI_ARCHDETECT_OPTIONS_OVERRIDE"] = "future/cpu"
    elif spoilt == "cpu":
        shutil.rmtree(tree / "versions" / "2023.06" / "software" / "linux" / MACHINE)
    elif spoilt == "storage":
        init = tree / "versions" / "2023.06" / "init" / "lmod" / "bash"
        init.write_text("echo 'detect.sh: Input/output error' >&2\n")
    elif spoilt == "path":
        module.write_text(module.read_text().replace('prepend_path("MODULEPATH", settings.EESSI_MODULEPATH)', ""))
    else:
        module.write_text(module.read_text().replace('version = "2023.06"', 'version = "2025.06"'))
    done = place.run("--", "echo", "reached", **changes)
    assert (done.returncode, done.stdout) == (3, "")
    assert said in " ".join(done.stderr.split()) and "What to do: " in done.stderr
    about_cpus = {"target", "cpu"}
    assert ("EESSI_ARCHDETECT_OPTIONS_OVERRIDE" in done.stderr or "kind of CPU" in done.stderr) == (
        spoilt in about_cpus
    )


def test_what_the_caller_has_saved_and_set_does_not_steer_entering(place: Place) -> None:
    """A default collection of Lmod's with other modules, bash as POSIX has it, and a name for the system."""
    save = 'eval "$("$LMOD_CMD" bash save)"; ls -d ~/.lmod.d/default* ~/.config/lmod/default* 2>/dev/null'
    saved = place.run("--load", "foss/2023a", "--", "bash", "-c", save)
    assert "/default" in saved.stdout, saved.stderr
    show = "echo $LOADEDMODULES ${LMOD_SYSTEM_NAME-none} ${POSIXLY_CORRECT-none}; compgen -e envkit_"
    for changes, expected in (
        ({}, "EESSI/2023.06 none none\n"),
        ({"LMOD_SYSTEM_NAME": "mine"}, "EESSI/2023.06 mine none\n"),
        ({"POSIXLY_CORRECT": "y"}, "EESSI/2023.06 none y\n"),
    ):
        done = place.run("--", "bash", "-c", show, **changes)
        assert done.stdout == expected, done.stderr
    other = place.run("--release", "2025.06", "--", "bash", "-c", show)
    assert other.stdout == "EESSI/2025.06 none none\n", other.stderr
    (place.home / ".bashrc").write_text("alias module='echo mine'\nalias ml='echo mine'\n")
    entered = place.envkit("shell", "eessi", "--load", "Tool/1.0", "--", "tool", "4")
    assert (entered.returncode, entered.stdout) == (4, "tool 1.0\n"), entered.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("kill -KILL $$", "was killed by SIGKILL"),
        ("exit 0", "printed nothing"),
        ("echo 'echo loaded'", "has not loaded it"),
        (None, "is not there"),
    ],
)
def test_a_modules_tool_of_eessi_that_fails(place: Place, body: str | None, said: str, tmp_path: Path) -> None:
    tree = shutil.copytree(place.tree, tmp_path / "spoilt", symlinks=True)
    tool = tmp_path / "lmod"
    if body:
        tool.write_text(f"#!/bin/sh\n{body}\n")
        tool.chmod(0o755)
    for start in tree.glob("versions/2023.06/init/**/bash"):
        start.write_text(f"{start.read_text()}\nexport LMOD_CMD={tool}\n")
    done = place.run("--load", "Tool/1.0", "--", "echo", "reached", ENVKIT_EESSI_DIR=str(tree))
    assert (done.returncode, done.stdout) == (92, "")
    assert "envkit: the module Tool/1.0 could not be loaded.\n" in done.stderr
    assert "there is no module" not in done.stderr
    assert f"The modules tool {tool} " in done.stderr and said in done.stderr
    listed = place.envkit("eessi", "prefetch", "Tool/1.0", before=(), ENVKIT_EESSI_DIR=str(tree))
    assert (listed.returncode, listed.stdout) == (92, "") and said in listed.stderr


def shell(place: Place, *words: str, **changes: str) -> Terminal:
    """Start ``envkit shell eessi`` at a terminal."""
    return Terminal([str(ENVKIT), "shell", "eessi", *words], {**place.env(**changes), "TERM": "dumb"}, place.home)


def test_a_shell_is_resumed_with_what_was_loaded_in_it(place: Place) -> None:
    (place.home / ".bashrc").write_text('echo "rc: ${EESSI_VERSION:-none}"\nPS1="mine> "\n')
    first = shell(place, "--load", "Tool/1.0")
    before = first.until("(envkit eessi) mine> ")
    assert "rc: none" in before and "session 2023.06; --resume 2023.06 enters it again" in before
    first.type("tool 3; echo status=$? tty=$(tty)")
    first.until("tool 1.0\r\n")
    first.until("status=3 tty=/dev/")
    first.until("mine> ")
    assert place.sessions()["2023.06"]["in_use"] is True
    second = shell(place)
    assert "session 2023.06-2;" in second.until("mine> ")
    second.type("exit")
    assert second.status() == 0
    in_use = place.run("--resume", "2023.06", "--", "true")
    assert (in_use.returncode, "The session 2023.06 is in use." in in_use.stderr) == (3, True)
    assert "In use, and kept: 2023.06." in place.envkit("eessi", "clean").stdout
    first.type("module unload Tool; module load foss; exit 9")
    assert first.status() == 9
    assert place.sessions()["2023.06"] | {"created": ""} == {
        "name": "2023.06",
        "release": "2023.06",
        "access": "dir",
        "target": place.sessions()["2023.06"]["target"],
        "modules": ["GCCcore/12.3.0", "OpenMPI/4.1.5-GCC-12.3.0", "foss/2023a"],
        "repository": "software.eessi.io",
        "created": "",
        "in_use": False,
    }
    again = place.run("--resume", "2023.06", "--load", "Tool", "--", "sh", "-c", "echo $LOADEDMODULES")
    expected = "EESSI/2023.06:GCCcore/12.3.0:OpenMPI/4.1.5-GCC-12.3.0:foss/2023a:Tool/2.0\n"
    assert again.stdout == expected, again.stderr
    assert place.envkit("eessi", "clean", "2023.06").stdout == "Removed the session 2023.06.\n"
    assert not place.sessions()
    assert place.envkit("eessi", "clean", "2023.06").returncode == 2


def test_a_command_in_a_shell_at_a_terminal(place: Place) -> None:
    """It has the terminal, what ~/.bashrc defines, and a session that is resumed with its modules."""
    (place.home / ".bashrc").write_text("mine() { tool; ask; return 7; }\nask() { read -rp 'name? ' name; }\n")
    code = "import sys; print('tty', sys.stdin.isatty(), ascii(sys.argv[1:])); sys.exit(input('number? '))"
    asking = shell(place, "--load", "Tool/1.0", "--", sys.executable, "-c", code, "two words", "$HOME", "--")
    assert "session 2023.06;" in asking.until("tty True ['two words', '$HOME', '--']")
    asking.until("number? ")
    assert place.sessions()["2023.06"]["in_use"] is True
    asking.type("5")
    asking.until("5\r\n5\r\n")  # typed, and told by Python as it ends with 1
    assert asking.status() == 1
    assert place.sessions()["2023.06"]["modules"] == ["Tool/1.0"]
    function = shell(place, "--resume", "2023.06", "--", "mine")
    function.until("tool 1.0\r\nname? ")
    function.type("u")
    assert function.status() == 7
    stopped = shell(place, "--resume", "2023.06", "--", "sh", "-c", "echo ready; exec sleep 1000")
    stopped.until("ready\r\n")
    os.write(stopped.fd, b"\x03")
    assert stopped.status() == 128 + signal.SIGINT


@pytest.mark.parametrize(
    "line", ["exec dash", "exec /bin/dash -i", '[ -z "$ZSH_VERSION" ] && exec "$(command -v dash)"']
)
def test_a_start_file_that_becomes_another_shell(place: Place, line: str) -> None:
    """The command is run all the same; what else the file does counts."""
    (place.home / ".bashrc").write_text(
        f"MINE=before\nexec 7>/dev/null\n{line}\nmine() {{ echo $MINE $EESSI_VERSION; }}\n"
    )
    done = place.envkit("shell", "eessi", "--", "mine")
    assert (done.returncode, done.stdout) == (0, "before 2023.06\n"), done.stderr
    assert "~/.bashrc would become another shell, without the environment, and may not: exec " in done.stderr


def test_a_command_in_a_shell_without_a_terminal(place: Place) -> None:
    done = place.envkit("shell", "eessi", "--", "sh", "-c", "echo $EESSI_VERSION; exit 5")
    assert (done.returncode, done.stdout) == (5, "2023.06\n"), done.stderr
    unknown = place.envkit("shell", "eessi", "--load", "Tol", "--", "echo", "reached")
    assert (unknown.returncode, unknown.stdout) == (92, "")
    other = place.envkit("shell", "toy", "--", "true")
    assert (other.returncode, "envkit run toy -- true" in other.stderr) == (2, True)
    empty = place.envkit("shell", "eessi", "--")
    assert (empty.returncode, "There is no command after --." in empty.stderr) == (2, True)


def test_a_saved_session_and_one_of_another_release(place: Place) -> None:
    saved = place.home / "saved.json"
    done = place.run("--resume", "mine", "--load", "Tool/1.0", "--save", str(saved), "--", "true")
    assert done.returncode == 0, done.stderr
    assert json.loads(saved.read_text())["modules"] == ["Tool/1.0"]
    for named in ("mine", str(saved)):
        assert place.run("--resume", named, "--", "tool").stdout == "tool 1.0\n"
    (place.home / "state" / "envkit" / "eessi" / "mine" / "target").write_text("x86_64/other\n")
    assert "envkit: the last time it was x86_64/other\n" in place.run("--resume", "mine", "--", "true").stderr
    other = place.run("--resume", "mine", "--release", "2025.06", "--", "true")
    assert (other.returncode, "The session mine is of EESSI 2023.06, not 2025.06." in other.stderr) == (2, True)


def test_a_folder_of_the_old_script(place: Place) -> None:
    old = place.home / "eessi.abc123"
    for name in ("home", "var-lib-cvmfs", "var-run-cvmfs"):
        (old / name).mkdir(parents=True)
    done = place.run("--resume", str(old), "--load", "Tool", "--", "sh", "-c", "echo $HOME; tool")
    assert done.stdout.splitlines() == [str(old / "home"), "tool 2.0"], done.stderr
    assert place.run("--resume", str(old), "--", "tool").stdout == "tool 2.0\n"
    nothing = place.run("--resume", str(place.home / "bin"), "--", "true")
    assert (nothing.returncode, "this folder holds no session" in nothing.stderr) == (2, True)


@pytest.fixture
def old(place: Place) -> Path:
    """A folder as eessi_container.sh leaves it after a session in which something was built."""
    folder = place.home / "eessi.abc123"
    for name in (
        "home",
        "var-lib-cvmfs/shared",
        "var-run-cvmfs",
        "repos_cfg",
        "opt-eessi/2023.06",
        "singularity_cache",
    ):
        (folder / name).mkdir(parents=True)
    write(folder / "home" / "notes", "mine\n")
    write(folder / "software.eessi.io" / "repo_settings.sh", "repo_name = software.eessi.io\n")
    write(folder / "software.eessi.io" / "overlay-upper" / "versions" / "built", "built\n")
    folder.chmod(0o700)
    return folder


def test_what_the_old_script_has_built_is_not_ignored_in_silence(place: Place, old: Path) -> None:
    done = place.run("--resume", str(old), "--", "cat", str(old / "home" / "notes"))
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
    assert "this is not seen inside: software.eessi.io/overlay-upper, opt-eessi;" in done.stderr
    assert f"eessi_container.sh --resume {old}" in done.stderr
    shutil.rmtree(old / "software.eessi.io" / "overlay-upper")
    shutil.rmtree(old / "opt-eessi")
    assert "not seen inside" not in place.run("--resume", str(old), "--", "true").stderr


@pytest.mark.parametrize("name", ["x.tgz", "x.tar", "x.tar.zst", "session"])
def test_an_archive_of_the_old_script(place: Place, old: Path, name: str) -> None:
    """It is unpacked once, and kept as it is; what was not seen of it before is told as of its folder."""
    archive = place.home / name
    pack = (
        f"tar -C {old} -cf - . | zstd -q"
        if name.endswith("zst")
        else f"tar -C {old} -c{'z' if 'tgz' in name else ''}f - ."
    )
    needs("zstd") if name.endswith("zst") else None
    subprocess.run(["bash", "-c", f"{pack} >{archive}"], check=True)
    content = archive.read_bytes()
    words = ("--resume", str(archive), "--load", "Tool/1.0", "--", "sh", "-c", "cat ~/notes; echo more >>~/notes")
    done = place.run(*words)
    assert (done.returncode, done.stdout) == (0, "mine\n"), done.stderr
    assert f"unpacking {archive}" in done.stderr and "this is not seen inside: " in done.stderr
    assert archive.read_bytes() == content
    again = place.run("--resume", str(archive), "--", "sh", "-c", "cat ~/notes; tool 4")
    assert (again.returncode, again.stdout) == (4, "mine\nmore\ntool 1.0\n"), again.stderr
    assert "unpacking" not in again.stderr
    folder = again.stderr.partition("envkit: session ")[2].partition(";")[0]
    assert place.run("--resume", folder, "--", "tool").stdout == "tool 1.0\n"
    assert folder in place.envkit("clean", "--json").stdout
    assert place.envkit("eessi", "clean").returncode == 0
    assert not Path(folder).exists() and archive.read_bytes() == content


def test_an_archive_of_anything_else(place: Place) -> None:
    """Nothing of it stays, and nothing of it is written elsewhere."""
    (place.home / "data").mkdir()
    (place.home / "data" / "x").write_text("x")
    other, damaged, climbing = (place.home / name for name in ("other.tgz", "damaged.tgz", "climbing.tar"))
    subprocess.run(["tar", "-C", str(place.home / "data"), "-czf", str(other), "."], check=True)
    damaged.write_bytes(other.read_bytes()[:-20])
    member = ["--transform", "s,^,../,", "-cPf", str(climbing), "x"]
    subprocess.run(["tar", "-C", str(place.home / "data"), *member], check=True)
    for archive, said in (
        (other, "holds no session of eessi_container.sh"),
        (damaged, "could not be unpacked"),
        (climbing, "could not be unpacked"),
    ):
        done = place.run("--resume", str(archive), "--", "echo", "reached")
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert said in done.stderr and archive.exists()
    (place.home / "victim" / "home").mkdir(parents=True)
    (place.home / "victim").chmod(0o755)
    (place.home / "link").symlink_to(place.home / "victim")
    leading = place.home / "leading.tar"
    subprocess.run(["tar", "-C", str(place.home), "-cf", str(leading), "link"], check=True)
    done = place.run("--resume", str(leading), "--", "echo", "reached")
    assert (done.returncode, done.stdout) == (2, "") and "holds no session of eessi_container.sh" in done.stderr
    assert (place.home / "victim").stat().st_mode & 0o777 == 0o755  # it would be closed
    unpacked = place.home / "tmp" / f"envkit-eessi-{os.getuid()}-unpacked"
    assert list(unpacked.iterdir()) == []


def test_what_stands_for_variables_and_binds(place: Place) -> None:
    """As eessi_container.sh takes it."""
    (place.home / "injected").mkdir()
    (place.home / "injected" / "lib").touch()
    show = "echo $CVMFS_HTTP_PROXY $http_proxy $https_proxy; ls /opt/eessi"
    words = ("--http-proxy", "http://p.example.org:3128", "--https-proxy", "http://q.example.org:1")
    done = place.run(*words, "--host-injections", str(place.home / "injected"), "--", "sh", "-c", show)
    first = "http://p.example.org:3128 http://p.example.org:3128 http://q.example.org:1"
    assert done.stdout.splitlines() == [first, "lib"], done.stderr
    for option in ("--http-proxy", "--https-proxy"):
        bad = place.run(option, "http://me:s3cret@p:x", "--", "true")
        assert (bad.returncode, bad.stdout, "s3cret" in bad.stderr) == (2, "", False)
        assert f"{option} http://***@p:***: write it as http://HOST:PORT." in bad.stderr
    gone = place.run("--host-injections", "/nowhere/at/all", "--", "true")
    assert (gone.returncode, "there is no /nowhere/at/all on this machine" in gone.stderr) == (2, True)


def test_the_drivers_of_gpus_are_linked_into_a_folder_of_ones_own(place: Place, fake: Fake, tmp_path: Path) -> None:
    """As EESSI's own script does it, below host_injections, which nobody but root can write to otherwise."""
    tree = eessi_tree.make(tmp_path / "own")
    (tree / "host_injections").symlink_to("/opt/eessi")
    fake("nvidia-smi", 'case "$*" in -L) echo "GPU 0: NVIDIA A100 (UUID: GPU-0)" ;; *) echo 8.0 ;; esac')
    host = f"{REPOSITORY}/host_injections/nvidia/{MACHINE}/host"
    fake("link.sh", f"mkdir -p {host} && ln -s /usr/lib/libcuda.so.1 {host}/libcuda.so.1")
    (place.home / "injected").mkdir()
    words = ("--nvidia", "--host-injections", "injected", "--")
    done = place.run(*words, "link.sh", ENVKIT_EESSI_DIR=str(tree))
    assert done.returncode == 0, done.stderr
    assert (place.home / f"injected/nvidia/{MACHINE}/host/libcuda.so.1").is_symlink()
    later = place.run(*words, "ls", host, ENVKIT_EESSI_DIR=str(tree))
    assert (later.returncode, later.stdout) == (0, "libcuda.so.1\n"), later.stderr
    assert not place.run("--", "ls", host, ENVKIT_EESSI_DIR=str(tree)).stdout


@pytest.mark.parametrize("content", [b"", b"{}", b"\0" * 1000, b"text\n", b'{"version": 1}'])
def test_a_file_that_is_no_session_is_not_to_be_removed(place: Place, content: bytes) -> None:
    path = place.home / "data.json"
    path.write_bytes(content)
    done = place.run("--resume", str(path), "--", "echo", "reached")
    assert (done.returncode, done.stdout, path.read_bytes()) == (3, "", content)
    assert "holds no session that can be read" in done.stderr and "emove" not in done.stderr


def test_a_folder_of_the_old_script_has_its_cache_and_home(
    place: Place, client: Path, image: Path, server: Mapping[str, str]
) -> None:
    old = place.home / "eessi.abc123"
    for name in ("home", "var-lib-cvmfs", "var-run-cvmfs"):
        (old / name).mkdir(parents=True)
    show = ["--resume", str(old), "--", "sh", "-c", "echo $HOME; cd; pwd"]
    by_host = place.run(*show, **server)
    assert by_host.stdout.splitlines() == [str(old / "home")] * 2, by_host.stderr
    settings = place.home / "tmp" / f"envkit-eessi-{os.getuid()}" / old.name / "envkit.conf"
    assert f"CVMFS_CACHE_BASE={old}/var-lib-cvmfs\n" in settings.read_text()
    assert f"CVMFS_RELOAD_SOCKETS={old}/var-run-cvmfs\n" in settings.read_text()
    (place.home / "bin" / "apptainer").symlink_to(apptainer())
    changes = {**server, "ENVKIT_EESSI_IMAGE": str(image), "SINGULARITY_BIND": "/usr,/etc/alternatives"}
    by_image = place.run("--access", "apptainer", *show, **changes)
    assert by_image.stdout.splitlines() == [str(old / "home")] * 2, by_image.stderr


def test_a_session_that_is_damaged(place: Place) -> None:
    assert place.run("--resume", "mine", "--", "true").returncode == 0
    (place.home / "state" / "envkit" / "eessi" / "mine" / "session.json").write_text("{")
    done = place.run("--resume", "mine", "--", "true")
    assert (done.returncode, "holds no session that can be read" in done.stderr) == (3, True)


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a folder to another user")
def test_a_session_of_another_user(place: Place) -> None:
    assert place.run("--resume", "mine", "--", "true").returncode == 0
    os.chown(place.home / "state" / "envkit" / "eessi" / "mine", 12345, 12345)
    done = place.run("--resume", "mine", "--", "true")
    assert (done.returncode, "belongs to another user" in done.stderr) == (3, True)


@pytest.fixture
def client(place: Place) -> Path:
    """A program that stands in for cvmfs2, and mounts by FUSE as it does."""
    needs("fuse-overlayfs")
    path = place.home / "bin" / "cvmfs2"
    write(path, cvmfs2.program(place.tree, place.home / "asked"), program=True)
    return path


def test_the_hosts_client_in_a_namespace(place: Place, client: Path, server: Mapping[str, str]) -> None:
    done = place.run("--load", "Tool/1.0", "--", "sh", "-c", "id -u; tool 5", **server)
    assert (done.returncode, done.stdout) == (5, f"{os.getuid()}\ntool 1.0\n"), done.stderr
    assert f"{client} mounts it in a user namespace (--access userns)" in done.stderr
    cache = local_files(place)
    asked = (place.home / "asked").read_text()
    assert f"{cache}/envkit.conf software.eessi.io {REPOSITORY}\n" in asked
    settings = (cache / "envkit.conf").read_text()
    assert f"CVMFS_CACHE_BASE={cache}/lib\n" in settings and "CVMFS_SHARED_CACHE=no\n" in settings
    assert not place.sessions()  # nobody has named one
    ended = until(lambda: not mounts_of(place), "the mount to go", 10)
    assert ended


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name)
def test_a_killed_session_leaves_no_mount_and_no_process(
    place: Place, client: Path, server: Mapping[str, str], number: signal.Signals
) -> None:
    ready = place.home / "ready"
    argv = [str(ENVKIT), "run", "eessi", "--", "sh", "-c", f"touch {ready}; exec sleep 1000"]
    running = subprocess.Popen(argv, env=place.env(**server), cwd=place.home, stderr=subprocess.DEVNULL)
    until(ready.exists, "the command", 60)
    assert len(mounts_of(place)) == 1
    second = place.run("--", "echo", "second", **server)
    assert (second.stdout, len(mounts_of(place))) == ("second\n", 1), second.stderr
    os.kill(running.pid, number)
    assert running.wait(10) == -number
    gone(place)
    assert not mounts_of(place)


def local_files(place: Place) -> Path:
    """The folder of the client that is shared, or of the session that is begun where none can be."""
    caches = place.home / "tmp" / f"envkit-eessi-{os.getuid()}"
    return next((path for path in caches.glob("shared-*") if path.name.count("-") == 1), caches / "run-2023.06")


def left_of(place: Place) -> list[Path]:
    """The processes that were told of the copy of the repository."""
    return [path for path in Path("/proc").glob("[0-9]*/cmdline") if str(place.tree).encode() in reading(path)]


def reading(path: Path) -> bytes:
    """The content of a file of a process, which may have ended."""
    with suppress(OSError):
        return path.read_bytes()
    return b""


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (15, "a key is missing (status 15)."),
        (16, "it got no file catalog (status 16)."),
        (23, "it has no usable proxy (status 23)."),
        (32, "could not mount the repository (status 32)."),
    ],
)
def test_a_client_that_gives_up(place: Place, fake: Fake, server: Mapping[str, str], status: int, said: str) -> None:
    fake("cvmfs2", f"echo 'CernVM-FS: its last words'; exit {status}")
    done = place.run("--access", "userns", "--", "echo", "reached", **server)
    assert (done.returncode, done.stdout) == (3, "")
    assert said in done.stderr and "its last words" in done.stderr and "What to do: " in done.stderr


RANK = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_LOCAL_SIZE": "4"}
WHERE = "echo $EESSI_VERSION $(readlink /proc/self/ns/mnt /proc/self/ns/user); "


def counting(place: Place) -> Path:
    """The file in which a client that mounts tells of each start."""
    starts = place.home / "starts"
    write(place.home / "bin" / "counted", cvmfs2.program(place.tree), program=True)
    text = f'#!/bin/sh\necho started >>{starts}\nexec {place.home}/bin/counted "$@"\n'
    write(place.home / "bin" / "cvmfs2", text, program=True)
    return starts


def gone(place: Place) -> None:
    """Wait until no client runs, and nobody keeps the namespace of its mount."""
    until(lambda: not left_of(place), "the client to end", 20)
    told = f"{place.home}/tmp/".encode()
    until(lambda: not any(told in reading(path) for path in Path("/proc").glob("[0-9]*/cmdline")), "its keeper", 20)


def test_ranks_of_mpirun_share_one_mount(place: Place, client: Path, server: Mapping[str, str]) -> None:
    needs("mpirun")
    starts = counting(place)
    root = ["--allow-run-as-root"] if os.geteuid() == 0 else []
    before = ("mpirun", *root, "--oversubscribe", "-n", "4")
    done = place.envkit("run", "eessi", "--", "sh", "-c", WHERE + "sleep 1", before=before, **server)
    lines = done.stdout.splitlines()
    assert (done.returncode, len(lines), len(set(lines))) == (0, 4, 1), done.stderr
    assert lines[0].startswith("2023.06 mnt:")
    assert starts.read_text() == "started\n"
    gone(place)
    assert not place.sessions()


def test_ranks_of_srun_share_one_mount_until_the_last_has_ended(
    place: Place, client: Path, server: Mapping[str, str]
) -> None:
    """The first to come is killed, and the others go on; who comes after the last begins anew."""
    starts = counting(place)
    job = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_NTASKS": "3", "SLURM_STEP_NUM_TASKS": "3"}
    job |= {"SLURM_STEP_TASKS_PER_NODE": "3", "SLURM_TASKS_PER_NODE": "3", "SLURM_NODEID": "0"}
    running = []
    for rank in range(3):
        env = place.env(**server, **job, SLURM_PROCID=str(rank), SLURM_LOCALID=str(rank))
        wait = f"touch {place.home}/ready-{rank}; while [ ! -e {place.home}/end ]; do sleep 0.05; done"
        show = f"{wait}; wc -l <{REPOSITORY}/versions/2023.06/init/bash"
        argv = [str(ENVKIT), "run", "eessi", "--", "sh", "-c", show]
        running.append(subprocess.Popen(argv, env=env, cwd=place.home, stdout=subprocess.PIPE, text=True))
        if rank != 1:
            until((place.home / f"ready-{rank}").exists, "the rank", 60)
    until((place.home / "ready-1").exists, "the rank", 60)
    running[0].kill()
    assert (running[0].communicate(timeout=10)[0], running[0].returncode) == ("", -signal.SIGKILL)
    (place.home / "end").touch()
    assert [int(one.communicate(timeout=30)[0]) > 3 for one in running[1:]] == [True, True]
    gone(place)
    assert starts.read_text() == "started\n"
    again = place.run("--", "echo", "again", **server, **job, SLURM_PROCID="0", SLURM_LOCALID="0")
    assert (again.returncode, again.stdout, starts.read_text()) == (0, "again\n", "started\n" * 2), again.stderr
    gone(place)
    place.envkit("eessi", "clean")
    assert not list((place.home / "tmp" / f"envkit-eessi-{os.getuid()}").glob("shared-*"))


def test_ranks_of_a_client_that_gives_up(place: Place, fake: Fake, server: Mapping[str, str]) -> None:
    fake("cvmfs2", "echo 'CernVM-FS: its last words'; exit 23")
    done = place.run("--access", "userns", "--", "echo", "reached", **server, **RANK)
    assert (done.returncode, done.stdout) == (3, "")
    assert "it has no usable proxy (status 23)." in done.stderr and "its last words" in done.stderr


def test_no_client_in_an_image_is_started_for_each_rank(
    place: Place, client: Path, image: Path, server: Mapping[str, str]
) -> None:
    (place.home / "bin" / "apptainer").symlink_to(apptainer())
    changes = {**server, "ENVKIT_EESSI_IMAGE": str(image), **RANK}
    for words in (["--access", "apptainer"], ["--access", "userns", "--resume", "mine"]):
        done = place.run(*words, "--", "echo", "reached", **changes)
        assert (done.returncode, done.stdout, (place.home / "asked").exists()) == (3, "", False)
        assert "This is one of 4 ranks on this node" in done.stderr and "envkit run eessi -n 4 -- CMD" in done.stderr
    one = place.run("--", "echo", "reached", **server, **(RANK | {"OMPI_COMM_WORLD_LOCAL_SIZE": "1"}))
    assert one.stdout == "reached\n"


def test_a_dead_server_is_told_before_the_client_is_started(
    place: Place, client: Path, server: Mapping[str, str]
) -> None:
    dead = {**server, "CVMFS_SERVER_URL": "http://127.0.0.1:9/cvmfs/@fqrn@"}
    done = place.run("--access", "userns", "--", "true", **dead)
    assert done.returncode == 3
    assert "--access userns: none of the servers of software.eessi.io answers." in done.stderr
    assert not (place.home / "asked").exists()


def test_cvmfsexec(place: Place, fake: Fake, server: Mapping[str, str]) -> None:
    enter = " ".join([*NAMESPACE, "bind", str(place.tree), REPOSITORY])
    fake("cvmfsexec", f'echo "{LOADING}"; [ "$1" = software.eessi.io ] && shift && exec {enter} "$@"')
    words = ["--load", "Tool/1.0", "--bind", "/usr:/scripts", "--"]
    done = place.run(*words, "sh", "-c", "ls -d /scripts/bin; tool 5", **server)
    assert (done.returncode, done.stdout) == (5, "/scripts/bin\ntool 1.0\n"), done.stderr
    assert f"{LOADING}\n" in done.stderr
    second = place.run("--", str(ENVKIT), "run", "eessi", "--access", "userns", "--", "echo", "reached", **server)
    assert (second.returncode, second.stdout) == (3, "")
    assert "cvmfsexec is in use by another session." in second.stderr


def apptainer() -> str:
    """The real Apptainer."""
    found = shutil.which("apptainer", path=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
    if found is None:
        needs("apptainer")
    return str(found)


@pytest.fixture
def image(place: Place) -> Path:
    """A folder that Apptainer takes for an image."""
    needs("fuse-overlayfs")
    return make_image(place.home, place.tree)


def make_image(folder: Path, tree: Path) -> Path:
    """Make an image of the host's programs, and a client that mounts by FUSE."""
    root = folder / "image"
    for name in ("usr", "etc/cvmfs", "proc", "sys", "dev", "tmp", "var/tmp", "var/lib/cvmfs", "var/run/cvmfs", "root"):
        (root / name).mkdir(parents=True)
    for name in ("home", "sbin", REPOSITORY.strip("/")):
        (root / name).mkdir(parents=True)
    for name in ("bin", "lib", "lib64"):
        (root / name).symlink_to(f"usr/{name}")
    for name in ("etc/passwd", "etc/group", "etc/cvmfs/default.local"):
        (root / name).touch()
    write(root / "sbin" / "cvmfs2", cvmfs2.program(tree), program=True)
    return root


def test_apptainer_mounts_it_from_an_image(place: Place, image: Path, server: Mapping[str, str]) -> None:
    (place.home / "bin" / "apptainer").symlink_to(apptainer())
    changes = {**server, "ENVKIT_EESSI_IMAGE": str(image)}
    changes |= {"SINGULARITY_BIND": "/usr:/usr", "APPTAINER_BIND": "/etc/alternatives"}
    words = ["--bind", f"{place.home}/bin:/scripts", "--load", "Tool/1.0"]
    done = place.run(*words, "--", "sh", "-c", "ls /scripts; tool 5", **changes)
    assert (done.returncode, done.stdout) == (5, "apptainer\ntool 1.0\n"), done.stderr
    assert "mounts it from an image (--access apptainer)" in done.stderr
    settings = place.home / "tmp" / f"envkit-eessi-{os.getuid()}" / "run-2023.06" / "envkit.conf"
    assert "CVMFS_CACHE_BASE=/var/lib/cvmfs\n" in settings.read_text()
    ready = place.home / "ready"
    argv = [str(ENVKIT), "run", "eessi", "--", "sh", "-c", f"touch {ready}; exec sleep 1000"]
    running = subprocess.Popen(argv, env=place.env(**changes), cwd=place.home, stderr=subprocess.DEVNULL)
    until(ready.exists, "the command", 60)
    assert place.sessions()["run-2023.06"]["in_use"] is True
    running.kill()
    running.wait(10)
    until(lambda: not left_of(place), "the client to end", 10)
    assert place.sessions()["run-2023.06"]["in_use"] is False
    unknown = place.run("--load", "Horovod", "--", "true", **changes)
    assert (unknown.returncode, "Horovod" in unknown.stderr) == (92, True)
    listed = place.envkit("eessi", "modules", "tool", before=(), **changes)
    assert listed.stdout == "Tool/1.0\nTool/2.0\n", listed.stderr


@pytest.fixture(params=["userns", "apptainer"])
def mounting(
    request: pytest.FixtureRequest, place: Place, image: Path, client: Path, server: Mapping[str, str]
) -> dict[str, str]:
    """A client that mounts, the host's or one in an image; yields the settings with which it is taken."""
    if request.param == "userns":
        return dict(server)
    client.unlink()
    (place.home / "bin" / "apptainer").symlink_to(apptainer())
    binds = {"SINGULARITY_BIND": "/usr,/etc/alternatives"}
    return {**server, **binds, "ENVKIT_EESSI_IMAGE": str(image)}


def test_the_words_of_the_client_are_not_the_commands(place: Place, mounting: dict[str, str]) -> None:
    """A caller that takes standard output has what the command prints alone; the client's words are in a file."""
    script = f'[ "$({ENVKIT} run eessi -- sh -c "echo 42")" = 42 ]'
    env = place.env(**mounting)
    taken = subprocess.run(["bash", "-c", script], env=env, cwd=place.home, capture_output=True, text=True, check=False)
    assert taken.returncode == 0, taken.stderr
    assert LOADING not in taken.stderr
    log = local_files(place) / "cvmfs2.log"
    assert f"{LOADING}\n" in log.read_text()
    assert log.parent.stat().st_mode & 0o077 == 0
    listed = place.envkit("eessi", "modules", "--json", before=(), **mounting)
    told = json.loads(listed.stdout)
    assert told["target"].startswith(f"{MACHINE}/") and "Tool/1.0" in told["modules"], listed.stderr
    kept = {**mounting, "ENVKIT_EESSI_CACHE": str(place.home / "kept")}
    fetched = prefetch(place, "Tool/1.0", "--json", **kept)
    assert fetched.returncode == 0 and json.loads(fetched.stdout)["files"] > 0, fetched.stderr
    needs("mpirun")
    ranks = place.run("-n", "2", "--load", "foss/2023a", "--", "sh", "-c", "echo $OMPI_COMM_WORLD_RANK", **mounting)
    assert (ranks.returncode, sorted(ranks.stdout.split())) == (0, ["0", "1"]), ranks.stderr


def test_a_client_that_gives_up_says_why(place: Place, mounting: dict[str, str], tmp_path: Path) -> None:
    """The server answers envkit, and no longer the client that is started then."""
    published = tmp_path / "web" / "cvmfs" / "software.eessi.io" / ".cvmfspublished"

    class Once(Handler):
        def do_GET(self) -> None:
            super().do_GET()
            published.unlink(missing_ok=True)

    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Once, directory=str(tmp_path / "web"))) as serving:
        Thread(target=serving.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{serving.server_address[1]}/cvmfs/@fqrn@"
        done = place.run("--", "echo", "reached", **{**mounting, "CVMFS_SERVER_URL": url})
        serving.shutdown()
    assert (done.returncode, done.stdout) == (3, "")
    assert "Failed to initialize root file catalog (16 - file catalog failure)" in done.stderr
    assert "What to do: " in done.stderr
    if "ENVKIT_EESSI_IMAGE" in mounting:
        log = local_files(place) / "cvmfs2.log"
        assert f"has said, in {log}:" in done.stderr
        assert "file catalog failure" in log.read_text()


def test_the_repository_is_asked_for_its_releases(place: Place, mounting: dict[str, str], tmp_path: Path) -> None:
    """One that is newer than envkit is entered, and one that there is not is told of with those that there are."""
    newer = tmp_path / "newer"
    shutil.copytree(place.tree, newer, symlinks=True)
    shutil.copytree(newer / "versions" / "2025.06", newer / "versions" / "2026.06", symlinks=True)
    for path in newer.glob("versions/2026.06/init/**/bash"):
        path.write_text(path.read_text().replace("2025.06", "2026.06"))
    layer = newer / "versions" / "2026.06" / "compat"
    assert layer.is_dir()
    module = (newer / "init" / "modules" / "EESSI" / "2025.06.lua").read_text()
    write(newer / "init" / "modules" / "EESSI" / "2026.06.lua", module.replace("2025.06", "2026.06"))
    for program in (place.home / "bin" / "cvmfs2", place.home / "image" / "sbin" / "cvmfs2"):
        if program.exists():
            write(program, cvmfs2.program(newer), program=True)
    done = place.run("--release", "2026.06", "--", "sh", "-c", "echo $EESSI_VERSION", **mounting)
    assert (done.returncode, done.stdout) == (0, "2026.06\n"), done.stderr
    none = place.run("--release", "2021.12", "--", "echo", "reached", **mounting)
    assert (none.returncode, none.stdout) == (2, "")
    said = (
        "envkit: EESSI has no release 2021.12.\n\nWhat to do: Use --release with one of: 2023.06, 2025.06, 2026.06.\n"
    )
    assert none.stderr.endswith(said), none.stderr


@pytest.mark.parametrize(
    ("trouble", "said"),
    [
        ("expired", "the whitelist of the repository has expired"),
        ("key", "a key is missing"),
        ("gone", "its servers do not answer, or do not have the repository"),
        ("full", "there is no room for its cache"),
    ],
)
def test_why_a_client_has_given_up(
    place: Place, mounting: dict[str, str], tmp_path: Path, trouble: str, said: str
) -> None:
    """By what it tells the system's log, which is kept; envkit has asked the servers before, and they were well."""
    folder = tmp_path / "web" / "cvmfs" / "software.eessi.io"
    changes = dict(mounting)
    if trouble == "expired":
        (folder / ".cvmfswhitelist").write_text("20200101000000\nE20200201000000\nNsoftware.eessi.io\n--\n")
    for program in (place.home / "bin" / "cvmfs2", place.home / "image" / "sbin" / "cvmfs2"):
        if not program.exists():
            continue
        text = program.read_text()
        if trouble == "key":
            text = text.replace(
                'if "CVMFS_PUBLIC_KEY" in settings', 'settings["CVMFS_PUBLIC_KEY"] = "/none"\n    if True'
            )
        if trouble == "gone":
            text = text.replace("    published = fetched(", '    url += "/gone"\n    published = fetched(')
        if trouble == "full":
            text = text.replace("cache.mkdir(exist_ok=True)", 'raise OSError(28, "No space left on device")')
        write(program, text, program=True)
    done = place.run("--", "echo", "reached", **changes)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert said in done.stderr and "What to do: " in done.stderr
    assert " (software.eessi.io) " in (local_files(place) / "cvmfs2.syslog").read_text()
    assert "Traceback" not in done.stderr


def test_a_session_that_was_entered_before_is_entered_without_servers(place: Place, mounting: dict[str, str]) -> None:
    """From its cache; another session whose cache is empty is refused with the reason."""
    assert place.run("--resume", "mine", "--", "true", **mounting).returncode == 0
    assert place.run("--", "true", **mounting).returncode == 0
    dead = {**mounting, "CVMFS_SERVER_URL": "http://127.0.0.1:9/cvmfs/@fqrn@"}
    for words in (["--resume", "mine"], []):
        done = place.run(*words, "--", "echo", "in", **dead)
        assert (done.returncode, done.stdout) == (0, "in\n"), done.stderr
        assert "from its cache alone, since none of the servers of software.eessi.io answers" in done.stderr
    listed = place.envkit("eessi", "modules", "tool", before=(), **dead)
    assert listed.stdout == "Tool/1.0\nTool/2.0\n", listed.stderr
    other = place.run("--resume", "other", "--", "echo", "in", **dead)
    if "ENVKIT_EESSI_IMAGE" not in mounting:  # the host's client has one cache for all of them
        assert (other.returncode, other.stdout) == (0, "in\n"), other.stderr
        return
    assert (other.returncode, other.stdout) == (3, "")
    assert "none of the servers of software.eessi.io answers" in other.stderr


def test_a_damaged_cache_is_put_aside(place: Place, mounting: dict[str, str]) -> None:
    assert place.run("--resume", "mine", "--", "true", **mounting).returncode == 0
    own = local_files(place).with_name("mine")
    cache = (own if own.exists() else local_files(place)) / "lib"
    crumb = cache / "software.eessi.io" / "cvmfschecksum.software.eessi.io"
    for content in ("damaged", "damaged again"):
        gone(place)
        crumb.write_text(content)
        first = place.run("--resume", "mine", "--", "echo", "in", **mounting)
        if "ENVKIT_EESSI_IMAGE" in mounting:  # whose client Apptainer starts, once
            assert (first.returncode, first.stdout) == (3, "")
            assert "the cache of its session is damaged" in first.stderr and "Enter again" in first.stderr
            first = place.run("--resume", "mine", "--", "echo", "in", **mounting)
        assert (first.returncode, first.stdout) == (0, "in\n"), first.stderr
        assert "was damaged: it is put aside" in first.stderr
        aside = cache.with_name("lib.damaged") / "software.eessi.io" / crumb.name
        assert aside.read_text() == content
    quiet = place.run("--resume", "mine", "--", "echo", "in", **mounting)
    assert (quiet.returncode, "put aside" in quiet.stderr) == (0, False)
    gone(place)
    names = ["mine"] if own.exists() else []  # with none, what is shared is removed as well
    assert place.envkit("eessi", "clean", *names).returncode == 0 and not cache.parent.exists()


def test_a_cache_is_no_larger_than_there_is_room(place: Place, client: Path, server: Mapping[str, str]) -> None:
    needs("unshare")
    settings = place.home / "small" / f"envkit-eessi-{os.getuid()}" / "shared-*" / "envkit.conf"
    (place.home / "small").mkdir()
    told = {}
    for size in ("200m", "20m"):
        mount = f'mount -t tmpfs -o size={size} tmpfs "$0" && "$@"; status=$?; cat {settings}; exit $status'
        before = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(place.home / "small"))
        changes = {**server, "TMPDIR": str(place.home / "small")}
        told[size] = place.envkit("run", "eessi", "--", "true", before=before, **changes)
    assert "CVMFS_QUOTA_LIMIT=16" in told["200m"].stdout, told["200m"]
    assert told["20m"].returncode != 0 and "There is no room for a CernVM-FS cache" in told["20m"].stderr


@pytest.mark.parametrize("body", ["echo 'CernVM-FS: no key' >&2; exit 15", "exit 0"])
def test_a_client_in_an_image_that_gives_up(place: Place, image: Path, server: Mapping[str, str], body: str) -> None:
    write(image / "sbin" / "cvmfs2", f"#!/bin/sh\n{body}\n", program=True)
    (place.home / "bin" / "apptainer").symlink_to(apptainer())
    changes = {**server, "ENVKIT_EESSI_IMAGE": str(image), "SINGULARITY_BIND": "/usr,/etc/alternatives"}
    done = place.run("--", "echo", "reached", **changes)
    assert (done.returncode, done.stdout) == (3, "")
    assert "EESSI 2023.06 cannot be read inside: Transport endpoint is not connected." in done.stderr
    assert ("CernVM-FS: no key" in done.stderr) == ("no key" in body)


def test_the_words_for_apptainer(place: Place, image: Path, fake: Fake, server: Mapping[str, str]) -> None:
    fake("nvidia-smi", 'echo "GPU 0: NVIDIA A100"')
    fake(
        "apptainer",
        '[ "$1" = --version ] && echo "apptainer version 1.4.5" && exit; printf "%s\\n" "$@" "$APPTAINER_CACHEDIR"',
    )
    changes = {**server, "ENVKIT_EESSI_IMAGE": str(image), "SINGULARITY_CACHEDIR": "/scratch/cache"}
    words = place.run("--nvidia", "--access", "apptainer", "--", "true", **changes).stdout.splitlines()
    assert words[:2] == ["--silent", "exec"] and "--nv" in words
    assert ("--userns" in words) == (os.geteuid() == 0)
    client = "sh /.envkit/client.sh /.envkit/client/cvmfs2.log cvmfs2"
    assert words[words.index("--fusemount") + 1] == f"container:{client} software.eessi.io {REPOSITORY}"
    assert words[-1] == "/scratch/cache"


def test_modules_are_listed(place: Place) -> None:
    everything = place.envkit("eessi", "modules")
    assert "PyTorch/2.1.2-foss-2023a\n" in everything.stdout and not everything.stderr
    assert place.envkit("eessi", "modules", "torch").stdout == "PyTorch/2.1.2-foss-2023a\n"
    assert place.envkit("eessi", "modules", "tool/?.0", before=seen_at(place.tree)).stdout == "Tool/1.0\nTool/2.0\n"
    told = json.loads(place.envkit("eessi", "modules", "GCC*", "--release", "2025.06", "--json").stdout)
    assert (told["release"], told["modules"]) == ("2025.06", ["GCCcore/12.3.0"])
    none = place.envkit("eessi", "modules", "Horovod")
    assert (none.returncode, none.stdout) == (1, "")
    assert "No release of EESSI has Horovod." in none.stderr
    near = place.envkit("eessi", "modules", "PyTorsch")
    assert "nothing matches PyTorsch. The nearest: PyTorch/2.1.2-foss-2023a" in near.stderr


@pytest.fixture
def uid() -> Iterator[int]:
    """A user without rights, whom Apptainer finds in the list of users."""
    name = "envkit-plain"
    subprocess.run(["useradd", "--no-create-home", "--no-log-init", name], check=False, capture_output=True)
    yield pwd.getpwnam(name).pw_uid
    subprocess.run(["userdel", name], check=True, capture_output=True)


@pytest.mark.xdist_group("users")
@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_a_plain_user(uid: int, server: Mapping[str, str], tree: Path) -> None:
    """Without any rights, by a copy, by the host's client and by an image, in folders that are open to all."""
    needs("setpriv", "fuse-overlayfs")
    with tempfile.TemporaryDirectory(prefix="envkit-plain-") as folder:
        home = Path(folder)
        own = Place(home=home, tree=shutil.copytree(tree, home / "repository", symlinks=True))
        for name in ("bin", "tmp"):
            (home / name).mkdir()
        write(home / "bin" / "cvmfs2", cvmfs2.program(own.tree), program=True)
        (home / "bin" / "apptainer").symlink_to(apptainer())
        in_image = {
            "ENVKIT_EESSI_IMAGE": str(make_image(own.home, own.tree)),
            "SINGULARITY_BIND": "/usr,/etc/alternatives",
        }
        subprocess.run(["chown", "-R", f"{uid}:{uid}", folder], check=True)
        # the capability is for this test's Python alone, which may lie in root's home
        words = (f"--reuid={uid}", f"--regid={uid}", "--clear-groups", "--inh-caps=+dac_read_search")
        before = (*FUSE_FOR_ALL, "setpriv", *words, "--ambient-caps=+dac_read_search")
        show = "id -u; grep CapEff /proc/self/status; touch made; tool 5"
        for way, changes in (("dir", {}), ("userns", dict(server)), ("apptainer", {**server, **in_image})):
            argv = ["run", "eessi", "--access", way, "--load", "Tool", "--", "sh", "-c", show]
            done = own.envkit(*argv, before=before, **changes)
            expected = f"{uid}\nCapEff:\t0000000000000000\ntool 2.0\n"
            assert (done.returncode, done.stdout) == (5, expected), done.stderr
            assert (home / "made").stat().st_uid == uid
        rank = own.envkit(
            "run",
            "eessi",
            "--",
            "sh",
            "-c",
            "id -u; head -c 1 $EESSI_PREFIX/init/bash",
            before=before,
            **server,
            **RANK,
        )
        assert (rank.returncode, rank.stdout) == (0, f"{uid}\n#"), rank.stderr


def prefetch(place: Place, *words: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run ``envkit eessi prefetch``."""
    return place.envkit("eessi", "prefetch", *words, before=(), **changes)


def needed(tree: Path, target: str) -> list[Path]:
    """The files in a copy that PyTorch and what it loads need, for a CPU target."""
    release = tree / "versions" / "2023.06"
    software = release / "software" / "linux" / target
    names = ("PyTorch/2.1.2-foss-2023a", "foss/2023a", "OpenMPI/4.1.5-GCC-12.3.0", "GCCcore/12.3.0")
    folders = [software / "software" / name for name in names]
    folders += [software / "modules" / "all", release / "init", tree / "init" / "modules"]
    folders += [release / "compat" / "linux" / MACHINE / name for name in ("lib", "usr/lib")]
    files = (path for folder in folders for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return sorted({path.resolve() for path in files})


@pytest.fixture
def layered(tree: Path, place: Place) -> Place:
    """A user whose copy has a compatibility layer with libraries, some of them links."""
    layer = tree / "versions" / "2023.06" / "compat" / "linux" / MACHINE
    write(layer / "usr" / "lib" / "libc.so.6", "x" * 3_000_000)
    if not (layer / "lib").exists():
        (layer / "lib").symlink_to("usr/lib")
    return place


def test_what_modules_need_is_read(layered: Place) -> None:
    target = f"{MACHINE}/amd/zen2"
    changes = {"EESSI_ARCHDETECT_OPTIONS_OVERRIDE": target}
    expected = needed(layered.tree, target)
    assert any(path.name == "libc.so.6" for path in expected)
    done = prefetch(layered, "PyTorch/2.1.2-foss-2023a", "--json", **changes)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["files"], told["bytes"]) == (len(expected), sum(path.stat().st_size for path in expected))
    assert "a local copy, for which there is no cache" in done.stderr
    text = prefetch(layered, "Tool", **changes).stdout
    assert text.startswith("Read ") and text.endswith(" MB.\n")


def test_what_modules_need_is_read_by_a_native_mount(layered: Place) -> None:
    done = layered.envkit("eessi", "prefetch", "foss", before=seen_at(layered.tree))
    assert done.returncode == 0, done.stderr
    assert "into the cache of this machine's client (/var/lib/cvmfs)" in done.stderr
    assert " MB are free there" in done.stderr


def test_a_module_to_prefetch_that_is_not_there(place: Place) -> None:
    done = prefetch(place, "PyTorch/2.0.1")
    assert (done.returncode, done.stdout) == (92, "")
    assert "The nearest: PyTorch/2.1.2-foss-2023a" in done.stderr
    assert prefetch(place).returncode == 2


def test_a_cache_for_nodes_without_a_network(layered: Place, client: Path, server: Mapping[str, str]) -> None:
    """The client is told to keep it, opens every file, and afterwards no server is asked."""
    refused = prefetch(layered, "PyTorch", **server)
    assert refused.returncode == 3
    assert "each session has a cache of its own" in refused.stderr and "ENVKIT_EESSI_CACHE=FOLDER" in refused.stderr
    target = f"{MACHINE}/amd/zen2"
    kept = layered.home / "shared"
    changes = {**server, "EESSI_ARCHDETECT_OPTIONS_OVERRIDE": target, "ENVKIT_EESSI_CACHE": str(kept)}
    for path in (copy := shutil.copytree(layered.tree, layered.home / "read", symlinks=True)).rglob("*"):
        if path.is_file() and not path.is_symlink():
            os.utime(path, (1, 2))  # so that reading it is seen
    write(client, cvmfs2.program(copy), program=True)
    dead = {**changes, "CVMFS_SERVER_URL": "http://127.0.0.1:9/cvmfs/@fqrn@"}
    assert layered.run("--access", "userns", "--", "true", **dead).returncode == 3
    done = prefetch(layered, "PyTorch", "--json", **changes)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["cache"] == str(kept)
    settings = (local_files(layered) / "envkit.conf").read_text()
    assert f"CVMFS_ALIEN_CACHE={kept}\n" in settings and "CVMFS_QUOTA_LIMIT=-1\n" in settings
    unread = [path for path in needed(copy, target) if path.stat().st_atime == 1]
    assert not unread
    other = copy / "versions" / "2023.06" / "software" / "linux" / target / "software" / "Tool" / "2.0" / "bin" / "tool"
    assert other.stat().st_atime == 1  # which nobody has asked for
    assert layered.run("--access", "userns", "--", "echo", "in", **dead).stdout == "in\n"


def test_a_cache_that_is_too_small(layered: Place, client: Path, server: Mapping[str, str]) -> None:
    needs("unshare")
    small = layered.home / "small"
    small.mkdir()
    mount = 'mount -t tmpfs -o size=2m tmpfs "$0" && exec "$@"'
    before = ("unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(small))
    changes = {**server, "ENVKIT_EESSI_CACHE": str(small)}
    done = layered.envkit("eessi", "prefetch", "Tool", before=before, **changes)
    assert (done.returncode, done.stdout) == (7, "")
    assert "The cache is too small: 4 MB are to be read." in done.stderr
    assert f"({small}); 2 MB are free there" in done.stderr


def test_a_file_that_cannot_be_read(layered: Place, fake: Fake, server: Mapping[str, str]) -> None:
    needs("fuse-overlayfs")
    fake("cat", "echo 'cat: libc.so.6: Input/output error' >&2; exit 1")
    done = prefetch(layered, "Tool")
    assert done.returncode == 3
    assert "Not every file could be read: 0 of " in done.stderr and "Input/output error" in done.stderr
