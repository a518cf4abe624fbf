"""How numbers, ranks and hosts are written in every form of the report."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

# None of the last begins in another: so many of them take a time in proportion to their number.
ESCAPES = re.compile(
    "(?:\x1b\\[|\x9b)[0-?]*[ -/]*[@-~]"  # CSI
    "|(?:\x1b[]PX^_]|[\x9d\x90\x98\x9e\x9f])[^\x07\x1b\x9c-\x9f\x90\x98\n\r]*(?:\x07|\x1b\\\\|\x9c)"  # OSC, DCS, ...
)
BIDI = "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # what shows a text in another order than it has
UNPRINTABLE = re.compile(f"[\x00-\x08\x0b-\x1f\x7f-\x9f{BIDI}\ud800-\udfff\ufffe\uffff]")
OBEYED = re.compile(r"^[^\S\n]*::|##\[", re.MULTILINE)
NUMBERED = re.compile(r"(.*?)(\d+)(\D*)")


def plain(text: str) -> str:
    """The text without terminal escapes and without characters that a terminal obeys or that XML forbids."""
    return UNPRINTABLE.sub("", ESCAPES.sub("", text))


def one_line(text: str) -> str:
    """The text as ``plain`` has it, on one line, with single blanks between its words."""
    return " ".join(plain(text).split())


def escaped(json: str) -> str:
    """A text in JSON that says the same, with what ``plain`` leaves out written as \\uXXXX."""
    return UNPRINTABLE.sub(lambda match: f"\\u{ord(match[0]):04x}", json)


def inert(text: str) -> str:
    """The text with nothing in it that GitHub's runner obeys: a line that begins with ::, or ##[ anywhere in one."""
    return OBEYED.sub(lambda match: f"{match[0][:-1]} {match[0][-1]}", text)


def shown(text: str) -> str:
    """The text as it is printed: ``plain``, and where GitHub's runner, or one like it, reads the output, ``inert``."""
    return inert(plain(text)) if on_github() else plain(text)


def on_github() -> bool:
    """Whether a runner of GitHub Actions, or one that works alike, reads the output and obeys some lines of it."""
    return os.environ.get("GITHUB_ACTIONS") == "true"


def inert_json(json: str) -> str:
    """A text in JSON that says the same, with nothing in it that GitHub's runner obeys."""
    return json.replace("##[", r"#\u0023[")


def ranges(numbers: Iterable[int]) -> str:
    """Numbers as ranges: 0-3, 7."""
    return ", ".join(runs_of(f"{number}" for number in sorted(set(numbers))))


def hosts(names: Iterable[str]) -> str:
    """Host names as Slurm folds them: n[01-03,07], login."""
    folded: dict[tuple[str, str], list[str]] = {}
    for name in sorted(set(names), key=natural):
        match = NUMBERED.fullmatch(name)
        start, number, end = match.groups() if match else (name, "", "")
        folded.setdefault((start, end), []).append(number)
    return ", ".join(host(start, end, numbers) for (start, end), numbers in folded.items())


def size(size_bytes: int) -> str:
    """A size in bytes, in binary units: 64 MiB."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if size_bytes >= 1024**power:
            return f"{size_bytes / 1024**power:.3g} {unit}"
    return f"{size_bytes} B"


def gigabytes(size_bytes: int) -> str:
    """A size in bytes in decimal units, as disks and downloads are sized: 1.2 GB, 340 MB, 12 kB."""
    for power, unit in ((9, "GB"), (6, "MB"), (3, "kB")):
        if size_bytes >= 10**power:
            return f"{three(size_bytes / 10**power)[:4].rstrip('.')} {unit}"
    return f"{size_bytes} B"


def rate(bytes_per_s: float) -> str:
    """A bandwidth in decimal units, as benchmarks of networks write it: 12.3 GB/s."""
    for power, unit in ((9, "GB/s"), (6, "MB/s"), (3, "kB/s")):
        if bytes_per_s >= 10**power:
            return f"{three(bytes_per_s / 10**power)} {unit}"
    return f"{three(bytes_per_s)} B/s"


def duration(seconds: float) -> str:
    """A time: 35 us, 1.25 ms, 7.5 s, 3 min 20 s."""
    if seconds >= 120:
        return f"{int(seconds // 60)} min {int(seconds % 60)} s"
    if seconds >= 1:
        return f"{seconds:.1f} s"
    return f"{three(seconds * 1e3)} ms" if seconds >= 1e-3 else f"{three(seconds * 1e6)} us"


def percent(share: float | None) -> str:
    """A share as a percentage: 93 %; - where there is none."""
    return "-" if share is None else f"{share * 100:.0f} %"


def ratio(number: float | None) -> str:
    """A ratio with two digits: 1.25, 0.93, 0.0019; - where there is none."""
    if number is None:
        return "-"
    return f"{number:.2f}" if number >= 0.1 else f"{number:.2g}"


def count(number: int, thing: str) -> str:
    """A number of things: 1 rank, 2 ranks, 2 processes."""
    return f"{number:,} {thing}" + ("" if number == 1 else "es" if thing.endswith("s") else "s")


def nccl_version(code: int) -> str:
    """NCCL_VERSION_CODE as a version: major * 10000 + minor * 100 + patch; * 1000 before 2.9 (nccl.h)."""
    unit = 10000 if code >= 10000 else 1000
    return f"{code // unit}.{code % unit // 100}.{code % 100}"


def flag(name: str, value: int | None) -> str:
    """A build flag: yes, no, NCCL's version, or ? where it is unknown."""
    if value is None:
        return "?"
    if name == "nccl" and value > 1:
        return nccl_version(value)
    return "yes" if value else "no"


def three(number: float) -> str:
    """A number below 1000 with three digits: 1.25, 20.0, 467."""
    return f"{number:#.3g}".rstrip(".")


def natural(name: str) -> tuple[list[str], list[int]]:
    """Return what to sort a name by, so that host10 comes after host9."""
    return re.split(r"\d+", name), [int(number) for number in re.findall(r"\d+", name)]


def host(start: str, end: str, numbers: Sequence[str]) -> str:
    """Return the host names that differ in their number alone, as Slurm folds them."""
    inside = numbers[0] if len(numbers) == 1 else f"[{','.join(runs_of(numbers))}]"
    return f"{start}{inside}{end}"


def runs_of(numbers: Iterable[str]) -> list[str]:
    """Runs of ascending numbers, each as its first and last, the digits as they were."""
    runs: list[list[str]] = []
    for number in numbers:
        if runs and int(number) == int(runs[-1][-1]) + 1:
            runs[-1][1:] = [number]
        else:
            runs.append([number])
    return ["-".join(run) for run in runs]
