"""envkit doctor on this machine: as root and as a plain user, where programs and mounts hang, in a bare container."""

from __future__ import annotations

import json
import os
import pwd
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.system.resources import PACKAGE, data

from ..conftest import Fake
from ..doctor import schema
from ..eessi_tree import REPOSITORY
from .site import SYSTEM_PATH, needs

ENVKIT = Path(sys.executable).with_name("envkit")
NAMESPACE = [sys.executable, "-I", "-S", str(data("system/mount_namespace.py"))]
BINDS = {sys.prefix, sys.base_prefix, str(PACKAGE.parent)}

pytestmark = pytest.mark.integration


@dataclass(frozen=True, kw_only=True)
class Told:
    """What it said, and how it ended."""

    status: int
    report: dict[str, Any]

    def method(self, name: str) -> dict[str, Any]:
        return next(one for one in self.report["methods"] if one["method"] == name)

    @property
    def facts(self) -> dict[str, Any]:
        facts: dict[str, Any] = self.report["facts"]
        return facts

    @property
    def notes(self) -> dict[str, str]:
        return {note["id"]: note["what"] for note in self.report["notes"]}


Doctor = Callable[..., Told]


def of_downloads() -> dict[str, str]:
    """What downloads of this machine are told by its environment."""
    return {name: os.environ[name] for name in os.environ if name.startswith(("PIP_", "SSL_CERT"))}


@pytest.fixture
def doctor(tmp_path: Path) -> Doctor:
    """Run it; programs of the test's own come first on PATH."""

    def run(*options: str, before: tuple[str, ...] = (), **changes: str) -> Told:
        path = f"{tmp_path}/bin:{SYSTEM_PATH}"
        env = {"PATH": path, "HOME": str(tmp_path), "ENVKIT_PREFIX": str(tmp_path / "prefix"), "LANG": "C.UTF-8"}
        argv = [*before, str(ENVKIT), "doctor", "--json", *options]
        done = subprocess.run(
            argv,
            env={**env, **of_downloads(), **changes},
            cwd="/",
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.stdout, (done.returncode, done.stderr)
        report = json.loads(done.stdout)
        from jsonschema import validate

        validate(report, json.loads(schema.PATH.read_bytes()))
        return Told(status=done.returncode, report=report)

    return run


def within_its_time(asked: Callable[[], Told], probe: str) -> Told:
    """Ask until there was time for this probe: the doctor has five seconds, and other tests run beside it."""
    for _ in range(10):
        told = asked()
        late = {one["probe"] for one in told.facts["missing"]}
        if probe not in late:
            break
        assert "sources-not-asked" not in told.notes
    return told


def running(argument: str) -> list[str]:
    """The processes that have this argument."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        with suppress(OSError):
            if argument.encode() in path.read_bytes().split(b"\0"):
                found.append(str(path))
    return found


def test_it_says_what_an_installation_would(doctor: Doctor, tmp_path: Path) -> None:
    """Of what a dry run refuses, nothing is missing and nothing is added; what it accepts works."""
    before = doctor()
    assert before.facts["sources"] is None  # of a stack that was not resolved here nothing is asked
    planned = {}
    for method in ("easybuild", "apptainer"):
        stack = before.facts["preflights"][method]["stack"]
        argv = [str(ENVKIT), "install", stack, "--dry-run", "--prefix", str(tmp_path / "prefix")]
        env = {"PATH": f"{tmp_path}/bin:{SYSTEM_PATH}", "HOME": str(tmp_path), **of_downloads()}
        planned[method] = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
    told = within_its_time(doctor, "sources")
    for method, done in planned.items():
        problems = [one["what"] for one in told.facts["preflights"][method]["problems"]]
        problems += [one["what"] for one in (told.facts["sources"] or ())] if method == "easybuild" else []
        assert (done.returncode == 0) == (not problems), done.stderr
        assert all(" ".join(what.split()) in " ".join((done.stdout + done.stderr).split()) for what in problems)
    assert told.status == 0


def test_a_source_that_no_place_has(doctor: Doctor, tmp_path: Path) -> None:
    """The plan of a stack is there, and pip's only index has nothing."""
    stack = doctor().facts["preflights"]["easybuild"]["stack"]
    (tmp_path / "index").mkdir()
    nowhere = {"PIP_INDEX_URL": (tmp_path / "index").as_uri(), "PIP_CONFIG_FILE": os.devnull}
    env = {"PATH": f"{tmp_path}/bin:{SYSTEM_PATH}", "HOME": str(tmp_path), **of_downloads(), **nowhere}
    argv = [str(ENVKIT), "install", stack, "--dry-run", "--prefix", str(tmp_path / "prefix")]
    done = subprocess.run(argv, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 4, done.stderr
    told = within_its_time(lambda: doctor(**nowhere), "sources")
    [lacking] = told.facts["sources"]
    assert "sources cannot be fetched from any place where they are sought" in lacking["what"]
    verdict = next(one for one in told.report["methods"] if one["method"] == "easybuild")
    assert (verdict["state"], verdict["why"]) == ("partly", f"{stack} can be built from a bundle")


def test_facts_of_this_machine(doctor: Doctor) -> None:
    needs("mpirun", "g++", "lmod")
    facts = doctor().facts
    assert facts["cpu"]["machine"] == os.uname().machine
    assert facts["node"]["hostname"] == os.uname().nodename
    assert facts["uid"] == os.geteuid()
    assert facts["modules"]["family"] == "Lmod" and facts["modules"]["version"]
    mpi = facts["mpi"][0]
    assert mpi["family"] and Path(mpi["launcher"]).exists() and Path(mpi["library"]).exists()
    version = subprocess.run(["g++", "-dumpfullversion"], capture_output=True, text=True, check=True)
    assert facts["builder"]["compiler"]["version"] == version.stdout.strip()
    assert not facts["missing"]


def test_for_people(tmp_path: Path) -> None:
    env = {"PATH": SYSTEM_PATH, "HOME": str(tmp_path)}
    done = subprocess.run([ENVKIT, "doctor"], env=env, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    assert os.uname().nodename in done.stdout.splitlines()[0]
    assert all(f"{method}: " in done.stdout for method in ("easybuild", "eessi", "apptainer"))
    assert not list(tmp_path.glob("prefix*"))


def test_programs_that_hang_are_cut_off_and_named(doctor: Doctor, fake: Fake) -> None:
    """A driver that never answers, and a scheduler whose controller is gone; what they started is ended with them."""
    fake("nvidia-smi", "sleep 30303 & wait")
    fake("bsub", "exec sleep 30303")
    told = doctor()
    assert {one["probe"] for one in told.facts["missing"] if one["hung"]} == {"nvidia smi", "schedulers"}
    assert "nvidia-smi -L' has not ended in 5 s" in told.notes["missing-nvidia smi"]
    assert "bsub -V' has not ended in 5 s" in told.notes["missing"]
    assert told.method("easybuild")["state"] == "works"
    assert told.status == 0
    assert not running("30303")


def test_a_compiler_that_hangs_leaves_its_methods_unknown(doctor: Doctor, fake: Fake) -> None:
    fake("g++", "exec sleep 30304")
    fake("gcc", "exec sleep 30304")
    told = doctor()
    assert [told.method(name)["state"] for name in ("easybuild", "apptainer")] == ["unknown", "unknown"]
    assert "g++ -std=c++17' has not ended in 5 s" in told.method("easybuild")["why"]
    assert told.status == 3
    assert not running("30304")


def test_a_mount_that_is_empty(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    told = doctor(before=(*NAMESPACE, "bind", str(tmp_path / "empty"), REPOSITORY, "--"))
    assert "native: /cvmfs/software.eessi.io is there, and empty" in told.method("eessi")["problems"][0]["what"]


def test_a_mount_whose_client_has_died(doctor: Doctor, fake: Fake, tmp_path: Path) -> None:
    needs("fuse-overlayfs")
    (tmp_path / "tree" / "versions").mkdir(parents=True)
    pid = tmp_path / "pid"
    client = fake("client", f'echo $$ >{pid}; exec fuse-overlayfs -f -o lowerdir={tmp_path}/tree "$1"')
    ready = "ls $0/versions; kill -9 $(cat $1); shift; while ls $0; do sleep 0.1; done"
    words = ["mount", str(tmp_path / "log"), REPOSITORY, str(client), REPOSITORY, "--"]
    before = (*NAMESPACE, *words, "sh", "-c", f'{{ {ready}; }} >/dev/null 2>&1; exec "$@"', REPOSITORY, str(pid))
    told = doctor(before=before)
    assert "has died (ENOTCONN)" in told.method("eessi")["problems"][0]["what"]
    assert REPOSITORY in told.facts["mounts"]


def test_a_mount_that_never_answers(doctor: Doctor, fake: Fake, tmp_path: Path) -> None:
    """A FUSE client that is stopped: whoever looks at its mount waits in the kernel."""
    needs("fuse-overlayfs")
    (tmp_path / "tree" / "versions").mkdir(parents=True)
    pid = tmp_path / "pid"
    client = fake("client", f'echo $$ >{pid}; exec fuse-overlayfs -f -o lowerdir={tmp_path}/tree "$1"')
    words = ["mount", str(tmp_path / "log"), REPOSITORY, str(client), REPOSITORY, "--"]
    stopped = 'kill -STOP $(cat "$0"); "$@"; status=$?; kill -KILL $(cat "$0"); exit $status'
    told = doctor(before=(*NAMESPACE, *words, "sh", "-c", stopped, str(pid)))
    assert "has not answered in 4 s" in told.method("eessi")["problems"][0]["what"]
    assert told.status == 0


def test_a_copy_of_eessi(doctor: Doctor, tmp_path: Path) -> None:
    (tmp_path / "copy" / "versions" / "2023.06" / "init").mkdir(parents=True)
    told = doctor(ENVKIT_EESSI_DIR=str(tmp_path / "copy"))
    assert told.method("eessi")["state"] == "works"
    assert "(--access dir)" in told.method("eessi")["why"]


def test_a_module_that_is_not_there(tmp_path: Path) -> None:
    needs("lmod")
    argv = [str(ENVKIT), "doctor", "--load", "no-such-module"]
    env = {"PATH": SYSTEM_PATH, "HOME": str(tmp_path)}
    done = subprocess.run([*argv, "--json"], env=env, capture_output=True, text=True, timeout=120, check=False)
    told = json.loads(done.stdout)
    [note] = [one for one in told["notes"] if one["id"] == "missing-load"]
    assert note["what"].startswith("The modules no-such-module could not be loaded.")
    assert told["facts"]["cpu"] and told["facts"]["builder"]["load"] == []
    [verdict] = [one for one in told["methods"] if one["method"] == "easybuild"]
    assert verdict["state"] in ("partly", "fails")


@pytest.fixture
def user() -> Iterator[pwd.struct_passwd]:
    """A user without rights and without subordinate ids."""
    if os.geteuid():
        pytest.skip("becomes another user")
    needs("setpriv", "useradd", "usermod")
    name = "envkit-patient"
    subprocess.run(["useradd", "--no-create-home", "--no-log-init", name], check=False, capture_output=True)
    for kind in ("uids", "gids"):
        subprocess.run(["usermod", f"--del-sub{kind}", "0-4000000000", name], check=False, capture_output=True)
    yield pwd.getpwnam(name)
    subprocess.run(["userdel", name], check=True, capture_output=True)


@pytest.mark.xdist_group("users")
def test_a_plain_user(doctor: Doctor, user: pwd.struct_passwd) -> None:
    """Without subordinate ids nothing can be built by Apptainer; where there is no room to write, nothing at all."""
    # the capability is for this test's Python alone, which may lie in root's home
    ids = (f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups")
    before = ("setpriv", *ids, "--inh-caps=+dac_read_search", "--ambient-caps=+dac_read_search")
    told = doctor(before=before, USER=user.pw_name)
    assert (told.status, told.facts["uid"]) == (3, user.pw_uid)
    assert "cannot be written to" in told.method("easybuild")["problems"][0]["what"]
    with tempfile.TemporaryDirectory(prefix="envkit-patient-") as home:
        shutil.chown(home, user.pw_uid, user.pw_gid)
        told = doctor(before=before, USER=user.pw_name, HOME=home, ENVKIT_PREFIX=f"{home}/prefix")
    assert told.method("easybuild")["state"] == "works"
    lacking = " ".join(one["what"] for one in told.method("apptainer")["problems"])
    assert f"{user.pw_name} has no range of subordinate ids in /etc/subuid" in lacking
    assert told.status == 0


def test_a_bare_container(image: ImageReceipt, debian: Path) -> None:
    """In a Debian with nothing in it but this Python: no method works, and everything that is lacking is told."""
    binds = [word for folder in sorted(BINDS) for word in ("--bind", folder)]
    argv = [image.runtime, "--silent", "exec", "--containall", "--cleanenv", *binds, str(debian), sys.executable]
    env = {**os.environ, "APPTAINER_DROP_CAPS": "CAP_SYS_RESOURCE"}
    done = subprocess.run(
        [*argv, "-m", "envkit", "doctor", "--json"], env=env, capture_output=True, text=True, timeout=120, check=False
    )
    if sys.base_prefix == "/usr":  # this Python is the system's: with it all else of the system is there
        assert done.returncode in (0, 3) and json.loads(done.stdout), done.stderr
        return
    assert done.returncode == 3, done.stderr
    told = Told(status=3, report=json.loads(done.stdout))
    assert {one["state"] for one in told.report["methods"]} == {"fails"}
    lacking = [one["what"] for one in told.method("easybuild")["problems"]]
    assert {"There is no gcc and g++ that compile C++17.", "The program make is missing."} <= set(lacking)
    assert (told.facts["modules"], told.facts["container"], told.facts["mpi"]) == (None, None, [])
    assert "in-container" in told.notes
