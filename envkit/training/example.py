"""Examples of training: scripts that need no envkit, and how one is run in an environment, with its data."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from envkit.environments.prefix import Prefix
from envkit.environments.receipt import Receipt
from envkit.errors import UsageProblem
from envkit.system import toml
from envkit.system.resources import recipes
from envkit.training import mnist

FRAMEWORKS = {"pytorch", "tensorflow"}


@dataclass(frozen=True, kw_only=True)
class Example:
    """A script, its framework, and the set of data that it takes with --data, if any."""

    name: str
    title: str
    script: str
    framework: str
    data: str = ""

    @property
    def path(self) -> Path:
        """The path of the script."""
        return recipes("examples") / self.script


def everything() -> list[Example]:
    """Return every example."""
    table = toml.read(recipes("examples") / "examples.toml", toml.Tables)
    return [Example(name=name, **row) for name, row in table.items()]


def listing() -> str:
    """Return the examples with their titles, a line each."""
    examples = everything()
    width = max(len(example.name) for example in examples)
    return "\n".join(f"{example.name:{width}}  {example.title}" for example in examples)


def find(name: str, environment: Receipt | None = None) -> Example:
    """Return an example by its name, which fits an environment. Raises UsageProblem, which lists them all."""
    example = next((entry for entry in everything() if entry.name == name), None)
    if example is None:
        raise UsageProblem(what=f"There is no example {name!r}.", why=listing(), fix="Name one of these.")
    if environment and environment.framework in FRAMEWORKS - {example.framework}:
        raise UsageProblem(
            what=f"The example {name} is for {example.framework}, and {environment.name} has {environment.framework}.",
            why=listing(),
            fix="Name one that fits, or another environment ('envkit list').",
        )
    return example


def with_data(
    example: Example, words: Sequence[str], prefix: Prefix, places: Sequence[str] = (), *, is_dry: bool = False
) -> tuple[list[str], mnist.DataFolder | None]:
    """Return the arguments of an example, with its data unless they name some, and what these data are.

    Where it is only to be shown (``is_dry``) nothing is fetched or made.

    Raises ChecksumMismatch, NotWritable, DiskFull.
    """
    if not example.data or named_data(words) or {"-h", "--help"} & set(words):
        return list(words), None
    get = mnist.there if is_dry else mnist.get
    data = get(prefix.root / "data", mnist.pinned(), places=places)
    return ["--data", str(data.folder), *words], data


def named_data(words: Sequence[str]) -> Path | None:
    """Return the folder that the arguments of an example name."""
    for word, following in zip(words, [*words, ""][1:], strict=True):
        if word == "--data" and following:
            return Path(following).absolute()
        if word.startswith("--data="):
            return Path(word.removeprefix("--data=")).absolute()
    return None


def command(example: Example, words: Sequence[str]) -> list[str]:
    """Return the argv that runs an example inside an environment."""
    return ["python", str(example.path), *words]


def visible(example: Example, words: Sequence[str]) -> tuple[Path, ...]:
    """Return the folders that an example must see."""
    folder = named_data(words)
    return (example.path.parent, folder) if folder else (example.path.parent,)
