"""Policies (modes of one trial), stages, and the plan of stages."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.validation import check_bool, check_keys, short_repr


class Policy(StrEnum):
    """A mode of one trial; a problem lists the policies that its ``train`` implements."""

    SHARE_PARAMS = "SHARE_PARAMS"
    """Start from the donors' weights."""
    EARLY_STOP = "EARLY_STOP"
    """Train for fewer epochs (Rafiki's QUICK_TRAIN)."""
    SKIP_TRAIN = "SKIP_TRAIN"
    """Score the inherited weights without training."""
    QUICK_EVAL = "QUICK_EVAL"
    """Score on a part of the validation data."""
    DOWNSCALE = "DOWNSCALE"
    """Build a smaller network and train it on a part of the data."""


ALIASES: Mapping[str, str] = {"QUICK_TRAIN": "EARLY_STOP"}


def parse_policies(names: Iterable[str]) -> frozenset[Policy]:
    """Returns the policies with these names, in upper or lower case; QUICK_TRAIN is EARLY_STOP.

    Raises:
        ConfigurationError: an unknown name.
    """
    found = set()
    for name in names:
        upper = str(name).upper()
        upper = ALIASES.get(upper, upper)
        if upper not in Policy.__members__:
            raise ConfigurationError(f"unknown policy {name!r}; the policies are {', '.join(Policy.__members__)}")
        found.add(Policy[upper])
    return frozenset(found)


_STAGE_KEYS = ("name", "policies", "warm", "best", "share")


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """A named step of the plan, with the policies of its trials."""

    name: str
    policies: frozenset[Policy] = frozenset()
    warm: bool = False
    """Whether retraining starts from the trial's weights, as far as they fit. Implies SHARE_PARAMS."""
    best: int | float | None = None
    """The best trials of the previous stage to retrain: their number, or their share.

    An int is a number from 1. A float is a share of the scored trials, in (0, 1.0]. None: the option ``finalists``.
    """
    share: float | None = None
    """Its share of the hours and GPU-hours, in (0, 1]. None: estimated from trial durations."""

    def __post_init__(self) -> None:
        policies, best, share = self.policies, self.best, self.share
        if not isinstance(self.name, str) or not self.name:
            raise ConfigurationError(f"stage {short_repr(self.name)}: name: must be a text of at least one character")
        if isinstance(policies, str) or not isinstance(policies, Iterable):
            raise ConfigurationError(f"stage {self.name}: policies={policies!r}: must be a list of names")
        check_bool(f"stage {self.name}: warm", self.warm)
        is_number = isinstance(best, int) and not isinstance(best, bool) and best >= 1
        if best is not None and not is_number and not (isinstance(best, float) and 0 < best <= 1):
            raise ConfigurationError(
                f"stage {self.name}: best={best!r}: must be a whole number of trials from 1, or a share such as 0.2"
            )
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share <= 1):
            raise ConfigurationError(
                f"stage {self.name}: share={share!r}: must be a share of the hours: above 0 and at most 1"
            )
        always = {Policy.SHARE_PARAMS} if self.warm else frozenset[Policy]()
        object.__setattr__(self, "policies", parse_policies(policies) | always)

    def to_json(self) -> dict[str, object]:
        """Returns the stage as JSON, for the identity of a search."""
        described: dict[str, object] = {"name": self.name, "policies": sorted(self.policies), "warm": self.warm}
        optional = {"best": self.best, "share": self.share}
        return described | {key: value for key, value in optional.items() if value is not None}


@dataclass(frozen=True, slots=True)
class PolicyPlan:
    """The stages of a search. The tuner proposes the trials of the first.

    Each later stage retrains the best trials of the previous stage. The winner comes from the last stage.
    """

    stages: tuple[Stage, ...]

    def __post_init__(self) -> None:
        if not isinstance(self.stages, tuple | list) or not all(isinstance(stage, Stage) for stage in self.stages):
            raise ConfigurationError(
                f"PolicyPlan: {short_repr(self.stages)}: must hold nas.Stage objects. "
                "Write PolicyPlan((Stage(name=...),))"
            )
        names = [stage.name for stage in self.stages]
        if not names or len(set(names)) != len(names):
            raise ConfigurationError(f"policy={names}: a plan must have at least one stage, and distinct names")
        if (shares := math.fsum(stage.share or 0.0 for stage in self.stages)) > 1:
            raise ConfigurationError(f"stages: the sum of the shares is {shares:g}: must be at most 1")
        if self.stages[0].best is not None:
            raise ConfigurationError(
                f"stage {names[0]}: best must not be set: the tuner proposes the trials of the first stage"
            )

    @property
    def search(self) -> Stage:
        """The stage in which the tuner proposes."""
        return self.stages[0]

    @property
    def final(self) -> Stage | None:
        """The last stage, or None if there is only the search stage."""
        return self.stages[-1] if len(self.stages) > 1 else None

    @property
    def later(self) -> tuple[Stage, ...]:
        """The stages after the search stage, in order."""
        return self.stages[1:]

    def to_json(self) -> list[dict[str, object]]:
        """Returns the plan as JSON, for the identity of a search."""
        return [stage.to_json() for stage in self.stages]

    @classmethod
    def from_stages(cls, stages: Iterable[Mapping[str, object]]) -> PolicyPlan:
        """Returns the plan of this data: ``[{name: search, policies: [SHARE_PARAMS]}, {name: final}]``.

        Raises:
            ConfigurationError: an unknown key or policy.
        """
        made = []
        for stage in stages:
            if not isinstance(stage, Mapping) or "name" not in stage:
                raise ConfigurationError(
                    f"stage {stage!r} must have the key `name`, and may have {', '.join(_STAGE_KEYS[1:])}. "
                    "Example: {name: search, policies: [SHARE_PARAMS]}"
                )
            check_keys(f"stage {stage['name']}", stage, _STAGE_KEYS)
            given: dict[str, Any] = {**stage, "name": str(stage["name"]), "policies": stage.get("policies") or ()}
            made.append(Stage(**given))
        return cls(tuple(made))

    def fitted(self, declared: frozenset[Policy], *, strict: bool) -> tuple[PolicyPlan, frozenset[Policy]]:
        """Returns the plan without policies that the problem does not declare, and these policies.

        A later stage with the same remaining policies as the previous stage is dropped.

        Args:
            declared: The policies that the problem implements.
            strict: Whether the user chose this plan, so that an undeclared policy is an error.

        Raises:
            ConfigurationError: the plan has an undeclared policy and ``strict`` is true.
        """
        left_out = frozenset[Policy]().union(*(stage.policies for stage in self.stages)) - declared
        if strict and left_out:
            raise ConfigurationError(
                f"the policy plan asks for {', '.join(sorted(left_out))}, but the problem declares "
                f"{', '.join(sorted(declared)) or 'none'}. Add them to its `policies`, or choose another plan"
            )
        share = {Policy.SHARE_PARAMS}
        kept: list[Stage] = []
        for stage in self.stages:
            policies = stage.policies & declared
            fitted = replace(stage, policies=policies, warm=stage.warm and Policy.SHARE_PARAMS in policies)
            differs = not kept or fitted.policies - share != kept[-1].policies - share
            if left_out and not differs:
                continue
            kept.append(fitted)
        return PolicyPlan(tuple(kept)), left_out
