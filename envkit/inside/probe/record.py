"""The record of one rank: a file of JSON lines, each written before the step that it announces.

Lines are {"begin": {...}}, {"phase": NAME, "at": SECONDS}, {"fact": NAME, "value": ..., "seconds": S} and
{"ended": {...}}. A rank that hangs or dies leaves its facts and the name of the step. What cannot be had is
{"error": ..., "traceback": ...}.
"""

import json
import os
import select
import time
import traceback
from typing import Any, Callable, Dict, List, Optional

SEEN_TO_S = 1.0


class Record:
    """The file, and the pipe that tells the watching process how far this one is."""

    def __init__(self, path: str, pipe: Optional[int] = None) -> None:
        self.path = path
        self.pipe = pipe
        self.stream = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def line(self, **entry: Any) -> None:
        os.write(self.stream, (json.dumps(entry) + "\n").encode())

    def arrive(self, phase: str) -> None:
        """Announce a step, with the time (s since 1970)."""
        self.line(phase=phase, at=time.time())
        if self.pipe is not None:
            os.write(self.pipe, (phase + "\n").encode())

    def joined(self) -> None:
        """Tell the watching process that this one is connected to its launcher, and wait until it has seen to that."""
        if self.pipe is not None:
            os.write(self.pipe, b"joined\n")
            if select.select([self.pipe], [], [], SEEN_TO_S)[0]:
                os.read(self.pipe, 1)

    def note(self, name: str, value: Any, seconds: Optional[float] = None) -> None:
        """Make a value a fact."""
        self.line(fact=name, value=value, seconds=seconds)

    def state(self, name: str, measure: Callable[..., Any], *arguments: Any) -> Any:
        """Make the result of a measurement a fact; a failed one is a fact too, and gives None."""
        self.arrive(name)
        start = time.time()
        value = None
        try:
            stated = value = measure(*arguments)
        except (Exception, SystemExit) as error:
            stated = failure(error)
        self.note(name, stated, round(time.time() - start, 6))
        return value


def failure(error: BaseException) -> Dict[str, str]:
    """An exception as a fact."""
    tail = "".join(traceback.format_exception(type(error), error, error.__traceback__))[-2000:]
    message = str(error)[:2000]
    if isinstance(error, SyntaxError) and error.filename and error.filename not in message:  # it tells the name alone
        message += " in %s" % error.filename
    return {"error": "%s: %s" % (type(error).__name__, message), "traceback": tail}


def attempt(measure: Callable[[], Any]) -> Any:
    """The result of a measurement, or its failure."""
    try:
        return measure()
    except Exception as error:
        return failure(error)


def read(path: str) -> Optional[Dict[str, Any]]:
    """The facts of a record as one object, or None where it holds no beginning yet; a cut line is left out."""
    with open(path, "rb") as stream:
        lines = stream.read().split(b"\n")[:-1]
    facts = None  # type: Optional[Dict[str, Any]]
    phases = {}  # type: Dict[str, Dict[str, Any]]
    order = []  # type: List[Dict[str, Any]]
    for line in lines:
        entry = json.loads(line.decode())
        if "begin" in entry:
            facts = entry["begin"]
        elif facts is None:
            continue
        elif "phase" in entry:
            phases[entry["phase"]] = {"name": entry["phase"], "at": round(entry["at"], 4), "seconds": None}
            order.append(phases[entry["phase"]])
        elif "fact" in entry:
            facts[entry["fact"]] = entry["value"]
            if entry["fact"] in phases:
                phases[entry["fact"]]["seconds"] = entry["seconds"]
        elif "ended" in entry:
            facts["ended"] = entry["ended"]
    if facts is not None:
        facts["phases"] = order
        facts["phase"] = order[-1]["name"] if order else "start"
    return facts
