"""Locks: the same bytes for the same environment, one message for a file that is none, what is refused and told."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envkit.cli import run
from envkit.environments import lockfile
from envkit.environments.lockfile import Lock, LockedMachine, LockedPart
from envkit.errors import LockInvalid

Output = pytest.CaptureFixture[str]
HERE = LockedMachine(type="x86_64", python="3.11.7", compiler="GCC 12.2.0", mpi="Open MPI 4.1.4")
TORCH = "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl"


def part(
    name: str = "Toy/1.0", recipe: str = "Toy-1.0.eb", digest: str = "a", *files: str, patch: str = "c"
) -> LockedPart:
    return LockedPart(
        name=name,
        recipe=recipe,
        sha256=digest * 64,
        sources=tuple(lockfile.file(file, "b" * 64) for file in files),
        patches=(lockfile.file("Toy-1.0_fix.patch", patch * 64),),
    )


def made(*parts: LockedPart, **changes: Any) -> Lock:
    given: dict[str, Any] = {
        "name": "toy",
        "method": "easybuild",
        "framework": "pytorch",
        "accelerator": "cpu",
        "release": "",
        "machine": HERE,
        "tools": {"envkit": "0.1.0", "easybuild-framework": "5.4.1"},
        "parts": parts or (part(),),
        "flags": {"mpi": 1, "gloo": 1, "nccl": 0},
    }
    return Lock(**{**given, **changes})


def refused(locked: Lock, here: Lock) -> list[str]:
    return [problem.what for problem in lockfile.refusals(locked, here)]


def test_a_lock_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "toy.lock"
    path.write_text(lockfile.text(made()))
    assert lockfile.read(path) == made()
    assert lockfile.text(lockfile.read(path)) == path.read_text()


def test_the_order_in_which_things_were_found_does_not_matter() -> None:
    other = made(tools={"easybuild-framework": "5.4.1", "envkit": "0.1.0"}, flags={"nccl": 0, "gloo": 1, "mpi": 1})
    assert lockfile.text(other) == lockfile.text(made())
    told = json.loads(lockfile.text(made()))
    assert list(told) == sorted(told)


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("https://example.org/a/x.whl", "https://example.org/a/x.whl"),
        ("https://me:secret@example.org:8443/x?token=1#y", "https://example.org:8443/x"),
        ("file:///home/me/x", ""),
        ("/home/me/x", ""),
    ],
)
def test_nothing_private_is_in_a_url(url: str, kept: str) -> None:
    assert lockfile.file("x", None, [url]).urls == ((kept,) if kept else ())


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "is no lock of envkit, or is damaged."),
        (lockfile.text(made())[:-40], "is no lock of envkit, or is damaged."),
        ('{"name": "something", "lockfileVersion": 3}', "is no lock of envkit, or is damaged."),
        ('{"version": 1, "metadata": {}}', "is no lock of envkit, or is damaged."),
        (lockfile.text(made()).replace("a" * 64, "a" * 63), "is no lock of envkit, or is damaged."),
        ("\0\xff", "is no lock of envkit, or is damaged."),
        ('{"version": 2, "everything": "else"}', "was written by a newer envkit."),
    ],
    ids=["empty", "cut", "foreign", "foreign with a version", "digest", "binary", "newer"],
)
def test_one_message_for_what_is_no_lock(text: str, said: str, tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "toy.lock"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(LockInvalid) as invalid:
        lockfile.read(path)
    assert invalid.value.what == f"{path} {said}"
    assert run(["install", "--locked", str(path), "--prefix", str(tmp_path / "p")]) == 4
    error = capsys.readouterr().err
    assert error.startswith(f"envkit: {path} {said}\n") and "What to do: " in error and "Traceback" not in error
    assert not (tmp_path / "p").exists()


def test_the_same_is_neither_refused_nor_told() -> None:
    assert refused(made(), made(flags={})) == []
    assert list(lockfile.differences(made(), made(flags={}))) == []


@pytest.mark.parametrize(
    ("here", "said"),
    [
        (
            part(digest="d"),
            r"Toy/1.0 is made from something else here than in the lock (SHA-256 aaaaaaaaaaaa... in the ",
        ),
        (part("Toy/1.0", "Toy-1.0.eb", "d", patch="e"), "Toy-1.0_fix.patch"),
        (part(recipe="mine/Toy-1.0.eb", digest="d"), "Toy/1.0 is made from something else here than in the lock"),
        (part("Other/1.0"), "The lock has Toy/1.0, which toy does not consist of here."),
    ],
    ids=["recipe", "patch", "recipe elsewhere", "part"],
)
def test_what_cannot_be_honoured_is_refused(here: LockedPart, said: str) -> None:
    assert said in refused(made(), made(here))[0]
    [first, *_] = lockfile.refusals(made(), made(here))
    assert "envkit 0.1.0" in first.fix


def test_a_part_too_many_is_refused() -> None:
    assert refused(made(), made(part(), part("More/1.0"))) == ["toy needs More/1.0 here, which the lock does not have."]


def test_what_the_host_has_otherwise_is_told() -> None:
    other = LockedMachine(
        type="x86_64", cpu="x86_64/amd/zen3", python="3.12.1", compiler="GCC 13.2.0", load=("gcc/13",)
    )
    here = made(part("Toy/1.0", "embedded/Toy-1.0.eb", "d"), machine=other, tools={"envkit": "0.1.0"})
    assert refused(made(), here) == []
    assert list(lockfile.differences(made(), here)) == [
        "CPU target: generic in the lock, x86_64/amd/zen3 here",
        "Python: 3.11.7 in the lock, 3.12.1 here",
        "compiler: GCC 12.2.0 in the lock, GCC 13.2.0 here",
        "MPI: Open MPI 4.1.4 in the lock, none here",
        "site modules: none in the lock, gcc/13 here",
        "easybuild-framework: 5.4.1 in the lock, none here",
        "the recipe of Toy/1.0: Toy-1.0.eb in the lock, embedded/Toy-1.0.eb here",
    ]


def test_files_for_another_python_are_told() -> None:
    locked, here = (made(part("Toy/1.0", "Toy-1.0.eb", "a", name)) for name in (TORCH, TORCH.replace("311", "312")))
    assert refused(locked, here) == []
    [told] = lockfile.differences(locked, here)
    assert told == f"files of Toy/1.0: {TORCH} in the lock, {TORCH.replace('311', '312')} here"


def test_a_lock_of_another_stack_is_refused(tmp_path: Path, capsys: Output) -> None:
    path = tmp_path / "toy.lock"
    path.write_text(lockfile.text(made()))
    prefix = str(tmp_path / "p")
    assert run(["install", "--locked", str(path), "--prefix", prefix]) == 2
    assert "The lock is of toy, which is no stack of envkit's, nor one that your site" in capsys.readouterr().err
    assert run(["install", "pytorch-2.13-cpu", "--locked", str(path), "--prefix", prefix]) == 2
    assert "The lock is of toy by easybuild, not of pytorch-2.13-cpu." in capsys.readouterr().err


def test_every_field_of_the_machine_is_told() -> None:
    assert set(lockfile.TITLES.values()) == set(msgspec.structs.asdict(HERE))
