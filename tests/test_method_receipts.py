"""What the receipts of the methods say of an environment: the way in, what has gone, what is shown of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from envkit.apptainer.receipt import ImageReceipt
from envkit.easybuild.receipt import ModuleReceipt, shareable
from envkit.eessi import entry
from envkit.eessi.receipt import EessiReceipt
from envkit.environments.eessi import EessiEnvironment
from envkit.environments.prefix import Tree
from envkit.environments.receipt import kept_path

Install = Callable[..., ModuleReceipt]
InstallImage = Callable[..., ImageReceipt]
changed = msgspec.structs.replace


def on_top(toy: ModuleReceipt, **given: Any) -> EessiReceipt:
    """That of an environment of modules on top of a release of EESSI."""
    same = {name: getattr(toy, name) for name in EessiReceipt.__struct_fields__ if hasattr(toy, name)}
    return EessiReceipt(**{**same, "release": "2023.06", "copy": "", **given})


def test_the_way_into_an_image(install_image: InstallImage) -> None:
    given = {"binds": ("/scratch",), "settings": {"A": "1"}, "srun": ("--mpi=pmix",), "accelerator": "rocm"}
    way = changed(install_image("toy"), **given).environment
    assert (way.name, way.runtime, way.image.name) == ("toy", Path("/bin/apptainer"), "toy.sif")
    assert (way.binds, way.settings, way.srun, way.accelerator) == (
        ("/scratch",),
        (("A", "1"),),
        ("--mpi=pmix",),
        "rocm",
    )


def test_what_is_shown_of_an_image(install_image: InstallImage) -> None:
    image = changed(install_image("toy"), size=2_500_000)
    shown = image.described()
    assert shown.pop("By hand").endswith(f"{image.image} python train.py")
    assert shown == {
        "Image": image.image,
        "Digest": f"sha256:{image.sha256}",
        "Size": "2 MB",
        "Made from": "cpu.def",
        "PMIx": "4.2.2",
        "C library": "glibc 2.36",
    }
    folder = changed(image, sha256="", pmix="").described()
    assert folder["Digest"] == "none, since it is a folder that can be changed"
    assert folder["PMIx"] == "none"


@pytest.mark.parametrize("kept", [b"", b"{", b"[" * 100_000, b'{"identity": [1, 2, 3], "sha256": ""}', None])
def test_what_was_kept_of_an_image_may_be_anything(install_image: InstallImage, kept: bytes | None) -> None:
    image = install_image("toy")
    path = kept_path(Tree(root=Path(image.tree)), "toy")
    path.parent.mkdir(parents=True, exist_ok=True)
    if kept is not None:
        path.write_bytes(kept)
    assert image.seen() is None
    assert image.damage() == ""
    assert image.seen() is not None  # since it was hashed meanwhile


@pytest.mark.parametrize("copy", ["", "/copy"])
def test_the_way_onto_a_release(install: Install, monkeypatch: pytest.MonkeyPatch, copy: str) -> None:
    asked: dict[str, Any] = {}
    entered = EessiEnvironment(version="2023.06", modules=("EESSI/2023.06",), way=("way",), cpu="zen3")

    def enter(options: entry.EntryOptions, *, keep: bool) -> EessiEnvironment:
        asked.update(options=options, keep=keep)
        return entered

    monkeypatch.setattr(entry, "enter", enter)
    receipt = on_top(install("toy", "Toy/1.0"), copy=copy)
    expected = dataclasses.replace(entered, name="toy", modulepath=receipt.folder, modules=("Toy/1.0",))
    assert receipt.environment == expected
    wanted = entry.EntryOptions(version="2023.06", copy=Path(copy) if copy else None, visible=(Path(receipt.tree),))
    assert asked == {"options": wanted, "keep": False}


@pytest.mark.parametrize(("copy", "gone"), [("", ""), ("/copy", ""), ("", "no /cvmfs"), ("/copy", "no copy")])
def test_a_release_that_has_gone(install: Install, monkeypatch: pytest.MonkeyPatch, copy: str, gone: str) -> None:
    asked = list[Any]()

    def said(*words: object) -> str:
        asked.append(words)
        return gone

    monkeypatch.setattr(entry, "gone", said)
    receipt = on_top(install("toy", "Toy/1.0"), copy=copy)
    assert receipt.damage() == (f"its release of EESSI has gone: {gone}" if gone else "")
    assert asked == [("2023.06", Path(copy) if copy else None)]
    (receipt.folder / "Toy" / "1.0.lua").unlink()
    assert "Toy/1.0" in receipt.damage()
    assert len(asked) == 1  # that comes first


def test_what_is_shown_of_one_on_a_release(install: Install) -> None:
    receipt = on_top(install("toy", "Base/2", "Toy/1.0"))
    hand = f"module load EESSI/2023.06 && module use {receipt.folder} && module load Toy/1.0"
    assert receipt.described() == {"By hand": hand, "Modules": "Base/2\n            Toy/1.0"}


def test_what_a_cache_can_hold(install: Install, install_image: InstallImage, tmp_path: Path) -> None:
    horovod, toy = install("one", "Horovod/0.28.1"), install("toy", "Toy/1.0")
    assert shareable(horovod) is horovod
    others = (toy, horovod.within(tmp_path), on_top(horovod), install_image("image"))
    assert [shareable(other) for other in others] == [None] * 4
