"""Reads what an ELF shared object says about itself, from its dynamic segment alone.

Covers 64-bit little-endian files (x86_64, aarch64, ppc64le). Layouts follow the System V ABI and the GNU hash
and symbol version extensions as described in the Linux Standard Base.
"""

from __future__ import annotations

import mmap
import os
import stat
import struct
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

PT_LOAD, PT_DYNAMIC = 1, 2
NEEDED, HASH, STRTAB, SYMTAB, SONAME, RPATH, RUNPATH = 1, 4, 5, 6, 14, 15, 29
GNU_HASH, VERDEF, VERNEED = 0x6FFFFEF5, 0x6FFFFFFC, 0x6FFFFFFE
WEAK = 2
FUNCTION = 2


ENTRIES = 65536  # of the dynamic segment, and of a table of versions: what its own count can hold
WORK = 256 << 20  # bytes of names that may be read of a file
STEP = 64  # as many of these a step from one entry to the next counts as


class ElfError(ValueError):
    """The file is not a 64-bit little-endian ELF file with a dynamic segment, or a table of it is damaged."""


class StaticError(ElfError):
    """The file has no dynamic segment, as a program that loads nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbol:
    """One dynamic symbol: binding and type as in `st_info`, address and size in bytes."""

    name: str
    info: int
    section: int
    address: int
    size: int

    @property
    def is_weak(self) -> bool:
        return self.info >> 4 == WEAK

    @property
    def is_function(self) -> bool:
        return self.info & 0xF == FUNCTION


def gnu_hash(name: bytes) -> int:
    """The 32-bit hash that DT_GNU_HASH tables use."""
    value = 5381
    for byte in name:
        value = (value * 33 + byte) & 0xFFFFFFFF
    return value


@dataclass(frozen=True, kw_only=True)
class Elf:
    r"""A mapped shared object. Strings are decoded as UTF-8, other bytes shown as \xNN; sizes are bytes.

    What is read of a damaged file raises ElfError.
    """

    path: Path
    machine: int
    _data: mmap.mmap = field(repr=False)
    _loads: tuple[tuple[int, int, int], ...] = field(repr=False)
    _dynamic: dict[int, list[int]] = field(repr=False)
    _done: list[int] = field(repr=False, default_factory=lambda: [0])

    @classmethod
    def open(cls, path: Path) -> Elf:
        """Map the file; raises ElfError for any other format, or a pipe, and OSError where it cannot be read."""
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb") as stream:
            if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
                raise ElfError(f"{path}: not a plain file")
            try:
                data = mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ)
            except ValueError as error:
                raise ElfError(f"{path}: empty file") from error
        try:
            return cls._parse(path, data)
        except (struct.error, IndexError, OverflowError) as error:
            raise ElfError(f"{path}: truncated") from error

    @classmethod
    def _parse(cls, path: Path, data: mmap.mmap) -> Elf:
        if data[:6] != b"\x7fELF\x02\x01":
            raise ElfError(f"{path}: not a 64-bit little-endian ELF file")
        (machine,) = struct.unpack_from("<H", data, 18)
        (table,) = struct.unpack_from("<Q", data, 32)
        entry_size, count = struct.unpack_from("<HH", data, 54)
        loads: list[tuple[int, int, int]] = []
        dynamic: dict[int, list[int]] = {}
        for index in range(count):
            entry = struct.unpack_from("<IIQQQQ", data, table + index * entry_size)
            kind, _, offset, address, _, size = entry
            if kind == PT_LOAD:
                loads.append((address, address + size, offset - address))
            elif kind == PT_DYNAMIC and not dynamic:
                entries = data[offset : offset + min(size // 16, ENTRIES) * 16]
                for tag, value in struct.iter_unpack("<qQ", entries):
                    if tag == 0:
                        break
                    dynamic.setdefault(tag, []).append(value)
        if not dynamic:
            raise StaticError(f"{path}: no dynamic segment")
        return cls(path=path, machine=machine, _data=data, _loads=tuple(loads), _dynamic=dynamic)

    @property
    def needed(self) -> tuple[str, ...]:
        """DT_NEEDED, in order."""
        return tuple(self._string(offset) for offset in self._dynamic.get(NEEDED, []))

    @property
    def soname(self) -> str:
        """DT_SONAME, or the file's name where there is none."""
        offsets = self._dynamic.get(SONAME)
        return self._string(offsets[0]) if offsets else self.path.name

    @property
    def rpath(self) -> tuple[str, ...]:
        """DT_RPATH, which counts only where there is no DT_RUNPATH; dynamic string tokens unexpanded."""
        return () if self.runpath else self._paths(RPATH)

    @property
    def runpath(self) -> tuple[str, ...]:
        """DT_RUNPATH; dynamic string tokens unexpanded."""
        return self._paths(RUNPATH)

    def defined(self, name: str) -> Symbol | None:
        """The symbol that this object defines under this name, found through its hash table."""
        raw = name.encode("utf-8")
        index = self._find(raw, gnu_hash(raw))
        return None if index is None else self._symbol(index)

    def defines(self, name: bytes, hashed: int) -> bool:
        """Whether a name, given with its `gnu_hash`, is defined here."""
        return self._find(name, hashed) is not None

    def undefined(self) -> Iterator[Symbol]:
        """The dynamic symbols that other objects must define."""
        for index in range(1, self._first_hashed):
            symbol = self._symbol(index)
            if symbol.section == 0 and symbol.name:
                yield symbol

    def code(self, symbol: Symbol, size: int) -> bytes:
        """Up to `size` bytes of a symbol's contents; its own size is the limit where the file states one."""
        start = self._offset(symbol.address)
        return self._data[start : start + min(size, symbol.size or size)]

    @cached_property
    def defined_versions(self) -> frozenset[str]:
        """The symbol versions (such as GLIBCXX_3.4.30) that this object defines."""
        names = set()
        for at in self._chain(VERDEF, 16):
            (aux,) = self._unpack("<I", at + 12)
            (name,) = self._unpack("<I", at + aux)
            names.add(self._string(name))
        return frozenset(names)

    @property
    def needed_versions(self) -> dict[str, frozenset[str]]:
        """The symbol versions that this object wants from each library; weak references are left out."""
        wanted: dict[str, frozenset[str]] = {}
        for at in self._chain(VERNEED, 12):
            _, count, file, aux = self._unpack("<HHII", at)
            names, at = set(), at + aux
            for _ in range(count):
                self._work(STEP)
                _, flags, _, name, step = self._unpack("<IHHII", at)
                if not flags & WEAK:
                    names.add(self._string(name))
                at += step
            wanted[self._string(file)] = frozenset(names)
        return wanted

    def _chain(self, tag: int, next_at: int) -> Iterator[int]:
        for address in self._dynamic.get(tag, [])[:1]:
            at = self._offset(address)
            for _ in range(ENTRIES):
                yield at
                self._work(STEP)
                (step,) = self._unpack("<I", at + next_at)
                if not step:
                    return
                at += step
            raise self._damaged("a table of versions has no end")

    @property
    def search_paths(self) -> tuple[str, ...]:
        """DT_RPATH and DT_RUNPATH as they are written, with colons between folders."""
        return tuple(self._string(offset) for tag in (RPATH, RUNPATH) for offset in self._dynamic.get(tag, []))

    def _paths(self, tag: int) -> tuple[str, ...]:
        joined = [self._string(offset) for offset in self._dynamic.get(tag, [])]
        return tuple(path for paths in joined for path in paths.split(":") if path)

    def _work(self, amount: int) -> None:
        """Count what is done. Raises ElfError where it is more than any file asks for that is whole."""
        self._done[0] += amount
        if self._done[0] > WORK + 4 * len(self._data):
            raise self._damaged("its tables lead nowhere")

    def _damaged(self, what: str) -> ElfError:
        return ElfError(f"{self.path}: {what}; the file is damaged")

    def _unpack(self, form: str, at: int) -> tuple[int, ...]:
        """The numbers that lie there. Raises ElfError where the file has ended."""
        try:
            return struct.unpack_from(form, self._data, at)
        except (struct.error, IndexError, OverflowError) as error:
            raise self._damaged(f"offset {at:#x} is not in it") from error

    def _table(self, tag: int) -> int:
        """Return where the table of a dynamic tag lies. Raises ElfError where there is none."""
        if tag not in self._dynamic:
            raise self._damaged(f"the dynamic tag {tag:#x} is missing")
        return self._offset(self._dynamic[tag][0])

    def _offset(self, address: int) -> int:
        for first, end, shift in self._loads:
            if first <= address < end:
                return address + shift
        raise ElfError(f"{self.path}: address {address:#x} is not in the file")

    @cached_property
    def _strings(self) -> int:
        return self._table(STRTAB)

    @cached_property
    def _symbols(self) -> int:
        return self._table(SYMTAB)

    def _string(self, offset: int) -> str:
        start = self._strings + offset
        end = self._data.find(b"\0", start) if start < len(self._data) else -1
        if end < 0:
            raise self._damaged(f"the string at {start:#x} has no end")
        self._work(end - start)
        return self._data[start:end].decode("utf-8", "backslashreplace")

    def _symbol(self, index: int) -> Symbol:
        at = self._symbols + index * 24
        name, info, _, section, address, size = self._unpack("<IBBHQQ", at)
        return Symbol(name=self._string(name), info=info, section=section, address=address, size=size)

    @cached_property
    def _gnu(self) -> tuple[int, int, int, int, int] | None:
        if GNU_HASH not in self._dynamic:
            return None
        at = self._table(GNU_HASH)
        buckets, first, words, shift = self._unpack("<IIII", at)
        if not (buckets and words):
            raise self._damaged("its table of symbols has no buckets")
        return at + 16, buckets, first, words, shift

    @cached_property
    def _first_hashed(self) -> int:
        if self._gnu:
            return self._gnu[2]
        return self._unpack("<II", self._table(HASH))[1]

    @cached_property
    def _by_name(self) -> dict[bytes, int]:
        every = ((index, self._symbol(index)) for index in range(1, self._first_hashed))
        return {s.name.encode("utf-8"): index for index, s in every if s.section}

    def _find(self, name: bytes, hashed: int) -> int | None:
        if self._gnu is None:
            return self._by_name.get(name)
        bloom, buckets, first, words, shift = self._gnu
        (word,) = self._unpack("<Q", bloom + hashed // 64 % words * 8)
        if not word >> (hashed % 64) & word >> ((hashed >> shift) % 64) & 1:
            return None
        table = bloom + words * 8
        (index,) = self._unpack("<I", table + hashed % buckets * 4)
        chains = table + buckets * 4
        while index >= first:
            self._work(STEP)
            (entry,) = self._unpack("<I", chains + (index - first) * 4)
            if entry | 1 == hashed | 1 and self._is_defined_as(index, name):
                return index
            if entry & 1:
                return None
            index += 1
        return None

    def _is_defined_as(self, index: int, name: bytes) -> bool:
        offset, _, _, section = self._unpack("<IBBH", self._symbols + index * 24)
        start = self._strings + offset
        return section != 0 and self._data[start : start + len(name) + 1] == name + b"\0"
