"""Each method has what is asked of one."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import envkit
from envkit.apptainer import method as apptainer
from envkit.easybuild import method as easybuild
from envkit.eessi import method as eessi
from envkit.methods import registry
from envkit.planning.method import Method

METHODS: list[Method] = [easybuild, apptainer, eessi]  # mypy holds the types of their functions
ASKED = [name for name, _ in inspect.getmembers(Method, inspect.isfunction) if not name.startswith("_")]


def test_those_named_are_the_folders_that_have_a_method() -> None:
    there = {path.parent.name for path in Path(envkit.__file__).parent.glob("*/method.py")} - {"planning"}
    assert set(registry.NAMES) == there
    assert [registry.method(name) for name in registry.NAMES] == METHODS


@pytest.mark.parametrize("name", registry.NAMES)
def test_it_has_every_function_and_a_receipt_of_its_name(name: str) -> None:
    asked = {one: list(inspect.signature(getattr(Method, one)).parameters)[1:] for one in ASKED}
    assert {one: list(inspect.signature(getattr(registry.method(name), one)).parameters) for one in ASKED} == asked
    assert registry.receipt_of(name).__struct_config__.tag == name
