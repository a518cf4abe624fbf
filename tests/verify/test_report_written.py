"""A verdict is printed whatever becomes of the files that it is written to, and they are whatever becomes of it."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ..small_disk import leave, small_disk

pytestmark = pytest.mark.integration

CODE = """
import os, sys
from pathlib import Path
from envkit import cli
from envkit.commands.verify import shown
from tests.verify.test_report import report

@cli.envkit.command()
def verify():
    paths = {name: Path(name) for name in ("junit", "html") if name in sys.argv[2]}
    given = {"as_json": "json" in sys.argv[2], "junit": None, "html": None, "github": False, "baseline": None, **paths}
    return shown(report(sys.argv[1]), given)

cli.Commands.get_command = lambda *_: verify
os._exit(cli.run(["verify"]))
"""
HERE = Path(__file__).parents[2]
CASES = {"pytorch-2ranks": 0, "rank-killed": 1}


def show(case: str, forms: str, folder: Path, end: str = "| cat") -> subprocess.CompletedProcess[str]:
    """Show a recorded report in a process of its own, in a folder; ``end`` is where its standard output goes, in bash.

    The status is that of the process itself.
    """
    script = f'"$python" -c "$code" "$@" {end}; exit ${{PIPESTATUS[0]}}'
    env = {**os.environ, "python": sys.executable, "code": CODE, "PYTHONPATH": str(HERE)}
    argv = ["bash", "-c", script, "bash", case, forms]
    return subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False)


def is_whole(path: Path) -> bool:
    """Whether a file is a report to its end."""
    text = path.read_text()
    ElementTree.fromstring(text) if path.name == "junit" else None
    return text.rstrip().endswith("</html>" if path.name == "html" else ">")


@pytest.mark.parametrize(("case", "forms"), [*itertools.product(CASES, ["json,junit,html", "html"])])
def test_a_disk_as_full_as_can_be(case: str, forms: str, tmp_path: Path) -> None:
    whole = show(case, forms, tmp_path)
    assert (whole.returncode, whole.stderr) == (CASES[case], "")
    needed = {name: (tmp_path / name).stat().st_size for name in ("junit", "html") if name in forms}
    assert all(is_whole(tmp_path / name) for name in needed)
    seen = set()
    with small_disk(tmp_path / "small", 64) as small:
        for free in (0, 1, 2, 4, 7, 10, 15):
            for name in needed:
                (small / name).unlink(missing_ok=True)
            leave(small, free)
            done = show(case, forms, small)
            assert done.stdout == whole.stdout
            there = {path.name for path in small.iterdir()} - {"filler"}
            assert all(is_whole(small / name) for name in there)
            lost = [name for name in needed if name not in there]
            seen.add(len(lost))
            said = [line for line in done.stderr.splitlines() if line.startswith("envkit: ")]
            assert said == [f"envkit: The report could not be written to {name}." for name in lost]
            assert done.returncode == (CASES[case] or (7 if lost else 0))
    assert {0, len(needed)} <= seen


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize(
    ("end", "status"), [("| true", 141), ("> /dev/full", 7), (">&-", 0), ("<&- >&- 2>&-", 0), ("| head -c 1", None)]
)
@pytest.mark.parametrize("forms", ["junit,html", "json,junit,html"])
def test_standard_output_that_takes_nothing(
    end: str, status: int | None, case: str, forms: str, tmp_path: Path
) -> None:
    done = show(case, forms, tmp_path, end)
    assert {path.name for path in tmp_path.iterdir()} == {"junit", "html"}
    assert all(map(is_whole, tmp_path.iterdir()))
    assert done.returncode == (CASES[case] or status or done.returncode)
    assert done.returncode in {0, 1, 7, 141}
    said = "envkit: envkit could not write its output to the end.\n\n  No space left on device\n\nWhat to do: "
    assert done.stderr.startswith(said) if end == "> /dev/full" else done.stderr == ""


@pytest.mark.parametrize("case", CASES)
def test_a_report_as_standard_output(case: str, tmp_path: Path) -> None:
    for name in ("html", "junit"):
        (tmp_path / name).symlink_to("/dev/stdout")
    done = show(case, "json,junit,html", tmp_path, "> both")
    assert (done.returncode, done.stderr) == (CASES[case], "")
    text = (tmp_path / "both").read_text()
    told, end = json.JSONDecoder().raw_decode(text)
    assert told["verdict"] == ("fail" if CASES[case] else "pass")
    assert text[end:].lstrip().startswith("<?xml")
    assert text.rstrip().endswith("</html>")
