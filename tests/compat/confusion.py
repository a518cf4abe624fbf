"""How often compat is right about combinations that it was not written from: python -m tests.compat.confusion

Prints a table in Markdown: what is known from outside in rows, what envkit says in columns, and each that is wrong.
Ends with 1 where something is said to work that fails, or to fail that works.
"""

import sys
import tomllib
from collections import Counter
from pathlib import Path

from envkit.compat.judge import Verdict
from envkit.compat.wanted import judge_asked, parse

OUTCOMES = tomllib.loads(Path(__file__).with_name("unseen_outcomes.toml").read_text())
ROWS = {"recipe": "works, by a public recipe", "works": "works", "fails": "fails"}
WRONG = {("recipe", Verdict.FAILS), ("works", Verdict.FAILS), ("fails", Verdict.WORKS)}


def verdicts() -> dict[str, tuple[str, Verdict]]:
    """Return, by combination, what is known of it and what envkit says."""
    return {text: (row, judge_asked(parse(text.split())).verdict) for row in ROWS for text in OUTCOMES[row]}


def main() -> int:
    found = verdicts()
    counts = Counter(found.values())
    print(f"| | number | {' | '.join(Verdict)} |\n|---|---|{'---|' * len(Verdict)}")
    for row, title in ROWS.items():
        cells = [counts[row, verdict] for verdict in Verdict]
        print(f"| {title} | {sum(cells)} | {' | '.join(map(str, cells))} |")
    wrong = [text for text, pair in found.items() if pair in WRONG]
    missed = [text for text, pair in found.items() if pair == ("recipe", Verdict.UNKNOWN)]
    silent = [text for text, pair in found.items() if pair == ("fails", Verdict.UNKNOWN)]
    for title, texts in (("wrong", wrong), ("missed recipe", missed), ("unknown failure", silent)):
        print(*(f"{title}: {text} (source: {source(text)})" for text in texts), sep="\n")
    return 1 if wrong else 0


def source(text: str) -> str:
    """Return the source of an outcome."""
    name = next(OUTCOMES[row][text] for row in ROWS if text in OUTCOMES[row])
    return str(OUTCOMES["sources"][name])


if __name__ == "__main__":
    sys.exit(main())
