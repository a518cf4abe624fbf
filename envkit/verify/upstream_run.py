"""Running Horovod's own tests in an environment: getting them, and one start for each file and library."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tarfile
import tempfile
import time
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

import msgspec

from envkit.environments.prefix import Prefix
from envkit.errors import ChecksumMismatch, UsageProblem
from envkit.inside.probe import node
from envkit.knowledge.known import known
from envkit.launch import image_launch, launcher, leftover
from envkit.launch.launcher import Launch, LaunchRequest
from envkit.sources.source_cache import Source
from envkit.system import files, process, record
from envkit.system.resources import data
from envkit.system.stopped import Watch
from envkit.verify import session, upstream
from envkit.verify.upstream import ALONE, FileResult, Outcomes, Row, UpstreamEvent, UpstreamRun

if TYPE_CHECKING:
    from envkit.environments.environment import Environment
    from envkit.verify.options import Options
    from envkit.verify.target import Target

TABLE = "upstream_tests"
LARGEST_NOTES = 64 << 20  # bytes that a rank may note of one file
LARGEST_TEST = 8 << 20  # bytes of one file of tests
SAID = 600  # characters of what the launcher said where ranks ended early
LOOK_S = 1.0  # between looks at how far ranks are
LATE_S = 10.0  # for ranks to say where they stand when their time is over
Tell = Callable[[str, str], None]


def sources(python: str) -> list[Source]:
    """The archive of the tests, and the packages that they need besides an environment of that version of Python."""
    table = known(TABLE)
    version = tuple(map(int, python.split(".")[:2]))
    archive = table["source"]
    packages = [
        Source(
            filename=package["filename"],
            sha256=package["sha256"],
            project=package["project"],
            needed_by="its tests",
        )
        for package in table["packages"]
        if "below" not in package or version < tuple(map(int, package["below"].split(".")))
    ]
    return [
        Source(
            filename=archive["filename"],
            folder=archive["folder"],
            sha256=archive["sha256"],
            urls=(archive["url"],),
            needed_by="Horovod's own tests",
        ),
        *packages,
    ]


def cache_of(target: Target) -> Path:
    """The source cache of the environment's prefix where this user may write to it, else one of the user's own."""
    from platformdirs import user_cache_path

    if target.receipt is not None:
        cache = Prefix(root=Path(target.receipt.tree).parent).sources
        if os.access(cache, os.W_OK):
            return cache
    return user_cache_path("envkit") / "sources"


def gathered(target: Target, given: Path | None) -> tuple[Path, list[Source]]:
    """The cache and what has to be in it; the archive is not needed where the user has given a folder."""
    wanted = sources(target.receipt.python if target.receipt is not None else "3.10")
    return cache_of(target), wanted[1:] if given else wanted


def lay_out(folder: Path, cache: Path, wanted: Sequence[Source], given: Path | None) -> None:
    """Put the tests into FOLDER/test, and the packages into FOLDER/packages.

    Raises UsageProblem for a folder that does not have the tests of this release, ChecksumMismatch for an archive.
    """
    table = known(TABLE)
    pins = {**{file: words["sha256"] for file, words in table["files"].items()}, **table["support"]}
    contents = from_folder(given, pins) if given else from_archive(cache / wanted[0].place, pins)
    for name, content in contents:
        path = folder / "test" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    for source in wanted if given else wanted[1:]:
        with zipfile.ZipFile(cache / source.place) as wheel:
            wheel.extractall(folder / "packages")  # noqa: S202  (its SHA-256 is pinned)


def from_archive(path: Path, pins: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of tests in Horovod's archive."""
    top = f"horovod-{known(TABLE)['release']}/test/"
    with tarfile.open(path) as archive:
        for name, pin in pins.items():
            stream = archive.extractfile(top + name)
            content = stream.read(LARGEST_TEST) if stream else b""
            if hashlib.sha256(content).hexdigest() != pin:
                raise ChecksumMismatch(
                    what=f"{name} in {path} is not what envkit knows of it.",
                    fix=f"Remove {path} and repeat the command.",
                )
            yield name, content


def from_folder(folder: Path, pins: Mapping[str, str]) -> Iterator[tuple[str, bytes]]:
    """Yield the files of tests in a folder: Horovod's own, or its test/."""
    release = known(TABLE)["release"]
    top = folder / "test" if (folder / "test").is_dir() else folder
    for name, pin in pins.items():
        try:
            content = files.read(top / name, LARGEST_TEST)
        except OSError as error:
            raise UsageProblem(
                what=f"{folder} does not have Horovod's tests: {top / name}: {error.strerror}.",
                fix=f"Name the folder of Horovod {release} as its repository has it (git clone --branch v{release}).",
            ) from error
        if hashlib.sha256(content).hexdigest() != pin:
            raise UsageProblem(
                what=f"{top / name} is not as Horovod {release} has it.",
                why="What stacks are known to give is known of the tests of that release.",
                fix=f"git -C {quote(str(folder))} checkout v{release}",
            )
        yield name, content


def run(
    target: Target,
    wanted: LaunchRequest,
    options: Options,
    env: Mapping[str, str],
    tell: Tell,
) -> list[FileResult]:
    """Run all files of Horovod's own tests that are for an environment, one after the other.

    ``tell`` is called with the file that runs, and with how far it is. Raises what starting ranks does.
    """
    _, launch = image_launch.plan_launch(target.inside, target.mpi(env), wanted, env, options.mpi_model)
    several = launcher.may_leave(launch, env)
    built = [name for name in upstream.CONTROLLERS if target.built is None or target.built.flag(name)]
    todo = upstream.asked(target.framework, built, options.limit_s, options.tests_only)
    meeting = session.of_starter(several, options.shared)
    stack = target.receipt.name if target.receipt is not None else ""
    cache, needed = gathered(target, options.tests_from)
    try:
        lay_out(meeting.shared, cache, needed, options.tests_from)
        results = []
        for number, planned in enumerate(todo, 1):
            title, row = f"tests {number} of {len(todo)}: {planned.title}", upstream.row_of(stack, planned)
            of_file = functools.partial(run_file, target, wanted, planned, row, meeting.shared, options, env, tell)
            first = of_file(title)
            if first.is_worth_another_start:
                first = upstream.again(first, of_file(f"{title}, once more"))
            results.append(first)
        return results
    finally:
        shutil.rmtree(meeting.shared, ignore_errors=True)


def run_file(
    target: Target,
    wanted: LaunchRequest,
    upstream_run: UpstreamRun,
    row: Row | None,
    shared: Path,
    options: Options,
    env: Mapping[str, str],
    tell: Tell,
    title: str,
) -> FileResult:
    """Run one file; return what came of it, held against what is known of it."""
    began = time.monotonic()
    inside, launch = start_of(target, wanted, upstream_run, env, options)
    folder = Path(tempfile.mkdtemp(prefix=f"{upstream.stem(upstream_run.file)}-", dir=shared))
    job = {
        "test": str(shared / "test" / upstream_run.file),
        "root": str(shared / "test"),
        "packages": str(shared / "packages"),
        "limit_s": upstream_run.limit_s,
        "in_ranks": upstream_run.in_ranks,
    }
    files.write(folder / "job.json", json.dumps(job).encode())
    program = data("inside/upstream_rank.py")
    rank = [target.python, str(program), str(folder / "job.json")]
    seen = [program.parent, shared]
    argv = inside.command(rank, launch.argv, remote=launch.remote, visible=seen) if launch else None
    argv = argv or inside.command(rank, visible=seen)
    own = {name: value for name, value in env.items() if not name.startswith("PYTEST_")}  # not the caller's settings
    until = time.monotonic() + upstream_run.limit_s + LATE_S
    stopped = Watch(os.getpid(), node.name_of_node())
    tell(title, "")

    told_at = began
    with leftover.removed(own) as left:

        def look() -> None:
            nonlocal told_at
            stopped.look()
            left.look(stopped.pids)
            if time.monotonic() - told_at > LOOK_S:
                tell(title, far(folder))
                told_at = time.monotonic()

        status = process.supervise(
            argv,
            env=inside.variables({**launcher.variables(own), **node.started_here()}),
            log=folder / "log",
            watch=look,
            until=lambda: time.monotonic() > until or bool(stopped.found),
        )
    outcomes = upstream.merged([noted(path) for path in sorted(folder.glob("rank-*"))])
    seconds, ranks = time.monotonic() - began, wanted.ranks if upstream_run.in_ranks else 1
    is_late = not outcomes.is_whole and seconds > upstream_run.limit_s
    ended = end_of(upstream_run, outcomes, status, folder, is_late=is_late)
    return msgspec.structs.replace(upstream.judged(upstream_run, ranks, seconds, outcomes, ended, row), is_late=is_late)


def start_of(
    target: Target, wanted: LaunchRequest, upstream_run: UpstreamRun, env: Mapping[str, str], options: Options
) -> tuple[Environment, Launch | None]:
    """The way in and the launcher of a file: that of its MPI, horovodrun for Gloo, none for one process."""
    if upstream_run.over == ALONE:
        return target.inside, None
    mpi = target.mpi(env)
    if upstream_run.over == upstream.CONTROLLERS["mpi"]:
        return image_launch.plan_launch(target.inside, mpi, wanted, env, options.mpi_model)
    by_gloo = replace(wanted, launcher="horovodrun")
    inside, launch = image_launch.plan_launch(target.inside, mpi, by_gloo, env, options.mpi_model)
    return inside, replace(launch, argv=(launch.argv[0], "--gloo", *launch.argv[1:]))


def noted(path: Path) -> list[UpstreamEvent]:
    """Return what a rank has noted so far; a line that is cut is left out."""
    events = []
    for text in files.read(path, LARGEST_NOTES).splitlines():
        try:
            events.append(record.decode(text, UpstreamEvent))
        except record.RecordInvalid:
            continue
    return events


def far(folder: Path) -> str:
    """How many tests of a file have ended, by what the first rank has noted."""
    try:
        lines = noted(folder / "rank-0")
    except OSError:
        return ""
    done = upstream.merged([lines]).tests
    failed = sum(kind == "failed" for kind, _ in done.values())
    return f"{len(done)} tests" + (f", {failed} failed" if failed else "")


def end_of(upstream_run: UpstreamRun, outcomes: Outcomes, status: int, folder: Path, *, is_late: bool) -> str:
    """Why a file did not come to its end, in words; nothing if it did."""
    if outcomes.is_whole:
        return ""
    at = f" in {outcomes.interrupted}" if outcomes.interrupted else ""
    if is_late:
        stacks = "\n".join(path.read_text(errors="replace") for path in sorted(folder.glob("stack-*")))
        where = next((line.strip() for line in stacks.splitlines() if line.strip().startswith("File")), "")
        return f"not over after {upstream_run.limit_s:g} s{at}" + (f" ({where})" if where else "")
    lines = (folder / "log").read_text(errors="replace").strip()[-SAID:].splitlines()
    return f"ended early{at}, status {status}: {' '.join(lines[-3:])}"
