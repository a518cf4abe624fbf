"""TOML: data in files, read as the type that they are, and what is told of mistakes in files that users write."""

import re
from pathlib import Path
from typing import Any, TypeVar

T = TypeVar("T")
Tables = dict[str, Any]
LARGEST = 1 << 20  # bytes
DEEPEST = 20  # brackets in brackets
BRACKETS = re.compile(
    r"""\[|\]|\{|\}|\#[^\n]*|\"{3}(?:\\[\s\S]|[^\\])*?\"{3,5}|'{3}[\s\S]*?'{3,5}|"(?:\\.|[^"\\\n])*"|'[^'\n]*'"""
)


def read(path: Path, kind: type[T]) -> T:
    """Return the contents of a file. Raises OSError, ValueError, RecursionError and msgspec.ValidationError."""
    import tomllib

    from envkit.system import files, record

    return record.convert(tomllib.loads(files.read(path, LARGEST).decode()), kind)


def parsed(data: bytes, path: str) -> tuple[str, Tables]:
    """Return the text and the tables of a file. Raises ValueError with file, line and what is wrong."""
    import tomllib

    try:
        text = data.decode()
        require_shallow(text, path)
        return text, tomllib.loads(text)
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: this is no text in UTF-8.") from None
    except (ValueError, RecursionError) as error:
        raise ValueError(broken(path, str(error))) from None


def require_shallow(text: str, path: str) -> None:
    """Require that arrays and tables within a line are not nested deep. Raises ValueError."""
    depth = 0
    for match in BRACKETS.finditer(text):
        depth += {"[": 1, "{": 1, "]": -1, "}": -1}.get(match[0], 0)
        if depth > DEEPEST:
            line = text.count("\n", 0, match.start()) + 1
            raise ValueError(f"{path}:{line}: brackets are nested more than {DEEPEST} deep.")


def broken(path: str, said: str) -> str:
    """Say where a file is no TOML, and why."""
    match = re.search(r"^(.*) \(at (?:line (\d+), column \d+|end of document)\)$", said)
    text, line = (match[1], match[2]) if match else (said, None)
    return f"{path}{f':{line}' if line else ''}: this is not TOML: {text[:1].lower()}{text[1:]}."


def shown(value: Any) -> str:
    """Return a value as TOML has it, but not long."""
    try:
        text = ascii(value) if not isinstance(value, bool) else str(value).lower()
    except ValueError:
        return "a number of very many digits"
    return text if len(text) <= 60 else f"{text[:57]}..."


def line_of(text: str, name: str) -> int:
    """Return the line on which a key is set; 0 where that cannot be told."""
    table, _, key = name.rpartition(".")
    here = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if header := re.match(r"\s*\[+\s*([^\]]*?)\s*\]", line):
            here = header[1].replace('"', "").replace("'", "")
            if here == name:
                return number
            continue
        word = re.match(r"\s*([\w.\"' -]+?)\s*=", line)
        written = re.sub(r"[\"'\s]", "", word[1]) if word else ""
        if written and (written == key if here else written == name) and here in (table, ""):
            return number
        if written and not here and written == table:
            return number
    return 0


def place(path: object, text: str, name: str) -> str:
    """Return where a key is set: the file, and its line where that can be told."""
    line = line_of(text, name)
    return f"{path}:{line}" if line else str(path)
