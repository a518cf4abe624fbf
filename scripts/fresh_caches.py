"""A plugin of pytest for scripts/mutate.py: what functools keeps, which hides the code a test runs, is forgotten."""

import os
import sys

import pytest


def forget() -> None:
    """Clear what functools keeps for the functions of envkit."""
    for name, module in list(sys.modules.items()):
        if name.startswith("envkit."):
            for value in list(vars(module).values()):
                if callable(clear := getattr(value, "cache_clear", None)):
                    clear()


def pytest_sessionstart() -> None:
    """Begin without what an earlier process kept: a mutant's is forked from one that has collected the tests."""
    forget()


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """Where mutmut notes which test calls which function, have each test call all that it needs."""
    if os.environ.get("MUTANT_UNDER_TEST") == "stats":
        forget()
