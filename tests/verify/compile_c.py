"""Small shared objects, compiled for real."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

X86_64_GCC = "gcc"
AARCH64_GCC = "aarch64-linux-gnu-gcc"

FLAG_SOURCE = """
#include <stdbool.h>
bool horovod_{name}_built(void) {{ return {value}; }}
"""
NCCL_SOURCE = """
int horovod_nccl_built(void) {{ return {value}; }}
"""


def flags_source(values: Mapping[str, int]) -> str:
    """C that defines `horovod_*_built` as Horovod's operations.cc does: bool, but int for nccl."""
    return "".join(
        (NCCL_SOURCE if name == "nccl" else FLAG_SOURCE).format(name=name, value=value)
        for name, value in values.items()
    )


def shared_object(path: Path, source: str, options: Sequence[str] = (), compiler: str = X86_64_GCC) -> Path:
    """Compile `source` to a shared object; skip the test where the compiler is missing."""
    if shutil.which(compiler) is None:
        pytest.skip(f"no {compiler}")
    path.parent.mkdir(parents=True, exist_ok=True)
    names_files = any("/" in option for option in options)  # which may have changed
    compile_it = compiled.__wrapped__ if names_files else compiled
    path.write_bytes(compile_it(source, tuple(options), compiler))
    return path


@cache
def compiled(source: str, options: Sequence[str], compiler: str) -> bytes:
    """The shared object that a compiler makes of `source`."""
    with TemporaryDirectory() as folder:
        Path(folder, "source.c").write_text(source)
        argv = [compiler, "-shared", "-fPIC", "-o", "made.so", "source.c", *options]
        subprocess.run(argv, cwd=folder, check=True, capture_output=True, text=True)
        return Path(folder, "made.so").read_bytes()
