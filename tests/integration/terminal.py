"""A command at a real terminal, driven as a person does it."""

import os
import pty
import select
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from .site import PATIENCE_S


class Terminal:
    """A command at a real terminal."""

    def __init__(self, words: Sequence[str], env: Mapping[str, str], folder: Path) -> None:
        self.text = ""
        self.pid, self.fd = pty.fork()
        if self.pid == 0:
            os.chdir(folder)
            os.execve(words[0], list(words), dict(env))

    def until(self, text: str) -> str:
        """Read until a text has come, and return what came before."""
        deadline = time.monotonic() + PATIENCE_S
        while text not in self.text:
            assert time.monotonic() < deadline, self.text
            if select.select([self.fd], [], [], 1)[0]:
                try:
                    self.text += os.read(self.fd, 4096).decode(errors="replace")
                except OSError:
                    raise AssertionError(f"the shell has ended: {self.text}") from None
        before, _, self.text = self.text.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self.fd, text.encode() + b"\n")

    def status(self) -> int:
        """Read what is left, and return the exit status."""
        with suppress(OSError):
            while os.read(self.fd, 4096):
                pass
        status = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        os.close(self.fd)
        return status
