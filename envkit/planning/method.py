"""The interface of a method, a way to have an environment installed. knowledge/methods.toml names them."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import msgspec
from rich.console import Console

from envkit.environments.environment import Environment
from envkit.environments.lockfile import Lock
from envkit.environments.prefix import Prefix, Tree
from envkit.environments.receipt import Parts, Receipt
from envkit.errors import Problem
from envkit.machine.host import Host
from envkit.planning.request import Request
from envkit.planning.stack import Stack
from envkit.sources.fetch import Source


class Offered(msgspec.Struct, frozen=True, kw_only=True):
    """A build that a cache has of a step: it is ``taken``, or ``why_not`` says why it does not fit."""

    step: str
    place: str
    id: str
    taken: bool
    why_not: tuple[str, ...]


class FoundMpi(msgspec.Struct, frozen=True, kw_only=True):
    """An MPI of this machine."""

    family: str
    version: str
    path: str


class MpiOfSession(FoundMpi, frozen=True, kw_only=True):
    """An MPI that only the caller's session has; ``load`` are the modules to name with --load."""

    load: tuple[str, ...]


class PlannedMpi(FoundMpi, frozen=True, kw_only=True):
    """The MPI that a plan takes of this machine, or of a wheel, of which version and path are not told; and why.

    ``abi`` is the library that programs are linked with. ``others`` could be taken in its place, and so could that of
    the caller's ``session``, which a build does not see.
    """

    abi: str
    why: str
    from_wheel: bool
    others: tuple[FoundMpi, ...]
    session: MpiOfSession | None


class Installation(Protocol):
    """Everything an installation is about, found out before it starts; nothing has been changed by then."""

    @property
    def request(self) -> Request:
        """The request, as the user made it."""

    @property
    def stack(self) -> Stack:
        """The stack that is installed."""

    @property
    def host(self) -> Host:
        """This machine."""

    @property
    def tree(self) -> Tree:
        """The tree that it is installed in."""

    @property
    def env(self) -> dict[str, str]:
        """The settings to enter the environment with."""

    @property
    def steps(self) -> Sequence[str]:
        """The names of what is made, in order."""

    @property
    def unit(self) -> str:
        """The word for the steps, in the plural."""

    @property
    def missing(self) -> list[str]:
        """Which of the steps are not done yet."""

    @property
    def sources(self) -> Sequence[Source]:
        """Every file that is fetched before a build."""

    @property
    def lock(self) -> Lock:
        """The lock of what it is, or would be, made from; the build flags are left out."""

    @property
    def offered(self) -> Sequence[Offered]:
        """The builds that caches have of it."""

    @property
    def mpi(self) -> PlannedMpi | None:
        """The MPI of this machine, or the wheel in its place, that it is built with; None where it brings its own."""

    @property
    def cache_problems(self) -> Sequence[str]:
        """Why caches, keys, or builds that lack a trusted signature are passed over."""

    @property
    def unanswered(self) -> Sequence[Problem]:
        """The files that no place has answered about in time, which stops nothing yet; none where nobody has asked."""

    def problems(self) -> list[Problem]:
        """Return everything that would stop it."""

    def heading(self) -> Iterator[str]:
        """Yield what is installed, where, and with what of the machine."""

    def listing(self) -> Iterator[str]:
        """Yield the steps, marked where done, and how much there is to do."""

    def build(self, folder: Path, console: Console) -> None:
        """Fetch what is missing and build; logs go into ``folder``. Raises what fetch and build do."""

    def fetch_optional(self, console: Console) -> tuple[Source, ...]:
        """Fetch what a build without a network can do without, but does better with; return what of it is there."""

    def build_in_jobs(self, folder: Path, words: Sequence[str], cpus: int, console: Console) -> None:
        """Build in jobs of Slurm, one for each step, of so many CPUs; ``words`` are what sbatch is told of each.

        Raises what fetching, submitting and following do.
        """

    @property
    def refused_in_jobs(self) -> str:
        """Why it cannot be built in a job for each step; nothing if it can."""

    def entered(self, environment: Receipt) -> Environment:
        """Return the way into what was built, where ``environment`` describes it."""

    def settle(self, environment: Receipt) -> Receipt:
        """Put what has passed where it stays; return its receipt as it then is."""

    def describe(self, folder: Path) -> Receipt:
        """Return the receipt of what was built, asked of the environment itself. Raises BuildFailed."""


class Method(Protocol):
    """A way to have an environment installed: the functions of ``envkit/NAME/method.py``."""

    def prepare(self, request: Request, machine: Host, stack: Stack) -> Installation:
        """Plan an installation; changes nothing. Raises HostProblem, PlanFailed, RecipeInvalid, UsageProblem."""

    def unfit(self, request: Request, machine: Host, stack: Stack) -> Iterable[Problem]:
        """Yield what keeps this machine from a stack, as far as that is found out without a plan."""

    def lacking(self, request: Request, machine: Host, stack: Stack) -> Sequence[Problem]:
        """Return what this machine lacks for any installation of a stack, as far as that is found out quickly."""

    def is_other(self, request: Request, stack: Stack, environment: Receipt) -> bool:
        """Say whether what is asked for is another environment than the one that a receipt describes."""

    def request_of(self, prefix: Prefix, environment: Receipt) -> Request:
        """Return the request that installs what a receipt describes. Raises EnvironmentDamaged where none can."""

    def removable(self, tree: Tree, environment: Receipt, others: Sequence[Parts], *, dependencies: bool) -> list[str]:
        """Return what ``remove`` removes: modules, or files."""

    def remove(
        self, tree: Tree, environment: Receipt, others: Sequence[Parts], *, dependencies: bool, console: Console
    ) -> None:
        """Remove what a receipt describes; with ``dependencies`` all that no other environment is made of."""
