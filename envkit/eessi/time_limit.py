"""Reading what may not answer, as a mount does whose client waits: in a thread that can be left behind."""

import time
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from threading import Thread
from typing import TypeVar

from envkit.errors import HostProblem
from envkit.knowledge.eessi import symptom

LIMIT_S = 10
POLL_S = 0.1
Found = TypeVar("Found")


def with_time_limit(first: Path, work: Callable[[Callable[[Path], None]], Found], limit_s: float = LIMIT_S) -> Found:
    """Return the result of ``work``, which tells of each path before it reads it; it begins with the ``first``.

    Raises HostProblem, which names the path, when one takes longer; Ctrl-C counts all the while.
    """
    at = [(first, time.monotonic())]
    result = Future[Found]()

    def run() -> None:
        try:
            result.set_result(work(lambda path: at.append((path, time.monotonic()))))
        except BaseException as error:
            result.set_exception(error)

    thread = Thread(target=run, daemon=True)
    thread.start()
    while thread.is_alive():
        thread.join(POLL_S)
        path, since = at[-1]
        if thread.is_alive() and time.monotonic() - since > limit_s:
            words = symptom("mount-hangs", path=path, seconds=f"{limit_s:.0f}")
            raise HostProblem.of(words)
    return result.result()
