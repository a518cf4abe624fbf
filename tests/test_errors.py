import ast
import re

import pytest

from envkit import errors
from envkit.errors import EnvkitError, Interrupted

from .test_imports import FILES, nodes

CLASSES = [one for one in vars(errors).values() if isinstance(one, type) and issubclass(one, EnvkitError)]
DOCUMENTED = {int(code) for code in re.findall(r"^(\d+) ", errors.__doc__ or "", re.MULTILINE)}
NOT_ERRORS = {0, 1, 9, 141}


def made() -> set[str]:
    """Every name that is called, or that names what is called later, anywhere in the package."""
    found = set()
    for module in FILES:
        for node in nodes(module):
            called = [node.func] if isinstance(node, ast.Call) else []
            called += [node.body, node.orelse] if isinstance(node, ast.IfExp) else []
            found |= {name.id for name in called if isinstance(name, ast.Name)}
    return found


def test_documented_exit_codes_are_those_of_the_classes() -> None:
    codes = {kind.exit_code for kind in CLASSES} | {Interrupted(signal_number=2, what="").exit_code}
    assert codes | NOT_ERRORS == DOCUMENTED


@pytest.mark.xdist_group("imports")
def test_every_class_is_raised_somewhere() -> None:
    raised = made()
    assert [kind.__name__ for kind in CLASSES if kind.__name__ not in raised and not kind.__subclasses__()] == []


def test_every_class_says_when() -> None:
    assert [kind.__name__ for kind in CLASSES if not (kind.__doc__ or "").strip().endswith(".")] == []


def test_text_is_what_happened() -> None:
    assert str(EnvkitError(what="It broke.", why="So.", fix="Mend it.")) == "It broke."


@pytest.mark.parametrize(("number", "code"), [(1, 129), (2, 130), (15, 143)])
def test_interruptions_end_as_the_signal_would(number: int, code: int) -> None:
    assert Interrupted(signal_number=number, what="Stopped.").exit_code == code
