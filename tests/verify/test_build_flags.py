from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from envkit.verify.build_block import check_build_block
from envkit.verify.build_flags import BuildFlags, read_extensions, same_version

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
    extension = horovod / framework / f"{STEMS[framework]}.cpython-311-x86_64-linux-gnu.so"
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
    source = f"import sys, envkit.verify.build_block; sys.exit(str({heavy} & set(sys.modules) or ''))"
    ran = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)
    assert ran.stderr.strip() == ""
