import re
from pathlib import Path

import pytest

from envkit.apptainer import definition_file
from envkit.apptainer.definition_file import Section
from envkit.errors import RecipeInvalid

TEXT = """\
# a comment
Bootstrap: {{ BOOTSTRAP }}
From: {{ BASE }}
Stage: build

%arguments
    # what it is for
    BOOTSTRAP=docker
    BASE=debian@sha256:0
    WORDS=one two
    EMPTY=

%files
    a.txt /opt/a.txt

%post
    echo {{ WORDS }}
    cat <<'END'
    From: nowhere
    END

%files
    b*.txt /opt

%post
    echo second

Bootstrap: {{ BOOTSTRAP }}
From: {{ BASE }}
Stage: final

%files from build
    /opt /opt

%test
    true
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    path = tmp_path / "toy.def"
    path.write_text(TEXT)
    for name in ("a.txt", "b1.txt", "b2.txt"):
        (tmp_path / name).write_text(name)
    return path


def test_stages_and_their_sections(recipe: Path) -> None:
    build, final = definition_file.read(recipe)
    assert (build.name, final.name) == ("build", "final")
    assert dict(build.header) == {"Bootstrap": "{{ BOOTSTRAP }}", "From": "{{ BASE }}", "Stage": "build"}
    assert [section.name for section in build.sections] == ["arguments", "files", "post", "files", "post"]
    assert [(section.name, section.words) for section in final.sections] == [("files", "from build"), ("test", "")]
    assert "From: nowhere" in build.sections[2].text


def test_arguments_and_their_defaults(recipe: Path) -> None:
    build, final = definition_file.read(recipe)
    assert build.arguments == {
        "BOOTSTRAP": "docker",
        "BASE": "debian@sha256:0",
        "WORDS": "one two",
        "EMPTY": "",
    }
    assert final.arguments == {}


def test_a_post_ends_a_layer(recipe: Path) -> None:
    build, final = definition_file.read(recipe)
    assert [[section.name for section in layer] for layer in build.layers] == [["files", "post"], ["files", "post"]]
    assert [[section.name for section in layer] for layer in final.layers] == [["files", "test"]]


def test_what_is_written_is_read(recipe: Path, tmp_path: Path) -> None:
    stages = definition_file.read(recipe)
    again = tmp_path / "again.def"
    again.write_text(definition_file.write([(stage.header, stage.sections) for stage in stages]))
    assert definition_file.read(again) == stages


def test_arguments_are_filled_in() -> None:
    assert definition_file.filled("{{ A }}-{{B}} {C} $D", {"A": "1", "B": ""}) == "1- {C} $D"
    with pytest.raises(RecipeInvalid, match="an argument without a value: MISSING") as invalid:
        definition_file.filled("{{ MISSING }}", {})
    assert "--build-arg MISSING=VALUE" in invalid.value.fix


def test_what_is_copied(recipe: Path, tmp_path: Path) -> None:
    build, final = definition_file.read(recipe)
    assert definition_file.copied(build.sections, {}, tmp_path) == [
        (tmp_path / "a.txt", "/opt/a.txt"),
        (tmp_path / "b1.txt", "/opt"),
        (tmp_path / "b2.txt", "/opt"),
    ]
    assert definition_file.copied(final.sections, {}, tmp_path) == []


def test_paths_made_absolute(tmp_path: Path) -> None:
    section = Section(name="files", words="", text="    ../{{ NAME }} /opt/a\n")
    made = definition_file.absolute(section, {"NAME": "a.txt"}, tmp_path / "x")
    assert made.text == f"    {tmp_path}/x/../a.txt /opt/a\n"
    other = Section(name="files", words="from build", text="    /opt /opt\n")
    assert definition_file.absolute(other, {}, tmp_path) == other


def test_a_file_to_copy_that_is_not_there(tmp_path: Path) -> None:
    section = Section(name="files", words="", text="    gone*.txt /opt\n")
    with pytest.raises(RecipeInvalid, match=re.escape("The recipe copies gone*.txt, and there is no such file.")):
        definition_file.copied([section], {}, tmp_path)


@pytest.mark.parametrize(
    ("text", "said"),
    [("", "is empty"), ("# only a comment\n", "is empty"), ("%post\n    true\n", "begins with Bootstrap:")],
)
def test_what_is_no_recipe(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.def"
    path.write_text(text)
    with pytest.raises(RecipeInvalid, match=said):
        definition_file.read(path)


def test_a_recipe_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(RecipeInvalid, match="cannot be read"):
        definition_file.read(tmp_path / "gone.def")
    (tmp_path / "binary.def").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(RecipeInvalid, match="cannot be read"):
        definition_file.read(tmp_path / "binary.def")
