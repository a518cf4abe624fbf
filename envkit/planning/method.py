"""What every method's installation can say and do."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Protocol

from rich.console import Console

from envkit.environments.environment import Environment
from envkit.environments.lockfile import Lock
from envkit.environments.prefix import Tree
from envkit.environments.receipt import Installed
from envkit.errors import Problem
from envkit.machine.host import Host
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.sources.fetch import Source


class Work(Protocol):
    """Everything an installation is about, found out before it starts; nothing has been changed by then."""

    @property
    def request(self) -> Request:
        """What was asked for."""

    @property
    def stack(self) -> Stack:
        """What is installed."""

    @property
    def host(self) -> Host:
        """This machine."""

    @property
    def tree(self) -> Tree:
        """Where."""

    @property
    def env(self) -> dict[str, str]:
        """The settings to enter the environment with."""

    @property
    def steps(self) -> Sequence[str]:
        """What is made, in order."""

    @property
    def missing(self) -> list[str]:
        """Which of the steps are not done yet."""

    @property
    def sources(self) -> Sequence[Source]:
        """Every file that is fetched before a build."""

    @property
    def lock(self) -> Lock:
        """What it is, or would be, made from; the build flags are left out."""

    def problems(self) -> list[Problem]:
        """Return everything that would stop it."""

    def heading(self) -> Iterator[str]:
        """Yield what is installed, where, and with what of the machine."""

    def listing(self) -> Iterator[str]:
        """Yield the steps, marked where done, and how much there is to do."""

    def build(self, folder: Path, console: Console) -> None:
        """Fetch what is missing and build; logs go into ``folder``. Raises what fetch and build do."""

    def entered(self, made: Installed) -> Environment:
        """Return the way into what was built, where ``made`` describes it."""

    def settle(self, made: Installed) -> Installed:
        """Put what has passed where it stays; return its receipt as it then is."""

    def describe(self, folder: Path) -> Installed:
        """Return the receipt of what was built, asked of the environment itself. Raises BuildFailed."""
