"""The differential runs: where ranks fail, they are started otherwise, and what then passes tells the cause."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from envkit.environments.environment import MpiModel
from envkit.launch.launcher import LaunchRequest
from envkit.verify.outcome import Setting, Trial

MOST_S = 60.0
WORTH_S = 2.0
CONTROL = 1.5
WHOLE = 0.9  # of the time, for what is likely to pass where all else fails within seconds
SOON_S = 10.0
NAMED = "without the settings that the launcher names"
AGAIN = "once more, as they were"
ISOLATED = ("-I", "-S")  # how Python is started for that: no variables, and no packages, which may be what fails
MPI_ALONE = "as a plain MPI program, without Horovod"
INSIDE = "with the image's own launcher"
ENOUGH_S = 20.0  # for ranks that pass; those that hang are not to take all the time


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One start of the ranks: what is asked for, without which settings, with which variables.

    ``mpi`` is a library of which a plain MPI program is started in place of Horovod; ``model`` is that of an image.
    """

    wanted: LaunchRequest
    without: tuple[Setting, ...] = ()
    variables: Mapping[str, str] = field(default_factory=dict)
    mpi: str = ""
    model: MpiModel | None = None


@dataclass(frozen=True, kw_only=True)
class Trials:
    """Trials within a time; ``passes`` starts ranks, for so many seconds at most, and says whether they passed."""

    passes: Callable[[Attempt, float], bool]
    until: float
    done: list[Trial] = field(default_factory=list)

    @property
    def left_s(self) -> float:
        """The seconds that are left."""
        return self.until - time.monotonic()

    def run(self, name: str, attempt: Attempt, share: float = 0.5) -> bool:
        """Try, for this share of what is left, and keep what came of it; what there is no time for does not pass."""
        if self.left_s < WORTH_S:
            return False
        began = time.monotonic()
        limit = min(self.left_s, max(self.left_s * share, ENOUGH_S))
        passed = self.passes(attempt, limit)
        took = time.monotonic() - began
        was_cut = not passed and limit < ENOUGH_S and took > limit - 0.1
        trial = Trial(name=name, without=attempt.without, passed=passed, seconds=round(took, 1), was_cut=was_cut)
        self.done.append(trial)
        return passed


def differences(
    trials: Trials,
    wanted: LaunchRequest,
    settings: Sequence[Setting],
    of_machine: Sequence[Setting],
    *,
    other_launcher: bool,
    fabric: bool,
    named: Sequence[Setting] = (),
    inside: bool = False,
    mpi: str = "",
    again_first: bool = False,
) -> None:
    """Try what may tell the cause, until something does.

    ``inside``: the ranks are in an image that has a launcher of its own.
    ``named``: those of which Open MPI says that it cannot do what they ask; they come first, and are proof enough.
    ``again_first``: the same start comes first, since it fails quickly, or the settings hardly ever matter.
    """
    if named and trials.run(NAMED, Attempt(wanted=wanted, without=tuple(named))):
        trials.done.append(replaced(trials.done, named))
        return
    is_first = again_first or not settings
    if is_first and trials.run(AGAIN, Attempt(wanted=wanted)):
        return
    share = WHOLE if is_first and trials.left_s > MOST_S - SOON_S else 0.5
    for name, without in (("without your settings", settings), ("without the machine's settings of MPI", of_machine)):
        whole = Attempt(wanted=wanted, without=tuple(without))
        if without and trials.run(name, whole, share):
            # without the same start as it was, in as long as ranks need to pass, nothing is proven
            needed = CONTROL * trials.done[-1].seconds
            if is_first or (trials.left_s > needed and not trials.run(AGAIN, Attempt(wanted=wanted))):
                least = minimal_set(trials, whole)
                trials.done.append(replaced(trials.done, least))
            return
    for name, attempt in others(wanted, other_launcher=other_launcher, fabric=fabric, inside=inside):
        if trials.run(name, attempt):
            break
    if mpi:
        trials.run(MPI_ALONE, Attempt(wanted=wanted, mpi=mpi))


def minimal_set(trials: Trials, passing: Attempt) -> tuple[Setting, ...]:
    """The fewest settings found without which ranks pass, of those without which they have passed.

    Parts are tried, then all but a part, then smaller parts (Zeller and Hildebrandt, "Simplifying and isolating
    failure-inducing input", 2002): one setting is found by halving, several that have to go together by what is left.
    """
    tried: dict[tuple[Setting, ...], bool] = {}

    def passes(left_out: tuple[Setting, ...]) -> bool:
        if left_out not in tried:
            tried[left_out] = trials.run("without some of your settings", replace(passing, without=left_out))
        return tried[left_out]

    least, parts = passing.without, 2
    while len(least) > 1:
        pieces = [least[number * len(least) // parts : (number + 1) * len(least) // parts] for number in range(parts)]
        rests = [tuple(setting for setting in least if setting not in piece) for piece in pieces]
        if part := next(filter(passes, pieces), None):
            least, parts = part, 2
        elif rest := next(filter(passes, rests), None) if parts > 2 else None:
            least, parts = rest, max(parts - 1, 2)
        elif parts == len(least):
            break
        else:
            parts = min(2 * parts, len(least))
    return least


def replaced(done: list[Trial], least: Sequence[Setting]) -> Trial:
    """Take out the trial that passed without these settings alone; return it as the one that tells the cause."""
    number = next(n for n, trial in enumerate(done) if trial.passed and trial.without == tuple(least))
    cause = done.pop(number)
    return Trial(name=cause.name, without=cause.without, passed=True, seconds=cause.seconds, is_least=True)


def others(wanted: LaunchRequest, *, other_launcher: bool, fabric: bool, inside: bool) -> Iterator[tuple[str, Attempt]]:
    """Yield the other ways to start the ranks, the more telling first."""
    if inside:
        yield INSIDE, Attempt(wanted=replace(wanted, launcher="auto"), model=MpiModel.INSIDE)
    if fabric:
        tcp = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self,vader,tcp", "UCX_TLS": "self,sm,tcp", "FI_PROVIDER": "tcp"}
        yield "with TCP in place of the fabric", Attempt(wanted=wanted, variables=tcp)
    if (wanted.nodes or len(wanted.hosts) or 1) > 1:
        hosts = tuple((host, wanted.ranks) for host, _ in wanted.hosts[:1])
        yield "on one node", Attempt(wanted=replace(wanted, nodes=1 if wanted.nodes else None, hosts=hosts))
    if other_launcher:
        yield "with Gloo in place of MPI", Attempt(wanted=replace(wanted, launcher="horovodrun"))
