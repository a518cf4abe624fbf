"""A Dockerfile as a definition file of Apptainer: spython converts it, and what it leaves wrong is put right here.

spython (0.3.14) copies SHELL into the script, turns USER into a ``su`` that ends it, keeps the quotes and equal signs
of labels, merges the stages of a Dockerfile, which is refused, and copies everything before the first RUN, from
anywhere on the host. So COPY and ADD are read here, as Docker does: from the folder of the Dockerfile alone, in their
place.
"""

import contextlib
import hashlib
import io
import itertools
import json
import os
import posixpath
import re
import shlex
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from envkit.errors import RecipeInvalid, of_storage
from envkit.system import files, temporary

INSTRUCTIONS = (
    *(
        "ADD",
        "ARG",
        "CMD",
        "COPY",
        "ENTRYPOINT",
        "ENV",
        "EXPOSE",
        "FROM",
        "HEALTHCHECK",
        "LABEL",
        "MAINTAINER",
        "ONBUILD",
    ),
    *("RUN", "SHELL", "STOPSIGNAL", "USER", "VOLUME", "WORKDIR"),
)
ARCHIVE = re.compile(r"\.(tar|tar\.\w+|tgz|tbz2?|txz|tzst)$")
VARIABLE = re.compile(r"\$(?:(\w+)|\{(\w+)\}|(.?))")
WORDS = re.compile(r"""(?:[^\s"'\\]|\\.|"(?:\\.|[^"\\])*"|'[^']*'|["'\\])+""", re.DOTALL)
STAGED = "/.envkit-context"  # where in the image the files lie until they are in their places
LINKS = 40
AGAIN = "Run the same command again."
ELSEWHERE = "Build it where Docker or Podman is, push it, and take it over: --from docker://IMAGE@sha256:DIGEST"


@dataclass(frozen=True, kw_only=True)
class Instruction:
    """An instruction: the number of its first line and of the line after it, its word in capitals, and what follows."""

    line: int
    end: int
    word: str
    rest: str


@dataclass(frozen=True, kw_only=True)
class CopiedPath:
    """A folder or file of the context, and its path among what is staged."""

    source: Path
    staged: str
    line: int


@dataclass(frozen=True, kw_only=True)
class Link:
    """A symbolic link of the context, which is made anew, and its path among what is staged."""

    staged: str
    target: str


@dataclass(frozen=True, kw_only=True)
class Converted:
    """A definition file that does what a Dockerfile says, and what it takes of the context; ``key`` is of both."""

    recipe: str
    copied: tuple[CopiedPath, ...]
    key: str


def converted(path: Path) -> Converted:
    """Return what a Dockerfile says as a definition file, for Apptainer in a folder that ``stage`` has filled.

    Raises RecipeInvalid.
    """
    try:
        text = files.read(path).decode()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeInvalid(what=f"The Dockerfile {path} cannot be read.", why=str(error)) from error
    listing = [with_defaults(path, instruction) for instruction in instructions(path, text)]
    require_convertible(path, listing)
    context = Context(path)
    lines, commands, copied = text.split("\n"), list[str](), list[CopiedPath]()
    for instruction, place, values in settled(listing):
        if instruction.word == "ARG":
            written = f"ARG {instruction.rest}" if instruction.rest else ""
        elif instruction.word in ("COPY", "ADD"):
            number = len(commands)
            more, script = copies(context, instruction, number, place, values)
            commands.append(script)
            copied += more
            written = f"RUN {marker(number)}"
        else:
            continue
        rest = instruction.end - instruction.line - 1  # each line keeps its number
        lines[instruction.line - 1 : instruction.end - 1] = [written, *[""] * rest]
    recipe = finished(by_spython(path, "\n".join(lines)), commands)
    return Converted(recipe=recipe, copied=tuple(copied), key=key_of(recipe, copied))


def key_of(recipe: str, copied: Sequence[CopiedPath]) -> str:
    """Return a SHA-256 of a recipe and of what it copies: names, modes, contents. Raises RecipeInvalid."""
    digest = hashlib.sha256(recipe.encode())
    for entry in copied:
        try:
            state = entry.source.lstat()
            digest.update(
                f"\0{entry.staged}\0{stat.S_IFMT(state.st_mode):o} {stat.S_IMODE(state.st_mode):o}\0".encode()
            )
            if stat.S_ISREG(state.st_mode):
                descriptor = os.open(entry.source, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                with os.fdopen(descriptor, "rb") as stream:
                    digest.update(hashlib.file_digest(stream, "sha256").digest())
        except OSError as error:
            why = f"{error.strerror or error}."
            raise RecipeInvalid(
                what=f"{entry.source}, which line {entry.line} copies, cannot be read.", why=why
            ) from error
    return digest.hexdigest()


def stage(result: Converted, folder: Path) -> None:
    """Copy what a Dockerfile takes of its context into a folder, from which its definition file then takes it.

    Raises RecipeInvalid if it is no longer what it was when it was planned.
    """
    root = folder / posixpath.basename(STAGED)
    root.mkdir()
    staged = [replace(entry, source=root / entry.staged) for entry in result.copied]
    try:
        for was, now in zip(result.copied, staged, strict=True):
            now.source.parent.mkdir(parents=True, exist_ok=True)
            if stat.S_ISDIR(was.source.lstat().st_mode):
                now.source.mkdir()
            else:
                shutil.copyfile(was.source, now.source, follow_symlinks=False)
        for was, now in zip(
            reversed(result.copied), reversed(staged), strict=True
        ):  # a folder may be closed to its owner
            now.source.chmod(stat.S_IMODE(was.source.lstat().st_mode))
    except OSError as error:
        if of_storage(error, ""):
            raise
        raise RecipeInvalid(what="What the Dockerfile copies was changed.", why=str(error), fix=AGAIN) from error
    if key_of(result.recipe, staged) != result.key:
        raise RecipeInvalid(what="What the Dockerfile copies was changed while it was looked at.", fix=AGAIN)


def instructions(path: Path, text: str) -> Iterator[Instruction]:
    """Yield the instructions of a Dockerfile. Raises RecipeInvalid for one that Docker does not have."""
    lines = text.split("\n")
    directive = re.match(r"(?:#\s*\w+\s*=.*\n)*?#\s*escape\s*=\s*(\S)", text, re.IGNORECASE)
    escape = directive[1] if directive else "\\"
    number = 0
    while number < len(lines):
        start = number
        line, number = lines[number].strip(), number + 1
        if not line or line.startswith("#"):
            continue
        while line.endswith(escape) and number < len(lines):
            more, number = lines[number].strip(), number + 1
            line = line if not more or more.startswith("#") else f"{line[:-1].rstrip()} {more}"
        word, rest = (*line.removesuffix(escape).split(None, 1), "")[:2]
        if re.match(r"(?i)bootstrap:", word):
            what = f"{path} is a definition file, and no Dockerfile."
            fix = "Build it with 'apptainer build IMAGE.sif FILE', and take it over: --from IMAGE.sif"
            raise RecipeInvalid(what=what, why=f"Line {start + 1} begins with {word}", fix=fix)
        if word.upper() not in INSTRUCTIONS:
            raise invalid(path, start + 1, f"{word} is no instruction of a Dockerfile.", "Correct it.")
        if word.upper() in ("RUN", "COPY", "ADD") and re.search(r"(^|\s)<<-?['\"]?\w", rest):
            raise invalid(path, start + 1, f"{word.upper()} has a here-document, which cannot be converted.")
        yield Instruction(line=start + 1, end=number + 1, word=word.upper(), rest=rest.strip())


def invalid(path: Path, line: int, what: str, fix: str = ELSEWHERE, why: str = "") -> RecipeInvalid:
    """Say what of a Dockerfile cannot be done."""
    return RecipeInvalid(what=f"{path}:{line}: {what}", why=why, fix=fix)


def require_convertible(path: Path, instructions_in: Sequence[Instruction]) -> None:
    """Raise RecipeInvalid for what has no like in a definition file."""
    stages = sum(entry.word == "FROM" for entry in instructions_in)
    if stages != 1:
        what = f"{path} has {stages} stages; one can be converted."
        raise RecipeInvalid(what=what, why="spython would merge them into one script.", fix=ELSEWHERE)
    for instruction in instructions_in:
        options = (
            [word for word in instruction.rest.split() if word.startswith("--")] if instruction.word != "RUN" else []
        )
        if instruction.word == "COPY" and any(option.startswith("--from=") for option in options):
            raise invalid(path, instruction.line, "COPY --from copies from another image, which is not supported.")
        if instruction.word == "ADD" and re.search(r"(^|[\s\"])(https?://|ftp://|git@|git://)", instruction.rest):
            raise invalid(
                path, instruction.line, "ADD takes from another machine, or from the network, which is not supported."
            )
        if instruction.word == "RUN" and instruction.rest.startswith("--"):
            raise invalid(path, instruction.line, f"RUN {instruction.rest.split()[0]} is not supported.")


def with_defaults(path: Path, instruction: Instruction) -> Instruction:
    """Return an ARG with its defaults alone: what has none is empty in a definition file, too; others as they are.

    Docker takes a comment behind an ARG for more names. Raises RecipeInvalid for an ENV without a value.
    """
    words = WORDS.findall(instruction.rest)
    if instruction.word == "ENV":
        is_old = words and "=" not in words[0]  # ENV NAME VALUE
        if len(words) < 2 if is_old else not all("=" in word for word in words) or not words:
            raise invalid(path, instruction.line, "ENV has a name without a value.", "Write ENV NAME=VALUE.")
    if instruction.word != "ARG":
        return instruction
    named = itertools.takewhile(lambda word: not word.startswith("#"), words)
    return replace(instruction, rest=" ".join(word for word in named if "=" in word))


def settled(steps: Sequence[Instruction]) -> Iterator[tuple[Instruction, str, dict[str, str]]]:
    """Yield each instruction with the working folder and the variables (ENV, defaults of ARG) that hold for it."""
    place, values = "/", dict[str, str]()
    for instruction in steps:
        if instruction.word == "WORKDIR":
            place = posixpath.normpath(
                posixpath.join(place, replaced(instruction.rest.strip("\"'"), values) or instruction.rest)
            )
        elif instruction.word == "ARG":
            for word in WORDS.findall(instruction.rest):
                name, _, value = word.partition("=")
                values.setdefault(name, value.strip("\"'"))
        elif instruction.word == "ENV":
            with contextlib.suppress(ValueError):
                words = shlex.split(instruction.rest) or ["="]
                old = "=" not in words[0]  # ENV NAME VALUE
                pairs = [(words[0], "=", " ".join(words[1:]))] if old else [word.partition("=") for word in words]
                assigned = {name: replaced(value, values) for name, _, value in pairs}
                values = {name: value for name, value in (values | assigned).items() if value is not None}
        yield instruction, place, dict(values)


def replaced(text: str, values: Mapping[str, str]) -> str | None:
    """Return a text with its variables replaced; None where one is not known, or is written in another way."""
    missing = False

    def value(match: re.Match[str]) -> str:
        nonlocal missing
        name = match[1] or match[2]
        missing = missing or name not in values
        return values.get(name or "", "")

    result = VARIABLE.sub(value, text)
    return None if missing else result


def copies(
    context: "Context", instruction: Instruction, number: int, place: str, values: Mapping[str, str]
) -> tuple[list[CopiedPath], str]:
    """Return what a COPY or ADD takes, and the script that puts it in its place. Raises RecipeInvalid."""
    path, words = context.dockerfile, arguments(context.dockerfile, instruction)
    if len(words) < 2:
        raise invalid(path, instruction.line, f"{instruction.word} has no source or no destination.", "Correct it.")
    expanded = [replaced(word, values) for word in words]
    if unknown := [word for word, value in zip(words, expanded, strict=True) if value is None]:
        raise invalid(path, instruction.line, f"{unknown[0]}: its value is not known here.", "Write the path itself.")
    *sources, target = (word or "" for word in expanded)
    matches = [path for source in sources for path in context.matching(source, instruction)]
    into = target.endswith("/") or posixpath.basename(target) in (".", "..")
    if len(matches) > 1 and not into:
        raise invalid(
            path,
            instruction.line,
            f"{instruction.word} has several sources, and the destination {target} does not end in a slash.",
            f"Write {target}/ if it is a folder.",
        )
    where = posixpath.normpath(posixpath.join(place, target))
    taken, script = list[CopiedPath](), list[str]()
    for index, source in enumerate(matches):
        if instruction.word == "ADD" and source.is_file() and ARCHIVE.search(source.name):
            fix = "Write COPY, and RUN tar -xf after it."
            raise invalid(path, instruction.line, f"ADD would unpack {source.name}, which is not supported.", fix)
        top = f"{number}/{index}/{source.name if not source.is_dir() else 'folder'}"
        entries = list(context.below(source, top, instruction))
        files = [entry for entry in entries if isinstance(entry, CopiedPath)]
        links = [entry for entry in entries if isinstance(entry, Link)]
        taken += files
        script += [f"chmod {mode:o} {quoted(f'{STAGED}/{staged}')}" for staged, mode in special(files)]
        script += [f"ln -s {quoted(link.target)} {quoted(f'{STAGED}/{link.staged}')}" for link in links]
        inside = source.is_dir() or into
        folder = where if inside else posixpath.dirname(where)
        script.append(f"mkdir -p {quoted(folder)}")
        name = f"{STAGED}/{top}/." if source.is_dir() else f"{STAGED}/{top}"
        script.append(f"cp -a {quoted(name)} {quoted(f'{where}/' if inside else where)}")
    return taken, "\n".join(script)


def quoted(word: str) -> str:
    """Return a word for the shell."""
    return shlex.quote(word)


def special(taken: Sequence[CopiedPath]) -> Iterator[tuple[str, int]]:
    """Yield the path and the mode of what would lose a part of its mode when it is staged."""
    for entry in taken:
        mode = stat.S_IMODE(entry.source.lstat().st_mode)
        if mode & 0o7022:
            yield entry.staged, mode


def arguments(path: Path, instruction: Instruction) -> list[str]:
    """Return sources and destination. Raises RecipeInvalid for an option that is not supported."""
    rest = instruction.rest
    while match := re.match(r"(--[\w-]+)(=\S*)?\s+", rest):
        if match[1] != "--link":
            raise invalid(
                path, instruction.line, f"{instruction.word} {match[1]} is not supported.", f"Leave it out. {ELSEWHERE}"
            )
        rest = rest[match.end() :]
    if rest.startswith("["):
        with contextlib.suppress(ValueError, RecursionError):
            return [str(word) for word in json.loads(rest)]
    return rest.split()


class Context:
    """The folder of a Dockerfile, of which nothing outside is ever read, without what .dockerignore leaves out."""

    def __init__(self, dockerfile: Path) -> None:
        self.dockerfile = dockerfile
        self.root = dockerfile.parent.resolve()
        own = dockerfile.with_name(f"{dockerfile.name}.dockerignore")
        file = own if own.is_file() else self.root / ".dockerignore"
        self.ignored = list(patterns(files.read(file).decode(errors="replace"))) if file.is_file() else []

    def leaves_out(self, path: Path) -> bool:
        """Say whether .dockerignore leaves out a path, or a folder above it; the last pattern that fits counts."""
        parts = path.relative_to(self.root).parts
        names = ["/".join(parts[:end]) for end in range(1, len(parts) + 1)]
        is_left_out = False
        for pattern, is_exception in self.ignored:
            if any(pattern.fullmatch(name) for name in names):
                is_left_out = not is_exception
        return is_left_out

    def resolved(self, path: str, instruction: Instruction) -> Path:
        """Return where a path leads, links followed within the context alone: its root is their root, too."""
        parts, names, links = [part for part in path.split("/") if part], list[str](), 0
        while parts:
            part = parts.pop(0)
            if part == "..":
                names = names[:-1]
            elif part != ".":
                place = self.root.joinpath(*names, part)
                if place.is_symlink():
                    links += 1
                    if links > LINKS:
                        raise invalid(self.dockerfile, instruction.line, f"{path} is a loop of links.", "Correct it.")
                    target = os.readlink(place)  # noqa: PTH115  (Path would normalise it)
                    names = [] if target.startswith("/") else names
                    parts = [*(word for word in target.split("/") if word), *parts]
                else:
                    names.append(part)
        return self.root.joinpath(*names)

    def matching(self, source: str, instruction: Instruction) -> list[Path]:
        """Return what a source means: a path, or all that fit a pattern of *, ? and [...]. Raises RecipeInvalid."""
        places = [""]
        for part in filter(None, posixpath.normpath(f"/{source}").split("/")):
            if re.search(r"[*?\[]", part):
                pattern = re.compile(translated(part))
                folders = [(place, self.resolved(place, instruction)) for place in places]
                places = [
                    f"{place}/{name}"
                    for place, folder in folders
                    if folder.is_dir()
                    for name in sorted(path.name for path in folder.iterdir())
                    if pattern.fullmatch(name)
                ]
            else:
                places = [f"{place}/{part}" for place in places]
        existing = [path for place in places if (path := self.resolved(place, instruction)).exists()]
        taken = [path for path in existing if any(self.below(path, "", instruction))]
        if not taken:
            why = f"In {self.root}, the only folder that it is taken from, "
            why += ".dockerignore leaves it out." if existing else "there is no such file."
            raise invalid(
                self.dockerfile, instruction.line, f"{instruction.word} takes {source}, which is not there.", "", why
            )
        return taken

    def below(self, source: Path, staged: str, instruction: Instruction) -> Iterator[CopiedPath | Link]:
        """Yield a file, or a folder and what is in it, the folder first; nothing of what .dockerignore leaves out."""
        kind = source.lstat().st_mode
        is_left_out = source != self.root and self.leaves_out(source)
        if stat.S_ISDIR(kind):
            self.require(os.access(source, os.R_OK | os.X_OK), source, "may not be read", instruction)
            inside = [
                entry
                for path in sorted(source.iterdir())
                for entry in self.below(path, f"{staged}/{path.name}", instruction)
            ]
            if inside or not is_left_out:  # of a folder that is left out, a part may be kept
                yield CopiedPath(source=source, staged=staged, line=instruction.line)
                yield from inside
        elif is_left_out:
            return
        elif stat.S_ISLNK(kind):
            yield Link(staged=staged, target=os.readlink(source))  # noqa: PTH115  (Path would normalise it)
        else:
            self.require(stat.S_ISREG(kind), source, "is neither a file nor a folder", instruction)
            self.require(os.access(source, os.R_OK), source, "may not be read", instruction)
            yield CopiedPath(source=source, staged=staged, line=instruction.line)

    def require(self, holds: bool, source: Path, words: str, instruction: Instruction) -> None:
        """Raise RecipeInvalid for what cannot be copied."""
        if not holds:
            fix = "Leave it out, by name or in .dockerignore."
            raise invalid(self.dockerfile, instruction.line, f"{instruction.word} takes {source}, which {words}.", fix)


def translated(pattern: str) -> str:
    """Return a pattern of paths as a regular expression: *, ? and [...] within a name, ** across names."""
    expression, rest = "", pattern
    while rest:
        if match := re.match(r"\*\*/|\*\*|\*|\?|\\(.)|\[(\^?)((?:\\.|[^\]\\])+)\]", rest, re.DOTALL):
            simple = {"**/": "(?:.*/)?", "**": ".*", "*": "[^/]*", "?": "[^/]"}
            expression += simple.get(match[0], "")
            if match[0] not in simple:
                expression += re.escape(match[1]) if match[1] else f"[{match[2]}{match[3].replace('[', chr(92) + '[')}]"
            rest = rest[match.end() :]
        else:
            expression, rest = expression + re.escape(rest[0]), rest[1:]
    return expression


def patterns(text: str) -> Iterator[tuple[re.Pattern[str], bool]]:
    """Yield the patterns of a .dockerignore, and whether each keeps what fits it."""
    for line in map(str.strip, text.splitlines()):
        is_exception, name = line.startswith("!"), line.removeprefix("!").strip()
        if name and not line.startswith("#"):
            yield re.compile(translated(posixpath.normpath(f"/{name}").lstrip("/")), re.DOTALL), is_exception


def marker(number: int) -> str:
    """Return the command that stands for a COPY until its script takes its place."""
    return f"envkit-copies-{number}"


def by_spython(path: Path, text: str) -> str:
    """Return the text of a Dockerfile without COPY and ADD as spython converts it. Raises RecipeInvalid."""
    from spython.logger import bot
    from spython.main.parse.parsers import DockerParser
    from spython.main.parse.writers import SingularityWriter

    output = io.StringIO()
    bot.errorStream = bot.outputStream = output  # it keeps those that were there when it was imported
    with temporary.folder("dockerfile") as folder:
        (folder / "Dockerfile").write_text(text)
        try:
            with contextlib.redirect_stderr(output), contextlib.redirect_stdout(output), contextlib.chdir(folder):
                return str(SingularityWriter(DockerParser("Dockerfile").recipe).convert())
        except (Exception, SystemExit) as error:  # spython ends the program at what it does not like
            why = output.getvalue().strip() or str(error)
            fix = "Write a definition file."
            raise RecipeInvalid(what=f"spython cannot convert {path}.", why=why, fix=fix) from error


def finished(text: str, commands: Sequence[str]) -> str:
    """Return a converted definition file with what spython leaves wrong put right, and each COPY in its place."""
    shell = re.search(r'^SHELL \["([^"]+)"', text, re.MULTILINE)
    scripts = {marker(number): script for number, script in enumerate(commands)}
    lines, section = [], ""
    for line in text.splitlines():
        if line.startswith("%"):
            section = line.strip()
            lines.append(f"%post -c {shell[1]}" if section == "%post" and shell else section)
        elif section == "%post" and re.match(r"SHELL \[|su\s+-\s.*# USER|# (USER|EXPOSE)", line):
            continue
        elif section == "%post" and line.strip() in scripts:
            lines += [f"    {command}" for command in scripts[line.strip()].splitlines()]
            if line.strip() == marker(len(commands) - 1):
                lines.append(f"    rm -rf {STAGED}")
        elif section == "%labels":
            labels = (word.partition("=") for word in shlex.split(line))
            lines += [f"    {name} {value}" for name, _, value in labels]
        elif section:
            lines.append(f"    {line}" if line.strip() else "")
        else:
            lines.append(line.rstrip())
    files = ["", "%files", f"    {posixpath.basename(STAGED)} {STAGED}"] if commands else []
    return "\n".join([*lines, *files]) + "\n"
