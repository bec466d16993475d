"""Admission: the checks that proposals and recorded points must pass, and the trials that they become."""

from __future__ import annotations

import copy
import hashlib
import time
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, CorruptError, PointError, SearchFailedError
from nas.core.point import Point, is_json, point_key
from nas.core.policy import Policy, Stage
from nas.core.redaction import one_line
from nas.core.supernet import epoch_of, is_epoch
from nas.core.trial import DONOR_RULES, Proposal, State, Trial
from nas.core.validation import path_in_errors, short_repr
from nas.spaces.space import Space
from nas.storage.records import Records
from nas.training.suggestion import checked_suggestion


@dataclass(frozen=True, slots=True, kw_only=True)
class AdmissionRules:
    """The search's side of admission.

    Attributes:
        tuner: The tuner's name, for errors.
        seed: The search's seed.
        space: The space of valid points; None accepts any point.
        policies: The policies that the problem implements; None accepts any.
        other_search_checkpoint: Returns the checkpoint of another search's trial by name (``"name:42"``).
    """

    tuner: str
    seed: int
    space: Space | None = None
    policies: frozenset[Policy] | None = None
    other_search_checkpoint: Callable[[str], Checkpoint | None] = lambda donor: None


def admit(answer: object, stage: Stage, index: int, trials: Sequence[Trial], rules: AdmissionRules) -> Trial:
    """Returns the trial that a tuner's answer becomes.

    Args:
        answer: A proposal; anything else is refused.
        stage: The search stage.
        index: The proposal's number in the stage.
        trials: All trials of the search, by number.
        rules: The search's side.

    Raises:
        SearchFailedError: the answer is invalid. This is a bug of the tuner, and ends the search.
    """
    if not isinstance(answer, Proposal):
        raise SearchFailedError(
            f"tuner {rules.tuner} answered {short_repr(answer)} at proposal {index}; it must answer a Proposal, "
            "WAIT or STOP"
        )
    label = f"proposal {index} of {rules.tuner}"
    _check_sources(answer, stage, trials, rules, label)
    undeclared = frozenset() if rules.policies is None else (answer.policies or frozenset()) - rules.policies
    if undeclared:
        declared = ", ".join(sorted(rules.policies or ())) or "none"
        raise SearchFailedError(
            f"{label} asks for {', '.join(sorted(undeclared))}, but the problem declares {declared}. "
            "Add them to its `policies`, or propose others"
        )
    if not is_json(answer.point) or not is_json(answer.derivation):
        shown = one_line(f"{answer.point!r}, {answer.derivation!r}")
        raise SearchFailedError(f"{label}: must be plain JSON data: {shown}")
    if rules.space is not None:
        try:
            rules.space.validate(answer.point)
        except PointError as error:
            raise SearchFailedError(f"{label}: the point is not in the space: {error}") from error
    point, derivation = copy.deepcopy((answer.point, answer.derivation))  # the tuner may change its own
    return _new_trial(replace(answer, point=point, derivation=derivation), stage, index, trials, rules.seed)


def check_recorded(trials: Iterable[Trial], space: Space | None, records: Records) -> None:
    """Checks that points of recorded trials are in the space, before they run.

    Raises:
        CorruptError: one is not. The message names its record.
        SearchFailedError: it was changed in memory.
    """
    if space is None:
        return
    for trial in trials:
        with path_in_errors(records.url_of(f"trials/{trial.number:06d}.proposal.json")):
            try:
                space.validate(trial.point)
            except PointError as error:
                check_unchanged(trial, records)
                raise CorruptError(f"the point is not in the space: {short_repr(str(error))}") from error


def check_unchanged(trial: Trial, records: Records) -> None:
    """Checks that a trial's point is the recorded one, before it is trained again or wins.

    Raises:
        SearchFailedError: a tuner, a stopper or another user's code changed it in memory.
        CorruptError: its record can't be read.
    """
    recorded = records.proposed(trial.number)
    if recorded is None or point_key(recorded.point) == _key(trial.point):
        return
    raise SearchFailedError(
        f"the point of trial {trial.number} was changed after it was recorded: it was {short_repr(recorded.point)}, "
        f"and is {short_repr(trial.point)}. Copy the point of a trial before you change it: copy.deepcopy(trial.point)"
    )


def _key(point: Point) -> str | None:
    try:
        return point_key(point)
    except PointError:
        return None


def check_suggested(trials: Iterable[Trial], space: Space | None, records: Records) -> None:
    """Checks that points that recorded trials suggest are in the space.

    Raises:
        CorruptError: one is not. The message names its record.
    """
    for trial in trials if space is not None else ():
        if trial.suggested:
            with path_in_errors(records.url_of(f"trials/{trial.number:06d}.result.json")):
                try:
                    checked_suggestion(trial.suggested, space)
                except ConfigurationError as error:
                    raise CorruptError(f"it suggests {short_repr(str(error))}") from error


def retrain(
    parent: Trial, stage: Stage, index: int, trials: Sequence[Trial], seed: int, fidelity: float | None = None
) -> Trial:
    """Returns the trial that retrains a parent's point in a later stage.

    It inherits the parent's weights if the stage is warm.

    Args:
        parent: A trial of an earlier stage.
        stage: The later stage.
        index: The trial's number in that stage.
        trials: All trials of the search, by number.
        seed: The search's seed.
        fidelity: The share of a full training; None: all of it.
    """
    donors = (parent.number,) if stage.warm else ()
    reason = f"{stage.name} of {parent.number}"
    proposal = Proposal(point=parent.point, parents=(parent.number,), donors=donors, reason=reason)
    proposal = replace(proposal, proxies=parent.proposal.proxies, fidelity=fidelity)
    return _new_trial(proposal, stage, index, trials, seed)


def continue_training(parent: Trial, stage: Stage, n_epochs: int, trials: Sequence[Trial], seed: int) -> Trial:
    """Returns the trial that continues training a parent's point, from its weights.

    Its policies are those of the stage, without those that shorten the training. Its seed is new.

    Args:
        parent: A finished trial with weights.
        stage: The last stage of the plan.
        n_epochs: The number of epochs.
        trials: All trials of the search, by number.
        seed: The search's seed.
    """
    number = len(trials)
    reason = f"{n_epochs} more epochs of {parent.number}"
    proposal = Proposal(point=parent.point, parents=(parent.number,), reason=reason, proxies=parent.proposal.proxies)
    policies = (stage.policies | {Policy.SHARE_PARAMS}) - {Policy.EARLY_STOP, Policy.SKIP_TRAIN}
    trial = _new_trial(proposal, stage, parent.index, trials, seed)
    seed = trial_seed(seed, f"{stage.name}/more_epochs", number)
    return replace(trial, policies=policies, seed=seed, more_epochs=n_epochs)


def not_repeated(trials: Iterable[Trial]) -> list[Trial]:
    """Returns the FAILED trials that were not repeated yet, by number.

    A search may also repeat by itself: a supernet epoch, a final that reached the deadline, a trial of ``more_epochs``.
    """
    in_order = sorted(trials, key=lambda trial: trial.number)
    repeated = {trial.retry_of for trial in in_order}
    stages = {trial.number: trial.stage for trial in in_order}
    newest = {_training_of(trial, stages): trial.number for trial in in_order}
    failed = [trial for trial in in_order if trial.state == State.FAILED and trial.number not in repeated]
    return [trial for trial in failed if newest[_training_of(trial, stages)] == trial.number]


def _training_of(trial: Trial, stages: Mapping[int, str]) -> Hashable:
    """Returns a key that a trial shares with the trials that repeat it."""
    if is_epoch(trial):
        return epoch_of(trial.point)
    is_search = trial.more_epochs is None and all(stages.get(parent) == trial.stage for parent in trial.parents)
    return (trial.number,) if is_search else (trial.stage, trial.parents, trial.more_epochs)


def repeat(failed: Trial, trials: Sequence[Trial]) -> Trial:
    """Returns a new trial for a FAILED one.

    It has the same point, parents, donors, policies, index and seed.

    Args:
        failed: The trial to repeat.
        trials: All trials of the search, by number.
    """
    number = len(trials)
    return Trial(
        number=number,
        index=failed.index,
        proposal=failed.proposal,
        stage=failed.stage,
        job=number,
        policies=failed.policies,
        seed=failed.seed,
        generation=failed.generation,
        created=time.time(),
        retry_of=failed.number,
        more_epochs=failed.more_epochs,
    )


def trial_seed(seed: int, stage: str, index: int) -> int:
    """Returns the seed of a trial, below 2^31, from the search's seed, stage and index."""
    digest = hashlib.blake2b(f"{seed}/{stage}/{index}".encode(), digest_size=4).digest()
    return int.from_bytes(digest) & 0x7FFFFFFF


def _check_sources(
    proposal: Proposal, stage: Stage, trials: Sequence[Trial], rules: AdmissionRules, label: str
) -> None:
    for source in (*proposal.parents, *proposal.weight_donors):
        if isinstance(source, int):
            if not 0 <= source < len(trials) or trials[source].stage != stage.name:
                raise SearchFailedError(f"{label} names parent or donor {source}, but no such trial was proposed")
        elif source not in DONOR_RULES:
            try:
                rules.other_search_checkpoint(source)
            except ConfigurationError as error:
                raise SearchFailedError(f"{label}: {error}") from error


def _new_trial(proposal: Proposal, stage: Stage, index: int, trials: Sequence[Trial], seed: int) -> Trial:
    number = len(trials)
    parent_generations = [trials[parent].generation for parent in proposal.parents]
    return Trial(
        number=number,
        index=index,
        proposal=proposal,
        stage=stage.name,
        job=number,
        policies=stage.policies if proposal.policies is None else proposal.policies,
        seed=trial_seed(seed, stage.name, index),
        generation=1 + max(parent_generations, default=-1),
        created=time.time(),
    )
