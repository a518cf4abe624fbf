"""Compiled Python: whether it is whole, and whether Python takes it."""

import os
import py_compile
import sys
from pathlib import Path

import pytest

from envkit.binary import bytecode

SOURCE = '''
"""A module with one of each: numbers, texts, nested code."""
import os
big, small, half, both, name = 10**40, -1, 0.5, 1j, "café"
empty, group, frozen = (), (1, 2, (None, ..., True)), {1, 2, 3} if os else frozenset()
def outer(a, *, b=b"bytes"):
    def inner():
        return a in {"x", "y"}, b
    return inner
class Thing:
    value: int = 3
'''


@pytest.fixture
def compiled(tmp_path: Path) -> Path:
    (tmp_path / "thing.py").write_text(SOURCE)
    return Path(str(py_compile.compile(str(tmp_path / "thing.py"), doraise=True)))


def test_what_is_whole_and_what_was_cut_off(compiled: Path) -> None:
    data = compiled.read_bytes()
    assert bytecode.is_whole(data)
    assert [size for size in range(len(data)) if bytecode.is_whole(data[:size])] == []


@pytest.mark.parametrize(
    "rest", [b"", b"\0" * 500, b"\xff" * 500, b"\xe3" * 500, b"\xa9\xff" * 250, b"(\xff\xff\xff\x7f"]
)
def test_what_was_overwritten(compiled: Path, rest: bytes) -> None:
    assert not bytecode.is_whole(compiled.read_bytes()[: bytecode.HEADER] + rest)


def test_those_of_this_python_are_whole() -> None:
    """Many of them: what this Python writes is what is walked over."""
    found = sorted(Path(os.__file__).parent.glob("__pycache__/*.pyc"))[:60]
    if not found:
        pytest.skip(f"{sys.executable} keeps no compiled files")
    assert [path for path in found if not bytecode.is_whole(path.read_bytes())] == []


def test_which_is_taken(compiled: Path) -> None:
    source, header = compiled.parent.parent / "thing.py", compiled.read_bytes()[: bytecode.HEADER]
    assert bytecode.is_taken(compiled, header)
    assert not bytecode.is_taken(compiled, header[:-1])
    assert not bytecode.is_taken(compiled, b"\0" * bytecode.HEADER)
    os.utime(source, (1, 1))
    assert not bytecode.is_taken(compiled, header)
    source.unlink()
    assert not bytecode.is_taken(compiled, header)
