"""The tuner that fits a space, as Rafiki's advisor chose it (Wang et al. 2018, Rafiki, arXiv:1804.06087)."""

from __future__ import annotations

import logging
from collections.abc import Collection, Sequence
from typing import Any

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.core.trial import Proposal, Trial
from nas.spaces.space import Space
from nas.tuners.base import Answer, Tuner

logger = logging.getLogger(__name__)
_PLAIN = frozenset({"Choice", "Int", "Float", "Distribution.uniform", "Distribution.normal"})


class AutoTuner(Tuner):
    """Answers what the tuner does that it has chosen, and logs which one, which the search's identity keeps.

    A space of one point: ``grid``, which is one trial. Numbers and choices that don't depend on one another: ``gp``.
    Groups of choices alone, which are architectures: ``reinforce``. Anything else: ``random``. Where SHARE_PARAMS is
    on, ``gp`` takes the best trial's weights, and ``reinforce`` those of the latest on the same slot.

    Args:
        space: Any; one that does not describe itself as ``ParameterSpace`` does is searched at random.
        metrics: The first one.
        seed: The chosen tuner's.

    Raises:
        ConfigurationError: the chosen tuner can't be built, for want of a library, say.
    """

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int = 0) -> None:
        super().__init__(space, metrics, seed=seed)
        self.chosen = chosen = chosen_tuner(space)
        self._tuner: Tuner = chosen.build(space, metrics, seed=seed)
        arguments = "".join(f" {name}={value}" for name, value in chosen.arguments.items())
        logger.warning("tuner auto: %s%s, for this space", chosen.target, arguments)

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the chosen tuner's answer."""
        self._tuner.n_refused = self.n_refused
        return self._tuner.ask(lineage, number, job)

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Whom the chosen tuner may name."""
        return self._tuner.may_inherit_from(lineage)

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        """As the chosen tuner ranks them."""
        return self._tuner.ranked(lineage)


def chosen_tuner(space: Space) -> Spec:
    """Returns the tuner for a space; see ``AutoTuner``."""
    parameters: dict[str, Any] = space.to_json().get("parameters", {})
    kinds = {_kind(described) for described in parameters.values()} - {"constant"}
    if space.n_points == 1:
        return Spec("nas.tuners.grid.GridTuner")
    if kinds == {"plain"}:
        return Spec("nas.tuners.optuna.OptunaTuner", {"sampler": "gp", "max_points": 500, "donor": "best"})
    if kinds == {"architecture"}:
        return Spec("nas.tuners.reinforce.ReinforceTuner", {"donor": "local_recent"})
    return Spec("nas.tuners.random.RandomTuner")


def _kind(described: Any) -> str:
    """What a parameter is, by its description."""
    if described["type"] == "constant":
        return "constant"
    if described["type"] in _PLAIN and "when" not in described:
        options = described.get("options", ())
        return "plain" if all(option["type"] == "constant" for option in options) else "mixed"
    if described["type"] == "dict" and "when" not in described:
        inner = {_kind(part) for part in described["parameters"].values()} - {"constant"}
        kinds = {part["type"] for part in described["parameters"].values()} - {"constant"}
        return "architecture" if inner == {"plain"} and kinds == {"Choice"} else "mixed" if inner else "constant"
    return "mixed"
