"""The module that the code of an NNI experiment imports; it needs the standard library alone.

It connects to the job that started the trial. Without a job, configurations are empty and results are printed.
"""

import sys as _sys

from .missing import MissingFinder as _MissingFinder
from .missing import explain as _explain
from .trial import (
    get_current_parameter,
    get_experiment_id,
    get_next_parameter,
    get_sequence_id,
    get_trial_id,
    report_final_result,
    report_intermediate_result,
)
from .utils import ClassArgsValidator, NoMoreTrialError

__all__ = [
    "ClassArgsValidator",
    "NoMoreTrialError",
    "get_current_parameter",
    "get_experiment_id",
    "get_next_parameter",
    "get_sequence_id",
    "get_trial_id",
    "report_final_result",
    "report_intermediate_result",
]

_sys.meta_path.append(_MissingFinder)


def __getattr__(name: str) -> object:
    raise AttributeError(_explain(name))
