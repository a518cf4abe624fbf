"""The images for GPUs, built in full when what they are made of has changed since they were built and verified."""

import pytest

from .. import gpu_images
from ..stacks import Site

pytestmark = pytest.mark.integration


@pytest.mark.parametrize("name", gpu_images.FLAGS)
def test_an_image_is_what_was_built_and_verified(name: str, stacks: Site) -> None:
    found = gpu_images.build(name, stacks) if gpu_images.has_changed(name) else gpu_images.recorded()[name]
    assert set(found["flags"]) == gpu_images.FLAGS[name]
    assert found["nccl"] > 20000
