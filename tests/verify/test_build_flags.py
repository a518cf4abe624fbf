from __future__ import annotations

import collections
import itertools
import json
import random
import shutil
import subprocess
import sys
import time
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import pytest

from envkit.binary.build_block import check_build_block
from envkit.binary.build_flags import BuildFlags, read_extensions, same_version
from envkit.verify.target import suffix_of

from .compile_c import flags_source, shared_object

CPU = {"rocm": 0, "cuda": 0, "nccl": 0, "mpi": 1, "gloo": 1, "ddl": 0, "ccl": 0}
NCCL = {**CPU, "cuda": 1, "nccl": 21803}
STEMS = {"torch": "mpi_lib_v2", "tensorflow": "mpi_lib"}


def install(
    site: Path,
    framework: str,
    flags: dict[str, int],
    *,
    built_for: str = "2.1.0",
    installed: str = "2.1.0",
    extra: str = "",
    options: tuple[str, ...] = (),
) -> Path:
    """A Horovod package as its build leaves it, and the framework's directory and dist-info beside it."""
    horovod = site / "horovod"
    extension = horovod / framework / f"{STEMS[framework]}{EXTENSION_SUFFIXES[0]}"
    shared_object(extension, flags_source(flags) + extra, options)
    (horovod / "__init__.py").write_text("from horovod.runner import run\n\n__version__ = '0.28.1'\n")
    metadata = horovod / "metadata.json"
    known = json.loads(metadata.read_text()) if metadata.exists() else {"dummy": "none"}
    key = "pytorch" if framework == "torch" else framework
    metadata.write_text(json.dumps({**known, key: built_for}))
    (site / framework).mkdir()
    (site / f"{framework}-{installed}.dist-info").mkdir()
    return extension


def read(site: Path, *library_path: Path) -> BuildFlags:
    return read_extensions(site / "horovod", library_path, [site])


def test_the_block_is_the_one_that_horovodrun_prints(tmp_path: Path) -> None:
    install(tmp_path, "torch", CPU)
    expected = Path(__file__).with_name("check-build-torch.txt").read_text()
    assert check_build_block(read(tmp_path)) + "\n" == expected


def test_nccl_is_shown_as_an_operation(tmp_path: Path) -> None:
    install(tmp_path, "tensorflow", NCCL)
    flags = read(tmp_path)
    assert flags.flag("nccl") == 21803
    assert "[X] NCCL" in check_build_block(flags)


def test_no_extension_is_no_framework(tmp_path: Path) -> None:
    install(tmp_path, "torch", CPU).unlink()
    block = check_build_block(read(tmp_path))
    assert "[X]" not in block
    assert block.endswith("PyTorch: Horovod has no extension for it, though it is there")


def test_an_extension_that_cannot_load_is_not_available(tmp_path: Path) -> None:
    source = "int inner(void); int outer(void) { return inner(); }"
    library = shared_object(tmp_path / "lib" / "libinner.so", "int inner(void) { return 1; }")
    install(tmp_path, "torch", CPU, extra=source, options=(f"-L{library.parent}", "-linner"))
    block = check_build_block(read(tmp_path))
    assert "[X]" not in block
    assert "PyTorch: the extension cannot load: no libinner.so" in block
    assert "[X] PyTorch" in check_build_block(read(tmp_path, library.parent))
    shared_object(library, "int another(void) { return 1; }")
    block = check_build_block(read(tmp_path, library.parent))
    assert "[X]" not in block
    assert "PyTorch: the extension cannot load: undefined inner" in block


def test_a_damaged_extension_is_not_available(tmp_path: Path) -> None:
    install(tmp_path, "torch", CPU).write_bytes(b"")
    assert "cannot be read" in check_build_block(read(tmp_path))


def test_a_framework_that_is_not_installed_is_not_available(tmp_path: Path) -> None:
    install(tmp_path, "torch", CPU)
    (tmp_path / "torch").rmdir()
    (tmp_path / "torch-2.1.0.dist-info").rmdir()
    block = check_build_block(read(tmp_path))
    assert "[X]" not in block
    assert "the framework is not installed" in block


def test_drift_is_said(tmp_path: Path) -> None:
    install(tmp_path, "torch", CPU, installed="2.2.0+cpu")
    assert "PyTorch: built for 2.1.0, but 2.2.0+cpu is installed" in check_build_block(read(tmp_path))


def test_a_mixed_build_is_said_where_the_block_would_hide_it(tmp_path: Path) -> None:
    install(tmp_path, "tensorflow", NCCL)
    install(tmp_path, "torch", CPU)
    block = check_build_block(read(tmp_path))
    assert "The frameworks were not built alike: nccl: TensorFlow yes, PyTorch no" in block


def test_an_unknown_flag_is_not_available_and_is_said(tmp_path: Path) -> None:
    extra = "int answer; int horovod_nccl_built(void) { return answer; }"
    install(tmp_path, "torch", {k: v for k, v in CPU.items() if k != "nccl"}, extra=extra, options=("-O2",))
    block = check_build_block(read(tmp_path))
    assert "[ ] NCCL" in block
    assert "PyTorch: cannot tell: nccl" in block


def test_nothing_at_all_is_no_crash(tmp_path: Path) -> None:
    flags = read(tmp_path / "absent")
    assert flags.horovod == "unknown"
    assert "[X]" not in check_build_block(flags)


OWN = EXTENSION_SUFFIXES[0]
OTHERS = (".cpython-312-x86_64-linux-gnu.so", ".cpython-311-riscv64-linux-gnu.so", ".cpython-311-darwin.so", ".abi3.so")
NAMES = (OWN, *OTHERS, ".so", ".pypy39-pp73-x86_64-linux-gnu.so", f"{OWN}.bak.so", f"{OWN}.orig")


def test_only_this_pythons_extension_is_available(tmp_path: Path) -> None:
    """What Horovod itself says: a file of the name that it asks for, with the tag of its Python."""
    expected = {}
    for names in itertools.combinations_with_replacement(NAMES, 2):
        site = tmp_path / "+".join(names)
        made = install(site, "torch", CPU)
        for name in {*names} - {OWN}:
            shutil.copy(made, made.with_name(f"mpi_lib_v2{name}"))
        if OWN not in names:
            made.unlink()
        told = read(site)
        assert ("[X] PyTorch" in check_build_block(told)) is (OWN in names), names
        [torch] = [one for one in told.extensions if one.framework == "torch"]
        assert torch.path == (str(made) if OWN in names else None), names
        if OWN not in names and any(name.endswith(".so") for name in names):
            assert "PyTorch: the extension is not this Python's: mpi_lib_v2." in check_build_block(told), names
        expected[str(site)] = [torch.path, ["torch"]]
    looked = subprocess.run([sys.executable, "-I", "-c", INSIDE, *expected], capture_output=True, text=True)
    assert json.loads(looked.stdout) == expected, looked.stderr


INSIDE = f"""
import json, sys
sys.path.insert(0, {str(Path(__file__).parents[2])!r})
from envkit.inside.probe import inside, software
homes = {{site: site + "/horovod" for site in sys.argv[1:]}}
print(json.dumps({{at: [software.extension(home, "torch"), inside.frameworks(home)] for at, home in homes.items()}}))
"""


@pytest.mark.parametrize(
    ("python", "suffix"), [("3.12.4", ".cpython-312-"), ("3.9", ".cpython-39-"), ("3.11.7", ".cpython-311-")]
)
def test_the_suffix_of_another_python(python: str, suffix: str, tmp_path: Path) -> None:
    wanted = suffix_of(python)
    assert wanted.startswith(suffix) and wanted.endswith(OWN.split("-", 2)[2])
    made = install(tmp_path, "torch", CPU)
    made.rename(made.with_name(f"mpi_lib_v2{wanted}"))
    told = read_extensions(tmp_path / "horovod", [], [tmp_path], suffix=wanted)
    assert "[X] PyTorch" in check_build_block(told)


def test_an_extension_for_another_machine_is_not_available(tmp_path: Path) -> None:
    made = install(tmp_path, "torch", CPU)
    content = bytearray(made.read_bytes())
    content[18:20] = (183 if content[18] != 183 else 62).to_bytes(2, "little")
    made.write_bytes(content)
    block = check_build_block(read(tmp_path))
    assert "[X]" not in block and "it is for another type of machine" in block


def mutated(content: bytes, chance: random.Random) -> bytes:
    """A file that is damaged as files are: pages and words that are zero, others' bytes, an end that is missing."""
    changed = bytearray(content)
    for _ in range(chance.randint(1, 4)):
        at = chance.randrange(len(changed))
        match chance.randrange(6):
            case 0:
                page = at // 4096 * 4096
                changed[page : page + 4096] = bytes(len(changed[page : page + 4096]))
            case 1:
                changed[at] ^= 1 << chance.randrange(8)
            case 2:
                changed[at : at + 8] = chance.randbytes(len(changed[at : at + 8]))
            case 3:
                changed[at : at + 4] = b"\xff" * len(changed[at : at + 4])
            case 4:
                length = chance.randint(1, 512)
                changed[at : at + length] = bytes(len(changed[at : at + length]))
            case _:
                del changed[max(at, 64) :]
    return bytes(changed)


@pytest.mark.integration
@pytest.mark.parametrize("style", ["gnu", "sysv"])
def test_a_damaged_extension_is_no_traceback(style: str, tmp_path: Path) -> None:
    library = shared_object(tmp_path / "lib" / "libinner.so", "int inner(void) { return 1; }")
    source = "int inner(void); int outer(void) { return inner(); }"
    options = (f"-L{library.parent}", "-linner", f"-Wl,--hash-style={style}", f"-Wl,-rpath,{library.parent}")
    made = install(tmp_path, "torch", CPU, extra=source, options=options)
    assert "[X] PyTorch" in check_build_block(read(tmp_path))
    files = {made: made.read_bytes(), library: library.read_bytes()}
    # headers and tables are a small part of a file, and the one that is read
    chance = random.Random(f"20261122 {style}")
    answers = collections.Counter[bool]()
    for _ in range(1000):
        path = chance.choice((made, made, made, library))
        path.write_bytes(mutated(files[path], chance))
        began = time.monotonic()
        block = check_build_block(read(tmp_path))
        assert time.monotonic() - began < 10
        assert block.replace("\n", "").isprintable()
        answers["[X] PyTorch" in block] += 1
        path.write_bytes(files[path])
    assert min(answers[True], answers[False]) > 100


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        ("2.1.0", "2.1.0", True),
        ("2.1.0+cpu", "2.1.0", True),
        ("2.1.0+cpu", "2.1.0+cu121", False),
        ("2.1.0", "2.1.1", False),
        (None, "2.1.0", False),
    ],
)
def test_versions_agree_up_to_an_unstated_local_part(first: str | None, second: str, same: bool) -> None:
    assert same_version(first, second) is same


def test_it_is_quick_to_import() -> None:
    heavy = "{'msgspec', 'rich', 'elftools', 'click', 'importlib.metadata', 'subprocess'}"
    source = f"import sys, envkit.binary.build_block; sys.exit(str({heavy} & set(sys.modules) or ''))"
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert ran.stderr.strip() == ""
