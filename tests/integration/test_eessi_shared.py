"""One client, one mount and one cache for all that a user enters on a node; who must not share it has another one."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from .site import until
from .test_eessi import ENVKIT, NAMESPACE, WHERE, Place, client, counting, gone, place, tree

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
    text = "#!/bin/sh\nsleep 1\necho 'CernVM-FS: its last words'\nexit 16\n"
    (place.home / "bin" / "cvmfs2").write_text(text)
    for name in "abc":
        entered.start(name, server, "run", "eessi", "--access", "userns")
    running, entered.running = entered.running, {}
    said = [one.communicate(timeout=60) for one in running.values()]
    assert {one.returncode for one in running.values()} == {3}, said
    for out, err in said:
        assert (out, "it got no file catalog (status 16)." in err, "its last words" in err) == ("", True, True), err
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
