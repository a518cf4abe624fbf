import itertools
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from envkit.apptainer import definition_file
from envkit.apptainer.dockerfile import Context, Converted, converted, copies, instructions, stage
from envkit.errors import EnvkitError, RecipeInvalid

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
    recipe = converted(dockerfile)
    made.write_text(recipe.recipe)
    [stage] = definition_file.read(made)
    sections = {section.name: section for section in stage.sections}
    assert stage.header["Bootstrap"] == "docker"
    assert stage.header["From"] == TEXT.splitlines()[0].removeprefix("FROM ")
    assert [(entry.source, entry.line) for entry in recipe.copied] == [(tmp_path / "a.txt", 6)]
    assert sections["files"].text == "    .envkit-context /.envkit-context\n"
    script = sections["post"].text
    assert script.index("cp -a /.envkit-context/0/0/a.txt /opt/x/") < script.index("echo one")
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
        ("FROM a\nCOPY --from=other /a /b\n", ":2: COPY --from copies from another image"),
        ("FROM a\nADD https://example.org/a /b\n", ":2: .* or from the network"),
        ('FROM a\nADD ["https://example.org/a", "/b"]\n', ":2: .* or from the network"),
        ("FROM a\n\nADD git@example.org:a.git /b\n", ":3: .* or from the network"),
        ("FROM a\nRUN true \\\n  # c\n  && true\nRUN --mount=type=secret,id=x true\n", ":5: RUN --mount"),
        ("FROM a\nRUN cat <<EOF\nFROM b\nEOF\n", ":2: RUN has a here-document"),
        ("FROM a\nCOPY <<EOF /x\nCOPY y z\nEOF\n", ":2: COPY has a here-document"),
    ],
)
def test_what_cannot_be_converted(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "Dockerfile"
    path.write_text(text)
    with pytest.raises(RecipeInvalid, match=said) as invalid:
        converted(path)
    assert "docker://IMAGE@sha256:DIGEST" in invalid.value.fix


CONTEXT = ("a.txt", "b.txt", "sub/c.txt", "sub/.hidden", "two words")
BASE = TEXT.splitlines()[0]


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A context beside a folder with a secret, with links that lead out of it in every way."""
    root = tmp_path / "outer" / "context"
    for name in CONTEXT:
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(name)
    (root.parent / "secret").write_text("the secret")
    (root / "out").symlink_to("../secret")
    (root / "far").symlink_to(root.parent / "secret")
    (root / "up").symlink_to("..")
    (root / "top").symlink_to("/")
    (root / "near").symlink_to("sub/c.txt")
    (root / "rooted").symlink_to("/sub")
    (root / "loop").symlink_to("loop")
    return root


def copy(context: Path, *lines: str) -> Converted:
    """Convert a Dockerfile of these lines in the context."""
    path = context / "Dockerfile"
    path.write_text("\n".join((BASE, *lines)) + "\n")
    return converted(path)


def staged(made: Converted, folder: Path) -> dict[str, str]:
    """The files that a build is given, by their paths."""
    stage(made, folder)
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def ways_out(depth: int = 3) -> list[str]:
    """Paths of up to so many parts, of those that lead out of a context, stay in it, or lead back."""
    parts = ("..", "/", "out", "far", "up", "top", "rooted", "loop", "sub", "secret", "etc", "*")
    return ["/".join(words) for number in range(1, depth + 1) for words in itertools.product(parts, repeat=number)]


@pytest.mark.parametrize("line", ["COPY " + "[" * 100_000, "RUN " + "[" * 100_000, "COPY [" + '"a",' * 100_000])
def test_lists_without_an_end(line: str, tmp_path: Path) -> None:
    (tmp_path / "Dockerfile").write_text(f"FROM debian:12@sha256:{'0' * 64}\n{line}\n")
    with suppress(EnvkitError):
        converted(tmp_path / "Dockerfile")


def test_nothing_outside_the_context_is_copied(context: Path, tmp_path: Path) -> None:
    """By no path of up to three parts, with .. and links to files, folders and / in it."""
    secret = context.parent / "secret"
    taken = 0
    words = [*ways_out(), "/etc/shadow", "../secret", "../../../../etc/passwd", str(secret), "sub/../../secret"]
    for word in words:
        try:
            made = copied_by(context, word)
        except RecipeInvalid as refused:
            assert "Dockerfile:2: COPY takes" in refused.what or "loop of links" in refused.what
            continue
        taken += 1
        for path in made:
            assert path.is_relative_to(context), word
            assert path.resolve().is_relative_to(context), word
    assert 10 < taken < len(words)


def copied_by(context: Path, word: str) -> list[Path]:
    """What COPY takes for a source."""
    made = instructions(context / "Dockerfile", f"{BASE}\nCOPY {word} /x/\n")
    one = list(made)[1]
    entries, _ = copies(Context(context / "Dockerfile"), one, 0, "/", {})
    return [entry.source for entry in entries]


@pytest.mark.parametrize(
    ("lines", "files", "script"),
    [
        (["COPY a.txt /x"], ["0/0/a.txt"], ["mkdir -p /", "cp -a {0}/0/0/a.txt /x"]),
        (["COPY /a.txt /x/"], ["0/0/a.txt"], ["mkdir -p /x", "cp -a {0}/0/0/a.txt /x/"]),
        (["COPY ../a.txt x"], ["0/0/a.txt"], ["cp -a {0}/0/0/a.txt /x"]),
        (["WORKDIR /w", "WORKDIR v", "COPY a.txt b.txt ./"], ["0/0/a.txt", "0/1/b.txt"], ["cp -a {0}/0/1/b.txt /w/v/"]),
        (["COPY *.txt /x/"], ["0/0/a.txt", "0/1/b.txt"], []),
        (["COPY [ab].txt ?ub /x/"], ["0/0/a.txt", "0/1/b.txt", "0/2/folder/.hidden", "0/2/folder/c.txt"], []),
        (["COPY sub /x"], ["0/0/folder/.hidden", "0/0/folder/c.txt"], ["cp -a {0}/0/0/folder/. /x/"]),
        (["COPY near /x"], ["0/0/c.txt"], []),
        (["COPY rooted/c.txt /x"], ["0/0/c.txt"], []),
        (['COPY ["two words", "/x y/"]'], ["0/0/two words"], ["cp -a '{0}/0/0/two words' '/x y/'"]),
        (
            ["ENV D=/opt", "ENV E=$D/e", "ARG S=sub", "COPY ${S}/c.txt $E/"],
            ["0/0/c.txt"],
            ["cp -a {0}/0/0/c.txt /opt/e/"],
        ),
        (["ARG S=sub  # a comment of two=2 words", "ARG NONE", "COPY ${S}/c.txt /x"], ["0/0/c.txt"], []),
        (["ARG A=a.txt B='b.txt' C", "COPY $A $B /x/"], ["0/0/a.txt", "0/1/b.txt"], []),
        (["COPY --link a.txt /x", "ADD b.txt /y"], ["0/0/a.txt", "1/0/b.txt"], []),
        (["COPY \\", "# a comment", "  a.txt \\", "", "  /x"], ["0/0/a.txt"], ["cp -a {0}/0/0/a.txt /x"]),
    ],
)
def test_what_is_copied_where(
    context: Path, tmp_path: Path, lines: list[str], files: list[str], script: list[str]
) -> None:
    made = copy(context, *lines)
    (tmp_path / "stage").mkdir()
    assert sorted(staged(made, tmp_path / "stage")) == sorted(f".envkit-context/{name}" for name in files)
    for line in script:
        assert f"    {line.format('/.envkit-context')}\n" in made.recipe


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("ENV", ":2: ENV has a name without a value."),
        ("ENV NAME", ":2: ENV has a name without a value."),
        ("ENV A=1 # more", ":2: ENV has a name without a value."),
        ("Bootstrap: docker", "Dockerfile is a definition file, and no Dockerfile."),
        ("INCLUDE x", ":2: INCLUDE is no instruction of a Dockerfile."),
        ("COPY gone.txt /x", ":2: COPY takes gone.txt, which is not there."),
        ("COPY *.gone /x/", ":2: COPY takes *.gone, which is not there."),
        ("COPY --chown=1:1 a.txt /x", ":2: COPY --chown is not supported."),
        ("COPY --chmod=755 a.txt /x", ":2: COPY --chmod is not supported."),
        ("COPY --exclude=*.txt . /x", ":2: COPY --exclude is not supported."),
        ("ADD --checksum=sha256:0 a.txt /x", ":2: ADD --checksum is not supported."),
        ("COPY a.txt b.txt /x", ":2: COPY has several sources, and the destination /x does not end in a slash."),
        ("COPY a.txt", ":2: COPY has no source or no destination."),
        ("COPY $UNKNOWN /x", ":2: $UNKNOWN: its value is not known here."),
        ("COPY ${S:-a.txt} /x", "its value is not known here."),
        ("ADD all.tar.gz /x", ":2: ADD would unpack all.tar.gz, which is not supported."),
        ("COPY pipe /x", "which is neither a file nor a folder."),
        ("COPY . /x", "which is neither a file nor a folder."),
    ],
)
def test_copies_that_are_refused(context: Path, line: str, said: str) -> None:
    (context / "all.tar.gz").touch()
    os.mkfifo(context / "pipe")
    with pytest.raises(RecipeInvalid) as refused:
        copy(context, line)
    assert said in refused.value.what


@pytest.mark.parametrize(
    ("ignored", "left"),
    [
        ("", {"a.txt", "b.txt", "sub/c.txt", "sub/.hidden", "two words"}),
        ("# all\n*.txt\n", {"sub/c.txt", "sub/.hidden", "two words"}),
        ("**/*.txt", {"sub/.hidden", "two words"}),
        ("*\n!b.txt", {"b.txt"}),
        ("/sub/", {"a.txt", "b.txt", "two words"}),
        ("sub\n!sub/c.txt", {"a.txt", "b.txt", "sub/c.txt", "two words"}),
        ("[a-b].txt\n!b.*\ntwo*", {"b.txt", "sub/c.txt", "sub/.hidden"}),
    ],
)
def test_what_dockerignore_leaves_out(context: Path, tmp_path: Path, ignored: str, left: set[str]) -> None:
    (context / ".dockerignore").write_text(f"{ignored}\nDockerfile\n.dockerignore\n")
    (tmp_path / "stage").mkdir()
    found = staged(copy(context, "COPY . /x"), tmp_path / "stage")
    assert {name.removeprefix(".envkit-context/0/0/folder/") for name in found} == left
    if "a.txt" not in left:
        with pytest.raises(RecipeInvalid) as refused:
            copy(context, "COPY a.txt /x")
        assert ".dockerignore leaves it out" in refused.value.why


def rewritten(root: Path) -> None:
    """Other content of the same size and time."""
    (root / "sub" / "c.txt").write_text("SUB/c.txt")
    os.utime(root / "sub" / "c.txt", (1, 1))


CHANGES: dict[str, Callable[[Path], object]] = {
    "content": lambda root: (root / "sub" / "c.txt").write_text("other"),
    "same size and time": rewritten,
    "mode": lambda root: (root / "sub" / "c.txt").chmod(0o755),
    "name": lambda root: (root / "sub" / "c.txt").rename(root / "sub" / "d.txt"),
    "new file": lambda root: (root / "sub" / "new").touch(),
    "new folder": lambda root: (root / "sub" / "new").mkdir(),
    "link": lambda root: (root / "sub" / "link").symlink_to("c.txt"),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_of_what_is_copied_is_another_image(context: Path, tmp_path: Path, change: str) -> None:
    os.utime(context / "sub" / "c.txt", (1, 1))
    before = copy(context, "COPY sub /x").key
    assert copy(context, "COPY sub /x").key == before
    moved = shutil.copytree(context, tmp_path / "moved", symlinks=True)
    assert copy(moved, "COPY sub /x").key == before  # wherever it lies
    (context / "a.txt").write_text("not copied")
    assert copy(context, "COPY sub /x").key == before
    CHANGES[change](context)
    assert copy(context, "COPY sub /x").key != before


def test_what_is_changed_between_plan_and_build_is_not_built(context: Path, tmp_path: Path) -> None:
    for number, change in enumerate(("content", "mode", "name")):
        made = copy(context, "COPY sub /x")
        CHANGES[change](context)
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(RecipeInvalid, match="was changed"):
            stage(made, folder)
        shutil.rmtree(context / "sub")
        (context / "sub").mkdir()
        (context / "sub" / "c.txt").write_text("sub/c.txt")


def test_a_dockerfile_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(RecipeInvalid, match="cannot be read"):
        converted(tmp_path / "gone")


@pytest.mark.integration
def test_nothing_of_a_dockerfile_reaches_the_terminal_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "Dockerfile"
    evil = "\x1b[31m\x1b]0;owned\x07"
    lines = ["FROM scratch", f"ARG EVIL{evil}", f"ENV B{evil}=1", f"HEALTHCHECK CMD {evil}", f"UNKNOWN{evil} x"]
    file.write_text("\n".join(lines))
    words = ["install", "mine", "--method", "apptainer", "--from-dockerfile", str(file), "--dry-run"]
    for text in (file.read_text(), file.read_text().partition("UNKNOWN")[0]):
        file.write_text(text)
        done = subprocess.run([sys.executable, "-m", "envkit", *words], capture_output=True, text=True)
        assert "\x1b" not in done.stdout + done.stderr
        assert "\x07" not in done.stdout + done.stderr
        assert "WARNING" not in done.stderr
        assert done.returncode != 1
