"""Installing what is there, rebuilding what has changed, listing and removing."""

import json
import re

import pytest

from .site import Site

pytestmark = pytest.mark.integration


def test_nothing_to_do(site: Site) -> None:
    site.installed("toy-top")
    before = site.begun()
    again = site.installed("toy-top")
    assert "toy-top-1.0 is installed already and there is no Horovod in it to verify. " in again.out
    assert "Nothing to do." in again.out
    assert "has changed" not in again.out
    assert site.begun() == before
    assert len(list((site.prefix / "logs").iterdir())) == 1


def test_edited_recipe(site: Site) -> None:
    site = site.own_recipes()
    site.installed("toy-top")
    site.installed("toy-other")
    before = site.begun()
    recipe = site.recipe("toy-middle")
    recipe.write_text(recipe.read_text().replace("env -0 > settings", "echo edited > settings"))

    told = site.installed("toy-top")
    assert f"The recipe of toy-middle/1.0 has changed since: {recipe}" in told.out
    assert "Build again with 'envkit install " in told.out
    assert " --rebuild --prefix " in told.out
    assert site.begun() == before
    assert (site.tree / "software/toy-middle/1.0/settings").read_text() != "edited\n"

    planned = site.installed("toy-top", "--rebuild", "--dry-run").out
    assert re.findall(r" \* \[(.)\] \S+/(toy-\w+)-1\.0\.eb", planned) == [
        ("x", "toy-base"), (" ", "toy-middle"), (" ", "toy-top")
    ]  # fmt: skip
    assert "2 of 3 modules to build;" in planned
    rebuilt = site.installed("toy-top", "--rebuild")
    assert "Building 2 of 3 modules" in rebuilt.out
    assert site.begun()[len(before) :] == ["toy-middle/1.0", "toy-top/1.0"]
    assert (site.tree / "software/toy-middle/1.0/settings").read_text() == "edited\n"
    assert "has changed" not in site.installed("toy-top").out


def test_a_module_that_has_gone_from_below_others_is_built_again(site: Site) -> None:
    site.installed("toy-top")
    before = site.begun()
    (site.tree / "modules/all/toy-base/1.0.lua").unlink()
    said = site.installed("toy-top")
    assert "Building 1 of 3 modules" in said.out
    assert site.begun()[len(before) :] == ["toy-base/1.0"]
    site.run("run", "toy-top-1.0", "--", "toy-top")


def test_rebuild_without_a_change_builds_the_last_module(site: Site) -> None:
    site.installed("toy-other")
    before = site.begun()
    site.installed("toy-other", "--rebuild")
    assert site.begun()[len(before) :] == ["toy-other/1.0"]


def test_list_show_and_remove(site: Site) -> None:
    assert not any(state.startswith("installed") for state in site.states().values())
    site.installed("toy-top")
    site.installed("toy-other")
    states = site.states()
    assert states["toy-top-1.0"] == "installed"
    assert "toy-other-1.0" in site.run("list").out

    shown = site.run("show", "toy-top-1.0").out
    assert str(site.tree) in shown
    assert f"module use {site.tree / 'modules' / 'all'} && module load toy-top/1.0" in shown
    told = json.loads(site.run("show", "toy-top-1.0", "--json").out)
    assert [module["name"] for module in told["modules"]] == ["toy-base/1.0", "toy-middle/1.0", "toy-top/1.0"]
    ambiguous = site.run("show", status=6)
    assert "Which environment? There is more than one." in ambiguous.err

    removed = site.run("remove", "toy-other-1.0")
    assert "Removed toy-other-1.0: toy-other/1.0." in removed.out
    assert "Kept for the next installation: toy-base/1.0." in removed.out
    site.installed("toy-other")
    assert site.begun().count("toy-base/1.0") == 1

    site.run("remove", "toy-top-1.0", "--dependencies")
    assert site.built() == {"toy-base", "toy-other"}
    assert not (site.tree / "software" / "toy-middle" / "1.0").exists()
    site.run("run", "toy-other-1.0", "--", "toy-other")
    site.run("remove", "toy-other-1.0", "--dependencies")
    assert site.built() == set()
    assert not list(site.tree.glob("software/*/*"))
    gone = site.run("remove", "toy-other-1.0", status=6)
    assert "There is no environment 'toy-other-1.0'." in gone.err


def test_module_that_has_gone(site: Site) -> None:
    site.installed("toy-base")
    (site.tree / "modules" / "all" / "toy-base" / "1.0.lua").unlink()
    damaged = site.run("run", "--", "true", status=6)
    assert "The environment toy-base-1.0 is damaged: its module toy-base/1.0 has gone." in damaged.err
    assert "What to do: Put it back with 'envkit repair toy-base-1.0 --prefix " in damaged.err
    site.installed("toy-base")
    assert site.run("run", "--", "toy-base").out == "toy 0\n"
