"""What every stopper must keep."""

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
    """Checks that a stopper is a function of what it sees, and ends hopeless trials only, come what may.

    * The same lineage and trial give the same verdict: from another instance, whatever it was asked before, from
      another process, and whatever state the global random generators are in, which it leaves alone.
    * A metric that is minimized gives the verdicts of its mirror image that is maximized.
    * It never ends the only trial while that improves, nor one that improves and is better than all others.
    * It ends a trial that is flat and far worse than all others, of eight such at least one, before its last report.
    * It gives a bool, and never raises: with trials that failed, that report at other steps than others, a step twice,
      without the metric, NaN, or never.

    Args:
        stopper: Its class and arguments, such that it judges trials of 27 reports.
        metrics: By name and direction; the first ranks. The scores are made up.
    """
    log, asks, verdicts = _play(stopper, metrics)
    _check_extremes(stopper, metrics, log.view())
    random.seed(1)
    before = global_states()
    backwards = _verdicts(stopper, metrics, asks[::-1])[::-1]
    expect(global_states() == before, f"{stopper.target} draws from a global random generator")
    compare(verdicts, backwards, f"{stopper.target} asked in another order")
    mirrored = tuple(replace(metric, direction=opposite(metric)) for metric in metrics)
    compare(verdicts, _play(stopper, mirrored).verdicts, f"{stopper.target} with each metric's mirror image")
    elsewhere = in_another_process(_verdicts, stopper, metrics, asks)
    compare(verdicts, elsewhere, f"{stopper.target} in another process")


class _Played(NamedTuple):
    """The trials of a search in the order finished, what the stopper was asked on the way, and its verdicts."""

    log: LineageLog
    asks: list[_Ask]
    verdicts: list[str]


def _play(stopper: Spec, metrics: tuple[Metric, ...]) -> _Played:
    """Returns a search on paper: some trials at a time, which report in turn, and end where the stopper says so."""
    built: Stopper = stopper.build(metrics)
    log, asks, verdicts = LineageLog(), list[_Ask](), list[str]()
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
            verdicts.append(_ask(built, stopper, asks[-1]))
            if verdicts[-1] == "True":
                log.append(trial.stop(Reason.STOPPER, trial.curve))
                del running[number]
    return _Played(log, asks, verdicts)


def _trial(number: int) -> Trial:
    return Trial(number=number, index=number, proposal=Proposal(point={"x": number}), state=State.RUNNING, attempt=1)


def _reports(number: int, metrics: tuple[Metric, ...]) -> _Reports:
    """What a trial reports: most at every step, others at fewer, later, twice, with gaps, whole numbers, or never."""
    good, rate = share("good", number), 0.1 + share("rate", number)
    steps: Iterable[int] = range(1, N_STEPS + 1)
    match number % 10:
        case 4:
            steps = range(3, N_STEPS + 1, 3)
        case 5:
            steps = [*range(1, 9), *range(5, N_STEPS + 1)]  # went on from step 4
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
    """Returns the trial after its last report: COMPLETE, or, every fifth, FAILED."""
    if trial.number % 5 == 3:
        return trial.fail(Reason.EXCEPTION, "as the check wants")
    score = share("good", trial.number)
    return trial.complete({metric.name: _value(metric, score) for metric in metrics})


def _ask(built: Stopper, stopper: Spec, ask: _Ask) -> str:
    lineage, trial = ask
    where = f"{stopper.target} at report {len(trial.curve)} of trial {trial.number}"
    try:
        verdict = built.should_stop(lineage, trial)
    except Exception as error:
        raise AssertionError(f"{where} raised {type(error).__name__}: {error}") from error
    expect(isinstance(verdict, bool), f"{where} answered {verdict!r}, which is no bool")
    return str(verdict)


def _verdicts(stopper: Spec, metrics: tuple[Metric, ...], asks: Sequence[_Ask]) -> list[str]:
    """What one new instance answers to these asks, one after the other."""
    built: Stopper = stopper.build(metrics)
    return [_ask(built, stopper, ask) for ask in asks]


def _check_extremes(stopper: Spec, metrics: tuple[Metric, ...], others: Lineage) -> None:
    numbers = range(N_TRIALS, N_TRIALS + 8)
    improving = [100.0 + step for step in range(N_STEPS)]
    for lineage, name in ((Lineage.of(()), "the only trial"), (others, "one that is better than all others")):
        for number in numbers:
            at = _stopped_at(stopper, metrics, lineage, number, improving)
            expect(at is None, f"{stopper.target} ends {name}, which improves, at its report {at}")
    flat = [-100.0] * N_STEPS
    stops = [_stopped_at(stopper, metrics, others, number, flat) for number in numbers]
    in_time = any(at is not None and at < N_STEPS for at in stops)
    expect(in_time, f"{stopper.target} ends none of {len(stops)} trials that are flat and far worse than all others")


def _stopped_at(
    stopper: Spec, metrics: tuple[Metric, ...], lineage: Lineage, number: int, ranks: Sequence[float]
) -> int | None:
    """Returns the report, from 1, at which a trial with these ranks is ended, or None."""
    built: Stopper = stopper.build(metrics)
    trial = _trial(number)
    for step, rank in enumerate(ranks, 1):
        report = step, {metric.name: _value(metric, rank) for metric in metrics}
        trial = trial.report(*report)
        if _ask(built, stopper, (lineage, trial)) == "True":
            return step
    return None
