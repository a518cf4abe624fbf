"""The layers of an image: which there are, what they stand on, and what makes another one of them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from envkit.apptainer import image_plan
from envkit.apptainer.image_plan import Base, ImageRecipe, mirror, pinned, plan, rendered
from envkit.cli import run
from envkit.errors import RecipeInvalid

TEXT = """\
Bootstrap: {{ BOOTSTRAP }}
From: {{ BASE }}
Stage: build

%arguments
    RELEASE=bookworm
    BOOTSTRAP=docker
    BASE=debian@sha256:0
    FIRST=1
    SECOND=2
    JOBS=2

%files
    first.txt /opt/first.txt

%post
    echo {{ FIRST }} -j{{ JOBS }}

%files
    folder /opt/folder

%post
    echo {{ SECOND }}

Bootstrap: {{ BOOTSTRAP }}
From: {{ BASE }}
Stage: final

%files from build
    /opt /opt

%labels
    base {{ BASE }}
"""
LAYERS = Path("/layers")
DOCKER = Base(bootstrap="docker", reference="")
MIRROR = Base(bootstrap="debootstrap", reference="http://mirror/debian")
Make = Callable[..., ImageRecipe]


@pytest.fixture
def wanted(tmp_path: Path) -> Make:
    """A recipe of two layers and an image, as it is asked for."""
    (tmp_path / "toy.def").write_text(TEXT)
    (tmp_path / "first.txt").write_text("one")
    (tmp_path / "folder" / "__pycache__").mkdir(parents=True)
    (tmp_path / "folder" / "a.py").write_text("a")

    def make(**changes: Any) -> ImageRecipe:
        given = {"name": "toy", "recipe": "toy.def", "arguments": {}, "own": {}, "base": DOCKER, "machine": "x86_64"}
        return ImageRecipe(**{**given, "folder": tmp_path, **changes})

    return make


def keys(wanted: ImageRecipe) -> dict[str, str]:
    return {layer.name: layer.key for layer in plan(wanted, LAYERS).layers}


def changed(before: dict[str, str], after: dict[str, str]) -> set[str]:
    return {name for name in before if before[name] != after[name]}


def test_each_layer_stands_on_the_one_before(wanted: Make) -> None:
    one, two, image = plan(wanted(), LAYERS).layers
    assert [one.name, two.name, image.name] == ["build-1", "build-2", "image"]
    assert one.recipe.startswith("Bootstrap: docker\nFrom: debian@sha256:0\nStage: build\n")
    assert two.recipe.startswith(f"Bootstrap: localimage\nFrom: {one.image}\n")
    assert "echo 1 -j2" in one.recipe and "echo 2" not in one.recipe
    assert "echo 2" in two.recipe and "echo 1" not in two.recipe
    assert image.recipe.startswith(f"Bootstrap: localimage\nFrom: {two.image}\nStage: build\n")
    assert "Bootstrap: docker\nFrom: debian@sha256:0\nStage: final\n" in image.recipe
    assert "base debian@sha256:0" in image.recipe
    assert {layer.image.parent for layer in (one, two, image)} == {LAYERS}
    assert image.image.name == f"toy-{image.key[:20]}.sif"


def test_debian_from_a_mirror_is_a_layer_of_its_own(wanted: Make) -> None:
    debian, one, two, image = plan(wanted(base=MIRROR), LAYERS).layers
    assert debian.name == "debian"
    assert "OSVersion: bookworm\nMirrorURL: http://mirror/debian\n" in debian.recipe
    assert one.recipe.startswith(f"Bootstrap: localimage\nFrom: {debian.image}\n")
    assert f"From: {two.image}" in image.recipe and f"From: {debian.image}\nStage: final" in image.recipe
    assert "mirror" not in image.recipe


def test_where_a_mirror_is_makes_no_other_layers(wanted: Make) -> None:
    other = Base(bootstrap="debootstrap", reference="http://other/debian")
    assert keys(wanted(base=MIRROR)) == keys(wanted(base=other))


def test_another_snapshot_of_debian_is_another_image(wanted: Make) -> None:
    def dated(date: str, host: str = "a") -> ImageRecipe:
        return wanted(base=Base(bootstrap="debootstrap", reference=f"http://{host}/archive/debian/{date}"))

    first, second = dated("20260101T000000Z"), dated("20260201T000000Z")
    assert keys(first) == keys(dated("20260101T000000Z", "b"))
    assert changed(keys(first), keys(second)) == changed(keys(wanted(base=MIRROR)), keys(first)) == {*keys(first)}
    assert plan(first, LAYERS).snapshot == "20260101T000000Z" and not plan(wanted(base=MIRROR), LAYERS).snapshot
    assert "MirrorURL: http://a/archive/debian/20260101T000000Z\n" in plan(first, LAYERS).layers[0].recipe


@pytest.mark.parametrize("base", ["http://a/ubuntu", "https://me:secret@a/debian", "http://a/debian/2026", "http://"])
def test_a_url_that_is_no_mirror(base: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["install", "--method", "apptainer", "--base", base, "--dry-run"]) == 2
    said = capsys.readouterr().err
    assert "is no mirror of Debian that can be taken." in said and "secret" not in said


def test_what_changes_a_layer_changes_all_above_it_and_no_other(wanted: Make, tmp_path: Path) -> None:
    before = keys(wanted())
    assert changed(before, keys(wanted(arguments={"FIRST": "9"}))) == {"build-1", "build-2", "image"}
    assert changed(before, keys(wanted(arguments={"SECOND": "9"}))) == {"build-2", "image"}
    assert changed(before, keys(wanted(own={"JOBS": "9"}))) == set()
    assert changed(before, keys(wanted(machine="aarch64"))) == {"build-1", "build-2", "image"}
    (tmp_path / "folder" / "__pycache__" / "a.cpython-311.pyc").write_text("x")
    assert changed(before, keys(wanted())) == set()
    (tmp_path / "folder" / "a.py").write_text("b")
    assert changed(before, keys(wanted())) == {"build-2", "image"}
    (tmp_path / "first.txt").write_text("two")
    assert changed(before, keys(wanted())) == {"build-1", "build-2", "image"}


def test_a_patch_that_is_not_applied_changes_nothing(wanted: Make, tmp_path: Path) -> None:
    copied = TEXT.replace("%arguments\n", "%arguments\n    HOROVOD=1\n    PATCHES=one\n", 1)
    copied = copied.replace("    first.txt /opt/first.txt\n", "    *.patch /opt\n")
    (tmp_path / "toy.def").write_text(copied)
    (tmp_path / "horovod-1.txt").write_text("")
    for name in ("Horovod-1_one.patch", "Horovod-1_two.patch", "other.patch"):
        (tmp_path / name).write_text("")
    before = keys(wanted())
    (tmp_path / "Horovod-1_two.patch").write_text("changed")
    (tmp_path / "Horovod-1_three.patch").write_text("new")
    assert changed(before, keys(wanted())) == set()
    (tmp_path / "other.patch").write_text("changed")
    assert changed(before, between := keys(wanted())) == {"build-1", "build-2", "image"}
    (tmp_path / "Horovod-1_one.patch").write_text("changed")
    assert changed(between, keys(wanted())) == {"build-1", "build-2", "image"}
    assert changed(between, keys(wanted(arguments={"PATCHES": "one two"}))) == {"build-1", "build-2", "image"}


def test_a_base_in_a_file_is_known_by_its_content(wanted: Make, tmp_path: Path) -> None:
    files = [tmp_path / "a.sif", tmp_path / "b.sif"]
    for file in files:
        file.write_text("the same")
    first, second = (keys(wanted(base=Base(bootstrap="localimage", reference=str(file)))) for file in files)
    assert first["build-1"] == second["build-1"]
    files[1].write_text("other")
    assert keys(wanted(base=Base(bootstrap="localimage", reference=str(files[1]))))["build-1"] != first["build-1"]


@pytest.mark.parametrize("name", ["NOTHING", "BASE", "PIP"])
def test_an_argument_that_is_none_of_the_recipes(name: str, wanted: Make) -> None:
    with pytest.raises(RecipeInvalid, match=f"toy.def takes no argument {name}") as invalid:
        plan(wanted(arguments={name: "x"}), LAYERS)
    assert "It takes: FIRST, RELEASE, SECOND." in invalid.value.fix


def test_a_recipe_for_plain_apptainer(wanted: Make, tmp_path: Path) -> None:
    text = rendered(wanted(arguments={"FIRST": "7"}))
    assert "{{" not in text
    assert "echo 7 -j2" in text and "echo 2" in text
    assert f"{tmp_path}/first.txt /opt/first.txt" in text
    assert text.count("From: debian@sha256:0") == 2
    from_mirror = rendered(wanted(base=MIRROR))
    assert from_mirror.count("MirrorURL: http://mirror/debian") == 2
    assert "{{" not in from_mirror


PINS = """\
# a comment
--extra-index-url https://index/whl/cpu
numpy==2.2.6 ; platform_machine == "x86_64" --hash=sha256:{a}  # numpy-2.2.6-cp311-x86_64.whl
numpy==2.2.6 ; platform_machine == "aarch64" --hash=sha256:{b}  # numpy-2.2.6-cp311-aarch64.whl
torch===2.13.0 --hash=sha256:{c}  # torch-2.13.0.whl
"""


def test_pins(tmp_path: Path) -> None:
    path = tmp_path / "pins.txt"
    path.write_text(PINS.format(a="a" * 64, b="b" * 64, c="c" * 64))
    found = list(pinned(path, "aarch64"))
    assert [source.filename for source in found] == ["numpy-2.2.6-cp311-aarch64.whl", "torch-2.13.0.whl"]
    assert [source.project for source in found] == ["numpy", "torch"]
    assert found[0].sha256 == "b" * 64
    assert found[1].urls == ("https://index/whl/cpu",)


@pytest.mark.parametrize("line", ["numpy==2.2.6", "numpy --hash=sha256:00  # a.whl", "numpy>=2  # numpy.whl"])
def test_a_line_without_a_pin(line: str, tmp_path: Path) -> None:
    path = tmp_path / "pins.txt"
    path.write_text(f"{line}\n")
    with pytest.raises(RecipeInvalid, match="has a line without a pin") as invalid:
        list(pinned(path, "x86_64"))
    assert invalid.value.why == line


def test_no_such_list_of_pins(tmp_path: Path) -> None:
    (tmp_path / "there.txt").touch()
    with pytest.raises(RecipeInvalid, match=r"There is no list of pins gone\.txt") as invalid:
        list(pinned(tmp_path / "gone.txt", "x86_64"))
    assert "there.txt" in invalid.value.fix


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("deb http://a/debian bookworm main\n", "http://a/debian"),
        ("deb [signed-by=/x] https://a/b/debian/ bookworm main\n", "https://a/b/debian"),
        ("Types: deb\nURIs: http://a/debian\nSuites: bookworm\n", "http://a/debian"),
        ("deb http://a/ubuntu noble main\n", None),
        ("deb http://me:secret@a/debian bookworm main\n", None),
        ("deb http://me:secret@a/debian bookworm main\ndeb http://b/debian bookworm main\n", "http://b/debian"),
        ("deb http://a/archive/debian/20260101T000000Z/ bookworm main\n", "http://a/archive/debian/20260101T000000Z"),
        ("deb http://a/debian/other/ bookworm main\n", None),
        ("# deb http://a/debian bookworm main\n", None),
        ("deb http://a/debian-security bookworm-security main\n", None),
    ],
)
def test_the_mirror_of_this_host(text: str, found: str | None, tmp_path: Path) -> None:
    path = tmp_path / "sources.list"
    path.write_text(text)
    assert mirror([path]) == found
    assert image_plan.mirror([]) is None
