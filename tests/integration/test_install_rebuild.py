"""Building again: what there was stays, or comes back, until the new one has passed."""

import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

from .site import Site, needs, sha256, until

pytestmark = pytest.mark.integration

SIGNALS = pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL], ids=lambda number: number.name
)
WORKS = ("run", "toy-top-1.0", "--", "toy-top")


def edit(site: Site, toy: str, old: str, new: str) -> None:
    recipe = site.recipe(toy)
    text = recipe.read_text()
    assert old in text
    recipe.write_text(text.replace(old, new))


def state(site: Site) -> dict[str, str]:
    """Return what of a tree counts: each file of modules and receipts by its content, each link by where it leads."""
    found = {}
    for folder in ("software", "modules", "built", "environments", "kept"):
        for path in sorted((site.tree / folder).rglob("*")):
            if path.is_symlink():
                found[str(path)] = str(path.readlink())
            elif path.is_file():
                found[str(path)] = sha256(path)
    return found


@pytest.fixture
def there(site: Site) -> Site:
    """A site where toy-top is installed, with recipes of its own."""
    site = site.own_recipes()
    site.installed("toy-top")
    return site


def is_as_before(site: Site, before: dict[str, str]) -> None:
    """Check that the environment is there, works, and is what it was; the first look puts it back."""
    assert site.is_offered("toy-top")
    site.run(*WORKS)
    assert state(site) == before
    assert not list((site.tree / "replaced").glob("*.json"))


def test_a_failed_rebuild_leaves_what_there_was(there: Site) -> None:
    before = state(there)
    edit(there, "toy-top", "gcc ", "gcc --no-such-option ")
    broken = there.install("toy-top", "--rebuild").expect(5)
    assert "Building toy-top/1.0 failed in step build." in broken.err
    assert "Built again in its place: until that has passed, toy-top-1.0 cannot be used." in broken.out
    assert "toy-top-1.0 is as it was before." in broken.out
    is_as_before(there, before)
    edit(there, "toy-top", "gcc --no-such-option ", "gcc -O1 ")
    there.installed("toy-top", "--rebuild")
    assert state(there) != before
    there.run(*WORKS)


def test_what_was_built_before_a_failure_is_not_built_twice(there: Site) -> None:
    before = state(there)
    edit(there, "toy-middle", "env -0 > settings", "echo edited > settings")
    edit(there, "toy-top", "gcc ", "gcc --no-such-option ")
    broken = there.install("toy-top", "--rebuild").expect(5)
    assert re.search(
        r"What was built is kept in .+: 'envkit install \S+/toy-top-1.0.eb --rebuild --prefix \S+' goes on", broken.out
    )
    is_as_before(there, before)
    edit(there, "toy-top", "gcc --no-such-option ", "gcc -O1 ")
    begun = len(there.begun())
    there.installed("toy-top", "--rebuild")
    assert there.begun()[begun:] == ["toy-top/1.0"]
    assert (there.tree / "software/toy-middle/1.0/settings").read_text() == "edited\n"
    assert "has changed" not in there.installed("toy-top").out
    assert [path.name for path in (there.tree / "replaced").rglob("*") if path.is_file()] == []


def test_where_nothing_has_changed_the_last_module_alone_is_built(there: Site) -> None:
    begun = len(there.begun())
    there.installed("toy-top", "--rebuild")
    assert there.begun()[begun:] == ["toy-top/1.0"]
    helped = " ".join(there.run("install", "--help", prefix=there.prefix).out.split())
    assert "where nothing has, the last module (Horovod's) alone" in helped


def test_what_was_built_from_another_recipe_since_is_built_again(there: Site) -> None:
    edit(there, "toy-middle", "env -0 > settings", "echo first > settings")
    edit(there, "toy-top", "gcc ", "gcc --no-such-option ")
    there.install("toy-top", "--rebuild").expect(5)
    edit(there, "toy-middle", "echo first > settings", "echo second > settings")
    edit(there, "toy-top", "gcc --no-such-option ", "gcc ")
    there.installed("toy-top", "--rebuild")
    assert (there.tree / "software/toy-middle/1.0/settings").read_text() == "second\n"


@SIGNALS
def test_a_rebuild_that_is_stopped(there: Site, number: signal.Signals) -> None:
    before = state(there)
    there.hold("middle")
    edit(there, "toy-middle", "env -0 > settings", "echo edited > settings")
    (there.home / "at-middle").unlink()
    running = there.install("toy-top", "--rebuild")
    there.wait_for(running, "middle")
    push = ("cache", "push", "toy-top-1.0", "--prefix", there.prefix, "--to", there.home, "--unsigned")
    for words in (WORKS, ("show", "toy-top"), ("verify",), push):
        busy = there.run(*words, status=3)
        assert "The environment toy-top-1.0 is being built again." in busy.err
        assert f"By process {running.process.pid} on " in busy.err
    assert not there.is_offered("toy-top")
    assert running.stop(number) in (128 + number, -number)
    assert there.is_quiet()
    there.let_go()
    is_as_before(there, before)


@pytest.mark.parametrize("stubborn", [False, True])
def test_again_at_once_after_a_kill(there: Site, stubborn: bool) -> None:
    before = state(there)
    if stubborn:
        (there.home / "stubborn").touch()
    there.hold("top")
    (there.home / "at-top").unlink()
    running = there.install("toy-top", "--rebuild")
    there.wait_for(running, "top")
    assert running.stop(signal.SIGKILL) == -signal.SIGKILL
    again = there.installed("toy-top")
    assert "toy-top-1.0 is installed already" in again.out
    assert there.is_quiet()
    there.let_go()
    is_as_before(there, before)


@pytest.mark.parametrize("killed_at", [1, 2, 3, 5, 8])
def test_killed_between_two_renames(there: Site, killed_at: int) -> None:
    """However far setting aside has come, and then putting back, the next look finishes it."""
    needs("strace")
    before = state(there)
    edit(there, "toy-middle", "env -0 > settings", "echo edited > settings")
    trace = ["strace", "-qq", "-o", "/dev/null", "-e", "trace=rename", "-e"]
    kill = [*trace, f"inject=rename:signal=KILL:when={killed_at + 3}"]
    there.install("toy-top", "--rebuild", before=kill).wait()
    there.start("list", before=[*trace, f"inject=rename:signal=KILL:when={killed_at}"]).wait()
    assert there.is_quiet()
    is_as_before(there, before)


HOROVOD = """ && mkdir -p lib/python/site-packages/horovod && cd lib/python/site-packages/horovod && touch __init__.py \
&& echo {\\\\"pytorch\\\\":\\\\"2.13\\\\"} > metadata.json && cd ../../../.. && gcc """


def test_a_new_one_that_does_not_pass(there: Site) -> None:
    """It has become a Horovod, without an extension."""
    needs("mpirun")
    before = state(there)
    edit(there, "toy-top", " && gcc ", HOROVOD.replace("\n", ""))
    edit(there, "toy-top", "(['%(name)s'], 'bin')", "(['%(name)s'], 'bin'), (['lib/python'], 'lib')")
    edit(there, "toy-top", "moduleclass", "modextrapaths = {'PYTHONPATH': 'lib/python/site-packages'}\nmoduleclass")
    failed = there.install("toy-top", "--rebuild").expect(1)
    assert "was built but does not pass, so it is not offered" in failed.out
    assert "toy-top-1.0 is as it was before." in failed.out
    is_as_before(there, before)


def test_a_full_disk(site: Site) -> None:
    needs("mount", "umount")
    site = site.own_recipes()
    site.prefix.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=110m,mode=700", "none", site.prefix], check=True)
    try:
        site.installed("toy-big")
        before = state(site)
        full = site.install("toy-big", "--rebuild").expect(7)
        assert "The disk is full" in full.err
        assert site.is_offered("toy-big")
        assert state(site) == before
    finally:
        subprocess.run(["umount", "--lazy", site.prefix], check=True)


def test_other_environments_on_what_is_built_again_are_named(there: Site) -> None:
    there.installed("toy-other")
    edit(there, "toy-base", "gcc ", "gcc -O1 ")
    rebuilt = there.installed("toy-top", "--rebuild")
    assert "until that has passed, toy-top-1.0, toy-other-1.0 cannot be used." in " ".join(rebuilt.out.split())


def test_another_load_that_fails_leaves_what_there_was(there: Site) -> None:
    before = state(there)
    there.install("toy-top", "--load", "no-such-module").expect(92)
    is_as_before(there, before)


def test_behind_a_link_nothing_is_built_again(there: Site, tmp_path: Path) -> None:
    (there.tree / "software").rename(tmp_path / "elsewhere")
    (there.tree / "software").symlink_to(tmp_path / "elsewhere")
    before = state(there)
    refused = there.install("toy-top", "--rebuild").expect(7)
    assert "is a link, and envkit writes nothing through one" in " ".join(refused.err.split())
    is_as_before(there, before)


def test_somebody_elses_record_moves_nothing(there: Site, tmp_path: Path) -> None:
    """A planted note of what is set aside, with a link that leads out of the tree."""
    victim = tmp_path / "victim" / "toy" / "1.0"
    victim.mkdir(parents=True)
    (victim / "thesis").write_text("years of work")
    planted = there.tree / "replaced" / "old" / "evil" / "software" / "toy"
    planted.mkdir(parents=True)
    (planted / "1.0").mkdir()
    (there.tree / "software").rename(there.tree / "real")
    (there.tree / "software").symlink_to(tmp_path / "victim")
    note = there.tree / "replaced" / "evil.json"
    note.write_text('{"modules": ["toy/1.0"], "files": ["../../../victim/toy/1.0/thesis"]}')
    there.run("list")
    note.write_text('{"modules": ["toy/1.0"], "files": []}')
    there.run("list")
    assert (victim / "thesis").read_text() == "years of work"


def test_a_rebuild_is_put_back_by_its_owner_alone(there: Site) -> None:
    if os.geteuid():
        pytest.skip("needs root, to be another user")
    there.hold("top")
    (there.home / "at-top").unlink()
    running = there.install("toy-top", "--rebuild")
    there.wait_for(running, "top")
    assert running.stop(signal.SIGKILL) == -signal.SIGKILL
    assert there.is_quiet()
    os.chown(there.tree / "replaced" / "toy-top-1.0.json", 65534, 65534)
    assert not there.is_offered("toy-top")
    os.chown(there.tree / "replaced" / "toy-top-1.0.json", 0, 0)
    until(lambda: there.is_offered("toy-top"), "it to be put back", 30)
