"""The choice of a tuner by the space, after Rafiki's advisor (Wang et al. 2018, arXiv:1804.06087)."""

from __future__ import annotations

import logging
from typing import Any

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.core.trial import Proposal
from nas.spaces.space import Space
from nas.tuners.base import Answer, StartupTrials
from nas.tuners.shared.wrapper import WrapperTuner

logger = logging.getLogger(__name__)
_PLAIN = frozenset({"Choice", "Int", "Float", "Distribution.uniform", "Distribution.normal"})


class AutoTuner(WrapperTuner):
    """Delegates to a tuner that it chooses by the space.

    The choice is logged and part of the identity:

    * The space of a supernet: ``enas``.
    * A space of one point: ``grid``, with one trial.
    * Independent numbers and choices: ``gp``. With SHARE_PARAMS it takes the best trial's weights.
    * Groups of choices only, which are architectures: ``reinforce``. With SHARE_PARAMS it takes the weights of the
      latest trial on the same slot.
    * Any other space: ``random``.

    Args:
        space: Any space. Without the description of a ``ParameterSpace`` it is searched at random.
        metrics: The first one counts.
        seed: The chosen tuner's seed.

    Raises:
        ConfigurationError: the chosen tuner can't be built, for example because a library is missing.
    """

    def __init__(self, space: Space, metrics: tuple[Metric, ...], *, seed: int = 0) -> None:
        chosen = chosen_tuner(space)
        super().__init__(chosen.build(space, metrics, seed=seed))
        self.chosen = chosen
        if (first := self.startup_trials) is not None:
            self.startup_trials = StartupTrials(first.number)
        arguments = "".join(f" {name}={value}" for name, value in chosen.arguments.items())
        logger.warning("tuner auto: %s%s, for this space", chosen.target, arguments)

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the chosen tuner's answer."""
        self.inner.n_refused = self.n_refused
        return self.inner.ask(lineage, number, job)


def chosen_tuner(space: Space) -> Spec:
    """Returns the tuner for a space; see ``AutoTuner``."""
    parameters: dict[str, Any] = space.to_json().get("parameters", {})
    kinds = {_kind(described) for described in parameters.values()} - {"constant"}
    if "supernet" in space.to_json():
        return Spec("nas.tuners.enas.EnasTuner")
    if space.n_points == 1:
        return Spec("nas.tuners.grid.GridTuner")
    if kinds == {"plain"}:
        return Spec("nas.tuners.optuna.OptunaTuner", {"sampler": "gp", "max_points": 500, "donor": "best"})
    if kinds == {"architecture"}:
        return Spec("nas.tuners.reinforce.ReinforceTuner", {"donor": "local_recent"})
    return Spec("nas.tuners.random.RandomTuner")


def _kind(described: Any) -> str:
    """Returns the kind of a parameter: constant, plain, architecture or mixed."""
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
