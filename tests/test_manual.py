"""Man pages: one for each command, with all that its help says."""

import re
import shutil
import subprocess
from pathlib import Path

import click
import pytest

from envkit.cli import COMMANDS, envkit, run
from envkit.commands import manual

PAGES = manual.pages()


def test_there_is_a_page_for_each_command() -> None:
    assert {"envkit.1", "envkit-job.1", "envkit-job-slurm.1", "envkit-eessi-clean.1"} <= PAGES.keys()
    assert {f"envkit-{name}.1" for name in COMMANDS} <= PAGES.keys()


@pytest.mark.parametrize("name", COMMANDS)
def test_it_has_every_option(name: str) -> None:
    command = envkit.get_command(click.Context(envkit), name)
    assert command
    text = PAGES[f"envkit-{name}.1"]
    for option in command.params:
        if isinstance(option, click.Option) and not option.hidden:
            assert option.opts[-1].replace("-", "\\-") in text


@pytest.mark.parametrize("name", PAGES)
def test_nothing_in_it_is_an_order_to_roff_by_chance(name: str) -> None:
    orders = {line.split()[0] for line in PAGES[name].splitlines() if line.startswith((".", "'"))}
    assert orders <= {".TH", ".SH", ".PP", ".TP", ".B", ".BR", ".nf", ".fi"}
    assert [line for line in PAGES[name].splitlines() if not line and line is not PAGES[name].splitlines()[-1]] == []
    assert "\b" not in PAGES[name]
    assert not re.search(r"\\(?![&e(-])", PAGES[name])


def test_they_are_written_and_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["help", "--man", str(tmp_path / "man1")]) == 0
    capsys.readouterr()
    assert {path.name for path in (tmp_path / "man1").iterdir()} == PAGES.keys()
    assert run(["help", "run", "--man", str(tmp_path / "man1")]) == 2
    (tmp_path / "file").touch()
    assert run(["help", "--man", str(tmp_path / "file" / "man1")]) == 7
    if shutil.which("groff"):
        files = [str(path) for path in (tmp_path / "man1").iterdir()]
        done = subprocess.run(["groff", "-man", "-ww", "-Tascii", "-z", *files], capture_output=True, text=True)
        assert (done.returncode, done.stderr) == (0, "")


def test_the_first_page_names_exit_codes_variables_and_commands() -> None:
    text = PAGES["envkit.1"]
    for word in ("SH EXIT STATUS", ".B 92", "ENVKIT_PREFIX", "envkit\\-diagnose(1)", "config.toml"):
        assert word in text
