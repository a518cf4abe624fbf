"""Images as a site wants them, for real: signed, with binds and settings, as folders, by SingularityCE, exported."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from envkit.apptainer import definition_file
from envkit.apptainer.receipt import ImageReceipt
from envkit.system.files import sha256

from ..stacks import Site
from .conftest import IMAGE

pytestmark = pytest.mark.integration

Install = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def install(stacks: Site, image: ImageReceipt) -> Iterator[Install]:
    """Take an image over under a name of its own, which is removed after the test."""
    names = set()

    def run(
        name: str, *words: str, source: str = "", env: dict[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        names.add(name)
        argv = ["install", name, "--method", "apptainer", "--from", source or image.image, *words]
        return stacks.envkit(*argv, timeout_s=600, env=env)

    yield run
    for name in names:
        stacks.envkit("remove", name, "--dependencies")


def left(image: ImageReceipt, name: str) -> list[Path]:
    """What there is of an image."""
    return [
        path for folder in ("layers", "images", "environments") for path in Path(image.tree, folder).glob(f"*{name}*")
    ]


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], tuple[str, str]]:
    """Make a pair of keys: the files of the private and of the public one."""
    folder = tmp_path_factory.mktemp("keys")

    def make(name: str) -> tuple[str, str]:
        private, public = folder / f"{name}.pem", folder / f"{name}.pub"
        if not private.exists():
            subprocess.run(["openssl", "genpkey", "-algorithm", "ed25519", "-out", private], check=True)
            subprocess.run(["openssl", "pkey", "-in", private, "-pubout", "-out", public], check=True)
        return str(private), str(public)

    return make


def test_an_image_is_signed_and_taken_over_by_who_knows_the_key(
    stacks: Site, image: ImageReceipt, install: Install, keys: Callable[[str], tuple[str, str]], tmp_path: Path
) -> None:
    (private, public), (_, other) = keys("own"), keys("other")
    done = install("signed", "--sign", private)
    assert done.returncode == 0, done.stdout + done.stderr
    signed = Path(image.tree) / "images" / "signed.sif"
    assert subprocess.run([image.runtime, "verify", "--key", public, signed], check=False).returncode == 0
    assert sha256(signed) in stacks.envkit("show", "signed").stdout

    taken = install("taken", "--signed-by", public, source=str(signed))
    assert taken.returncode == 0, taken.stdout + taken.stderr
    for name, source, key in (("wrong", str(signed), other), ("unsigned", image.image, public)):
        refused = install(name, "--signed-by", key, source=source)
        assert refused.returncode == 4, refused.stdout + refused.stderr
        assert f"{source} is not signed with the private half of {key}." in refused.stderr
        assert left(image, name) == []


def test_a_key_that_is_none(image: ImageReceipt, install: Install, tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("-----BEGIN NOTHING-----\n")
    done = install("unkeyed", "--sign", str(key))
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"Nothing can be signed with {key}." in done.stderr and "[1/" not in done.stdout
    assert left(image, "unkeyed") == []


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--sign", __file__, "--sandbox"], "--sign: a folder, which can be changed, cannot be signed."),
        (["--sign", "{tmp_path}/none"], "does not exist"),
    ],
)
def test_signing_that_makes_no_sense(words: list[str], said: str, install: Install, tmp_path: Path) -> None:
    done = install("senseless", *(word.format(tmp_path=tmp_path) for word in words))
    assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_what_a_site_needs_is_in_the_image(stacks: Site, install: Install, tmp_path: Path) -> None:
    data, more, site = tmp_path / "data", tmp_path / "more", tmp_path / "site.toml"
    for folder in (data, more):
        folder.mkdir()
        (folder / "name").write_text(folder.name)
    site.write_text(
        f'title = "Here"\nstatus = "tried"\nsource = "none"\nbinds = ["{data}:/opt/data"]\n[settings]\nAT = "a b"\n'
    )
    done = install("sited", "--site", str(site), "--bind", f"{more}:/opt/more")
    assert done.returncode == 0, done.stdout + done.stderr
    code = "import os; print(open('/opt/data/name').read(), open('/opt/more/name').read(), os.environ['AT'])"
    told = stacks.envkit("run", "sited", "-n", "1", "--", "python", "-c", code)
    assert (told.returncode, told.stdout) == (0, "data more a b\n"), told.stderr
    again = install("sited", "--site", str(site), "--bind", f"{more}:/opt/more")
    assert "Nothing to do." in again.stdout
    (more / "name").unlink()
    more.rmdir()
    gone = stacks.envkit("verify", "sited", "-n", "2")
    assert (gone.returncode, gone.stdout) == (3, "")
    assert f"This machine does not have what is to be bound into the image: {more}." in gone.stderr


def test_what_is_to_be_bound_is_not_there(image: ImageReceipt, install: Install, tmp_path: Path) -> None:
    done = install("unbound", "--bind", f"{tmp_path}/data:/data")
    assert done.returncode == 3, done.stdout + done.stderr
    assert f"This machine does not have what is to be bound into the image: {tmp_path}/data." in done.stderr
    assert left(image, "unbound") == []


def test_a_folder_can_be_changed(stacks: Site, image: ImageReceipt, install: Install) -> None:
    done = install("box", "--sandbox")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  box: 2 ranks in one world" in done.stdout
    box = Path(image.tree) / "images" / "box"
    (box / "opt" / "own").write_text("mine")
    told = stacks.envkit("run", "box", "--", "cat", "/opt/own")
    assert (told.returncode, told.stdout) == (0, "mine"), told.stderr
    assert stacks.envkit("remove", "box").returncode == 0
    assert not box.exists()


@pytest.fixture
def singularity(image: ImageReceipt, tmp_path: Path) -> dict[str, str]:
    """A machine whose runtime is called singularity; the real one behind it, and no apptainer on PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for place in reversed(os.environ["PATH"].split(os.pathsep)):
        for program in Path(place).glob("*"):
            if program.name != "apptainer":
                (folder / program.name).unlink(missing_ok=True)
                (folder / program.name).symlink_to(program)
    fake = folder / "singularity"
    fake.unlink(missing_ok=True)
    fake.write_text(
        f'#!/bin/bash\n[ "$1" = --version ] && echo singularity-ce version 4.1.1 && exit\nexec {image.runtime} "$@"\n'
    )
    fake.chmod(0o755)
    return {"PATH": str(folder)}


def test_singularity(stacks: Site, image: ImageReceipt, install: Install, singularity: dict[str, str]) -> None:
    done = install("ce", env=singularity)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "PASS  ce: 2 ranks in one world" in done.stdout
    told = stacks.envkit("run", "ce", "--", "printenv", "FROM_OUTSIDE", env={"SINGULARITYENV_FROM_OUTSIDE": "yes"})
    assert (told.returncode, told.stdout) == (0, "yes\n"), told.stderr
    walled = stacks.envkit("verify", "ce", "-n", "2", "--mpi-model", "hybrid", env={"SINGULARITY_CLEANENV": "1"})
    assert (walled.returncode, "SINGULARITY_CLEANENV is set" in walled.stderr) == (3, True)


@pytest.mark.parametrize("accelerator", ["cpu", "cuda", "rocm"])
def test_a_recipe_is_written_out(accelerator: str, stacks: Site, tmp_path: Path) -> None:
    path = tmp_path / "own.def"
    done = stacks.envkit("export", str(path), "--accelerator", accelerator)
    assert done.returncode == 0, done.stderr
    text = path.read_text()
    assert "{{" not in text and "%arguments" not in text
    assert [stage.name for stage in definition_file.read(path)] == ["build", "final"]
    assert "apptainer build" in done.stdout
    refused = stacks.envkit("export", str(tmp_path / "none" / "own.def"))
    assert (refused.returncode, "could not be written" in refused.stderr) == (7, True)


def test_what_is_no_image_has_no_recipe_to_write_out(stacks: Site, tmp_path: Path) -> None:
    done = stacks.envkit("export", str(tmp_path / "own.def"), "pytorch-2.13-cpu")
    assert (done.returncode, "is no image" in done.stderr) == (2, True), done.stderr
    assert IMAGE in stacks.envkit("list").stdout
