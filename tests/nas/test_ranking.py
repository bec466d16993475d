"""Who competes to be the winner."""

from __future__ import annotations

from nas.metric import Metric
from nas.ranking import competitors
from nas.trial import Proposal, State, Trial

STAGES = ("search", "final")


def trial(number: int, score: float | None, *, stage: str = "search", state: State = State.COMPLETE) -> Trial:
    metrics = {} if score is None else {"a": score}
    return Trial(
        number=number, index=number, proposal=Proposal(point={"x": number}), stage=stage, state=state, metrics=metrics
    )


def ranked(*trials: Trial, metric: Metric = Metric("a"), stages: tuple[str, ...] = STAGES) -> list[int]:  # noqa: B008 - frozen
    return [trial.number for trial in competitors(trials, metric, stages)]


def test_competitors_are_of_the_last_stage_with_a_score() -> None:
    """Finals compete by their full scores; before one has a score, the search's trials do; stopped ones never do."""
    search = [trial(0, 0.9), trial(1, 0.95, state=State.STOPPED), trial(2, 0.8)]
    failed = trial(3, None, stage="final", state=State.FAILED)
    stopped = trial(4, 0.5, stage="final", state=State.STOPPED)
    finals = [trial(5, 0.1, stage="final"), trial(6, 0.2, stage="final")]

    assert ranked(*search) == ranked(*search, stages=STAGES[:1]) == [0, 2]
    assert ranked(*search, failed) == [0, 2]
    assert ranked(*search, failed, stopped) == []
    assert ranked(*search, failed, stopped, *finals) == [6, 5]
    assert ranked(*search, *finals, metric=Metric("a", "minimize")) == [5, 6]
    assert ranked() == []
