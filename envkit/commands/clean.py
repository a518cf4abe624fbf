"""``envkit clean``."""

import re
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import click

from envkit.cli import echo, echo_json, usage
from envkit.commands import options

if TYPE_CHECKING:
    from envkit.environments.prefix import Prefix
    from envkit.install.cleaning import Item

NAMES = (
    "sources", "damaged", "ccache", "layers", "logs", "modules", "replaced", "sessions", "reports", "plans",
)  # fmt: skip
SECONDS = {"h": 3600, "d": 24 * 3600, "w": 7 * 24 * 3600}
BYTES = {"K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}
MOST = 1e9
SHOWN = 10


def measure(units: dict[str, int], example: str) -> Callable[..., float | None]:
    """Return what reads a number with a unit, such as 30d or 1.5G."""

    def number(_context: click.Context, _option: click.Parameter, text: str | None) -> float | None:
        if text is None:
            return None
        match = re.fullmatch(r"(\d+(?:\.\d+)?)([A-Za-z])[Bb]?", text, re.ASCII)
        unit = next((letter for letter in units if match and letter.lower() == match[2].lower()), "")
        if match is None or not unit:
            raise click.BadParameter(f"{text!r} is no number with {', '.join(units)}, such as {example}.")
        if (value := float(match[1])) >= MOST:
            raise click.BadParameter(f"{text!r} is too large.")
        return value * units[unit]

    return number


@click.command()
@click.argument("kinds", metavar="[KIND]...", nargs=-1, type=click.Choice([*NAMES, "all"]))
@click.option(
    "--older-than", metavar="AGE", callback=measure(SECONDS, "30d"), help="Only what has not changed since: 30d."
)
@click.option("--larger-than", metavar="SIZE", callback=measure(BYTES, "1G"), help="Only what is larger: 1G.")
@click.option("--dry-run", is_flag=True, help="List what would be removed; remove nothing.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON; with KIND it takes --yes or --dry-run.")
@options.prefix
def clean(
    kinds: tuple[str, ...], older_than: float | None, larger_than: float | None, dry_run: bool, yes: bool,
    as_json: bool, prefix: str | None,
) -> int:  # fmt: skip
    """Show what uses disk space, and remove it by KIND: sources, damaged, ccache, layers, logs, modules, replaced,
    sessions, reports, plans, or all.

    Without KIND nothing is removed. No environment is touched ('envkit remove NAME' does that), nor what an
    installation under way may use, nor what envkit did not make.
    """
    from envkit.environments import prefix as place
    from envkit.install import cleaning

    where = place.locate(prefix)
    chosen = NAMES if not kinds or "all" in kinds else tuple(dict.fromkeys(kinds))
    if kinds and not dry_run:
        cleaning.required(where, chosen)
    items = cleaning.chosen(cleaning.find(where, chosen), older_than or 0, int(larger_than or 0))
    free = [item for item in items if not item.kept]
    if kinds and not dry_run and free:
        if not yes and as_json:
            usage("--json with KIND takes --yes or --dry-run.")
        if not (yes or confirmed(free)):
            return 0
        items = cleaning.remove(where, items)
    done = [item for item in items if item.removed] if kinds and not dry_run else free
    report = cleaning.Cleaning(prefix=str(where.root), size=sum(item.size for item in done), items=tuple(items))
    if as_json:
        import msgspec

        echo_json(msgspec.json.format(msgspec.json.encode(report)).decode())
    elif not kinds:
        echo(overview(items, where))
    else:
        echo(result(items, is_dry=dry_run, size=report.size))
    return 7 if any("be removed" in item.kept for item in items) else 0


def confirmed(items: "Sequence[Item]") -> bool:
    """Ask whether to remove; ends with a usage error where nobody can be asked."""
    import sys

    from envkit.report import words

    size = words.gigabytes(sum(item.size for item in items))
    if not sys.stdin.isatty():
        usage(f"Nobody can be asked whether to remove {size}: add --yes, or --dry-run.")
    echo(listed(items))
    return click.confirm(f"Remove this ({size})?")


def overview(items: "Sequence[Item]", where: "Prefix") -> str:
    """Return what takes room, by kind."""
    import sys

    from envkit.install import cleaning
    from envkit.report import words
    from envkit.report.paper import Paper

    by_kind = {kind: [item for item in items if item.kind == kind] for kind in NAMES}
    rows = [
        (kind, words.gigabytes(sum(item.size for item in own)), str(len(own)), cleaning.KINDS[kind])
        for kind, own in by_kind.items()
        if own
    ]
    if not rows:
        return "Nothing takes room that 'envkit clean' could remove. Environments: envkit list --installed"
    lines = [
        f"In {where.root} and envkit's caches:",
        "",
        *Paper.of(sys.stdout).table(("KIND", "SIZE", "ITEMS", "WHAT"), rows),
        "",
        "To remove some: envkit clean KIND... [--older-than 30d] [--larger-than 1G] [--dry-run]",
        "Environments themselves: envkit list --installed, envkit remove NAME",
    ]
    return "\n".join(lines)


def listed(items: "Sequence[Item]", most: int = SHOWN) -> str:
    """Return items as lines, so many at most."""
    from envkit.report import words

    lines = [f"  {words.gigabytes(item.size):>7}  {item.changed[:10]}  {item.path}" for item in items[:most]]
    return "\n".join([*lines, *([f"  and {len(items) - most} more"] if len(items) > most else [])])


def result(cleaned: "Sequence[Item]", *, is_dry: bool, size: int) -> str:
    """Return what was removed, or would be, and what is kept and why."""
    from envkit.report import words

    done = [item for item in cleaned if not item.kept] if is_dry else [item for item in cleaned if item.removed]
    lines = [f"{'Would remove' if is_dry else 'Removed'} {words.count(len(done), 'item')}, {words.gigabytes(size)}."]
    if is_dry and done:
        lines.append(listed(done, len(done)))
    for why in dict.fromkeys(item.kept for item in cleaned if item.kept):
        items = [item for item in cleaned if item.kept == why]
        lines += [f"Kept {words.count(len(items), 'item')}: {why}.", listed(items)]
    return "\n".join(lines)
