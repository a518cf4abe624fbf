"""JSON and TOML of other programs: whatever is wrong with it is one kind of error."""

import os
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from envkit.errors import UsageProblem
from envkit.machine import site
from envkit.system import record


class One(msgspec.Struct):
    """A number."""

    number: int


@pytest.mark.parametrize(
    "data",
    [b"", b"{", b"[]", b'{"number": "1"}', b'{"number": 1.5}', b'{"number": ' + b"9" * 5000 + b"}", b"\xff\xfe",
     b'{"number": "\xff"}', b'{"a": ' * 100_000, b"[" * 100_000],
)  # fmt: skip
def test_what_is_wrong_is_one_kind_of_error(data: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(data)
    with pytest.raises(record.RecordInvalid):
        record.read(tmp_path / "x", One)


def test_what_is_right_is_read(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b'{"number": 7, "more": []}')
    assert record.read(tmp_path / "x", One).number == 7


MEETING = """
import sys, threading
from envkit.compat.evidence import Recipes
from envkit.system import record
from envkit.system.resources import data
sys.setswitchinterval(1e-6)
together, text = threading.Barrier(2), data("compat/recipes.json").read_bytes()
def meet():
    together.wait()
    record.decode(text, Recipes)
threads = [threading.Thread(target=meet) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


@pytest.mark.integration
def test_threads_may_meet_a_type_first_at_the_same_time() -> None:
    """msgspec itself crashes then, in most runs."""
    done = [subprocess.run([sys.executable, "-c", MEETING], check=False).returncode for _ in range(6)]
    assert done == [0] * 6


def test_what_is_too_large_or_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "LARGEST", 1 << 20)
    (tmp_path / "x").write_bytes(b'{"number": 7}' + b" " * (1 << 20))
    with pytest.raises(OSError, match="It is larger than 1 MB"):
        record.read(tmp_path / "x", One)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="a pipe"):
        record.read(tmp_path / "pipe", One)


@pytest.mark.parametrize("text", ["a = " + "[" * 50_000, "title = 1", "\x00", 'title = "'])
def test_a_site_that_is_none(text: str, tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text(text)
    with pytest.raises(UsageProblem, match="does not describe a site"):
        site.find(str(tmp_path / "x.toml"))


def test_a_site_that_is_too_large(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("# " + "x" * (2 << 20))
    with pytest.raises(UsageProblem, match="cannot be read") as raised:
        site.find(str(tmp_path / "x.toml"))
    assert "larger than" in raised.value.why
