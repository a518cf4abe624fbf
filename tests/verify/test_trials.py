"""Finding by trial which settings keep ranks from passing: the fewest, in few trials, within a time."""

from __future__ import annotations

import random
import time

import pytest

from envkit.environments.environment import MpiModel
from envkit.launch.launcher import LaunchRequest
from envkit.verify.outcome import Setting
from envkit.verify.trials import AGAIN, INSIDE, MOST_S, MPI_ALONE, NAMED, Attempt, Trials, differences

WANTED = LaunchRequest(ranks=2)
MANY = tuple(Setting(kind="variable", name=f"V{number}", value="x") for number in range(12))


class Ranks:
    """Ranks that pass without any one of some sets of settings, or otherwise."""

    def __init__(self, *cures: set[str], otherwise: str = "") -> None:
        self.cures, self.otherwise, self.tried = cures, otherwise, list[Attempt]()

    def passes(self, attempt: Attempt, seconds: float) -> bool:
        assert 0 < seconds <= MOST_S
        self.tried.append(attempt)
        names = {one.name for one in attempt.without}
        return any(cure <= names for cure in self.cures) or (
            bool(self.otherwise) and self.otherwise in (attempt.wanted.launcher, *attempt.variables)
        )


def run(ranks: Ranks, settings: tuple[Setting, ...] = MANY, *, seconds: float = 60, fabric: bool = False) -> Trials:
    trials = Trials(passes=ranks.passes, until=time.monotonic() + seconds)
    differences(trials, WANTED, settings, (), other_launcher=True, fabric=fabric)
    return trials


@pytest.mark.parametrize("number", range(12))
def test_one_setting_among_many_is_found_in_few_trials(number: int) -> None:
    ranks = Ranks({f"V{number}"})
    trials = run(ranks)
    [least] = [trial for trial in trials.done if trial.is_least]
    assert [one.name for one in least.without] == [f"V{number}"]
    assert len(ranks.tried) <= 10 and all(not trial.is_least for trial in trials.done[:-1])


def test_a_failure_that_does_not_come_again_is_no_settings_fault() -> None:
    trials = run(Ranks(set()))
    assert [(trial.name, trial.passed) for trial in trials.done] == [("without your settings", True), (AGAIN, True)]
    assert not any(trial.is_least for trial in trials.done)


def test_without_time_for_the_same_start_again_no_setting_is_blamed() -> None:
    ranks = Ranks({"V1"})

    def slow(attempt: Attempt, seconds: float) -> bool:
        time.sleep(1.0)
        return ranks.passes(attempt, seconds)

    trials = Trials(passes=slow, until=time.monotonic() + 2.3)
    differences(trials, WANTED, MANY, (), other_launcher=True, fabric=False)
    assert [(trial.name, trial.passed, trial.is_least) for trial in trials.done] == [
        ("without your settings", True, False)
    ]


def test_what_hardly_ever_matters_is_not_blamed_for_what_does_not_come_again() -> None:
    ranks = Ranks(set())
    trials = Trials(passes=ranks.passes, until=time.monotonic() + 60)
    differences(trials, WANTED, MANY[:1], (), other_launcher=True, fabric=False, again_first=True)
    assert [(trial.name, trial.passed) for trial in trials.done] == [(AGAIN, True)]
    trials = Trials(passes=Ranks({"V0"}).passes, until=time.monotonic() + 60)
    differences(trials, WANTED, MANY[:1], (), other_launcher=True, fabric=False, again_first=True)
    assert [(trial.name, trial.is_least) for trial in trials.done] == [(AGAIN, False), ("without your settings", True)]


def test_what_fails_at_once_leaves_the_time_to_what_may_pass() -> None:
    given: list[float] = []

    def passes(attempt: Attempt, seconds: float) -> bool:
        given.append(seconds)
        return bool(attempt.without)

    trials = Trials(passes=passes, until=time.monotonic() + MOST_S)
    differences(trials, WANTED, MANY[:1], (), other_launcher=True, fabric=False, again_first=True)
    assert [(trial.name, trial.is_least) for trial in trials.done] == [(AGAIN, False), ("without your settings", True)]
    assert given[0] < 0.6 * MOST_S and given[1] > 0.8 * MOST_S


def test_two_that_both_have_to_go_are_told_together() -> None:
    for seed in range(20):
        pair = set(random.Random(seed).sample([one.name for one in MANY], 2))
        [least] = [trial for trial in run(Ranks(pair)).done if trial.is_least]
        assert pair == {one.name for one in least.without}


def test_without_a_cure_other_ways_to_start_are_tried() -> None:
    ranks = Ranks(otherwise="horovodrun")
    trials = run(ranks)
    assert [(trial.name, trial.passed) for trial in trials.done] == [
        ("without your settings", False),
        ("with Gloo in place of MPI", True),
    ]
    assert not any(trial.is_least for trial in trials.done)
    assert "with TCP in place of the fabric" in [trial.name for trial in run(Ranks(), fabric=True).done]


def test_an_image_may_start_its_ranks_itself() -> None:
    tried = list[Attempt]()

    def passes(attempt: Attempt, _seconds: float) -> bool:
        tried.append(attempt)
        return attempt.model is MpiModel.INSIDE

    trials = Trials(passes=passes, until=time.monotonic() + 60)
    by_srun = LaunchRequest(ranks=2, launcher="srun")
    differences(trials, by_srun, (), (), other_launcher=True, fabric=False, inside=True)
    assert [(one.name, one.passed) for one in trials.done] == [(AGAIN, False), (INSIDE, True)]
    assert tried[-1].wanted.launcher == "auto"  # there is no srun in it


def test_a_plain_mpi_program_comes_last() -> None:
    ranks = Ranks()
    trials = Trials(passes=ranks.passes, until=time.monotonic() + 60)
    differences(trials, WANTED, MANY, (), other_launcher=True, fabric=False, mpi="/lib/libmpi.so.40")
    assert (trials.done[-1].name, ranks.tried[-1].mpi) == (MPI_ALONE, "/lib/libmpi.so.40")


@pytest.mark.integration
@pytest.mark.parametrize(("left_s", "takes_s", "was_cut"), [(2.4, 2.4, True), (2.4, 0.0, False), (60, 0.0, False)])
def test_what_was_not_given_its_time_is_told_apart(left_s: float, takes_s: float, was_cut: bool) -> None:
    def passes(_attempt: Attempt, _seconds: float) -> bool:
        time.sleep(takes_s)
        return False

    trials = Trials(passes=passes, until=time.monotonic() + left_s)
    trials.run(MPI_ALONE, Attempt(wanted=WANTED))
    assert trials.done[0].was_cut == was_cut


def test_without_settings_there_is_nothing_to_be_without() -> None:
    assert [trial.name for trial in run(Ranks(), ()).done] == [AGAIN, "with Gloo in place of MPI"]


def test_on_one_node_where_there_are_several() -> None:
    tried: list[Attempt] = []
    trials = Trials(passes=lambda attempt, _: tried.append(attempt) or False, until=time.monotonic() + 60)  # type: ignore[func-returns-value]
    hosts = (("one", 2), ("two", 2))
    differences(trials, LaunchRequest(ranks=4, hosts=hosts), (), (), other_launcher=False, fabric=False)
    assert [one.wanted.hosts for one in tried] == [hosts, (("one", 4),)]


def test_no_time_no_trial() -> None:
    ranks = Ranks({"V1"})
    assert run(ranks, seconds=1).done == [] and not ranks.tried


def test_what_the_launcher_names_is_tried_first_and_is_proof_enough() -> None:
    trials = Trials(passes=lambda attempt, _seconds: attempt.without == MANY[3:4], until=time.monotonic() + 60)
    differences(trials, WANTED, MANY, MANY, other_launcher=True, fabric=False, named=MANY[3:4])
    assert [(trial.name, trial.without, trial.is_least) for trial in trials.done] == [(NAMED, MANY[3:4], True)]
    trials = Trials(passes=lambda _attempt, _seconds: False, until=time.monotonic() + 60)
    differences(trials, WANTED, MANY, (), other_launcher=False, fabric=False, named=MANY[3:4])
    assert [trial.name for trial in trials.done] == [NAMED, "without your settings"]
