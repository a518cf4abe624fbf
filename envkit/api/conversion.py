"""From what envkit works with to what ``envkit.api`` returns."""

from datetime import date
from pathlib import Path

from envkit.api.results import Check, Environment, Verification
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Receipt
from envkit.errors import EnvkitError
from envkit.install import listing
from envkit.verify.outcome import Result
from envkit.verify.report import Report


def described(found: Receipt, tree: Tree | None = None) -> Environment:
    """Return an installed environment."""
    place = tree or Tree(root=Path(found.tree))
    moved = f"It was copied or moved here from {found.copied_from}." if found.copied_from else ""
    return Environment(
        name=found.name,
        method=found.method,
        framework=found.framework,
        accelerator=found.accelerator,
        python=found.python,
        mpi=f"{found.mpi.family} {found.mpi.version}" if found.mpi else "",
        prefix=place.root.parent,
        verified=date.fromisoformat(found.verified[:10]) if found.horovod else None,
        problem=moved or found.damage() or listing.damage(found) or listing.distrust(place, found),
    )


def unreadable(name: str, tree: Tree, error: EnvkitError) -> Environment:
    """Return an environment whose receipt cannot be read."""
    return Environment(
        name=name,
        method="",
        framework="",
        accelerator="",
        python="",
        mpi="",
        prefix=tree.root.parent,
        verified=None,
        problem=f"{error.what} {error.why}",
    )


def verified(report: Report) -> Verification:
    """Return the verdict of a report."""
    return Verification(
        passed=report.verdict == "pass",
        environment=report.environment,
        ranks=report.world_size,
        seconds=report.seconds,
        cause=check(report.cause) if report.cause else None,
        checks=tuple(map(check, report.results)),
        _report=report,
    )


def check(result: Result) -> Check:
    """Return what a check found."""
    return Check(
        id=result.id,
        status=result.status.value,
        framework=result.framework,
        message=result.message,
        cause=result.cause,
        remedy=result.remedy,
        commands=result.commands,
        required=result.required,
        because_of=result.because_of,
    )
