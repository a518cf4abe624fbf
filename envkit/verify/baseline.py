"""The file of a baseline: read before the ranks start, and saved when there is none yet."""

from __future__ import annotations

import datetime
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

import msgspec

from envkit.errors import EnvkitError, NotWritable
from envkit.verify import speed
from envkit.verify.checks.speed import baseline
from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Expected, Ranks, Result, Status
from envkit.verify.speed import Baseline


def read(path: Path) -> Baseline | None:
    """The baseline in a file, or None where there is no such file.

    Raises EnvkitError for a file that is none, NotWritable where none could be saved.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Baseline)
    except FileNotFoundError:
        if not os.access(path.parent, os.W_OK):
            raise _not_writable(path, "Its folder does not exist, or you may not write there.") from None
        return None
    except (msgspec.DecodeError, OSError) as error:
        fix = "Remove the file, and the next run saves a new one; or name another."
        raise EnvkitError(what=f"{path} is not a baseline of envkit's.", why=str(error), fix=fix) from error


def settle(
    path: Path, saved: Baseline | None, facts: Sequence[RankFacts], expected: Expected, tolerance: float
) -> Result:
    """Hold what was measured against the saved baseline; without one, save what was measured. Raises NotWritable."""
    result = baseline(
        Ranks(framework=expected.frameworks[0], facts=tuple(facts), expected=expected), str(path), saved, tolerance
    )
    own = speed.baseline(facts, when=f"{datetime.date.today():%Y-%m-%d}")
    if saved is None and own is not None and result.status is Status.PASS:
        save(own, path)
    return result


def save(made: Baseline, path: Path) -> None:
    """Write a baseline, by rename. Raises NotWritable."""
    content = msgspec.json.format(msgspec.json.encode(made), indent=1) + b"\n"
    try:
        with tempfile.NamedTemporaryFile(dir=path.parent, prefix=f".{path.name}.", delete=False) as stream:
            stream.write(content)
        partial = Path(stream.name)
        partial.chmod(0o644)
        partial.replace(path)
    except OSError as error:
        raise _not_writable(path, str(error)) from error


def _not_writable(path: Path, why: str) -> NotWritable:
    return NotWritable(
        what=f"The baseline cannot be saved as {path}.", why=why, fix="Name a file in a folder of yours."
    )
