"""The rules of inheritance: what follows the weights, and how much of it a child keeps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from nas.core.errors import ConfigurationError, check_number, check_whole, nearest_first

Match = Literal["name", "structure"]
Rest = Literal["scaled", "own"]
Statistics = Literal["inherit", "reset"]
OptimizerState = Literal["fresh", "inherit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How a child takes its donors' weights. The defaults leave what was inherited whole as it was.

    Attributes:
        first: What is believed where both would give a tensor whole: its ``name``, or the ``structure``. With the name,
            structure places only the layers whose names no donor has; with the structure, the layers of both networks
            are aligned in their order, so that a chain with one layer more at its beginning keeps all others although
            each has another's name.
        rest: What a tensor becomes that is sliced. ``scaled``, of the weight of a convolution or linear layer without
            groups: inherited rows (outputs) have 0 for new inputs, so that they give what they gave, and are scaled up
            where inputs are lost; new rows are the child's own, scaled to the spread of the inherited ones. ``own``,
            and of all other tensors: what is inherited is as it was, and what is new the child's own, as it is.
        statistics: Of batch-norm. ``inherit``: mean, variance and count travel with their channels. ``reset``: they are
            a fresh network's.
        shrink: What parameters that inherit are multiplied by, also what is new in them (shrink and perturb, Ash and
            Adams 2020, arXiv:1910.08475).
        perturb: How much of the child's own initial values is added to them.
        optimizer: Of its state. ``fresh``: a child's has none. ``inherit``: it goes on from the donor's, where the
            problem hands it down (`nas.inheritance.optimizer_state`).
        warm_up_steps: In so many steps the learning rate rises to what it is meant to be (``warm_up``).
        freeze_epochs: For so many epochs the tensors that were copied do not learn (`nas.inheritance.freezing`).

    Raises:
        ConfigurationError: one is not what is allowed.
    """

    first: Match = "name"
    rest: Rest = "scaled"
    statistics: Statistics = "inherit"
    shrink: float = 1.0
    perturb: float = 0.0
    optimizer: OptimizerState = "fresh"
    warm_up_steps: int = 0
    freeze_epochs: int = 0

    def __post_init__(self) -> None:
        for name, allowed in (
            ("first", Match),
            ("rest", Rest),
            ("statistics", Statistics),
            ("optimizer", OptimizerState),
        ):
            if getattr(self, name) not in (known := get_args(allowed)):
                raise ConfigurationError(f"rules.{name} ({getattr(self, name)!r}) must be one of {', '.join(known)}")
        for name in ("shrink", "perturb"):
            value = getattr(self, name)
            check_number(f"rules.{name}", value)
            if not 0 <= value <= 1:
                raise ConfigurationError(f"rules.{name} ({value}) must be a number from 0 to 1")
        for name in ("warm_up_steps", "freeze_epochs"):
            check_whole(f"rules.{name}", getattr(self, name), 0)

    @classmethod
    def of(cls, options: Mapping[str, Any] | None) -> Rules:
        """Returns the rules that a configuration names, the others by default; None: all by default.

        Raises:
            ConfigurationError: there is no such rule, or one is not what is allowed.
        """
        if options is not None and not isinstance(options, Mapping):
            raise ConfigurationError(
                f"rules ({options!r}) must be a dict: 'problem.rules={{shrink:0.8,perturb:0.1}}', quoted, or a "
                "shell takes it apart"
            )
        known = [field.name for field in fields(cls)]
        if unknown := [str(name) for name in options or {} if name not in known]:
            raise ConfigurationError(f"rules: there is no {unknown[0]!r}; choose of {nearest_first(unknown[0], known)}")
        return cls(**(options or {}))

    def warm_up(self, step: int) -> float:
        """Returns the share of the learning rate at a step, from 0: linear up to 1, and 1 from then on."""
        return min(1.0, (step + 1) / (self.warm_up_steps + 1))
