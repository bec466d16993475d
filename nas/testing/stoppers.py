"""Contract of stoppers."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from nas.core.lineage import Lineage, LineageLog
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.core.trial import Proposal, Reason, State, Trial
from nas.stoppers.base import Stopper
from nas.testing.expectations import compare, expect, global_states, in_another_process, opposite, share

N_TRIALS = 30
N_STEPS = 27
SLOTS = 4

_Reports = list[tuple[int, dict[str, float]]]
_Ask = tuple[Lineage, Trial]


def check_stopper(stopper: Spec, metrics: tuple[Metric, ...]) -> None:
    """Checks that a stopper is a function of its inputs and stops only hopeless trials.

    * The same lineage and trial give the same decision. Another instance, other questions before, another process and
      other states of the global random generators make no difference. It does not change these states.
    * A minimized metric gives the same decisions as its negative, maximized.
    * It never stops the only trial while that improves, nor an improving trial that is better than all others.
    * Of eight far worse trials that do not improve, it stops at least one before the last report.
    * It returns a bool and never raises. Other trials may fail, report at other steps, report a step twice, report NaN
      or no metric, or never report.

    Args:
        stopper: Class and arguments; its settings must fit trials of 27 reports.
        metrics: Names and directions; the first ranks. The scores are synthetic.
    """
    log, asks, decisions = _simulate(stopper, metrics)
    _check_extremes(stopper, metrics, log.view())
    random.seed(1)
    before = global_states()
    backwards = _decisions(stopper, metrics, asks[::-1])[::-1]
    expect(global_states() == before, f"{stopper.target} draws from a global random generator")
    compare(decisions, backwards, f"{stopper.target} asked in another order")
    mirrored = tuple(replace(metric, direction=opposite(metric)) for metric in metrics)
    compare(decisions, _simulate(stopper, mirrored).decisions, f"{stopper.target} with each metric negated")
    elsewhere = in_another_process(_decisions, stopper, metrics, asks)
    compare(decisions, elsewhere, f"{stopper.target} in another process")


class _Simulation(NamedTuple):
    """Trials of a simulated search in the order finished, with the stopper's decisions."""

    log: LineageLog
    asks: list[_Ask]
    decisions: list[str]


def _simulate(stopper: Spec, metrics: tuple[Metric, ...]) -> _Simulation:
    """Simulates a search whose trials report in turn until they end or are stopped."""
    built: Stopper = stopper.build(metrics)
    log, asks, decisions = LineageLog(), list[_Ask](), list[str]()
    waiting = [_trial(number) for number in range(N_TRIALS)]
    running: dict[int, tuple[Trial, Iterator[tuple[int, dict[str, float]]]]] = {}
    while waiting or running:
        while waiting and len(running) < SLOTS:
            log.add_proposed(trial := waiting.pop(0))
            running[trial.number] = trial, iter(_reports(trial.number, metrics))
        for number, (trial, reports) in list(running.items()):
            if (report := next(reports, None)) is None:
                log.append(_ended(trial, metrics))
                del running[number]
                continue
            trial = trial.report(*report)
            running[number] = trial, reports
            asks.append((log.view(pending=[t for t, _ in running.values() if t is not trial]), trial))
            decisions.append(_ask(built, stopper, asks[-1]))
            if decisions[-1] == "True":
                log.append(trial.stop(Reason.STOPPER, trial.curve))
                del running[number]
    return _Simulation(log, asks, decisions)


def _trial(number: int) -> Trial:
    return Trial(number=number, index=number, proposal=Proposal(point={"x": number}), state=State.RUNNING, attempt=1)


def _reports(number: int, metrics: tuple[Metric, ...]) -> _Reports:
    """Returns a trial's reports; some trials report rarely, twice or never."""
    good, rate = share("good", number), 0.1 + share("rate", number)
    steps: Iterable[int] = range(1, N_STEPS + 1)
    match number % 10:
        case 4:
            steps = range(3, N_STEPS + 1, 3)
        case 5:
            steps = [*range(1, 9), *range(5, N_STEPS + 1)]  # resumed from step 4
        case 6:
            steps = range(10, 5 * N_STEPS, 10)
        case 7:
            steps = range(0, N_STEPS) if number > N_TRIALS / 2 else ()
    reports = []
    for place, step in enumerate(steps):
        rank = good * step / (step + 1 / rate) + 0.02 * share("noise", number, place)
        report = {metric.name: _value(metric, rank) for metric in metrics}
        if number % 10 == 8:
            report = {name: round(10 * value) for name, value in report.items()}
        if number % 10 == 9 and place % 3 == 1:
            report = {} if place % 2 else dict.fromkeys(report, float("nan"))
        reports.append((step, report))
    return reports


def _value(metric: Metric, rank: float) -> float:
    return rank if metric.direction == "maximize" else -rank


def _ended(trial: Trial, metrics: tuple[Metric, ...]) -> Trial:
    """Returns the trial after its last report: COMPLETE, but every fifth FAILED."""
    if trial.number % 5 == 3:
        return trial.fail(Reason.EXCEPTION, "made to fail by the check")
    score = share("good", trial.number)
    return trial.complete({metric.name: _value(metric, score) for metric in metrics})


def _ask(built: Stopper, stopper: Spec, ask: _Ask) -> str:
    lineage, trial = ask
    where = f"{stopper.target} at report {len(trial.curve)} of trial {trial.number}"
    try:
        decision = built.should_stop(lineage, trial)
    except Exception as error:
        raise AssertionError(f"{where} raised {type(error).__name__}: {error}") from error
    expect(isinstance(decision, bool), f"{where} answered {decision!r} instead of a bool")
    return str(decision)


def _decisions(stopper: Spec, metrics: tuple[Metric, ...], asks: Sequence[_Ask]) -> list[str]:
    """Returns the answers of a new instance to these asks."""
    built: Stopper = stopper.build(metrics)
    return [_ask(built, stopper, ask) for ask in asks]


def _check_extremes(stopper: Spec, metrics: tuple[Metric, ...], others: Lineage) -> None:
    numbers = range(N_TRIALS, N_TRIALS + 8)
    improving = [100.0 + step for step in range(N_STEPS)]
    for lineage, name in ((Lineage.of(()), "the only trial"), (others, "a trial that is better than all others")):
        for number in numbers:
            at = _stopped_at(stopper, metrics, lineage, number, improving)
            expect(at is None, f"{stopper.target} stops {name}, although it improves, at its report {at}")
    flat = [-100.0] * N_STEPS
    stops = [_stopped_at(stopper, metrics, others, number, flat) for number in numbers]
    in_time = any(at is not None and at < N_STEPS for at in stops)
    expect(
        in_time,
        f"{stopper.target} stops none of {len(stops)} trials that do not improve and are far worse than all others",
    )


def _stopped_at(
    stopper: Spec, metrics: tuple[Metric, ...], lineage: Lineage, number: int, ranks: Sequence[float]
) -> int | None:
    """Returns the report, from 1, at which a trial with these ranks is stopped, or None."""
    built: Stopper = stopper.build(metrics)
    trial = _trial(number)
    for step, rank in enumerate(ranks, 1):
        report = step, {metric.name: _value(metric, rank) for metric in metrics}
        trial = trial.report(*report)
        if _ask(built, stopper, (lineage, trial)) == "True":
            return step
    return None
