"""One client, one mount and one cache for all that a user enters on a node; who must not share it has another one."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

import pytest

from .. import cvmfs2
from ..eessi_tree import REPOSITORY, write
from .site import until
from .test_eessi import ENVKIT, NAMESPACE, WHERE, Place, client, counting, gone, left_of, place, reading, tree

__all__ = ["client", "place", "tree"]  # fixtures

pytestmark = pytest.mark.integration

WAIT = "touch ready-$0; while [ ! -e end ]; do sleep 0.05; done"


class Entered:
    """Commands that stay within EESSI until they are told to end; each says which mount it sees."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self.running: dict[str, subprocess.Popen[str]] = {}

    def start(self, name: str, changes: Mapping[str, str], *words: str, before: tuple[str, ...] = ()) -> None:
        """Begin to enter; ``words`` come before the command."""
        words = words or ("run", "eessi")
        argv = [*before, str(ENVKIT), *words, "--", "sh", "-c", WHERE + WAIT, name]
        pipe = subprocess.PIPE
        self.running[name] = subprocess.Popen(
            argv, env=self.place.env(**changes), cwd=self.place.home, stdout=pipe, stderr=pipe, text=True
        )

    def enter(self, name: str, changes: Mapping[str, str], *words: str, before: tuple[str, ...] = ()) -> None:
        """Enter, and wait until the command runs."""
        self.start(name, changes, *words, before=before)
        until((self.place.home / f"ready-{name}").exists, "the command", 60)

    def mounts(self) -> dict[str, str]:
        """Have all of them end; return the mount that each has seen."""
        (self.place.home / "end").touch()
        running, self.running = self.running, {}
        said = {name: one.communicate(timeout=60) for name, one in running.items()}
        assert {one.returncode for one in running.values()} == {0}, said
        return {name: out for name, (out, _) in said.items()}


@pytest.fixture
def entered(place: Place, client: Path) -> Iterator[Entered]:
    """Nothing yet; what has been entered ends with the test, however that ends."""
    gone(place)  # what the test before has started, by the same tree
    made = Entered(place)
    yield made
    (place.home / "end").touch()
    for running in made.running.values():
        running.communicate(timeout=60)


def caches(place: Place) -> list[str]:
    """The folders of clients, without what stands for node and repository."""
    folder = place.home / "tmp" / f"envkit-eessi-{os.getuid()}"
    return sorted(path.name.replace(path.name.split("-")[1], "HASH") for path in folder.glob("shared-*"))


def test_four_that_enter_at_once_start_one_client(place: Place, entered: Entered, server: Mapping[str, str]) -> None:
    starts = counting(place)
    for name in "abcd":
        entered.start(name, server)
    for name in "abcd":
        until((place.home / f"ready-{name}").exists, "the command", 60)
    mounts = entered.mounts()
    assert len(set(mounts.values())) == 1 and mounts["a"].startswith("2023.06 mnt:")
    assert starts.read_text() == "started\n"
    gone(place)
    assert (caches(place), place.sessions()) == (["shared-HASH"], {})


def test_a_shell_a_run_and_a_session_that_is_resumed_share_it(
    place: Place, entered: Entered, server: Mapping[str, str]
) -> None:
    starts = counting(place)
    entered.enter("run", server)
    entered.enter("shell", server, "shell", "eessi", "--load", "Tool/1.0")
    entered.enter("named", server, "run", "eessi", "--resume", "mine")
    mounts = entered.mounts()
    assert len(set(mounts.values())) == 1, mounts
    gone(place)
    assert starts.read_text() == "started\n"
    assert {name: session["modules"] for name, session in place.sessions().items()} == {
        "2023.06": ["Tool/1.0"], "mine": []
    }  # fmt: skip


@pytest.mark.parametrize(
    "changes",
    [
        {"SLURM_JOB_ID": "8"},
        {"PBS_JOBID": "8.server"},
        {"CVMFS_QUOTA_LIMIT": "5000"},
        {"http_proxy": "http://127.0.0.1:9"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_another_job_and_other_settings_have_a_client_of_their_own(
    changes: dict[str, str], place: Place, entered: Entered, server: Mapping[str, str]
) -> None:
    """Who comes next with the same shares that one; later the first place is taken again, with its cache."""
    starts = counting(place)
    entered.enter("first", server)
    entered.enter("other", {**server, **changes})
    entered.enter("again", {**server, **changes})
    mounts = entered.mounts()
    assert mounts["first"] != mounts["other"] == mounts["again"]
    assert starts.read_text() == "started\n" * 2
    assert caches(place) == ["shared-HASH", "shared-HASH-2"]
    gone(place)
    later = place.run("--", "true", **{**server, **changes})
    assert (later.returncode, starts.read_text()) == (0, "started\n" * 3), later.stderr
    assert caches(place) == ["shared-HASH", "shared-HASH-2"]


def test_in_a_namespace_of_mounts_of_its_own(place: Place, entered: Entered, server: Mapping[str, str]) -> None:
    """Such as a container's, which sees other folders."""
    (place.home / "other").mkdir()
    entered.enter("first", server)
    apart = (*NAMESPACE, "bind", str(place.home / "other"), "/opt/other", "--")
    entered.enter("apart", server, before=apart)
    mounts = entered.mounts()
    assert mounts["first"] != mounts["apart"]
    assert caches(place) == ["shared-HASH", "shared-HASH-2"]


def test_what_one_binds_the_others_do_not_see(place: Place, entered: Entered, server: Mapping[str, str]) -> None:
    starts = counting(place)
    for name in "ab":
        (place.home / name).mkdir()
        (place.home / name / f"of-{name}").touch()
    entered.enter("plain", server)
    look = ("--", "sh", "-c", "ls /opt/data 2>/dev/null; id -u; ls /cvmfs")
    told = {
        name: place.run("--bind", f"{place.home}/{name}:/opt/data:ro", *look, **server).stdout.split() for name in "ab"
    }
    user = str(os.getuid())
    assert told == {"a": ["of-a", user, "software.eessi.io"], "b": ["of-b", user, "software.eessi.io"]}
    assert place.run(*look, **server).stdout.split() == [user, "software.eessi.io"]
    entered.mounts()
    assert starts.read_text() == "started\n"


def test_the_end_of_the_first_ends_no_other(place: Place, entered: Entered, server: Mapping[str, str]) -> None:
    entered.enter("first", server)
    entered.enter("second", server)
    first = entered.running.pop("first")
    first.kill()
    first.communicate(timeout=10)
    assert first.returncode == -signal.SIGKILL
    look = place.run("--", "sh", "-c", "echo $EESSI_VERSION", **server)
    assert (look.returncode, look.stdout) == (0, "2023.06\n"), look.stderr
    assert entered.mounts()["second"].startswith("2023.06 mnt:")
    gone(place)


def test_a_client_that_gives_up_is_told_to_all_who_wait_for_it(
    place: Place, entered: Entered, server: Mapping[str, str]
) -> None:
    """It is not started for each of them."""
    slow(place, "go", "echo 'CernVM-FS: its last words'; exit 16")
    for name in "abc":
        entered.start(name, server, "run", "eessi", "--access", "userns")
    running, entered.running = entered.running, {}
    until(lambda: all(is_waiting(one) for one in running.values()), "all of them", 60)
    time.sleep(1)  # until the last one, too, has looked whether there is a client
    (place.home / "go").touch()
    said = [one.communicate(timeout=60) for one in running.values()]
    assert {one.returncode for one in running.values()} == {3}, said
    for out, err in said:
        assert (out, "it got no file catalog (status 16)." in err, "its last words" in err) == ("", True, True), err
    assert (place.home / "starts").read_text() == "started\n"
    gone(place)


def slow(place: Place, file: str, then: str) -> None:
    """Have a client that tells of its start, and goes on once there is a file."""
    wait = f"echo started >>{place.home}/starts; while [ ! -e {place.home}/{file} ]; do sleep 0.05; done"
    write(place.home / "bin" / "mounts", cvmfs2.program(place.tree), program=True)
    write(place.home / "bin" / "cvmfs2", f"#!/bin/sh\n{wait}\n{then}\n", program=True)


def is_waiting(running: subprocess.Popen[str]) -> bool:
    """Say whether one that enters has come to where it needs the client, and has locked its place."""
    folder = Path(f"/proc/{running.pid}/fd")
    is_there = b"/mount_namespace.py\0shared" in reading(folder.with_name("cmdline"))
    with suppress(FileNotFoundError):  # of one that is closed meanwhile
        return is_there and any(str(link.readlink()).endswith("/held") for link in folder.iterdir())
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGSTOP])
def test_the_client_does_not_hang_on_the_one_who_has_started_it(
    number: signal.Signals, place: Place, entered: Entered, server: Mapping[str, str]
) -> None:
    """Who is killed, or stopped, while it starts; nothing is held open then, and nobody starts a second one."""
    slow(place, "go", f'exec {place.home}/bin/mounts "$@"')
    entered.start("first", server)
    until((place.home / "starts").exists, "the client", 60)
    first = entered.running.pop("first")
    first.send_signal(number)
    if number is not signal.SIGSTOP:
        first.communicate(timeout=20)  # to the end of its output
        assert first.returncode == -number
    entered.start("second", server)
    until(lambda: is_waiting(entered.running["second"]), "the second", 60)
    (place.home / "go").touch()
    assert entered.mounts()["second"].startswith("2023.06 mnt:")
    assert (place.home / "starts").read_text() == "started\n"
    if number is signal.SIGSTOP:
        first.kill()
        first.communicate(timeout=20)
    gone(place)


def test_a_command_that_closes_its_files_keeps_the_mount(place: Place, client: Path, server: Mapping[str, str]) -> None:
    """And so does what it leaves behind with none of them."""
    look = f"import os, time; os.closerange(3, 256); time.sleep(3); print(os.listdir({REPOSITORY!r}))"
    done = place.run("--", sys.executable, "-c", look, **server)
    assert (done.returncode, sorted(ast.literal_eval(done.stdout))) == (0, ["init", "versions"]), done.stderr
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {look!r}], stdout=open('left', 'w'))"
    assert place.run("--bind", "/usr:/opt/usr", "--", sys.executable, "-c", leave, **server).returncode == 0
    left = until(lambda: (place.home / "left").read_text(), "what it has left", 20)
    assert sorted(ast.literal_eval(left)) == ["init", "versions"]
    gone(place)


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another group")
def test_another_group_has_a_client_of_its_own(place: Place, entered: Entered, server: Mapping[str, str]) -> None:
    """Whose files are shown as the group's own; the kernel refuses them to others."""
    entered.enter("first", server)
    entered.enter("other", server, before=("setpriv", "--regid", "5", "--keep-groups"))
    mounts = entered.mounts()
    assert mounts["first"] != mounts["other"]


def test_a_client_that_dies_is_started_anew_for_those_who_come(
    place: Place, entered: Entered, server: Mapping[str, str]
) -> None:
    starts = counting(place)
    entered.enter("first", server)
    [client] = [path.parent.name for path in left_of(place) if reading(path).startswith(b"fuse-overlayfs")]
    os.kill(int(client), signal.SIGKILL)
    look = place.run("--", "sh", "-c", "echo $EESSI_VERSION", **server)
    assert (look.returncode, look.stdout) == (0, "2023.06\n"), look.stderr
    assert starts.read_text() == "started\n" * 2
    entered.mounts()
    gone(place)


def test_a_damaged_cache_is_left_to_those_who_use_it(place: Place, entered: Entered, server: Mapping[str, str]) -> None:
    entered.enter("first", server)
    [first] = (place.home / "tmp" / f"envkit-eessi-{os.getuid()}").glob("shared-*")
    (first / "damaged").touch()  # as one does that has met a damaged file
    kept = (first / "lib").stat().st_ino
    other = place.run("--", "true", **server)
    assert (other.returncode, "put aside" in other.stderr, (first / "lib").stat().st_ino) == (0, False, kept)
    assert caches(place) == ["shared-HASH", "shared-HASH-2"]
    entered.mounts()
    gone(place)
    later = place.run("--", "true", **server)
    assert (later.returncode, later.stderr.count("put aside")) == (0, 1), later.stderr
    assert (first / "lib.damaged").stat().st_ino == kept and not (first / "damaged").exists()


def test_the_client_has_no_limits_of_the_first(place: Place, entered: Entered, server: Mapping[str, str]) -> None:
    core = str(min(os.sched_getaffinity(0)))
    limited = ("taskset", "--cpu-list", core, "sh", "-c", 'ulimit -S -n 200; exec "$@"', "sh")
    entered.enter("first", server, before=limited)
    [client] = [path.parent for path in left_of(place) if reading(path).startswith(b"fuse-overlayfs")]
    files = next(line.split() for line in (client / "limits").read_text().splitlines() if line.startswith("Max open"))
    assert int(files[3]) >= min(int(files[4]), 65536)
    assert os.sched_getaffinity(int(client.name)) == os.sched_getaffinity(0)
    entered.mounts()


def test_where_few_files_may_be_open(place: Place, client: Path, server: Mapping[str, str]) -> None:
    done = place.envkit(
        "run", "eessi", "--", "echo", "in", before=("sh", "-c", 'ulimit -n 60; exec "$@"', "sh"), **server
    )
    assert (done.returncode, done.stdout) == (0, "in\n"), done.stderr
    gone(place)


def test_clean_leaves_what_is_in_use(place: Place, entered: Entered, server: Mapping[str, str]) -> None:
    entered.enter("first", server)
    assert place.envkit("eessi", "clean").returncode == 0
    assert caches(place) == ["shared-HASH"]
    assert entered.mounts()["first"].startswith("2023.06 mnt:")
    gone(place)
    assert place.envkit("eessi", "clean").returncode == 0
    assert caches(place) == []


def test_writable_has_a_client_of_its_own(place: Place, entered: Entered, server: Mapping[str, str]) -> None:
    starts = counting(place)
    entered.enter("first", server)
    entered.enter("writable", server, "run", "eessi", "--writable", "mine")
    mounts = entered.mounts()
    assert mounts["first"] != mounts["writable"]
    assert (starts.read_text(), caches(place)) == ("started\n" * 2, ["shared-HASH"])


def test_modules_are_listed_by_the_client_that_is_there(
    place: Place, entered: Entered, server: Mapping[str, str]
) -> None:
    starts = counting(place)
    entered.enter("first", server)
    listed = json.loads(place.envkit("eessi", "modules", "Tool", "--json", before=(), **server).stdout)
    assert listed["modules"] == ["Tool/1.0", "Tool/2.0"]
    entered.mounts()
    assert starts.read_text() == "started\n"
