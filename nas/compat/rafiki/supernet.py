"""Rafiki's ENAS schedule: train shared parameters for an epoch, then score many architectures with them."""

from __future__ import annotations

import random

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.core.policy import Policy
from nas.spaces.space import Space
from nas.supernets.paths import N_PANEL, ListedPaths
from nas.training.trial_run import TrialRun

EPOCH_POLICIES = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.DOWNSCALE})
"""The policies of the models that a supernet epoch trains, Rafiki's TRAIN."""
SUBNET_POLICIES = frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN, Policy.QUICK_EVAL, Policy.DOWNSCALE})
"""The policies of the models that it scores, Rafiki's EVAL."""


def trained_policies(policies: frozenset[Policy]) -> frozenset[Policy]:
    """Returns the policies of a trial; a subnet also has DOWNSCALE, like its epoch."""
    is_subnet = policies >= {Policy.SHARE_PARAMS, Policy.SKIP_TRAIN}
    return policies | {Policy.DOWNSCALE} if is_subnet else policies


def check_supernet(policies: frozenset[Policy], template: str) -> None:
    """Checks that a template can score shared parameters.

    Raises:
        ConfigurationError: it lacks a policy.
    """
    for policy in (Policy.SHARE_PARAMS, Policy.SKIP_TRAIN):
        if policy not in policies:
            raise ConfigurationError(
                f"problem.supernet_paths: {template} must implement {policy} to share parameters. "
                f'Add a PolicyKnob("{policy}") to its knobs, or leave the option out'
            )


def epoch_points(run: TrialRun, space: Space, n_paths: int) -> list[Point]:
    """Returns the architectures that a supernet epoch trains.

    They are the first ones of the tuner's derivation, or drawn by the seed of the trial.
    """
    if (listed := ListedPaths.of_derivation(space, run.derivation)) is not None:
        return [listed(step)[0] for step in range(n_paths)]
    rng = random.Random(f"{run.seed}/paths")
    return [space.sample(rng) for _ in range(n_paths)]


def panel(space: Space) -> list[Point]:
    """Returns the same architectures for each epoch."""
    rng = random.Random("panel")
    return [space.sample(rng) for _ in range(N_PANEL)]
