"""Locks of real installations: the same elsewhere, refused where that cannot be, told where the host differs."""

import json
import socket
from pathlib import Path

import pytest

from .site import Site

pytestmark = pytest.mark.integration


def locked(site: Site, toy: str) -> Path:
    """Install a toy, and write its lock into a file."""
    site.installed(toy)
    path = site.folder / "toy.lock"
    path.write_text(site.run("show", f"{toy}-1.0", "--lock").out)
    return path


def test_the_same_elsewhere(site: Site) -> None:
    lock = locked(site, "toy-middle")
    text = lock.read_text()
    for private in (str(site.folder), str(site.toys), socket.gethostname(), str(Path.home())):
        assert private not in text
    told = json.loads(text)
    assert [part["name"] for part in told["parts"]] == ["toy-base/1.0", "toy-middle/1.0"]
    assert told["parts"][0]["recipe"] == "toy-base-1.0.eb"
    assert told["parts"][0]["sources"][0]["filename"] == "toy.c"
    assert set(told["tools"]) == {"envkit", "easybuild-framework", "easybuild-easyblocks", "easybuild-easyconfigs"}

    other = site.folder / "other"
    again = site.installed("toy-middle", "--locked", str(lock), prefix=other)
    assert "Differs:" not in again.out
    assert site.run("show", "toy-middle-1.0", "--lock", prefix=other).out == text
    assert "Nothing to do." in site.installed("toy-middle", "--locked", str(lock), prefix=other).out
    kept = json.loads((other / site.tree.name / "kept" / "toy-middle-1.0.json").read_text())["files"]
    assert "modules/all/toy-middle/1.0.lua" in kept


def test_what_cannot_be_the_same_is_refused_and_what_differs_is_told(site: Site) -> None:
    site = site.own_recipes()
    lock = locked(site, "toy-other")
    content = json.loads(lock.read_text())
    content["machine"]["compiler"] = "GCC 4.8.5"
    lock.write_text(json.dumps(content))
    recipe = site.recipe("toy-other")
    recipe.write_text(recipe.read_text() + "\n# edited\n")
    other = site.folder / "other"
    refusal = "toy-other/1.0 is made from something else here than in the lock"
    for words in (["--dry-run"], []):
        refused = site.install("toy-other", "--locked", str(lock), *words, prefix=other).expect(3)
        assert "Differs:  compiler: GCC 4.8.5 in the lock, GCC " in refused.out
        assert refusal in refused.out + refused.err
    assert not other.exists()
    # what is there counts as it was made, and not as its recipe is now
    assert "Nothing to do." in site.installed("toy-other", "--locked", str(lock)).out
    site.installed("toy-other", "--rebuild")
    assert refusal in site.install("toy-other", "--locked", str(lock)).expect(3).err
