"""The plan of an installation, what is fetched and what is checked, as JSON of real tools."""

import pytest

from ..test_json_types import valid
from .site import Site

pytestmark = pytest.mark.integration


@pytest.mark.xdist_group("schemas")
def test_the_plan_and_the_sources(site: Site) -> None:
    told = valid("install --dry-run", site.run("install", site.recipe("toy-top"), "--dry-run", "--json").out)
    assert [one["name"] for one in told["steps"]] == ["toy-base/1.0", "toy-middle/1.0", "toy-top/1.0"]
    assert not any(one["there"] for one in (*told["steps"], *told["sources"])) and told["problems"] == []
    told = valid("fetch", site.run("fetch", site.recipe("toy-top"), "--json").out)
    assert [one["name"] for one in told["sources"]].count("toy.c") == len(told["sources"])
    site.installed("toy-top")
    told = valid("install --dry-run", site.run("install", site.recipe("toy-top"), "--dry-run", "--json").out)
    assert all(one["there"] for one in (*told["steps"], *told["sources"]))
