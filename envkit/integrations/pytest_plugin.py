"""A plugin of pytest: a test marked ``horovod`` runs in ranks of an environment.

Outside, its fixtures are not set up and its function is not called: each rank does both, by a pytest of its own
(inside/pytest_rank.py). What the ranks found is the outcome of the test here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from envkit.verify.target import Target

MARK = "horovod"
LIMIT_S = 300.0
LEAST_S, MOST_S = 0.001, 1e6
HELP = (
    f"{MARK}(ranks=2, environment=None, nodes=None, timeout=None): run the test in ranks of an environment, started by "
    "envkit; timeout is in seconds."
)


@dataclass(frozen=True, kw_only=True)
class RanksMark:
    """The ranks that the mark of a test asks for."""

    ranks: int = 2
    environment: str | None = None
    nodes: int | None = None
    timeout: float | None = None


TARGETS = pytest.StashKey[dict[str | None, "Target"]]()


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option and the settings."""
    group = parser.getgroup("envkit")
    text = f"Run tests that are marked {MARK} in this environment of envkit, or in the virtual environment of a folder."
    group.addoption("--horovod-environment", metavar="NAME|DIR", help=text)
    parser.addini("horovod_environment", "The same, where the option is not given.", default="")
    parser.addini("horovod_timeout", f"How long such a test may take (s). Default: {LIMIT_S:g}.", default="")


def pytest_configure(config: pytest.Config) -> None:
    """Make the mark known."""
    config.addinivalue_line("markers", HELP)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Have no fixture set up here for what runs in ranks. Raises UsageError for a mark or limit that makes no sense."""
    for item in items:
        if item.get_closest_marker(MARK) is not None:
            limit(item.config, asked(item))
            if not isinstance(item, pytest.Function) or not hasattr(item, "fixturenames") or is_unittest(item):
                raise pytest.UsageError(f"{item.nodeid}: the mark {MARK} goes with functions and methods of classes.")
            item.fixturenames[:] = []


def is_unittest(item: pytest.Item) -> bool:
    """Say whether a test is a method of unittest.TestCase, which pytest does not call itself."""
    import unittest

    return isinstance(getattr(item, "cls", None), type) and issubclass(item.cls, unittest.TestCase)  # type: ignore[attr-defined]


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a marked test in ranks, in place of its function."""
    if pyfuncitem.get_closest_marker(MARK) is None:
        return None
    from envkit.errors import EnvkitError, Interrupted

    wanted = asked(pyfuncitem)
    try:
        run(pyfuncitem, wanted, limit(pyfuncitem.config, wanted))
    except Interrupted as stopped:
        if stopped.exit_code == 130:
            raise KeyboardInterrupt from stopped
        pytest.exit(stopped.what, stopped.exit_code)
    except EnvkitError as error:
        pytest.fail("\n".join(filter(None, (f"envkit: {error.what}", error.why, error.fix))), pytrace=False)
    return True


def asked(item: pytest.Item) -> RanksMark:
    """Return what the marks of a test ask for, that of the function before that of its class. Raises UsageError."""
    given: dict[str, Any] = {}
    for mark in item.iter_markers(MARK):
        if mark.args:
            raise pytest.UsageError(f"{item.nodeid}: write the arguments with names: @pytest.mark.{HELP}")
        given = {**mark.kwargs, **given}
    try:
        ranks_mark = RanksMark(**given)
    except TypeError:
        odd = ", ".join(sorted(given.keys() - RanksMark.__dataclass_fields__.keys()))
        raise pytest.UsageError(f"{item.nodeid}: the mark {MARK} has no {odd}. It is {HELP}") from None
    for name, least in (("ranks", 1), ("nodes", 1), ("timeout", LEAST_S)):
        value = getattr(ranks_mark, name)
        if value is not None and not (isinstance(value, int | float) and least <= value <= MOST_S):
            raise pytest.UsageError(
                f"{item.nodeid}: {name}={value!r} of the mark {MARK} is not a number from {least:g} to {MOST_S:g}."
            )
    return ranks_mark


def limit(config: pytest.Config, wanted: RanksMark) -> float:
    """Return how long a test may take (s). Raises UsageError."""
    text = config.getini("horovod_timeout")
    try:
        seconds = float(text or LIMIT_S)
    except ValueError:
        seconds = 0.0
    if not LEAST_S <= seconds <= MOST_S:
        raise pytest.UsageError(f"horovod_timeout: {text!r} is no number of seconds up to {MOST_S:g}.")
    return wanted.timeout or seconds


def run(item: pytest.Function, wanted: RanksMark, limit_s: float) -> None:
    """Run a test in ranks; show what each printed. Raises what pytest.fail and pytest.skip do, and EnvkitError."""
    from envkit.integrations import ranks
    from envkit.launch.launcher import LaunchRequest

    ranks.require_none(wanted.ranks)
    goal = target(item.config, wanted.environment)
    results = ranks.run(goal, LaunchRequest(ranks=wanted.ranks, nodes=wanted.nodes), job(item, limit_s))
    for outcome in results.outcomes:
        for title, text in outcome.sections:
            item.add_report_section("call", f"{title} of rank {outcome.rank}", text)
    if text := ranks.failure(results):
        pytest.fail(text, pytrace=False)
    if reason := ranks.skipped(results):
        pytest.skip(reason)


def target(config: pytest.Config, named: str | None) -> Target:
    """Return the environment: of the mark, the option or the ini file, else that which this is called in or the only
    one. Raises EnvkitError.
    """
    from envkit.verify.target import find

    targets = config.stash.setdefault(TARGETS, {})
    name = named or config.getoption("--horovod-environment") or config.getini("horovod_environment") or None
    if name not in targets:
        targets[name] = find(name)
    return targets[name]


def job(item: pytest.Function, limit_s: float) -> dict[str, Any]:
    """Return what a rank is to run: pytest's arguments, settings and search path, from those of this session."""
    import os
    import sys

    config = item.config
    cwd = str(config.invocation_params.dir)
    names = [node.name for node in item.listchain() if isinstance(node, pytest.Class | pytest.Function)]
    return {
        "test": "::".join([str(item.path), *names]),
        "arguments": ["--rootdir", str(config.rootpath), "--import-mode", str(config.getoption("importmode"))],
        "settings": settings(config),
        "path": [cwd] if {"", cwd} & set(sys.path) else [],
        "limit_s": limit_s,
        "borrowed": os.path.dirname(os.path.dirname(pytest.__file__)),  # noqa: PTH120
        "version": pytest.__version__,
        "folders": [str(config.rootpath), cwd],
    }


def settings(config: pytest.Config) -> Mapping[str, list[str]]:
    """Return what of the ini file says how tests are found and imported; the rest may be of plugins that ranks lack."""
    words = ("pythonpath", "python_files", "python_classes", "python_functions", "usefixtures")
    return {name: [str(value) for value in config.getini(name)] for name in words}
