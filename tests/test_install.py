"""The words of an installation."""

import sys
from pathlib import Path

import pytest

from envkit.install.install import own_command


@pytest.mark.parametrize(
    ("called", "on_path", "shown"),
    [
        ("venv/bin/envkit", None, "venv/bin/envkit"),
        ("venv/bin/envkit", "venv/bin/envkit", "envkit"),
        ("venv/bin/envkit", "other/bin/envkit", "venv/bin/envkit"),
        ("venv/envkit/__main__.py", None, "envkit"),
        ("gone/bin/envkit", None, "envkit"),
    ],
)
def test_how_this_envkit_is_called_again(
    called: str, on_path: str | None, shown: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After scripts/quickstart.sh it is not on PATH."""
    for program in {called, *([on_path] if on_path else [])} - {"gone/bin/envkit"}:
        (tmp_path / program).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / program).touch(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [called, "install"])
    monkeypatch.setenv("PATH", str((tmp_path / on_path).parent) if on_path else "/nowhere")
    assert own_command() == (shown if shown == "envkit" else str(tmp_path / shown))
