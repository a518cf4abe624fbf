from pathlib import Path

import pytest

from envkit import definition
from envkit.dockerfile import converted
from envkit.errors import RecipeInvalid

TEXT = """\
FROM debian@sha256:7c7b2c966bc9ee8cedfeef67e0e279108992c77681fa595db4a9d65c06ccc587
LABEL maintainer="A Person" version=1
SHELL ["/bin/bash", "-c"]
ENV PATH=/opt/x/bin:$PATH A="b c"
WORKDIR /opt/x
COPY a.txt /opt/x/
RUN echo one && \\
    echo two
USER nobody
EXPOSE 80
ENTRYPOINT ["python3"]
"""


@pytest.fixture
def dockerfile(tmp_path: Path) -> Path:
    path = tmp_path / "Dockerfile"
    path.write_text(TEXT)
    (tmp_path / "a.txt").touch()
    return path


def test_a_dockerfile_becomes_a_recipe(dockerfile: Path, tmp_path: Path) -> None:
    made = tmp_path / "made.def"
    made.write_text(converted(dockerfile))
    [stage] = definition.read(made)
    sections = {section.name: section for section in stage.sections}
    assert stage.header["Bootstrap"] == "docker"
    assert stage.header["From"] == TEXT.splitlines()[0].removeprefix("FROM ")
    assert definition.copied(stage.sections, {}, Path("/")) == [(tmp_path / "a.txt", "/opt/x/")]
    assert sections["post"].words == "-c /bin/bash"
    assert "echo one" in sections["post"].text and "echo two" in sections["post"].text
    assert "cd /opt/x" in sections["post"].text
    for left in ("SHELL", "su -", "EXPOSE"):
        assert left not in sections["post"].text
    assert "export PATH=/opt/x/bin:$PATH" in sections["environment"].text
    assert "    maintainer A Person\n" in sections["labels"].text
    assert "python3" in sections["runscript"].text


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("FROM a AS x\nRUN true\nFROM b\nCOPY --from=x /a /b\n", "has 2 stages"),
        ("RUN true\n", "has 0 stages"),
        ("FROM a\nCOPY --from=other /a /b\n", "copies from another image"),
        ("FROM a\nADD https://example.org/a /b\n", "or from the network"),
    ],
)
def test_what_cannot_be_converted(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    with pytest.raises(RecipeInvalid, match=said) as invalid:
        converted(path)
    assert "docker://IMAGE@sha256:DIGEST" in invalid.value.fix


def test_a_dockerfile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeInvalid, match="cannot be read"):
        converted(tmp_path / "gone")
