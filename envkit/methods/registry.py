"""The methods: each is a folder of that name, which has ``method.py``, what planning/method.py describes, and
``receipt.py``. knowledge/methods.toml names them.
"""

from importlib import import_module
from typing import TYPE_CHECKING, cast

from envkit.knowledge import methods

if TYPE_CHECKING:
    from envkit.environments.receipt import Receipt
    from envkit.planning.method import Method

NAMES = methods.names()


def method(name: str) -> "Method":
    """Return a method."""
    return cast("Method", import_module(f"envkit.{name}.method"))


def receipt_of(name: str) -> "type[Receipt]":
    """Return the type of a method's receipts, which is the quicker to import."""
    return cast("type[Receipt]", import_module(f"envkit.{name}.receipt").RECEIPT)
