"""Several installations at once, and what earlier ones left behind."""

import fcntl
import re
from subprocess import run

import pytest

from .site import Site, needs, until

pytestmark = pytest.mark.integration


def test_the_same_stack_twice_at_once(site: Site) -> None:
    site.hold("middle")
    first = site.install("toy-top")
    site.wait_for(first, "middle")
    second = site.install("toy-top")
    until(lambda: "waiting for it" in second.out or second.process.poll() is not None, "the second to wait")
    pid = first.process.pid
    assert re.search(rf"Process {pid} on \S+ is installing toy-top-1.0 \(log: .+\); waiting for it\.", second.out)
    site.let_go()
    first.expect(0)
    second.expect(0)
    assert "toy-top-1.0 is installed already and there is no Horovod in it to verify. " in second.out
    assert sorted(site.begun()) == ["toy-base/1.0", "toy-middle/1.0", "toy-top/1.0"]


def test_two_stacks_that_share_a_module_at_once(site: Site) -> None:
    site.hold("base")
    first = site.install("toy-top")
    site.wait_for(first, "base")
    second = site.install("toy-other")
    until(lambda: "waiting for it" in second.out or second.process.poll() is not None, "the second to wait")
    assert "Another process is building toy-base/1.0; waiting for it." in second.out
    site.let_go()
    site.hold("top")
    second.expect(0)
    assert first.process.poll() is None, "the second waited for more than what it shares with the first"
    site.let_go()
    first.expect(0)
    assert sorted(site.begun()) == ["toy-base/1.0", "toy-middle/1.0", "toy-other/1.0", "toy-top/1.0"]
    assert site.is_offered("toy-top")
    assert site.is_offered("toy-other")


def test_a_waiting_installation_takes_over(site: Site) -> None:
    site.hold("middle")
    first = site.install("toy-top")
    site.wait_for(first, "middle")
    second = site.install("toy-top")
    until(lambda: "waiting for it" in second.out or second.process.poll() is not None, "the second to wait")
    first.process.kill()
    first.wait()
    site.let_go()
    second.expect(0)
    assert "2 modules" not in first.out
    assert site.begun().count("toy-base/1.0") == 1
    assert site.is_offered("toy-top")


def test_locks_of_dead_processes(site: Site) -> None:
    locks = site.tree / "locks"
    for module in ("toy-base", "toy-middle", "toy-top"):
        name = str(site.tree / "software" / module / "1.0").replace("/", "_")
        (locks / "easybuild" / f"{name}.lock").mkdir(parents=True)
        (locks / f"{module}--1.0.lock").touch()
    (locks / "stack-toy-top-1.0.lock").touch()
    done = site.installed("toy-top")
    assert "waiting" not in done.out


def test_a_lock_that_is_held_can_be_left(site: Site) -> None:
    (site.tree / "locks").mkdir(parents=True)
    with (site.tree / "locks" / "stack-toy-top-1.0.lock").open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        running = site.install("toy-top")
        until(lambda: "waiting for it" in running.out or running.process.poll() is not None, "it to wait")
        assert "Another process is installing toy-top-1.0; waiting for it." in running.out
        running.process.terminate()
        running.expect(143)
    assert "Stopped by SIGTERM." in running.err
    assert site.begun() == []


def test_a_full_disk(site: Site) -> None:
    needs("mount", "umount")
    site.prefix.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=30m,mode=700", "none", site.prefix], check=True)
    try:
        full = site.install("toy-big").expect(7)
        assert "Building toy-big/1.0 failed in step " in full.err
        assert "The disk is full, or the quota is used up." in full.err
        assert "No space left on device" in full.err
        assert "run the same command again: it resumes." in full.err
        assert site.built() == {"toy-base"}
        assert not site.is_offered("toy-big")
        still = site.install("toy-big").expect(7)
        assert "Resuming what began " in still.out
        run(["mount", "-o", "remount,size=120m", site.prefix], check=True)
        site.installed("toy-big")
        assert site.begun().count("toy-base/1.0") == 1
        assert site.is_offered("toy-big")
    finally:
        run(["umount", "--lazy", site.prefix], check=True)


def test_a_disk_that_is_full_from_the_beginning(site: Site) -> None:
    needs("mount", "umount")
    site.prefix.mkdir()
    run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=700", "none", site.prefix], check=True)
    try:
        (site.prefix / "filler").write_bytes(bytes(40000))
        full = site.install("toy-base").expect(7)
        assert "What to do: " in full.err
        assert "pace" in full.err
        run(["mount", "-o", "remount,size=120m", site.prefix], check=True)
        site.installed("toy-base")
    finally:
        run(["umount", "--lazy", site.prefix], check=True)
