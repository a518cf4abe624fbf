"""The commands of the documentation as its pages have them, to be pasted into a shell."""

import re
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
BLOCK = re.compile(r"^```console\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"\s+# .*")


@dataclass
class Command:
    """What stands behind one prompt, and what the page shows below it."""

    line: str
    shown: list[str] = field(default_factory=list)

    @property
    def status(self) -> int:
        """The status that the page states: 0 unless the command prints another one."""
        return int(self.shown[-1]) if "echo $?" in self.line else 0


def commands(page: str) -> Iterator[Command]:
    """Yield the commands of a page in their order, those of several lines as one."""
    for block in BLOCK.findall((DOCS / page).read_text()):
        found: list[Command] = []
        for line in block.splitlines():
            if line.startswith("$ "):
                found.append(Command(line[2:]))
            elif found and found[-1].line.endswith("\\"):
                found[-1].line += f"\n{line}"
            elif found:
                found[-1].shown.append(line)
        yield from found


def pasted(number: int, command: Command, home: Path, instead: Mapping[str, str]) -> str:
    """Return what a shell is given for a command; a file that it shows is made.

    ``instead`` is what stands for something of the page's own machine.
    """
    line, shown = command.line, "\n".join(command.shown)
    for there, here in instead.items():
        line, shown = line.replace(there, here), shown.replace(there, here)
    words = shlex.split(line, comments=True)
    if words[:1] == ["cat"] and len(words) == 2 and not (home / words[1]).exists():
        assert "/" not in words[1]
        (home / words[1]).write_text(shown + "\n")
        (home / words[1]).chmod(0o700)
    return f"echo '@@ begin {number}'\n{line}\necho \"@@ end {number} $?\"\n"


def require_all(done: Sequence[Command], printed: str, complaints: str) -> None:
    """Require of all commands that were pasted that they ended as their page says, by what the shell printed."""
    for number, command in enumerate(done):
        said, _, rest = printed.partition(f"@@ begin {number}\n")[2].partition(f"@@ end {number} ")
        ended = rest.partition("\n")[0]
        status = said.split("\n")[-2] if "echo $?" in command.line else ended
        assert (status, ended) == (str(command.status), "0"), f"$ {command.line}\n{said}\n{complaints[-3000:]}"
