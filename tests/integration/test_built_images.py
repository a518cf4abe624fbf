"""Images, built in full where what they are made of has changed since they were built and verified."""

import pytest

from .. import built_images
from ..stacks import Site

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", built_images.FLAGS)
def test_an_image_is_what_was_built_and_verified(name: str, stacks: Site) -> None:
    found = built_images.build(name, stacks) if built_images.has_changed(name) else built_images.recorded()[name]
    assert set(found["flags"]) == built_images.FLAGS[name]
    assert (found["nccl"] > 20000) is ("nccl" in found["flags"])
