"""Asking several questions at the same time, each for so long at most."""

import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from threading import Thread
from typing import Any

from envkit.doctor.facts import Missing
from envkit.errors import ConfigInvalid, EnvkitError
from envkit.system.process import CutOffError, TimeLimit

GRACE_S = 0.3


@dataclass(frozen=True, kw_only=True)
class Answers:
    """The answers, by the name of the question; what is missing, and the errors of those that explain themselves."""

    values: Mapping[str, Any]
    missing: tuple[Missing, ...]
    errors: Mapping[str, EnvkitError]


Question = Callable[[Mapping[str, Future[Any]]], Any]


def ask(questions: Mapping[str, Question], seconds: float) -> Answers:
    """Ask each question in a thread of its own; it is given the answers to come of the others, which it may wait for.

    A program that a question waits for is ended with the limit, a thread that waits in the kernel is left behind.
    """
    limit = TimeLimit(seconds)
    futures: dict[str, Future[Any]] = {name: Future() for name in questions}
    try:
        for name, question in questions.items():
            Thread(target=answer, args=(question, futures, name, limit), daemon=True).start()
        deadline = limit.deadline + GRACE_S
        answers = {name: waited(name, future, deadline, seconds) for name, future in futures.items()}
    finally:
        limit.end()
    ended = {name: future.exception() for name, future in futures.items() if future.done()}
    return Answers(
        values={name: value for name, value in answers.items() if not isinstance(value, Missing)},
        missing=tuple(value for value in answers.values() if isinstance(value, Missing)),
        errors={name: error for name, error in ended.items() if isinstance(error, EnvkitError)},
    )


def answer(question: Question, asked: Mapping[str, Future[Any]], name: str, limit: TimeLimit) -> None:
    """Answer one question, or say why not."""
    try:
        with limit.held():
            asked[name].set_result(question(asked))
    except BaseException as error:
        asked[name].set_exception(error)


def waited(name: str, future: Future[Any], deadline: float, seconds: float) -> Any:
    """Return an answer, or what became of it. Raises what is a bug."""
    try:
        return future.result(max(deadline - time.monotonic(), 0))
    except CutOffError as error:
        return Missing(probe=name, why=f"'{error}' has not ended in {seconds:g} s", hung=True)
    except TimeoutError:
        return Missing(probe=name, why=f"it has not answered in {seconds:g} s", hung=True)
    except EnvkitError as error:
        return Missing(probe=name, why=error.what.rstrip("."), by_configuration=isinstance(error, ConfigInvalid))
    except (OSError, ValueError) as error:
        return Missing(probe=name, why=f"{type(error).__name__}: {error}")
