"""What is built in full only where what it is made of has changed since it was built and verified."""

import pytest
from filelock import FileLock

from .. import built
from ..stacks import Site
from .test_stacks import SELDOM, SELDOM_GROUP

pytestmark = pytest.mark.integration


NAMES = [pytest.param(name, marks=[SELDOM_GROUP] if name == SELDOM else []) for name in built.FLAGS]


@pytest.mark.parametrize("name", NAMES)
def test_it_is_what_was_built_and_verified(name: str, stacks: Site, pytestconfig: pytest.Config) -> None:
    anew = pytestconfig.getoption("all") or built.has_changed(name)
    found = built.build(name, stacks) if anew else built.found(name)
    if anew:
        built.make_room(name, stacks)
    if anew and pytestconfig.getoption("record"):
        with FileLock(stacks.prefix / "verified.lock"):
            built.write(name, found)
    assert set(found["flags"]) == built.FLAGS[name]
    assert (found["nccl"] > 20000) is ("nccl" in found["flags"])
