"""Files that commands write, at the command line, on disks as full as can be: whole or not at all, and told with 7."""

from collections.abc import Callable
from pathlib import Path

import pytest

from envkit.cli import run
from envkit.easybuild.receipt import ModuleReceipt

from .small_disk import PAGE, leave, small_disk

SHAPE = ["--nodes=1", "--ranks-per-node=1"]
LONG = "x" * 3 * PAGE
IMAGE = f"i@sha256:{'0' * 64}"
COMMANDS = {
    "job": ["job", "slurm", "toy-cpu", *SHAPE, "--output", "{file}", "--", "true", LONG],
    "job --force": ["job", "slurm", "toy-cpu", *SHAPE, "--output", "{file}", "--force", "--", "true", LONG],
    "mpijob": ["job", "mpijob", "--image", IMAGE, *SHAPE, "--output", "{file}", "--", "true", LONG],
    "export": ["export", "{file}", "pytorch-2.13-cpu-image"],
}
OLD = b"old\n"


@pytest.mark.integration
@pytest.mark.parametrize("command", COMMANDS)
def test_whole_or_not_at_all(
    command: str,
    install: Callable[..., ModuleReceipt],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    install(horovod="/h")
    monkeypatch.setenv("ENVKIT_PREFIX", str(tmp_path / "prefix"))

    def written(path: Path) -> int:
        return run([word.format(file=path) for word in COMMANDS[command]])

    whole = tmp_path / "whole"
    assert written(whole) == 0, capsys.readouterr().err
    content = whole.read_bytes()
    needed = -(-len(content) // PAGE)
    with small_disk(tmp_path / "small", 32) as small:
        path = small / "whole"
        for free in sorted({0, 1, needed - 1}):
            if command in ("job --force", "export"):
                path.write_bytes(OLD)
            before = sorted(one.name for one in small.iterdir())
            leave(small, free)
            assert written(path) == 7
            said = capsys.readouterr().err
            assert f"could not be written to {path}.\n\n  No space left on device" in said
            assert "\n\nWhat to do: " in said
            assert path.read_bytes() == OLD if "whole" in before else not path.exists()
            assert sorted(one.name for one in small.iterdir()) == sorted({*before, "filler"})
            leave(small, needed)
            assert written(path) == 0  # nothing that was left stands in its way
            assert path.read_bytes() == content
            path.unlink()
