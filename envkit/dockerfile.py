"""A Dockerfile as a definition file of Apptainer: spython converts it, and what it leaves wrong is put right here.

spython (0.3.14) copies SHELL into the script, turns USER into a ``su`` that ends it, keeps the quotes and equal signs
of labels, and merges the stages of a Dockerfile; the last is refused.
"""

import contextlib
import io
import re
import shlex
from pathlib import Path

from envkit.errors import RecipeInvalid

INSTRUCTION = re.compile(r"^\s*(\w+)\s", re.MULTILINE)


def converted(path: Path) -> str:
    """Return the text of a definition file that does what a Dockerfile says. Raises RecipeInvalid."""
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise RecipeInvalid(what=f"The Dockerfile {path} cannot be read.", why=str(error)) from error
    demand_convertible(path, text)
    from spython.main.parse.parsers import DockerParser
    from spython.main.parse.writers import SingularityWriter

    said = io.StringIO()
    try:
        with contextlib.redirect_stderr(said), contextlib.redirect_stdout(said), contextlib.chdir(path.parent):
            made = str(SingularityWriter(DockerParser(path.name).recipe).convert())
    except (Exception, SystemExit) as error:  # spython ends the program at what it does not like
        why = said.getvalue().strip() or str(error)
        raise RecipeInvalid(what=f"spython cannot convert {path}.", why=why, fix="Write a definition file.") from error
    return finished(made, path.parent)


def demand_convertible(path: Path, text: str) -> None:
    """Raise RecipeInvalid for what has no like in a definition file."""
    found = [word.upper() for word in INSTRUCTION.findall(text)]
    fix = "Build it where Docker or Podman is, push it, and take it over: --from docker://IMAGE@sha256:DIGEST"
    if found.count("FROM") != 1:
        what = f"{path} has {found.count('FROM')} stages; one can be converted."
        raise RecipeInvalid(what=what, why="spython would merge them into one script.", fix=fix)
    if re.search(r"^\s*(COPY|ADD)\s+--from=|^\s*ADD\s+https?://|^\s*RUN\s+--mount", text, re.MULTILINE | re.IGNORECASE):
        raise RecipeInvalid(what=f"{path} copies from another image, or from the network.", fix=fix)


def finished(text: str, folder: Path) -> str:
    """Return a converted definition file with what spython leaves wrong put right, and paths made absolute."""
    shell = re.search(r'^SHELL \["([^"]+)"', text, re.MULTILINE)
    lines, section = [], ""
    for line in text.splitlines():
        if line.startswith("%"):
            section = line.strip()
            lines.append(f"%post -c {shell[1]}" if section == "%post" and shell else section)
        elif section == "%post" and re.match(r"SHELL \[|su\s+-\s.*# USER|# (USER|EXPOSE)", line):
            continue
        elif section == "%labels":
            labels = (word.partition("=") for word in shlex.split(line))
            lines += [f"    {name} {value}" for name, _, value in labels]
        elif section == "%files" and line.strip():
            source, _, target = line.strip().partition(" ")
            lines.append(f"    {(folder / source).absolute()} {target}")
        elif section:
            lines.append(f"    {line}" if line.strip() else "")
        else:
            lines.append(line.rstrip())
    return "\n".join(lines) + "\n"
