"""The decision of a stopper on a running trial."""

from __future__ import annotations

from nas.core.errors import SearchFailedError
from nas.core.lineage import Lineage
from nas.core.trial import Trial
from nas.core.validation import short_repr
from nas.stoppers.base import Stopper


def decides_stop(stopper: Stopper, lineage: Lineage, trial: Trial) -> bool:
    """Returns whether the trial should stop.

    Numpy's bools and tensors of one value count: workers wait for a bool.

    Args:
        stopper: The search's stopper.
        lineage: What the stopper may see.
        trial: The running trial.

    Raises:
        SearchFailedError: the stopper answered something else.
    """
    answer: object = stopper.should_stop(lineage, trial)
    try:
        value = answer.item() if hasattr(answer, "item") else answer
    except (ValueError, RuntimeError):  # it has many values
        value = answer
    if not isinstance(value, bool):
        raise SearchFailedError(
            f"stopper {type(stopper).__name__} answered {short_repr(answer)}; it must answer True or False"
        )
    return value
