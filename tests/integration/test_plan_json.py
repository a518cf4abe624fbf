"""The plan of an installation, what is fetched and what is checked, as JSON of real tools."""

from pathlib import Path

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


def test_what_is_wrong_with_caches_and_keys_is_told_to_scripts_as_well(site: Site, tmp_path: Path) -> None:
    env = {"ENVKIT_CACHE_FROM": f"{tmp_path / 'none'}", "ENVKIT_CACHE_KEYS": f"{tmp_path / 'none.pub'}"}
    planned = site.start("install", "pytorch-2.13-cpu", "--dry-run", "--json", "--offline", env=env)
    told = valid("install --dry-run", planned.expect(4).out)  # no source has been fetched
    of_key, of_cache = told["cache_problems"]
    assert f"{tmp_path / 'none.pub'} " in of_key and "There is no such folder" in of_cache
