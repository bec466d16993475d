"""A tuner that repeats points of a finite space, as the builtin tuners of NNI do."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from nas.compat.nni.builtins import replacement_spec
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal, Trial
from nas.core.validation import short_repr
from nas.spaces.space import Space
from nas.tuners.base import STOP, Answer, Tuner


class RepeatingTuner(Tuner):
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
        super().__init__(space, metrics, seed=seed)
        if not isinstance(arguments, Mapping | None):
            raise ConfigurationError(f"tuner.arguments={short_repr(arguments)}: must be an object, or null")
        self.tuner: Tuner = replacement_spec(builtin, arguments or {}).build(space, metrics, seed=seed)

    @property
    def shown_name(self) -> str:
        """The name of the replacement."""
        return self.tuner.shown_name

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the replacement's answer; a random point in place of STOP."""
        answer = self.tuner.ask(lineage, number, job)
        if answer is not STOP:
            return answer
        return Proposal(point=self.space.sample(self.rng(number)), reason="again: every point has a trial")

    def may_inherit_from(self, lineage: Lineage) -> Collection[int]:
        """Returns the trials that the replacement may name."""
        return self.tuner.may_inherit_from(lineage)

    def ranked(self, lineage: Lineage) -> Sequence[Trial]:
        """Returns the trials as the replacement ranks them."""
        return self.tuner.ranked(lineage)
