"""``envkit upgrade`` with real builds of toys: the new one takes over when it has passed, else all is as it was."""

import json
import signal
from pathlib import Path

import pytest

from ..small_disk import leave, small_disk
from .site import Site
from .test_install_rebuild import WORKS, edit, is_as_before, state
from .test_install_unproven import killed_outside_of_eb

pytestmark = pytest.mark.integration


@pytest.fixture
def there(site: Site) -> Site:
    """A site where toy-top is installed, with recipes of its own."""
    site = site.own_recipes()
    site.installed("toy-top")
    return site


def renamed(site: Site) -> None:
    """Give toy-top the middle one in another version, so that both are built beside the old ones."""
    middle = site.recipe("toy-middle").read_text().replace("version = '1.0'", "version = '2.0'")
    site.recipe("toy-middle").with_name("toy-middle-2.0.eb").write_text(middle)
    edit(site, "toy-top", "('toy-middle', '1.0')", "('toy-middle', '2.0')")


def test_up_to_date_then_changed_then_upgraded(there: Site) -> None:
    before = state(there)
    assert "toy-top-1.0 is up to date" in there.run("upgrade", "toy-top-1.0").out
    assert state(there) == before
    edit(there, "toy-middle", "env -0 > settings", "echo edited > settings")
    told = json.loads(there.run("upgrade", "toy-top-1.0", "--dry-run", "--json").out)
    assert told["state"] == "outdated" and state(there) == before
    assert [one["now"] for one in told["changes"]] == ["toy-middle/1.0"]
    told = json.loads(there.run("upgrade", "toy-top-1.0", "--json").out)
    assert told["state"] == "upgraded"
    assert (there.tree / "software/toy-middle/1.0/settings").read_text() == "edited\n"
    there.run(*WORKS)
    assert "toy-top-1.0 is up to date" in there.run("upgrade").out


def test_a_part_under_another_name_is_built_beside_the_old_one(there: Site) -> None:
    renamed(there)
    done = there.run("upgrade", "toy-top-1.0")
    assert "changed  toy-middle/1.0 -> toy-middle/2.0" in done.out
    assert "No longer part of it: toy-middle/1.0" in done.out
    there.run(*WORKS)
    there.run("clean", "modules", "--yes")
    assert sorted(path.name for path in (there.tree / "software/toy-middle").iterdir()) == ["2.0"]
    there.run(*WORKS)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL], ids=lambda number: number.name)
@pytest.mark.parametrize("is_renamed", [False, True], ids=["in its place", "beside"])
def test_stopped_in_the_middle(there: Site, number: signal.Signals, is_renamed: bool) -> None:
    before = state(there)
    if is_renamed:
        renamed(there)
    edit(there, "toy-top", "gcc ", "gcc -O1 ")
    there.hold("top")
    (there.home / "at-top").unlink()
    running = there.start("upgrade", "toy-top-1.0")
    there.wait_for(running, "top")
    assert running.stop(number) in (128 + number, -number)
    assert there.is_quiet()
    there.let_go()
    assert there.is_offered("toy-top")
    there.run(*WORKS)
    now = state(there)
    assert {path: now.get(path) for path in before} == before
    told = json.loads(there.run("upgrade", "toy-top-1.0", "--json").out)
    assert told["state"] == "upgraded"
    there.run(*WORKS)


def test_a_failed_build(there: Site) -> None:
    before = state(there)
    edit(there, "toy-top", "gcc ", "gcc --no-such-option ")
    broken = there.run("upgrade", "toy-top-1.0", status=5)
    assert "toy-top-1.0 is as it was before." in broken.out
    is_as_before(there, before)


def test_what_cannot_be_entered_does_not_take_over(there: Site) -> None:
    before = state(there)
    edit(there, "toy-top", "gcc ", "gcc -O1 ")
    env = {"LMOD_CMD": str(killed_outside_of_eb(there))}
    there.run("upgrade", "toy-top-1.0", status=92, env=env)
    is_as_before(there, before)


def test_on_a_full_disk(site: Site, tmp_path: Path) -> None:
    with small_disk(site.prefix, 8192) as small:
        site = site.own_recipes()
        site.installed("toy-top")
        before = state(site)
        edit(site, "toy-middle", "env -0 > settings", "head -c 90000000 /dev/zero > settings")
        leave(small, 100)
        full = site.run("upgrade", "toy-top-1.0", status=7)
        assert "What to do: " in full.err and "Traceback" not in full.err
        (small / "filler").unlink()
        is_as_before(site, before)
