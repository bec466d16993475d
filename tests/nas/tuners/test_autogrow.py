"""A transformer that grows when that gains more a second."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import pytest

from nas import Budget, Policy, PolicyPlan, Search, Spec, Stage, run_search
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal, Reason, State, Trial
from nas.problems.language.problem import LanguageProblem
from nas.spaces.growth import Growth, Sizes
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.spaces.transformer import TransformerSpace
from nas.tuners.autogrow import AutoGrowTuner, Growing
from nas.tuners.base import WAIT

LOSS = Metric("loss", "minimize")
SPACE = TransformerSpace((1, 2), (1, 2), (8,), (1, 2))


def finished(proposal: Proposal, number: int, loss: float | None, seconds: float = 1.0) -> Trial:
    """Returns a finished trial; None: it failed."""
    trial = Trial(number=number, index=number, proposal=proposal, state=State.RUNNING)
    trial = trial.finish(float(number), cost={"seconds": seconds + 2.0, "setup_seconds": 2.0})
    return trial.fail(Reason.EXCEPTION, "failed") if loss is None else trial.complete({"loss": loss})


def simulated(
    loss_after: Callable[[Mapping[str, Any], float, float], float], n: int, **options: Any
) -> tuple[list[Trial], AutoGrowTuner]:
    """Returns the trials of a search whose losses and durations are a function of the point.

    Args:
        loss_after: Returns the loss for the point, the loss before, and the seconds.
        n: The number of trials.
        options: The tuner's options.
    """
    tuner = AutoGrowTuner(SPACE, (LOSS,), n_starts=1, **options)
    trials: list[Trial] = []
    for number in range(n):
        proposal = tuner.ask(Lineage.of(trials), number, number)
        assert isinstance(proposal, Proposal)
        seconds = float(proposal.point["width"] * proposal.point["n_layers"] / 8)
        before = trials[proposal.parents[0]].metrics["loss"] if proposal.parents else 5.0
        trials.append(finished(proposal, number, loss_after(proposal.point, before, seconds), seconds))
    return trials, tuner


def toward(floor: float, rate: float, before: float, seconds: float) -> float:
    """Returns a loss that falls toward a floor."""
    return floor + (before - floor) * (1 - rate) ** seconds


def steps(trials: list[Trial]) -> str:
    """Returns the first letters of the trials' steps: b for begin, c for continue, g for grow."""
    return "".join((trial.proposal.derivation or {"step": "begin"})["step"][0] for trial in trials)


def test_it_grows_when_the_small_size_is_flat() -> None:
    """The small size trains on until its gain is a quarter; a larger size with a lower floor then stays."""

    def loss_after(point: Mapping[str, Any], before: float, seconds: float) -> float:
        is_small = SPACE.key(point) == SPACE.key(SPACE.smallest(random.Random(0)))
        return toward(2.0 if is_small else 1.0, 0.3, before, seconds)

    trials, tuner = simulated(loss_after, 8)
    growth = Growth.from_json(trials[6].proposal.derivation)

    assert steps(trials) == "bcccccgc"  # gains fall by 0.7 a segment, and 0.7 ** 4 is the first below a quarter
    assert growth is not None and growth.sizes == Sizes.of(trials[5].point)
    assert growth.grown == Sizes.of(trials[6].point) == Sizes.of(trials[7].point)
    assert [trial.parents for trial in trials[6:]] == [(5,), (6,)]
    assert list(tuner.may_inherit_from(Lineage.of(trials))) == [7]


def test_a_growth_that_gains_less_is_left() -> None:
    """If the larger size gains less a second, the parent continues, and growth waits for another slowdown."""
    trials, _ = simulated(
        lambda point, before, seconds: toward(
            2.0, 0.3 if point["width"] * point["n_layers"] == 8 else 0.02, before, seconds
        ),
        14,
    )
    order = steps(trials)
    first = order.index("g")

    assert trials[first + 1].parents == trials[first].parents
    assert trials[first + 1].point == trials[first - 1].point
    assert "gg" not in order and order.count("g") >= 2
    assert {
        trial.point["width"] * trial.point["n_layers"] for trial, step in zip(trials, order, strict=True) if step == "c"
    } == {8}


def test_no_growth_while_the_gain_is_steady() -> None:
    """A size that gains as much in each segment is never left."""
    trials, _ = simulated(lambda point, before, seconds: before - 0.1 * seconds, 12)

    assert steps(trials) == "b" + "c" * 11
    assert {trial.proposal.fidelity for trial in trials} == {0.1}


def test_the_largest_size_continues() -> None:
    """At the bounds of the space, and if constraints refuse every larger size, the present size continues."""
    trials, tuner = simulated(lambda point, before, seconds: before, 12)
    assert trials[-1].point == {"n_layers": 2, "n_heads": 2, "width": 16, "mlp_ratio": 2}
    assert steps(trials[-3:]) == "ccc"

    tuner.n_refused = 16
    proposal = tuner.ask(Lineage.of(trials[:3]), 3, 3)
    assert isinstance(proposal, Proposal) and proposal.derivation["step"] == "continue"


def test_the_best_first_trial_continues() -> None:
    """First trials run together; the others wait for them, and the best one that has a score is continued."""
    tuner = AutoGrowTuner(SPACE, (LOSS,), n_starts=2)
    begin = tuner.ask(Lineage.of([]), 0, 0)
    assert isinstance(begin, Proposal)
    running = Trial(number=1, index=1, proposal=begin, state=State.RUNNING)
    failed = [finished(begin, 0, None), finished(begin, 1, 3.0)]
    third = tuner.ask(Lineage.of(failed), 2, 2)
    found = tuner.ask(Lineage.of([*failed, finished(begin, 2, 2.0)]), 3, 3)

    assert tuner.ask(Lineage.of([finished(begin, 0, 3.0), running]), 2, 2) is WAIT
    assert isinstance(third, Proposal) and not third.parents
    assert isinstance(found, Proposal) and found.parents == (2,)


def test_a_failed_growth_counts_as_no_gain() -> None:
    """A larger size that fails is left, as is a segment that fails."""
    begin = Proposal(point=SPACE.smallest(random.Random(0)))
    go_on, grow = (
        Proposal(point=begin.point, parents=(0,), derivation={"step": step}) for step in ("continue", "grow")
    )
    trials = [finished(begin, 0, 4.0), finished(go_on, 1, 3.0), finished(go_on, 2, 2.9)]
    state = Growing.of(trials, LOSS)

    assert (state.gain, state.reference, state.has_slowed_down(0.25)) == (pytest.approx(0.1), 1.0, True)
    assert Growing.of([*trials, finished(go_on, 3, None)], LOSS) == state
    left = Growing.of([*trials, finished(grow, 3, None)], LOSS)
    assert (left.trial, left.reference, left.has_slowed_down(0.25)) == (trials[2], state.gain, False)


def test_a_late_retry_replaces_no_newer_segment() -> None:
    """A retry counts if no other trial has replaced its parent, or no segment has begun."""
    begin = Proposal(point=SPACE.smallest(random.Random(0)))
    go_on = Proposal(point=begin.point, parents=(1,), derivation={"step": "continue"})
    trials = [finished(begin, 0, None), finished(begin, 1, 4.0), finished(go_on, 2, None)]
    newer = [*trials, finished(go_on, 3, 3.0)]
    first, segment = (replace(finished(trial.proposal, 9, 1.0), retry_of=trial.number) for trial in trials[::2])

    def continued(lineage: list[Trial]) -> tuple[int, ...]:
        proposal = AutoGrowTuner(SPACE, (LOSS,), n_starts=1).ask(Lineage.of(lineage), 5, 5)
        assert isinstance(proposal, Proposal)
        return proposal.parents

    assert continued([*trials[:2], first]) == continued([*trials, segment]) == (9,)
    assert continued([*newer, segment]) == continued([*newer, first]) == (3,)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"segment": 0}, "tuner.segment=0"), ({"slowdown": 2}, "tuner.slowdown=2"), ({"n_starts": 0}, "n_starts=0")],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    """A number out of range is named."""
    with pytest.raises(ConfigurationError, match=message):
        AutoGrowTuner(SPACE, (LOSS,), **options)


def test_other_spaces_are_refused() -> None:
    """A space without growth is refused, with a remedy."""
    with pytest.raises(ConfigurationError, match=r"must be a TransformerSpace.*Choose problem=language"):
        AutoGrowTuner(ParameterSpace({"a": Choice(1, 2)}), (LOSS,))


@pytest.mark.slow
def test_a_real_search_grows() -> None:
    """A search on a text grows its network, whose losses go on from its parent's, and trains the final on."""
    small = {"context": 16, "batch_size": 8, "epoch_steps": 10, "n_epochs": 20, "n_layers": [1, 2], "head_sizes": [8]}
    problem = Spec.of(LanguageProblem, **small, n_heads=[1, 2], mlp_ratios=[1, 2], precision="float32")
    share = frozenset({Policy.SHARE_PARAMS})
    plan = PolicyPlan((Stage(name="search", policies=share), Stage(name="final", policies=share, warm=True)))
    tuner = Spec.of(AutoGrowTuner, segment=0.25, slowdown=0.9, n_starts=1)
    search = Search(problem=problem, tuner=tuner, plan=plan)
    found = run_search(search, root="memory://autogrow", budget=Budget(trials=8), finalists=1)
    trials = [trial for trial in found.lineage if trial.stage == "search"]
    grown = [trial for trial in trials if "growth" in (trial.proposal.derivation or {})]

    assert grown and all(trial.inherited > 0.5 for trial in grown)  # inserted blocks do not count
    for trial in grown:
        parent = next(other for other in trials if other.number in trial.parents)
        assert trial.metrics["loss"] < parent.metrics["loss"] + 0.2
    assert found.winner is not None and found.winner.stage == "final"
    assert found.winner.metrics["loss"] < min(trial.metrics["loss"] for trial in trials)
