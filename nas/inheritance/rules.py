"""The rules of inheritance, as a problem's ``rules`` option gives them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal, get_args

from nas.core.errors import ConfigurationError
from nas.core.validation import check_choice, check_int, check_keys, check_number

Match = Literal["name", "structure"]
Rest = Literal["scaled", "own"]
Statistics = Literal["inherit", "reset"]
OptimizerState = Literal["fresh", "inherit"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """The rules by which a child takes its donors' weights; by default copies are exact.

    Attributes:
        first: What decides if both the ``name`` and the ``structure`` would give a whole tensor. With ``name``, only
            layers whose names no donor has are matched by structure. With ``structure``, all layers are aligned in
            order: a chain with a new first layer keeps all others under new names.
        rest: How a sliced tensor is filled. ``scaled`` applies to weights of linear layers and of convolutions without
            groups. Inherited rows (outputs) get 0 for new inputs, so that their outputs do not change. They are scaled
            up if inputs are lost. New rows keep the child's values, scaled to the spread of the inherited rows. With
            ``own``, and in all other tensors, inherited and new values stay as they are.
        statistics: Of batch-norm. ``inherit``: mean, variance and count follow their channels. ``reset``: they are
            those of a new network.
        shrink: The factor on parameters that inherit, including their new part (shrink and perturb, Ash and Adams 2020,
            arXiv:1910.08475).
        perturb: The share of the child's own initial values that is added to them.
        optimizer: ``fresh``: the child's optimizer starts without state. ``inherit``: it continues from the donor's, if
            the problem implements it (`nas.inheritance.optimizer_state`).
        warm_up_steps: The number of steps in which the learning rate rises to its full value (``warm_up``).
        freeze_epochs: The number of epochs in which copied tensors do not learn (`nas.inheritance.freezing`).

    Raises:
        ConfigurationError: a value is not allowed.
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
            check_choice(f"rules.{name}", getattr(self, name), get_args(allowed))
        for name in ("shrink", "perturb"):
            check_number(f"rules.{name}", getattr(self, name), 0, 1)
        for name in ("warm_up_steps", "freeze_epochs"):
            check_int(f"rules.{name}", getattr(self, name), 0)

    @classmethod
    def of(cls, options: Mapping[str, Any] | None, **defaults: Any) -> Rules:
        """Returns the rules of a configuration; rules that it does not name keep their defaults.

        Args:
            options: The values of rules, by name.
            defaults: Defaults of the problem, in place of the class's.

        Raises:
            ConfigurationError: a rule is unknown, or its value is not allowed.
        """
        if options is not None and not isinstance(options, Mapping):
            raise ConfigurationError(
                f"rules={options!r}: must be a dict: 'problem.rules={{shrink:0.8,perturb:0.1}}'. Quote it in a shell"
            )
        check_keys("rules", options or {}, [field.name for field in fields(cls)])
        return cls(**{**defaults, **(options or {})})

    def warm_up(self, step: int) -> float:
        """Returns the factor on the learning rate at a step, which rises linearly to 1."""
        return min(1.0, (step + 1) / (self.warm_up_steps + 1))
