"""An installation that cannot be entered, or that lacks what it is for: told, kept, and not offered."""

from pathlib import Path

import pytest

from .site import Site

pytestmark = pytest.mark.integration

LMOD = "/usr/share/lmod/lmod/libexec/lmod"


def killed_outside_of_eb(site: Site) -> Path:
    """A modules tool that is killed when envkit enters, as long as ~/kill is there; eb asks it for Python's words."""
    path = site.home / "lmod"
    path.write_text(f'#!/bin/sh\n[ "$1" != bash ] || [ ! -e ~/kill ] || kill -KILL $$\nexec {LMOD} "$@"\n')
    path.chmod(0o755)
    (site.home / "kill").touch()
    return path


def test_a_modules_tool_that_is_killed_at_the_end(site: Site) -> None:
    env = {"LMOD_CMD": str(killed_outside_of_eb(site))}
    killed = site.install("toy-other", env=env).expect(92)
    assert "envkit: the module toy-other/1.0 could not be loaded." in killed.err
    assert f"The modules tool {env['LMOD_CMD']} was killed by SIGKILL." in killed.err
    assert "What is built is kept" in killed.err and "Traceback" not in killed.err
    assert "Installed" not in killed.out and "nothing to verify" not in killed.out
    assert not site.is_offered("toy-other")
    begun = site.begun()
    assert begun == ["toy-base/1.0", "toy-other/1.0"]
    (site.home / "kill").unlink()
    again = site.installed("toy-other", env=env)
    assert "It has no Horovod, so there is nothing to verify." in again.out
    assert site.is_offered("toy-other") and site.begun() == begun
    (site.home / "kill").touch()
    outside = site.run("run", "toy-other-1.0", "--", "echo", "reached", status=92, env=env)
    assert outside.out == "" and "was killed by SIGKILL" in outside.err


def test_a_recipe_for_horovod_that_brings_none(site: Site) -> None:
    site = site.own_recipes()
    recipe = site.recipe("Horovod")
    recipe.write_text(site.recipe("toy-other").read_text().replace("toy-other", "Horovod"))
    for _ in range(2):  # the second time there is nothing left to build
        lacking = site.install("Horovod").expect(10)
        assert "Horovod-1.0 was built, but the Python in it finds no Horovod, so it is not installed." in lacking.err
        assert "What is built is kept." in lacking.err and "Traceback" not in lacking.err
        assert not site.is_offered("Horovod")
        assert site.begun() == ["toy-base/1.0", "Horovod/1.0"]
    site.run("run", "Horovod-1.0", "--", "true", status=6)
