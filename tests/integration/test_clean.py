"""``envkit clean`` beside a real installation: nothing of it goes, and afterwards what it made works."""

import json

import pytest

from .site import Site

pytestmark = pytest.mark.integration


def test_beside_an_installation_that_runs(site: Site) -> None:
    site = site.own_recipes()
    site.hold("middle")
    running = site.install("toy-top")
    site.wait_for(running, "middle")
    done = site.run("clean", "all", "--yes", "--json")
    items = [one for one in json.loads(done.out)["items"] if one["kind"] not in ("sessions", "reports")]
    assert items and not any(one["removed"] for one in items)
    site.let_go()
    running.expect(0)
    site.run("run", "toy-top-1.0", "--", "toy-top")
    done = site.run("clean", "all", "--yes", "--json")
    assert any(one["removed"] for one in json.loads(done.out)["items"])
    site.run("run", "toy-top-1.0", "--", "toy-top")
    site.run("repair", "toy-top-1.0", "--dry-run")
