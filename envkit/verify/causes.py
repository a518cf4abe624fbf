"""One root cause first: which of all that failed caused the rest."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from msgspec.structs import replace

from envkit.system import toml
from envkit.system.resources import data
from envkit.verify.outcome import Result, Status


def ranked(results: Sequence[Result]) -> list[Result]:
    """The same results, the root cause first; what follows from it names it in `because_of`.

    Where nothing failed they stay as they are. Of several failures that can be the cause, the one of the uppermost
    line of causes.toml is, and of equals the first.
    """
    bad = [result for result in results if result.is_bad]
    root = min(bad, key=lambda result: (place(result), result.status is not Status.FAIL), default=None)
    if root is None:
        return list(results)
    others = [follower(result, root) for result in results if result is not root]
    followers = [result for result in others if result.because_of]
    unrelated = [result for result in others if result.is_bad and not result.because_of]
    return [root, *unrelated, *followers, *filter(is_good, others)]


def can_be_explained(result: Result) -> bool:
    """Whether a result is a failure that something else may have caused."""
    return result.status is Status.FAIL and place(result) < last()


def is_good(result: Result) -> bool:
    """Whether a result keeps nobody from working."""
    return not result.is_bad


def follower(result: Result, root: Result) -> Result:
    """A result with the root cause that it follows from, if it does."""
    follows = place(root) < place(result) < last() or (result.is_unmeasured and root.status is Status.FAIL)
    return replace(result, because_of=root.id) if result.is_bad and follows else result


def place(result: Result) -> int:
    """How far down a result stands in causes.toml; what is not in it comes before what was not measured."""
    if result.is_unmeasured:
        return last() + 1
    names = (f"{result.id}.{result.case}", result.id, result.id.rpartition("-")[0])
    return next((order()[name] for name in names if name in order()), last())


@functools.cache
def order() -> Mapping[str, int]:
    """The line of each CHECK and CHECK.CASE."""
    lines = toml.read(data("verify/causes.toml"), dict[str, list[list[str]]])["order"]
    return {name: number for number, names in enumerate(lines) for name in names}


def last() -> int:
    """Return the number that stands for all that is in no line."""
    return max(order().values()) + 1
