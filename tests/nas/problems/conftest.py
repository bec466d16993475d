"""Trains a point as a worker would, with a real run on a store in memory."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.trial import DonorWeights, Proposal, Trial
from nas.storage.blobs import BlobStore
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root
from nas.training.messages import EVERY_S, TrialChannel
from nas.training.problem import Problem
from nas.training.seeds import seed_everything
from nas.training.trial_run import TrialRun

SEARCH = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.QUICK_EVAL, Policy.DOWNSCALE})


@dataclass(frozen=True, slots=True, kw_only=True)
class Trained:
    """A trial that has been trained, and the run that did it."""

    run: TrialRun
    again: TrialRun
    """A run of the finished trial, for test and export."""
    metrics: Mapping[str, float]
    weights: dict[str, Tensor]
    donor: DonorWeights

    @property
    def accuracy(self) -> float:
        """The score."""
        return self.metrics["accuracy"]

    @property
    def accuracies(self) -> list[float]:
        """What was reported, epoch by epoch."""
        return [metrics["accuracy"] for _, metrics in self.run.curve]

    @property
    def n_parameters(self) -> int:
        """The number of elements that were saved."""
        return sum(tensor.numel() for tensor in self.weights.values())


Train = Callable[..., Trained]


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Torch uses one thread: the same bits everywhere, and no quarrel between tests that run side by side."""
    n_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(n_threads)


@pytest.fixture
def files() -> BlobStore:
    """An empty store in memory."""
    return open_root(f"memory://{uuid.uuid4().hex}/search")


@pytest.fixture
def make_run(files: BlobStore) -> Iterator[Callable[..., TrialRun]]:
    """Makes the run of a new trial, with its donors loaded and everything seeded; closed at the end."""
    runs = []

    def make(
        point: Point,
        policies: Iterable[Policy] = (),
        *,
        seed: int = 0,
        donors: Sequence[Trained] = (),
        fidelity: float | None = None,
        derivation: object = None,
        channel: TrialChannel | None = None,
        attempt: int = 1,
        resume_every_s: float = EVERY_S,
        train_for_s: float | None = None,
    ) -> TrialRun:
        proposal = Proposal(point=point, fidelity=fidelity, derivation=derivation)
        trial = Trial(number=1, index=1, proposal=proposal, policies=frozenset(policies), seed=seed, attempt=attempt)
        weights = [donor.donor for donor in donors]
        until = None if train_for_s is None else time.time() + train_for_s
        more = {"channel": channel, "resume_every_s": resume_every_s, "train_until": until}
        run = TrialRun(trial, files, donors=weights, **more)
        run.load_donors()
        seed_everything(seed)
        runs.append(run)
        return run

    yield make
    for run in runs:
        run.close()


@pytest.fixture
def train(files: BlobStore, make_run: Callable[..., TrialRun]) -> Train:
    """Trains a point of a problem."""

    def train(problem: Problem, point: Point, policies: Iterable[Policy] = (), **more: object) -> Trained:
        run = make_run(point, policies, **more)
        metrics = problem.train(run)
        checkpoint = run.commit_weights()
        assert checkpoint is not None
        trial = Trial(number=1, index=1, proposal=Proposal(point=point), policies=run.policies, checkpoint=checkpoint)
        return Trained(
            run=run,
            again=TrialRun(replace(trial, seed=run.seed), files),
            metrics=metrics,
            weights=StoredWeights(files, checkpoint).read_all(),
            donor=DonorWeights(1, checkpoint),
        )

    return train
