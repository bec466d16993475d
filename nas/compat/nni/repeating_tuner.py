"""A tuner that repeats points of a finite space, as the builtin tuners of NNI do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nas.compat.nni.builtins import replacement_spec
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal
from nas.core.validation import short_repr
from nas.spaces.space import Space
from nas.tuners.base import STOP, Answer
from nas.tuners.shared.wrapper import WrapperTuner


class RepeatingTuner(WrapperTuner):
    """Proposes what the replacement of a builtin tuner does, and random points again after its last.

    Args:
        space: The search space.
        metrics: The first one counts.
        seed: Seeds every ask, together with its number.
        builtin: NNI's name of the tuner.
        arguments: Arguments of the replacement.

    Raises:
        ConfigurationError: there is no such tuner, or it refuses its arguments.
    """

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        builtin: str,
        arguments: Mapping[str, Any] | None = None,
    ) -> None:
        if not isinstance(arguments, Mapping | None):
            raise ConfigurationError(f"tuner.arguments={short_repr(arguments)}: must be an object, or null")
        super().__init__(replacement_spec(builtin, arguments or {}).build(space, metrics, seed=seed))
        self.startup_trials = None  # NNI has no such options

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the replacement's answer; a random point in place of STOP."""
        answer = self.inner.ask(lineage, number, job)
        if answer is not STOP:
            return answer
        return Proposal(point=self.space.sample(self.rng(number)), reason="again: every point has a trial")
