from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import pytest

from envkit.binary.elf import Elf, ElfError
from envkit.binary.loader import Loading, loading, read_loader_cache

from .compile_c import AARCH64_GCC, shared_object

USES_INNER = "int inner(void); int outer(void) { return inner(); }"
DEFINES_INNER = "int inner(void) { return 1; }"


def load(path: Path, *library_path: Path, preloaded: tuple[Path, ...] = ()) -> Loading:
    return loading(Elf.open(path), library_path, [Elf.open(p) for p in preloaded])


def linked(tmp_path: Path, *options: str) -> tuple[Path, Path]:
    inner = shared_object(tmp_path / "lib" / "libinner.so", DEFINES_INNER)
    outer = tmp_path / "outer.so"
    return inner, shared_object(outer, USES_INNER, [f"-L{inner.parent}", "-linner", *options])


def loads_for_real(path: Path) -> bool:
    argv = [sys.executable, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1])", str(path)]
    return subprocess.run(argv, capture_output=True).returncode == 0


@pytest.mark.parametrize(
    "option", ["-Wl,-rpath,$ORIGIN/lib,--enable-new-dtags", "-Wl,-rpath,${ORIGIN}/lib,--disable-new-dtags"]
)
def test_a_library_is_found_by_runpath_and_rpath(tmp_path: Path, option: str) -> None:
    inner, outer = linked(tmp_path, option)
    met = load(outer)
    assert loads_for_real(outer)
    assert (met.missing_libraries, met.missing_symbols) == ((), ())
    assert inner in met.libraries


def test_a_missing_library_is_named(tmp_path: Path) -> None:
    _, outer = linked(tmp_path)
    assert not loads_for_real(outer)
    assert load(outer).missing_libraries == ("libinner.so (needed by outer.so)",)


@pytest.mark.parametrize("part", [0.02, 0.3, 0.6])
def test_a_library_that_is_cut_is_named_with_its_place(part: float, tmp_path: Path) -> None:
    library, outer = linked(tmp_path)
    content = library.read_bytes()
    library.write_bytes(content[: int(len(content) * part)])
    found = load(outer, library.parent)
    assert found.damaged == (library,)
    assert found.missing_libraries


def test_the_library_path_is_searched(tmp_path: Path) -> None:
    inner, outer = linked(tmp_path)
    assert load(outer, tmp_path / "nowhere", inner.parent).missing_libraries == ()


def test_what_the_framework_has_loaded_counts(tmp_path: Path) -> None:
    inner, outer = linked(tmp_path)
    assert load(outer, preloaded=(inner,)).missing_libraries == ()


def test_an_rpath_is_inherited_and_a_runpath_is_not(tmp_path: Path) -> None:
    leaf = shared_object(tmp_path / "lib" / "libleaf.so", "int leaf(void) { return 1; }")
    search = f"-L{leaf.parent}"
    source = "int leaf(void); int inner(void) { return leaf(); }"
    shared_object(leaf.parent / "libinner.so", source, [search, "-lleaf"])
    for tags, missing in (
        ("--disable-new-dtags", ()),
        ("--enable-new-dtags", ("libleaf.so (needed by libinner.so)",)),
    ):
        options = [search, "-linner", f"-Wl,-rpath,$ORIGIN/lib,{tags}"]
        outer = shared_object(tmp_path / f"{tags}.so", USES_INNER, options)
        assert load(outer).missing_libraries == missing
        assert loads_for_real(outer) is not bool(missing)


def test_an_undefined_symbol_is_named(tmp_path: Path) -> None:
    inner, outer = linked(tmp_path, "-Wl,-rpath,$ORIGIN/lib")
    shared_object(inner, "int another(void) { return 1; }")
    assert load(outer).missing_symbols == ("inner",)


def test_weak_and_interpreter_symbols_are_not_missed(tmp_path: Path) -> None:
    source = """
    int PyErr_Occurred(void); __attribute__((weak)) int maybe(void); int puts(const char *);
    int outer(void) { return PyErr_Occurred() + (maybe ? maybe() : puts("")); }
    """
    assert load(shared_object(tmp_path / "outer.so", source)).missing_symbols == ()


def test_a_missing_symbol_version_is_named(tmp_path: Path) -> None:
    script = tmp_path / "versions"
    script.write_text("INNER_1 { };\nINNER_2 { global: inner; } INNER_1;\n")
    inner = tmp_path / "lib" / "libinner.so"
    shared_object(inner, DEFINES_INNER, [f"-Wl,--version-script={script}"])
    outer = shared_object(tmp_path / "outer.so", USES_INNER, [f"-L{inner.parent}", "-linner"])
    assert load(outer, inner.parent).missing_symbols == ()
    script.write_text("INNER_1 { global: inner; };\n")
    shared_object(inner, DEFINES_INNER, [f"-Wl,--version-script={script}"])
    assert load(outer, inner.parent).missing_symbols == (f"INNER_2 in {inner} (needed by outer.so)",)


def test_a_library_for_another_processor_is_passed_over(tmp_path: Path) -> None:
    inner, outer = linked(tmp_path)
    foreign = shared_object(tmp_path / "foreign" / "libinner.so", DEFINES_INNER, compiler=AARCH64_GCC)
    assert load(outer, foreign.parent).missing_libraries
    assert load(outer, foreign.parent, inner.parent).missing_libraries == ()


def test_a_compatibility_layer_has_its_own_default_directories(tmp_path: Path) -> None:
    _, outer = linked(tmp_path)
    layer = tmp_path / "compat"
    shared_object(layer / "usr" / "lib64" / "libinner.so", DEFINES_INNER)
    met = loading(Elf.open(outer), [], [], root=layer)
    assert not [name for name in met.missing_libraries if "libinner" in name]


def test_the_loader_cache_is_read_as_ldconfig_prints_it() -> None:
    cache = Path("/etc/ld.so.cache")
    if not cache.exists():
        pytest.skip("no loader cache")
    printed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    expected = set(re.findall(r"^\t(\S+) .* => (\S+)$", printed, re.MULTILINE))
    read = read_loader_cache(cache.read_bytes())
    assert {(name, str(path)) for name, paths in read.items() for path in paths} == expected


def test_a_cache_of_an_unknown_format_is_empty() -> None:
    assert read_loader_cache(b"ld.so-1.7.0 and no more") == {}


@pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF\x01\x01" + bytes(60), b"\x7fELF\x02\x01" + bytes(20)])
def test_what_is_no_shared_object_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "x.so").write_bytes(content)
    with pytest.raises(ElfError, match=r"x\.so"):
        Elf.open(tmp_path / "x.so")


def test_a_truncated_file_is_refused(tmp_path: Path) -> None:
    path = shared_object(tmp_path / "x.so", DEFINES_INNER)
    whole = path.read_bytes()
    for size in (100, 300, 700):
        path.write_bytes(whole[:size])
        with pytest.raises(ElfError):
            Elf.open(path).defined("inner")


def test_a_program_header_beyond_the_file_is_refused(tmp_path: Path) -> None:
    path = shared_object(tmp_path / "x.so", DEFINES_INNER)
    data = bytearray(path.read_bytes())
    struct.pack_into("<Q", data, 32, 1 << 40)
    path.write_bytes(data)
    with pytest.raises(ElfError):
        Elf.open(path)


def test_tables_without_an_end_are_given_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file may be made so that each entry leads to thousands of others."""
    elf = Elf.open(shared_object(tmp_path / "x.so", "int f(void) { return 1; } int main; double sin(double); "
                                                    "double g(double x) { return sin(x); }", ["-lm"]))  # fmt: skip
    assert elf.needed_versions and elf.defined("f")
    monkeypatch.setattr("envkit.binary.elf.WORK", -(10**9))
    for ask in (lambda: elf.needed_versions, lambda: elf.defined("f"), lambda: list(elf.undefined())):
        with pytest.raises(ElfError, match="its tables lead nowhere; the file is damaged"):
            ask()
