"""Sources in a cache of builds, with the real eb: put there by one, taken by another who has no network."""

import pytest

from ..test_json_types import valid
from .site import Site

pytestmark = pytest.mark.integration


@pytest.mark.xdist_group("schemas")
def test_put_by_one_and_taken_by_another_without_a_network(site: Site) -> None:
    cache = site.folder / "cache"
    refused = site.run("fetch", site.recipe("toy-top"), "--to", cache, status=2)
    assert f"There is no folder {cache}." in refused.err
    cache.mkdir()
    told = valid("fetch", site.run("fetch", site.recipe("toy-top"), "--to", cache, "--json").out)
    there = {path.name for path in (cache / "sources").iterdir()}  # config.guess as well, where it was to be had
    assert (told["to"], told["sent"]) == (str(cache), len(there))
    assert {one["sha256"] for one in told["sources"]} <= there
    again = site.run("fetch", site.recipe("toy-top"), "--to", cache)
    assert f"0 of {len(there)} files were sent to {cache}" in " ".join(again.out.split())
    alone = site.own_recipes("http://127.0.0.1:9")
    without = alone.install("toy-top", prefix=site.folder / "new").expect(4)
    assert "cannot be fetched from any place where they are sought" in " ".join(
        without.out.split() + without.err.split()
    )
    env = {"ENVKIT_CACHE_FROM": str(cache)}
    alone.installed("toy-top", prefix=site.folder / "new", env=env)
    assert (site.folder / "new/sources/toy.c").read_bytes() == (site.toys / "toy.c").read_bytes()
