"""A stack that the site offers, to its end: installed by its name, upgraded, kept when it is offered no more."""

import json
from pathlib import Path

import pytest

from .site import Site
from .test_install_rebuild import edit

pytestmark = pytest.mark.integration


@pytest.fixture
def offering(site: Site) -> Site:
    """A site that offers toy-top as "ours", with a recipe of its own; the user's configuration names the file."""
    site = site.own_recipes()
    (site.folder / "stacks.toml").write_text(
        '[ours]\neasyconfig = "recipes/toy-top-1.0.eb"\nframework = "pytorch"\ndefault = true\nnote = "with toys"\n'
    )
    folder = site.home / ".config/envkit"
    folder.mkdir(parents=True)
    (folder / "config.toml").write_text(f'stacks = "{site.folder}/stacks.toml"\n')
    return site


def line(site: Site) -> dict[str, object]:
    """Return what the list says of it."""
    [entry] = [e for e in json.loads(site.run("list", "--json").out)["environments"] if e["name"] == "ours"]
    assert isinstance(entry, dict)
    return entry


def test_from_the_offer_to_the_end(offering: Site) -> None:
    assert line(offering)["status"] == "offered by your site; with toys"
    planned = offering.run("install", "pytorch", "--method", "easybuild", "--dry-run").out
    assert planned.startswith(
        f"Stack:    ours ({offering.folder}/recipes/toy-top-1.0.eb); offered by your site; with toys"
    )
    offering.run("install", "ours", "--jobs", "1")
    assert line(offering)["state"] == "installed"
    assert offering.run("run", "ours", "--", "toy-top").out == "toy 0\n"
    assert "ours is up to date" in offering.run("upgrade", "ours").out
    edit(offering, "toy-top", "A program at the end", "The program at the end")
    assert json.loads(offering.run("upgrade", "ours", "--json").out)["state"] == "upgraded"
    (offering.folder / "stacks.toml").unlink()
    assert "There is no such file" in offering.run("list", status=2).err
    assert offering.run("run", "ours", "--", "toy-top").out == "toy 0\n"
    (offering.home / ".config/envkit/config.toml").unlink()
    assert line(offering)["state"] == "installed"
    (offering.tree / "software/toy-top/1.0/bin/toy-top").unlink()
    for command in ("upgrade", "repair"):  # nothing else is made in its place
        done = offering.run(command, "ours", status=6)
        assert "ours cannot be built again: there is no stack of that name any more." in done.err
    assert set(offering.states()) & {"ours", "toy-top-1.0"} == {"ours"}
    offering.run("remove", "ours")
    assert not Path(offering.tree / "environments/ours.json").exists()


def test_two_offers_of_one_recipe_are_two_environments(offering: Site) -> None:
    file = offering.folder / "stacks.toml"
    file.write_text(file.read_text() + '[ours-1]\neasyconfig = "recipes/toy-top-1.0.eb"\nframework = "tensorflow"\n')
    offering.run("install", "ours", "--jobs", "1")
    begun = len(offering.begun())
    offering.run("install", "ours-1")
    assert len(offering.begun()) == begun  # nothing was built again
    offering.run("remove", "ours")
    assert offering.run("run", "ours-1", "--", "toy-top").out == "toy 0\n"


def test_an_offer_that_has_become_another(offering: Site) -> None:
    offering.run("install", "ours", "--jobs", "1")
    assert "is installed already" in offering.run("install", "ours").out
    file = offering.folder / "stacks.toml"
    file.write_text(file.read_text().replace("toy-top", "toy-other"))
    offering.run("install", "ours", "--jobs", "1")
    assert json.loads(offering.run("show", "ours", "--json").out)["module"] == "toy-other/1.0"
    file.write_text(file.read_text().replace("[ours]", "[theirs]"))
    assert "there is no stack of that name any more" in offering.run("upgrade", "ours", status=6).err
    assert "theirs" not in offering.run("list", "--installed").out


def test_a_patch_that_is_missing_or_another_is_found_before_anything_is_built(offering: Site) -> None:
    edit(offering, "toy-top", "checksums = [", "patches = [('toy.patch', 0)]\nchecksums = [")
    edit(offering, "toy-top", "50b2']", f"50b2', '{'0' * 64}']")
    for text, said in ("", "The patch toy.patch, which toy-top-1.0.eb names, is not there."), (
        "diff", "toy.patch is not the patch that toy-top-1.0.eb pins: its SHA-256 is ",
    ):  # fmt: skip
        if text:
            offering.recipe("toy-top").with_name("toy.patch").write_text(text)
        done = offering.run("install", "ours", "--jobs", "1", status=3)
        assert said in " ".join(done.err.split())
        assert offering.begun() == []


def test_it_is_said_how_to_enter_what_is_elsewhere(offering: Site, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    done = offering.run("install", "ours", "--jobs", "1", prefix=elsewhere)
    [line] = [line for line in done.out.splitlines() if line.startswith("Installed ours.")]
    assert line == f"Installed ours. Enter it with 'envkit shell ours --prefix {elsewhere}'."
    usual = offering.run("install", "ours", "--jobs", "1", env={"ENVKIT_PREFIX": str(offering.prefix)})
    assert "Enter it with 'envkit shell ours'." in usual.out
