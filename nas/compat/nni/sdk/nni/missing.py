"""What NNI had and is not here: imports say so, and what takes its place."""

from __future__ import annotations

from typing import NoReturn

_BUILTIN = (
    "name builtinTunerName or builtinAssessorName in the configuration; their classes are not here to derive from"
)
_WHY = {
    "get_parameters": "use nni.get_next_parameter",
    "get_next_parameters": "use nni.get_next_parameter",
    "training_update": "the NAS mode of v1.0 is not supported",
    "networkmorphism_tuner": "its graphs are built by NNI itself; evolution over a space of layers takes its place",
    **dict.fromkeys(("mutable_layers", "mutables", "smartparam"), "annotations (useAnnotation) are not supported"),
    **dict.fromkeys(("nas", "retiarii", "algorithms", "compression"), "this is the module of NNI v0.5 to v1.9"),
    **dict.fromkeys(("bohb_advisor", "hyperband_advisor", "msg_dispatcher_base"), "advisors are not supported"),
    **dict.fromkeys(
        (
            *("hyperopt_tuner", "evolution_tuner", "regularized_evolution_tuner", "smac_tuner", "gridsearch_tuner"),
            *("batch_tuner", "metis_tuner", "gp_tuner", "ppo_tuner", "pbt_tuner"),
            *("medianstop_assessor", "curvefitting_assessor"),
        ),
        _BUILTIN,
    ),
}


def explain(name: str) -> str:
    """Why ``nni.<name>`` is not here."""
    return f"nni.{name} is not here: {_WHY.get(name.partition('.')[0], 'docs/reference/nni.md lists what is')}"


class MissingFinder:
    """The last finder that an import asks: refuses what is not in this package."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """None for other packages' modules.

        Raises:
            ModuleNotFoundError: it is one of ``nni``.
        """
        if name.startswith("nni."):
            refuse(name.removeprefix("nni."))


def refuse(name: str) -> NoReturn:
    """Raises why it is not here; without a name in the error, else ``from nni import ...`` would hide it."""
    raise ModuleNotFoundError(explain(name))
