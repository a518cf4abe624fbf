"""Tests that run in ranks, each with another end; tests/integration/test_pytest_plugin.py runs them."""

import os
import sys
import time

import pytest


@pytest.fixture
def hvd():
    import horovod.torch

    horovod.torch.init()
    return horovod.torch


@pytest.mark.horovod(ranks=2)
@pytest.mark.parametrize("number", [3, 5])
def test_passes(hvd, number):
    import torch

    print("hello from", hvd.rank())
    assert hvd.allreduce(torch.tensor([number * hvd.rank()]), op=hvd.Sum).item() == number


@pytest.mark.horovod(ranks=2)
class TestClass:
    def test_fails(self, hvd):
        assert hvd.rank() == 0, "this is wrong"

    @pytest.mark.horovod(timeout=30)
    def test_hangs(self, hvd):
        if hvd.rank() == 1:
            time.sleep(1000)
        hvd.barrier()

    def test_exits(self):
        if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            sys.exit(3)

    def test_dies(self):
        if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            os._exit(5)
        time.sleep(1000)

    def test_is_skipped(self):
        pytest.skip("no GPU")

    def test_is_skipped_in_one(self):
        if os.environ["OMPI_COMM_WORLD_RANK"] == "1":
            pytest.skip("no GPU")

    @pytest.mark.skip(reason="outside")
    def test_is_skipped_outside(self):
        raise AssertionError

    @pytest.mark.xfail(strict=True)
    def test_fails_as_expected(self):
        raise AssertionError

    def test_fixture_fails(self, request):
        request.getfixturevalue("nothing")


def test_runs_outside():
    assert "OMPI_COMM_WORLD_RANK" not in os.environ
