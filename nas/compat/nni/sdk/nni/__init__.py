"""The module that the code of an NNI experiment imports. It needs the standard library alone.

It speaks with the job that has started the trial; where nobody did, configurations are empty and results are printed.
"""

from .trial import (
    get_current_parameter,
    get_experiment_id,
    get_next_parameter,
    get_sequence_id,
    get_trial_id,
    report_final_result,
    report_intermediate_result,
)
from .utils import NoMoreTrialError

__all__ = [
    "NoMoreTrialError",
    "get_current_parameter",
    "get_experiment_id",
    "get_next_parameter",
    "get_sequence_id",
    "get_trial_id",
    "report_final_result",
    "report_intermediate_result",
]

_GONE = {
    "get_parameters": "use nni.get_next_parameter",
    "get_next_parameters": "use nni.get_next_parameter",
    "training_update": "the NAS mode of v1.0 is not supported",
    **dict.fromkeys(("mutable_layers", "mutables", "smartparam"), "annotations (useAnnotation) are not supported"),
    **dict.fromkeys(("nas", "retiarii", "algorithms", "compression"), "this is the module of NNI v0.5 to v1.9"),
}


def __getattr__(name: str) -> object:
    raise AttributeError(f"nni.{name} is not here: {_GONE.get(name, 'docs/coming_from_nni.md lists what is')}")
