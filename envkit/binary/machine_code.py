"""The constant that a tiny compiled function returns, read from its machine code without running it.

Only instructions that compilers emit for `return CONSTANT;` are understood; anything else is unknown.
Encodings: Intel 64 manual volume 2, Arm Architecture Reference Manual (A64).
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

X86_64, AARCH64 = 62, 183
LONGEST = 48

X86_NO_EFFECT = (
    b"\xf3\x0f\x1e\xfa",  # endbr64
    b"\x55",  # push rbp
    b"\x48\x89\xe5",  # mov rbp, rsp
    b"\x48\x8b\xec",  # mov rbp, rsp, the other encoding
    b"\x5d",  # pop rbp
    b"\xc9",  # leave
    b"\x90",  # nop
)
X86_ZERO = (b"\x31\xc0", b"\x33\xc0", b"\x29\xc0", b"\x2b\xc0", b"\x48\x31\xc0")
X86_RETURN = (b"\xc3", b"\xf3\xc3")

A64_NO_EFFECT = frozenset(
    {
        0xD503241F,  # bti
        0xD503245F,  # bti c
        0xD503249F,  # bti j
        0xD50324DF,  # bti jc
        0xD503233F,  # paciasp
        0xD50323BF,  # autiasp
        0xD503201F,  # nop
        0xA9BF7BFD,  # stp x29, x30, [sp, #-16]!
        0x910003FD,  # mov x29, sp
        0xA8C17BFD,  # ldp x29, x30, [sp], #16
    }
)
A64_RETURN = frozenset({0xD65F03C0, 0xD65F0BFF})
A64_ZERO_REGISTER = 31


@dataclass(frozen=True, slots=True)
class Known:
    """A value of which so many low bits are known."""

    value: int
    bits: int


def returned_constant(machine: int, code: bytes, *, bits: int) -> int | None:
    """The low `bits` (8 for bool, 32 for int) of what `code` returns, or None if that cannot be told.

    `machine` is ELF's e_machine; `code` begins at the function and may run on beyond its end.
    """
    if machine == X86_64:
        constant = x86_64(code)
    elif machine == AARCH64:
        constant = aarch64(code)
    else:
        constant = None
    if constant is None or constant.bits < bits:
        return None
    value = constant.value & ((1 << bits) - 1)
    return value - (1 << bits) if bits == 32 and value >> 31 else value


def prefix(code: bytes, at: int, choices: tuple[bytes, ...]) -> int:
    """Return the length of the first of these instructions that the code has there; 0 where it has none."""
    return next((len(choice) for choice in choices if code.startswith(choice, at)), 0)


def x86_64(code: bytes) -> Known | None:
    """Return what a function of x86_64 returns; None where that cannot be told."""
    eax: Known | None = None
    at = 0
    while at < len(code):
        if prefix(code, at, X86_RETURN):
            return eax
        if length := prefix(code, at, X86_NO_EFFECT):
            at += length
        elif length := prefix(code, at, X86_ZERO):
            eax, at = Known(0, 32), at + length
        else:
            step = x86_64_value(code, at, eax)
            if step is None:
                return None
            eax, at = step
    return None


def x86_64_value(code: bytes, at: int, eax: Known | None) -> tuple[Known, int] | None:
    """Return what eax holds after the instruction there, and where the next one begins; None for any other."""
    if code.startswith(b"\xb8", at) and at + 5 <= len(code):  # mov eax, imm32
        return Known(struct.unpack_from("<I", code, at + 1)[0], 32), at + 5
    if code.startswith(b"\x48\xc7\xc0", at) and at + 7 <= len(code):  # mov rax, imm32
        return Known(struct.unpack_from("<I", code, at + 3)[0], 32), at + 7
    if code.startswith(b"\xb0", at) and at + 2 <= len(code):  # mov al, imm8
        return Known(code[at + 1], 8), at + 2
    if code.startswith(b"\x6a", at) and code.startswith(b"\x58", at + 2):  # push imm8; pop rax
        return Known(struct.unpack_from("<b", code, at + 1)[0] & 0xFFFFFFFF, 32), at + 3
    if eax is None:
        return None
    if code.startswith(b"\x24", at) and at + 2 <= len(code):  # and al, imm8
        return Known(eax.value & (code[at + 1] | ~0xFF), eax.bits), at + 2
    if code.startswith(b"\x0f\xb6\xc0", at):  # movzx eax, al
        return Known(eax.value & 0xFF, 32), at + 3
    return None


def aarch64(code: bytes) -> Known | None:
    """Return what a function of aarch64 returns; None where that cannot be told."""
    registers: dict[int, int] = {A64_ZERO_REGISTER: 0}
    for (word,) in struct.iter_unpack("<I", code[: len(code) // 4 * 4]):
        if word in A64_RETURN:
            return Known(registers[0], 32) if 0 in registers else None
        if word in A64_NO_EFFECT:
            continue
        target = word & 31
        value = aarch64_value(word, registers)
        if value is None or target == A64_ZERO_REGISTER:
            return None
        registers[target] = value & 0xFFFFFFFF
    return None


def aarch64_value(word: int, registers: dict[int, int]) -> int | None:
    """Return what an instruction leaves in its target; None where that cannot be told."""
    operation, shift, immediate = word & 0x7F800000, (word >> 21 & 3) * 16, word >> 5 & 0xFFFF
    first = registers.get(word >> 5 & 31)
    if operation == 0x52800000:  # movz
        return immediate << shift
    if operation == 0x12800000:  # movn
        return ~(immediate << shift)
    if operation == 0x72800000 and (word & 31) in registers:  # movk
        return registers[word & 31] & ~(0xFFFF << shift) | immediate << shift
    if word & 0x7FE0FFE0 == 0x2A0003E0:  # mov between registers: orr with the zero register
        return registers.get(word >> 16 & 31)
    if word & 0xFFFFFC00 == 0x12000000 and first is not None:  # and w, w, #1
        return first & 1
    if word & 0xFFFFFC00 == 0x53001C00 and first is not None:  # uxtb
        return first & 0xFF
    return None
