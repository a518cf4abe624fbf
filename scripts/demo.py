"""Record the picture that README.md shows: real commands, run here and now, with what they print.

python scripts/demo.py        where an environment is installed ($ENVKIT_PREFIX); writes docs/demo.svg
"""

import io
import os
import pty
import re
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

ROOT = Path(__file__).resolve().parents[1]
WIDTH = 88
SCRIPT = """\
import torch
import horovod.torch as hvd

hvd.init()
total = hvd.allreduce(torch.arange(4.0) * (hvd.rank() + 1), op=hvd.Sum)
print(f"{hvd.rank()} of {hvd.size()}: {total.tolist()}")
"""
COMMANDS = ("cat train.py", "envkit run -n 2 -- python train.py", "envkit verify")


def printed(command: str, folder: Path) -> str:
    """What a command prints on a terminal. Raises RuntimeError where it fails."""
    said = bytearray()

    def read(terminal: int) -> bytes:
        part = os.read(terminal, 4096)
        said.extend(part)
        return part

    here = Path.cwd()
    os.chdir(folder)
    os.environ.update(COLUMNS=str(WIDTH), TERM="xterm-256color")
    try:
        status = os.waitstatus_to_exitcode(pty.spawn(command.split(), read))
    finally:
        os.chdir(here)
    if status:
        raise RuntimeError(f"'{command}' ended with {status}.")
    return said.decode().replace("\r\n", "\n")


def main() -> None:
    """Run the commands and write the picture."""
    console = Console(record=True, width=WIDTH, file=io.StringIO(), force_terminal=True)
    with tempfile.TemporaryDirectory() as name:
        Path(name, "train.py").write_text(SCRIPT)
        for command in COMMANDS:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")))
            lines = [line.rpartition("\r")[2] for line in printed(command, Path(name)).rstrip().split("\n")]
            console.print(Text.from_ansi("\n".join(lines)))
    picture = console.export_svg(title="envkit", unique_id="envkit")
    own = re.sub(r"@font-face \{.*?\}", "", picture, flags=re.DOTALL)  # the reader's own fonts, no other server's
    (ROOT / "docs" / "demo.svg").write_text(own)


if __name__ == "__main__":
    main()
