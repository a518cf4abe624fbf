"""One case, run in namespaces of its own: make a world, break it, verify, do what the remedy says, verify again."""

from __future__ import annotations

import argparse
import json
import os
import re
import sys
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

from . import judge
from .kinds import Kind, World, combined, find

LIMIT_S = 200.0
REPAIR_S = 1200.0
DEAD = re.compile(
    r"Fatal Python error|Could not find platform|lib-dynload/.*undefined symbol|error while loading shared libraries"
)


def main() -> int:
    """Run the case as a child of the world's first process, which only reaps."""
    child = os.fork()
    if child:
        while True:
            pid, status = os.wait()
            if pid == child:
                return os.waitstatus_to_exitcode(status)
    given = arguments()
    try:
        record = run(given)
    except BaseException:
        record = {"defect": traceback.format_exc()}
    Path(given.record).write_text(json.dumps(record))
    os._exit(0)


def arguments() -> Any:
    parser = argparse.ArgumentParser()
    for name in ("--kind", "--stack", "--prefix", "--envkit", "--folder", "--extras", "--record", "--used"):
        parser.add_argument(name, required=True)
    parser.add_argument("--lower", action="append", default=[])
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--no-repair", action="store_true")
    parser.add_argument("--no-rebuild", action="store_true")
    parser.add_argument("--oracle", action="store_true")
    return parser.parse_args()


def run(given: Any) -> dict[str, Any]:
    """The record of a case."""
    os.umask(0o022)
    used = json.loads(Path(given.used).read_text())
    kinds = [find(name, used, given.seed) for name in given.kind.split("&")]
    kind = kinds[0] if len(kinds) == 1 else combined(kinds)
    world = World(
        stack=given.stack,
        prefix=Path(given.prefix),
        envkit=Path(given.envkit),
        folder=Path(given.folder),
        extras=Path(given.extras),
        lower=tuple(map(Path, given.lower)),
        seed=given.seed,
        renames=all(each.renames for each in kinds),
    )
    world.make()
    record: dict[str, Any] = {"name": given.kind, "group": kind.group, "did": kind.did, "true": kind.true}
    if kind.options:
        world.options = list(kind.options)
    try:
        kind.do(world)
        record |= asked(kind, world) if given.oracle else judged(kind, world, given)
    finally:
        for each in reversed(world.undo):
            each()
    record["notes"] = world.notes
    return record


def asked(kind: Kind, world: World) -> dict[str, Any]:
    """Whether what should be broken is not: a small job works, too, or the moment was missed."""
    words = ["envkit", "run", world.stack, "--", "mpirun", "-np", "2", "--oversubscribe", "--allow-run-as-root"]
    words += ["python", str(Path(__file__).with_name("job.py")), world.framework]
    ran = world.call(world.script(f"timeout -k 5 60 {' '.join(words)}; exit $?"), "first", LIMIT_S, kind.during)
    works = ran["status"] == 0 and ran["stdout"].count("the job is done") == 2
    return {"first": ran, "said": judge.NOTHING, "score": "works" if works else "breaks"}


def is_unbroken(kind: Kind, world: World, record: dict[str, Any]) -> bool:
    """Whether what should be broken is not: a small job works, too, or the moment was missed."""
    if kind.during:
        return any("[]" in note or "[0]" in note for note in world.notes)
    if kind.group == "a rank raises, ends or sleeps":
        return not world.mark.exists()
    if kind.group == "wrong numbers" or world.prefixed or kind.either:
        return False
    record["oracle"] = asked(kind, world)
    return bool(record["oracle"]["score"] == "works")


def judged(kind: Kind, world: World, given: Any) -> dict[str, Any]:
    """What came of the first run and, where it says what to do, of the second."""
    tried_for = kind.true
    if kind.either:
        tried = asked(kind, world)
        if tried["score"] == "works":
            kind = replace(kind, true="", group="harmless (a job works)")
    ran = world.call(world.script(), "first", LIMIT_S, kind.during)
    found = judge.said(ran)
    record: dict[str, Any] = {"first": ran, "said": found, "traceback": judge.is_traceback(ran)}
    record |= {"group": kind.group, "true": kind.true}
    if kind.either:
        record["oracle"] = tried
    passed = found["verdict"] == "pass"
    if DEAD.search(ran["stderr"]) and found["verdict"] == "error" and not found["remedy"]:
        return record | {"group": "apart: envkit's own Python dies", "right": None, "score": "apart"}
    if kind.harmless and kind.either and not passed and judge.names(tried_for, found):
        return record | {"right": None, "score": "disputed"}  # the small job does less than a verification
    if kind.harmless:
        return record | {"right": passed, "score": "pass" if passed else "false fail"}
    if passed and is_unbroken(kind, world, record):
        return record | {"right": None, "score": "works anyway", "true": ""}
    if passed:
        return record | {"right": False, "score": "false pass", "mended": False, "how": kind.mended}
    record["right"] = not ran["hung"] and not record["traceback"] and judge.names(kind.true, found)
    record["score"] = "right" if record["right"] else "wrong"
    record["how"] = kind.mended
    told = kind.mended == "words" and record["right"] and kind.is_said(found["remedy"])
    if kind.mended == "words" and (kind.during or not found["commands"]):
        return record | {"mended": told}
    builds = any(re.search(r"envkit (install|repair)", command) for command in found["commands"])
    if not found["commands"]:
        return record | {"mended": False}
    if given.no_repair or (given.no_rebuild and builds):
        return record | {"mended": None, "builds": builds}
    record["builds"] = builds
    commands = list(found["commands"])
    again = world.call(world.script(*commands), "second", REPAIR_S)
    after = judge.said(again)
    for _ in range(kind.rounds - 1):
        if after["verdict"] == "fail" and after["commands"]:
            commands += after["commands"]
            again = world.call(world.script(*commands), "second", REPAIR_S)
            after = judge.said(again)
    return record | {"second": again, "said_after": after, "mended": told or after["verdict"] == "pass"}


if __name__ == "__main__":
    sys.exit(main())
