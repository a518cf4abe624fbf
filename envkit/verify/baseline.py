"""The file of a baseline: read before the ranks start, and saved when there is none yet."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from pathlib import Path

import msgspec

from envkit.errors import EnvkitError, NotWritable
from envkit.system import files, record
from envkit.verify import speed
from envkit.verify.checks.speed import baseline
from envkit.verify.facts import RankFacts
from envkit.verify.outcome import Expected, Ranks, Result
from envkit.verify.speed import Baseline


def read(path: Path) -> Baseline | None:
    """The baseline in a file, or None where there is no such file.

    Raises EnvkitError for a file that is none, NotWritable where none could be saved.
    """
    try:
        return record.read(path, Baseline)
    except FileNotFoundError:
        if not os.access(path.parent, os.W_OK):
            why = "Its folder does not exist, or you may not write there."
            fix = "Name a file in a folder of yours."
            raise NotWritable(what=f"The baseline could not be written to {path}.", why=why, fix=fix) from None
        return None
    except (ValueError, RecursionError, OSError) as error:
        fix = "Remove the file, and the next run saves a new one; or name another."
        raise EnvkitError(what=f"{path} is not a baseline of envkit's.", why=str(error), fix=fix) from error


def settle(
    path: Path, saved: Baseline | None, facts: Sequence[RankFacts], expected: Expected, tolerance: float
) -> Result:
    """Hold what was measured against the saved baseline; without one, save what was measured, or say why it was not."""
    ranks = Ranks(framework=expected.frameworks[0], facts=tuple(facts), expected=expected)
    own, unsaved = speed.baseline(facts, when=f"{datetime.date.today():%Y-%m-%d}"), ""
    if saved is None and own is not None:
        try:
            files.write(path, msgspec.json.format(msgspec.json.encode(own), indent=1) + b"\n", mode=0o644)
        except OSError as error:
            unsaved = error.strerror or str(error)
    return baseline(ranks, str(path), saved, tolerance, unsaved)
