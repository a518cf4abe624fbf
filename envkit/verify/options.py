"""The options of a verification."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from envkit.errors import UsageProblem

if TYPE_CHECKING:
    from envkit.environments.environment import MpiModel

MOST_S = 1e6
FLAGS = ("rocm", "cuda", "nccl", "mpi", "gloo", "ddl", "ccl")


@dataclass(frozen=True, kw_only=True)
class Options:
    """The wishes of the user: flags that must hold, seconds that any one step may take, the shared folder; sizes of
    messages (bytes) to time, worlds (ranks) to train in, DDP beside them; a file to hold the bandwidth against; how the
    ranks in an image become one world; ``quick``: nothing is tried where ranks fail; whether Horovod's own tests are
    run, from which folder (None: they are fetched) and which files of them (none named: all).
    """

    require: tuple[str, ...] = ()
    limit_s: float | None = None
    shared: Path | None = None
    bench: tuple[int, ...] = ()
    scale: tuple[int, ...] = ()
    ddp: bool = False
    baseline: Path | None = None
    tolerance: float = 0.0
    mpi_model: MpiModel | None = None
    quick: bool = False
    upstream_tests: bool = False
    tests_from: Path | None = None
    tests_only: tuple[str, ...] = ()

    @property
    def measures(self) -> frozenset[str]:
        """The facts that are asked for beyond those of every verification."""
        choices = {"bandwidth": self.bench, "throughput": self.scale, "ddp_throughput": self.scale and self.ddp}
        return frozenset(name for name, wanted in choices.items() if wanted)


def flags(words: Iterable[str]) -> tuple[str, ...]:
    """The build flags that are named. Raises UsageProblem for an unknown one."""
    named = tuple(word.strip().lower() for word in words if word.strip())
    for unknown in sorted(set(named) - set(FLAGS)):
        raise UsageProblem(
            what=f"--require: there is no build flag {unknown!r}.", fix=f"Name one of these: {', '.join(FLAGS)}."
        )
    return named


def worlds(words: Iterable[str]) -> tuple[int, ...]:
    """The numbers of ranks that are named, ascending. Raises UsageProblem for what is none."""
    from envkit.inside.probe.started import whole

    named = [word.strip() for word in words if word.strip()]
    for word in named:
        if not whole(word):
            raise UsageProblem(what=f"--scale: {word!r} is no number of ranks.", fix="Write them as 1,2,4,8.")
    return tuple(sorted({int(word) for word in named}))


def require_number(option: str, given: float | None, least: float, most: float) -> None:
    """Require that a number is within bounds. Raises UsageProblem."""
    if given is not None and not least <= given <= most:
        bounds = f"from {least:g} to {most:g}"
        raise UsageProblem(what=f"{option}: {given} is no number {bounds}.", fix=f"Give a number {bounds}.")


def asked(
    *,
    require: Iterable[str] = (),
    timeout_s: float | None = None,
    shared: Path | None = None,
    mpi_model: str | None = None,
    quick: bool = False,
    bench: bool = False,
    sizes: str = "",
    baseline: Path | None = None,
    tolerance: float | None = None,
    scale: Iterable[str] = (),
    ddp: bool = False,
    upstream_tests: bool = False,
    tests_from: Path | None = None,
    tests_only: Iterable[str] = (),
) -> Options:
    """The options of a verification. Raises UsageProblem for what makes no sense."""
    if sizes and not bench:
        raise UsageProblem(what="--sizes goes with --bench.", fix="Add --bench, or leave --sizes out.")
    if tolerance is not None and baseline is None:
        raise UsageProblem(what="--tolerance goes with --baseline.", fix="Add --baseline FILE, or leave it out.")
    files = tuple(name for word in tests_only if (name := word.strip().removesuffix(".py")))
    for option, given in (("--tests-from", tests_from), ("--tests-only", files)):
        if given and not upstream_tests:
            raise UsageProblem(
                what=f"{option} goes with --upstream-tests.", fix="Add --upstream-tests, or leave it out."
            )
    require_number("--timeout", timeout_s, 1, MOST_S)
    require_number("--tolerance", tolerance, 0, 1)
    numbers = worlds(scale)
    if ddp and not numbers:
        raise UsageProblem(what="--compare ddp goes with --scale.", fix="Add --scale 1,2,4, or leave it out.")
    from envkit.environments.environment import MpiModel

    plain = Options(
        require=flags(require),
        limit_s=timeout_s,
        shared=shared,
        mpi_model=MpiModel(mpi_model) if mpi_model else None,
        quick=quick,
        upstream_tests=upstream_tests,
        tests_from=tests_from,
        tests_only=files,
    )
    if not (bench or baseline or numbers):
        return plain
    from envkit.knowledge.known import known
    from envkit.verify import speed

    limits = known("speed")["bandwidth"]
    sizes = sizes or f"{limits['from']}:{limits['to']}"
    try:
        messages = speed.message_sizes(sizes, limits["factor"]) if bench or baseline else ()
    except ValueError as error:
        raise UsageProblem(what=f"--sizes {sizes}: {error}.", fix="Write them as 1K:256M.") from None
    return replace(
        plain,
        bench=messages,
        scale=numbers,
        ddp=ddp,
        baseline=baseline,
        tolerance=limits["tolerance"] if tolerance is None else tolerance,
    )
