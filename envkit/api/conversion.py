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


def described(receipt: Receipt, tree: Tree | None = None) -> Environment:
    """Return an installed environment."""
    place = tree or Tree(root=Path(receipt.tree))
    moved = f"It was copied or moved here from {receipt.copied_from}." if receipt.copied_from else ""
    return Environment(
        name=receipt.name,
        method=receipt.method,
        framework=receipt.framework,
        accelerator=receipt.accelerator,
        python=receipt.python,
        mpi=f"{receipt.mpi.family} {receipt.mpi.version}" if receipt.mpi else "",
        prefix=place.root.parent,
        verified=date.fromisoformat(receipt.verified[:10]) if receipt.horovod else None,
        problem=moved or receipt.damage() or listing.damage(receipt) or listing.distrust(place, receipt),
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
