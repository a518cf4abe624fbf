"""How often ``envkit diagnose`` names the true cause of failures that others met, by area.

``diagnose_threads.toml`` has excerpts of public reports, the cause that was found there in a few words, and the rules
that name it. Some were read before the rules were written ("used"). Of those read later two thirds, by a hash of their
addresses, were used for more rules; the others ("held out") are only for measuring, and so are all of draws 3 and 7.

    python -m tests.diagnose_recall [--write] [--show used]

prints the table that benchmarks/README.md has; --write keeps each verdict of now in the file.
"""

import argparse
import hashlib
import json
import tomllib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envkit.diagnose import Certainty, first_cause

FILE = Path(__file__).with_name("diagnose_threads.toml")
WHOLE = (3, 7)  # draws of which no report was used for a rule
DRAWS = (1, 2, 3, 4, 5, 6, 7, 8)
AREAS = ("easybuild", "apptainer", "launch", "build", "import", "run")
HEAD = """# Failures that others met: excerpts of public reports, only what the tools printed. cause: what it was;
# rules: those of envkit diagnose that name it, none if no rule does (a name that no rule has is one that is missing);
# before: the verdict of the rules before 23 November 2026, if it was asked for; first: of those that were there when
# the report was read, if it was read later than they were written; after: of now (python -m tests.diagnose_recall
# --write).
# draw: 2 and later are readings of their own; of 3 and 7 no rule was written.
"""


@dataclass(frozen=True, kw_only=True)
class Thread:
    """One report. ``before``, ``first`` and ``after`` are verdicts: a rule's name and its certainty, or "silent"."""

    address: str
    area: str
    cause: str
    rules: tuple[str, ...]
    before: str
    after: str
    log: str
    first: str = ""
    draw: int = 1

    @property
    def is_held_out(self) -> bool:
        """Whether it is for measuring alone."""
        apart = hashlib.sha256(self.address.encode()).digest()[0] % 3 == 0
        return self.draw in WHOLE or (bool(self.first) and apart)

    def is_right(self, verdict: str) -> bool:
        """Say whether a verdict names the true cause."""
        rule, _, certainty = verdict.partition(" ")
        return rule in self.rules and certainty in (Certainty.CONFIRMED, Certainty.LIKELY)

    def misleads(self, verdict: str) -> bool:
        """Say whether a verdict is called confirmed and names another cause."""
        return verdict.endswith(f" {Certainty.CONFIRMED}") and not self.is_right(verdict)


def threads() -> tuple[Thread, ...]:
    """Return every report."""
    tables = tomllib.loads(FILE.read_text())["thread"]
    return tuple(
        Thread(**{**one, "rules": tuple(one["rules"]), "log": one["log"].removesuffix("\n")}) for one in tables
    )


def verdict(log: str) -> str:
    """Return what envkit diagnose says of a log."""
    found = first_cause([f"{log}\n".encode()])
    return f"{found.rule.id} {found.certainty}" if found else "silent"


def written(all_threads: Iterable[Thread]) -> str:
    """Return the file of the reports, with the verdicts of now."""
    return HEAD + "".join(f"\n[[thread]]\n{''.join(entries(one))}" for one in all_threads)


def entries(one: Thread) -> Iterator[str]:
    """Yield the entries of a report as TOML has them; a string of JSON is one of TOML, too."""
    for key in ("address", "area", "cause"):
        yield f"{key} = {json.dumps(getattr(one, key))}\n"
    yield f"rules = {json.dumps(one.rules)}\nbefore = {json.dumps(one.before)}\n"
    yield f"first = {json.dumps(one.first)}\n" if one.first else ""
    yield f"draw = {one.draw}\n" if one.draw > 1 else ""
    yield f"after = {json.dumps(verdict(one.log))}\n"
    lines = one.log.replace("\\", "\\\\").replace('"""', '""\\"')
    yield f'log = """\n{lines}\n"""\n' if "\n" in one.log else f"log = {json.dumps(one.log)}\n"


def table(all_threads: tuple[Thread, ...]) -> str:
    """Return how many are named rightly, wrongly but "confirmed", and not at all, by area and set."""
    held = [one for one in all_threads if one.is_held_out]
    used = [one for one in all_threads if not one.is_held_out]
    seen = {draw: [one for one in all_threads if one.first and one.draw == draw] for draw in DRAWS}
    sets = {"used: before": ([one for one in used if one.before], "before"), "used: after": (used, "after")}
    sets |= {f"draw {draw}: at first sight": (some, "first") for draw, some in seen.items()}
    sets |= {
        "draws 4 to 8, held out: at first sight": ([one for one in held if one.draw > 3], "first"),
        "draws 4 to 8, held out: after": ([one for one in held if one.draw > 3], "after"),
        "all held out: before": ([one for one in held if one.before], "before"),
        "all held out: after": (held, "after"),
    }
    lines = [f"| area | {' | '.join(sets)} |", "|---" * (len(sets) + 1) + "|"]
    for area in (*AREAS, "all"):
        cells = [cell([one for one in some if area in (one.area, "all")], when) for some, when in sets.values()]
        lines.append(f"| {' | '.join([area, *cells])} |")
    return "\n".join(lines)


def cell(some: list[Thread], when: str) -> str:
    """Return the counts of one set."""
    said: list[tuple[Thread, Any]] = [(one, getattr(one, when)) for one in some]
    right = sum(one.is_right(one_said) for one, one_said in said)
    wrong = sum(one.misleads(one_said) for one, one_said in said)
    silent = sum(one_said == "silent" for _, one_said in said)
    share = f"{100 * right / len(some):.0f} %" if some else "-"
    return f"{share} ({right} of {len(some)}), {wrong} wrong, {silent} silent"


def main() -> None:
    """Print the table, or write the verdicts of now."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--write", action="store_true", help="keep each verdict in the file")
    parser.add_argument("--show", choices=["used", "held-out"], help="show what is not right in a set")
    chosen = parser.parse_args()
    if chosen.write:
        FILE.write_text(written(threads()))
    for one in threads():
        if chosen.show and one.is_held_out == (chosen.show == "held-out") and not one.is_right(one.after):
            print(f"{one.address}: {one.after}, not {' or '.join(one.rules) or 'known'} ({one.cause})")
    print(table(threads()))


if __name__ == "__main__":
    main()
