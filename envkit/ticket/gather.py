"""The parts of a report for a ticket, each by itself: one that cannot be made says why, and the others are there."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Final

import msgspec

import envkit
from envkit.errors import EnvironmentMissing, EnvkitError
from envkit.system import record
from envkit.ticket.private import Redactor

if TYPE_CHECKING:
    from envkit.environments.prefix import Prefix
    from envkit.environments.receipt import Receipt
    from envkit.ticket.logs import Log
    from envkit.verify.report import Report

VERSION: Final = 1
WIDTH = 110  # columns
WIDE = 10_000  # columns: lines are wrapped when what is private has been taken out
MOST = 2_000_000  # characters of a verdict's JSON; of a larger one the facts of each rank are left out
PACKAGES = ("easybuild", "easybuild-framework", "easybuild-easyblocks", "easybuild-easyconfigs")


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """One part: a line on what it says, the same as text and as data, or why it could not be made."""

    id: str
    title: str
    summary: str = ""
    text: str = ""
    data: Any = None
    problem: str = ""


class Ticket(msgspec.Struct, frozen=True, kw_only=True):
    """A report: by which envkit, when (UTC), on which environment, and its parts."""

    version: int = VERSION
    envkit: str = envkit.__version__
    made: str
    environment: str
    parts: tuple[Part, ...]


def gather(name: str | None, prefix: Prefix, logs: Sequence[Log], env: Mapping[str, str] = os.environ) -> Ticket:
    """Return the report on an environment, on the only one, or on none, without anything private.

    ``logs`` are those of what failed, read already.
    """
    receipts: list[Receipt] = []
    of_environment = made("environment", "Environment", lambda: environment(name, prefix, receipts))
    receipt = receipts[0] if receipts else None
    called = receipt.name if receipt else name or ""
    private = Redactor(env)
    parts = [
        made("logs", "Logs", lambda: diagnoses(logs, private)),
        made("verdict", "Last verdict", lambda: verdict(receipt, name, private)),
        of_environment,
        made("lock", "Lock", lambda: lock(receipt)),
        made("doctor", "This machine (envkit doctor)", lambda: doctor(prefix, env)),
        made("versions", "Versions", versions),
    ]
    for part in parts:
        private.learn(f"{part.text}\n{part.problem}" if part and len(part.text) < MOST else "")
    public = tuple(without(part, private) for part in parts if part is not None)
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime())
    return Ticket(made=at, environment=private.out_of(called), parts=public)


def require_known(name: str, prefix: Prefix) -> None:
    """Require a name of an environment, be it damaged or begun, or of a stack. Raises EnvironmentMissing."""
    from envkit.install import listing
    from envkit.methods import installed

    try:
        _ = installed.venv_named(prefix, name) or installed.placed(prefix, name)
    except EnvironmentMissing:
        if name not in {entry.name for entry in listing.entries(prefix)}:
            raise
    except EnvkitError:
        return  # which is what the report is about


def made(part: str, title: str, make: Callable[[], dict[str, Any] | None]) -> Part | None:
    """Return a part, or what kept it from being made; None where there is nothing to say."""
    try:
        content = make()
    except EnvkitError as error:
        return Part(id=part, title=title, problem=" ".join(filter(None, (error.what, error.why, error.fix))))
    except Exception as error:  # what a ticket is about may break any part of its report
        return Part(id=part, title=title, problem=f"envkit failed at this: {type(error).__name__}: {error}")
    return Part(id=part, title=title, **content) if content is not None else None


def without(part: Part, private: Redactor) -> Part:
    """Return a part without anything private."""
    return msgspec.structs.replace(
        part,
        summary=private.out_of(part.summary),
        text=private.out_of(part.text),
        data=private.out_of_all(part.data),
        problem=private.out_of(part.problem),
    )


def diagnoses(logs: Sequence[Log], private: Redactor) -> dict[str, Any] | None:
    """Return what diagnose says of each log, with the lines about it and the last ones."""
    for entry in logs:
        private.learn("\n".join((*entry.around, *entry.end)))
    if not logs:
        return None
    logs = [cleared(log, private) for log in logs]
    return {
        "summary": "; ".join(f"{log.name}: {log.says}" for log in logs),
        "text": "\n\n".join(log.text for log in logs),
        "data": [log.data for log in logs],
    }


def cleared(log: Log, private: Redactor) -> Log:
    """Return a log without anything private in its lines, before these are numbered: a secret may be wrapped."""
    around, end = (tuple(private.out_of_all(lines)) for lines in (log.around, log.end))
    return dataclasses.replace(log, around=around, end=end)


def verdict(receipt: Receipt | None, name: str | None, private: Redactor) -> dict[str, Any]:
    """Return the last report of verify: on the environment, else, where none was named, on any."""
    from envkit.verify import last
    from envkit.verify.report import render

    entry = last.last(receipt.called, receipt.tree) if receipt else None if name else last.latest()
    if entry is None:
        return {"problem": "There is none: envkit verify, or srun envkit verify in a job, has not run for this user."}
    for row in entry.report.hosts:
        private.host(row.name)
    private.learn(entry.report.launcher_said)
    rows = (msgspec.structs.replace(row, name=private.hosts.get(row.name, row.name)) for row in entry.report.hosts)
    entry = msgspec.structs.replace(entry, report=msgspec.structs.replace(entry.report, hosts=tuple(rows)))
    at = time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(entry.at))
    first = entry.report.cause
    return {
        "summary": f"{entry.report.verdict.upper()} of {entry.name}, {at}" + (f": {first.message}" if first else ""),
        "text": render(shown(entry.report, private), width=WIDTH),
        "data": bounded(entry.report),
    }


def shown(report: Report, private: Redactor) -> Report:
    """Return a verdict without anything private, whose tables fit what is left."""
    return record.convert(private.out_of_all(bounded(report)), type(report))


def bounded(report: Report) -> Any:
    """Return a verdict as data, without the facts of each rank where these are very many."""
    whole = msgspec.json.encode(report)
    if len(whole) > MOST:
        whole = msgspec.json.encode(msgspec.structs.replace(report, facts=(), ranks=()))
    return msgspec.json.decode(whole)


def environment(name: str | None, prefix: Prefix, receipts: list[Receipt]) -> dict[str, Any]:
    """Return what is known of the environment, and the state of all; ``receipts`` takes its receipt."""
    from envkit.install import listing
    from envkit.methods import installed

    entries = listing.entries(prefix)
    present = [entry for entry in entries if entry.prefix]
    rows = "\n".join(
        f"{row.name}: {row.state}{f', {row.why}' if row.why else ''} ({row.method}, {row.framework}, {row.accelerator})"
        for row in present
    )
    listed = f"Prefix: {prefix}\n{rows or 'Nothing is installed.'}"
    data = {"prefix": str(prefix), "environments": [msgspec.to_builtins(entry) for entry in present]}
    try:
        folder = installed.venv_named(prefix, name)
        receipts.append(installed.in_venv(folder) if folder else installed.placed(prefix, name)[1])
    except EnvkitError as error:
        return {"text": listed, "data": data, "problem": " ".join(filter(None, (error.what, error.why, error.fix)))}
    own = msgspec.to_builtins(msgspec.structs.replace(receipts[0], lock=None))
    damage = listing.damage(receipts[0])
    return {
        "summary": f"{receipts[0].name}: {damage or receipts[0].framework + ' by ' + receipts[0].method}",
        "text": f"{listing.describe(receipts[0])}\n\n{listed}",
        "data": {**data, "receipt": own},
    }


def lock(receipt: Receipt | None) -> dict[str, Any] | None:
    """Return what an environment was made from."""
    from envkit.environments import lockfile
    from envkit.methods import installed

    if receipt is None:
        return None
    locked = installed.lock_of(receipt)
    lines = [
        f"{part.name}: {', '.join(file.filename for file in part.sources) or part.recipe}" for part in locked.parts
    ]
    packages = [f"{name}=={version}" for name, version in locked.packages.items()]
    return {
        "summary": f"{len(locked.parts)} parts, {len(packages)} packages",
        "text": "\n".join([*lines, *packages]),
        "data": msgspec.json.decode(lockfile.text(locked)),
    }


def doctor(prefix: Prefix, env: Mapping[str, str]) -> dict[str, Any]:
    """Return what the doctor says of this machine."""
    from envkit.doctor import gather as facts
    from envkit.doctor import rules, terminal
    from envkit.report.paper import Paper

    report = rules.judge(facts.gather(prefix, (), env))
    return {
        "summary": ", ".join(f"{method.method} {method.state}" for method in report.methods),
        "text": terminal.render(report, Paper(width=WIDE)),
        "data": msgspec.to_builtins(report),
    }


def versions() -> dict[str, Any]:
    """Return the versions of envkit, of what it runs on, and of EasyBuild."""
    table = dict(numbers())
    return {"text": "\n".join(f"{name}: {version}" for name, version in table.items()), "data": table}


def numbers() -> Iterator[tuple[str, str]]:
    """Yield a name and a version for each thing."""
    yield "envkit", envkit.__version__
    yield "Python", f"{platform.python_version()} ({sys.executable})"
    with suppress(OSError):
        yield "system", platform.freedesktop_os_release().get("PRETTY_NAME", "")
    yield "kernel", f"{platform.system()} {platform.release()} {platform.machine()}"
    yield "C library", " ".join(platform.libc_ver())
    for name in PACKAGES:
        with suppress(importlib.metadata.PackageNotFoundError):
            yield name, importlib.metadata.version(name)
