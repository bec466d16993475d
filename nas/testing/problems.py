"""Contract of problems."""

from __future__ import annotations

import json
import math
import pickle
import random
from collections.abc import Mapping
from typing import TYPE_CHECKING, Literal
from uuid import uuid4

from nas.core.checkpoint import Checkpoint
from nas.core.metric import is_finite
from nas.core.point import Point, point_key
from nas.core.policy import Policy
from nas.core.spec import Spec
from nas.core.trial import DonorWeights, Proposal, State, Trial
from nas.executors.events import ExecutorFailed, Finished, Reported
from nas.executors.in_process_pool import InProcessPool
from nas.executors.local_executor import LocalExecutor
from nas.storage.checkpoints import load_manifest, publish_checkpoint, publish_tensors
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.testing.expectations import expect, in_another_process
from nas.training.messages import Assignment, RuntimeSpec
from nas.training.problem import Ability, Problem

if TYPE_CHECKING:
    import torch


def check_problem(problem: Spec) -> None:
    """Checks that a problem trains, honors its policies and passes on its exact weights.

    * It can be built here and in another process, and its space samples the same points there.
    * A trial with the cheap policies that it declares is COMPLETE, and all metrics are finite. A second trial with the
      same seed has the same metrics and weights; what ``measure`` returns may vary.
    * A trial that is told to stop at its first report is STOPPED.
    * SHARE_PARAMS: a child of the same point inherits all parameters of its parent. SKIP_TRAIN: it publishes them
      unchanged. EARLY_STOP: without it there are more reports. (DOWNSCALE and QUICK_EVAL have no visible effect.)
    * The checkpoint survives a round trip through a storage. ``test`` and ``export`` work on it, if defined.

    Args:
        problem: Class and arguments; a trial with all cheap policies should take seconds.
    """
    built: Problem = problem.build()
    expect(isinstance(built, Problem), f"{problem.target} must be a subclass of nas.Problem")
    point = built.space.sample(random.Random(5))
    built.space.validate(point)
    elsewhere = in_another_process(_sample, pickle.loads(pickle.dumps(problem)))
    expect(elsewhere == point_key([built.space.to_json(), point]), "the space differs in another process")
    with _Trainer(problem, built) as trainer:
        cheap = built.policies - {Policy.SKIP_TRAIN}
        first, again = (trainer.train(point, cheap) for _ in range(2))
        for trial in (first, again):
            expect(trial.state == State.COMPLETE, f"{problem.target} failed on {point}: {trial.reason}: {trial.error}")
        measured = built.measure(point, "cpu") if first.metrics != again.metrics else {}
        same = _unmeasured(first, measured) == _unmeasured(again, measured)
        expect(same, f"the same seed gave metrics {first.metrics}, then {again.metrics}")
        expect(all(m.name in first.metrics for m in built.metrics), f"some metrics are missing in {first.metrics}")
        expect(trainer.state_of(first) == trainer.state_of(again), "the same seed gave other weights")
        if first.curve:
            stopped = trainer.train(point, cheap, max_reports=1)
            expect(
                stopped.state == State.STOPPED,
                f"a trial that was told to stop at its first report is {stopped.state}, not STOPPED",
            )
        _check_policies(trainer, built, first)
        _check_checkpoint(trainer, first)
        if Ability.TEST in built.abilities:
            trainer.check_action("test", first)
        if Ability.EXPORT in built.abilities:
            trainer.check_action("export", first)


def _unmeasured(trial: Trial, measured: Mapping[str, float]) -> dict[str, float]:
    """Returns the metrics without those that were measured before training, and that ``train`` did not return."""
    static = {name: value for name, value in trial.static_metrics.items() if name in measured}
    return {name: value for name, value in trial.metrics.items() if value != static.get(name)}


def _sample(problem: Spec) -> str:
    space = problem.build().space
    return point_key([space.to_json(), space.sample(random.Random(5))])


class _Trainer:
    """Trains trials one by one in this process, with storage in memory and one torch thread."""

    def __init__(self, problem: Spec, built: Problem) -> None:
        import torch

        self._n_threads = torch.get_num_threads()
        self.files = open_root(f"memory://contract-{uuid4().hex}", retry_s=0)
        spec = RuntimeSpec(
            problem=problem,
            url=self.files.url,
            options={},
            has_stopper=True,
            jobs_request_trials=Ability.TRAIN_MANY in built.abilities,
        )
        self._executor = LocalExecutor(InProcessPool(spec, self.files, built))
        self._records = Records(self.files)
        self._n_trials = 0

    def __enter__(self) -> _Trainer:
        return self

    def __exit__(self, *_: object) -> None:
        import torch

        self._executor.close()
        torch.set_num_threads(self._n_threads)

    def train(
        self,
        point: Point,
        policies: frozenset[Policy],
        *,
        parent: Trial | None = None,
        max_reports: float = math.inf,
    ) -> Trial:
        """Trains a trial and returns it; it is told to stop at its ``max_reports``-th report."""
        number, self._n_trials = self._n_trials, self._n_trials + 1
        trial = Trial(
            number=number,
            index=number,
            proposal=Proposal(point=point, parents=() if parent is None else (parent.number,)),
            job=number,
            policies=policies,
            seed=7,
            state=State.RUNNING,
            slot=0,
            attempt=1,
        )
        self._records.propose(trial)
        donors = []
        if parent is not None and parent.checkpoint is not None:
            donors = [DonorWeights(parent.number, parent.checkpoint)]
        self._executor.submit(Assignment(trial, tuple(donors)))
        n_reports = 0
        while True:
            match self._executor.next_event(None):
                case Reported(answer=answer):
                    n_reports += 1
                    if answer is not None:
                        answer(n_reports >= max_reports)
                case Finished(trial=finished):
                    return finished
                case ExecutorFailed(error=error):
                    raise error

    def state_of(self, trial: Trial) -> list[tuple[object, ...]]:
        """Returns the contents of all tensors and files that the trial published."""
        if trial.checkpoint is None:
            return []
        from nas.storage.lazy_weights import StoredWeights

        tensors = StoredWeights(self.files, trial.checkpoint).read_all()
        found: list[tuple[object, ...]] = [(n, str(t.dtype), t.shape, _bytes_of(t)) for n, t in tensors.items()]
        saved = load_manifest(self.files, trial.checkpoint).files
        return sorted(found + [(reference.path.split("/", 2)[2], reference.digest) for reference in saved])

    def check_action(self, action: Literal["test", "export"], trial: Trial) -> None:
        """Tests or exports the trial."""
        answer = self._executor.call(action, trial)
        if action == "test":
            expect("error" not in answer and all(map(is_finite, answer["metrics"].values())), f"test returned {answer}")
        else:
            expect(not answer["missing"], f"missing in the export: {answer['missing']}")


def _bytes_of(tensor: torch.Tensor) -> bytes:
    import torch

    return tensor.reshape(-1).view(torch.uint8).numpy().tobytes()


def _check_policies(trainer: _Trainer, built: Problem, parent: Trial) -> None:
    policies = parent.policies
    if Policy.SHARE_PARAMS in built.policies:
        expect(parent.checkpoint is not None, "it declares SHARE_PARAMS, but a trial published no weights")
        more = {Policy.SKIP_TRAIN} & built.policies
        child = trainer.train(parent.point, policies | more, parent=parent)
        expect(child.state == State.COMPLETE, f"a child failed: {child.reason}: {child.error}")
        files_only = parent.checkpoint is not None and not parent.checkpoint.packs
        took_tensors = child.inherited is None and child.donor == parent.number  # run.inherit_tensors
        if not files_only and not took_tensors:
            expect(child.inherited == 1.0, f"a child of the same point inherited {child.inherited} of its parameters")
        if more:
            same = trainer.state_of(child) == trainer.state_of(parent)
            expect(same, "with SKIP_TRAIN a child changed the weights that it inherited")
    if Policy.EARLY_STOP in built.policies and parent.curve:
        longer = trainer.train(parent.point, policies - {Policy.EARLY_STOP}, max_reports=len(parent.curve) + 1)
        n_reports = len(parent.curve)
        expect(len(longer.curve) > n_reports, f"there are {n_reports} reports with EARLY_STOP, but no more without it")


def _check_checkpoint(trainer: _Trainer, trial: Trial) -> None:
    if trial.checkpoint is None or not trial.checkpoint.packs:
        return
    from nas.storage.lazy_weights import StoredWeights
    from nas.storage.record_values import checked_exactly

    tensors = StoredWeights(trainer.files, trial.checkpoint).read_all()
    other = open_root(f"memory://contract-{uuid4().hex}", retry_s=0)
    copy = publish_checkpoint(other, "copy", publish_tensors(other, "packs/copy", tensors))
    found = StoredWeights(other, checked_exactly(Checkpoint, json.loads(json.dumps(copy.to_json())))).read_all()
    same = found.keys() == tensors.keys() and all(_bytes_of(found[n]) == _bytes_of(tensors[n]) for n in tensors)
    expect(same, "the checkpoint changed in a round trip through a storage")
