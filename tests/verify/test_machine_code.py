from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from envkit.binary.build_flags import read_flags
from envkit.binary.elf import Elf
from envkit.binary.machine_code import AARCH64, X86_64, returned_constant

from .compile_c import AARCH64_GCC, X86_64_GCC, flags_source, shared_object

if TYPE_CHECKING:
    from pathlib import Path

VALUES = {"rocm": 0, "cuda": 1, "nccl": 21803, "mpi": 1, "gloo": 1, "ddl": 0, "ccl": 0}
NO_NCCL = {**VALUES, "nccl": 0, "cuda": 0}
LARGE = {**VALUES, "nccl": 0x12345678}

X86_64_OPTIONS = [
    ["-O0"],
    ["-O2"],
    ["-O0", "-fcf-protection=full"],
    ["-O2", "-fcf-protection=full"],
    ["-O2", "-fcf-protection=none", "-fno-omit-frame-pointer"],
    ["-Os"],
    ["-O3", "-g", "-fstack-protector-strong"],
    ["-O2", "-fpatchable-function-entry=4"],
]
AARCH64_OPTIONS = [
    ["-O0"],
    ["-O2"],
    ["-O2", "-mbranch-protection=standard"],
    ["-O0", "-mbranch-protection=bti"],
    ["-O2", "-fno-omit-frame-pointer", "-mno-omit-leaf-frame-pointer"],
]


@pytest.mark.parametrize("values", [VALUES, NO_NCCL, LARGE], ids=["nccl", "no-nccl", "large"])
@pytest.mark.parametrize(
    ("compiler", "options"),
    [(X86_64_GCC, options) for options in X86_64_OPTIONS] + [(AARCH64_GCC, options) for options in AARCH64_OPTIONS],
)
def test_compiled_flags_are_read(tmp_path: Path, compiler: str, options: list[str], values: dict[str, int]) -> None:
    path = shared_object(tmp_path / "mpi_lib.so", flags_source(values), options, compiler)
    assert read_flags(Elf.open(path)) == values


def test_a_stripped_file_is_read(tmp_path: Path) -> None:
    path = shared_object(tmp_path / "mpi_lib.so", flags_source(VALUES))
    subprocess.run(["strip", "-s", path], check=True)
    assert read_flags(Elf.open(path)) == VALUES


@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_either_hash_table_is_read(tmp_path: Path, style: str) -> None:
    path = shared_object(tmp_path / "mpi_lib.so", flags_source(VALUES), [f"-Wl,--hash-style={style}"])
    assert read_flags(Elf.open(path)) == VALUES


def test_what_is_computed_or_absent_is_unknown(tmp_path: Path) -> None:
    source = "int answer; int horovod_nccl_built(void) { return answer; } int horovod_mpi_built = 1;"
    flags = read_flags(Elf.open(shared_object(tmp_path / "mpi_lib.so", source, ["-O2"])))
    assert set(flags.values()) == {None}


def test_instrumented_code_is_unknown_not_guessed(tmp_path: Path) -> None:
    options = ["-O2", "-fstack-protector-all", "-pg"]
    path = shared_object(tmp_path / "mpi_lib.so", flags_source(VALUES), options)
    assert set(read_flags(Elf.open(path)).values()) == {None}


@pytest.mark.parametrize(
    ("code", "bits", "value"),
    [
        ("b801000000c3", 8, 1),  # gcc -O2
        ("31c0c3", 32, 0),
        ("f30f1efab82b550000c3", 32, 21803),  # -fcf-protection
        ("554889e5b8010000005dc3", 8, 1),  # gcc -O0
        ("5548 89e5 b001 2401 0fb6c0 5dc3", 8, 1),  # clang -O0
        ("554889e5b82b550000c9c3", 32, 21803),
        ("6a0158c3", 32, 1),  # clang -Oz
        ("48c7c0ffffffffc3", 32, -1),
        ("b001c3", 8, 1),
        ("b001c3", 32, None),  # the upper bits are not known
        ("c3", 8, None),
        ("b801000000", 8, None),  # no return
        ("b8010000", 8, None),
        ("8b0500000000c3", 8, None),  # a load
        ("b801000000e900000000", 8, None),  # a jump
        ("", 8, None),
    ],
)
def test_x86_64(code: str, bits: int, value: int | None) -> None:
    assert returned_constant(X86_64, bytes.fromhex(code), bits=bits) == value


@pytest.mark.parametrize(
    ("code", "bits", "value"),
    [
        ("20008052 c0035fd6", 8, 1),  # mov w0, #1; ret
        ("e0031f2a c0035fd6", 32, 0),  # mov w0, wzr; ret
        ("5f2403d5 20008052 c0035fd6", 8, 1),  # bti c
        ("60a58a52 c0035fd6", 32, 21803),
        ("00cf8a52 8046a272 c0035fd6", 32, 0x12345678),  # movz, movk
        ("28008052 00010012 c0035fd6", 8, 1),  # mov w8, #1; and w0, w8, #1: clang -O0
        ("28008052 c0035fd6", 8, None),  # w0 is never set
        ("8046a272 c0035fd6", 32, None),  # movk of an unknown register
        ("00008052", 8, None),
        ("00000094 c0035fd6", 8, None),  # a call
    ],
)
def test_aarch64(code: str, bits: int, value: int | None) -> None:
    assert returned_constant(AARCH64, bytes.fromhex(code), bits=bits) == value


def test_another_processor_is_unknown() -> None:
    assert returned_constant(21, bytes.fromhex("01006038 2000804e"), bits=8) is None
