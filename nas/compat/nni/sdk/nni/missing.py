"""Errors for names of NNI that are not supported, each with the reason or the replacement."""

from __future__ import annotations

from typing import NoReturn

_BUILTIN = "set builtinTunerName or builtinAssessorName in the configuration. Builtin classes cannot be extended"
_REASONS = {
    "get_parameters": "use nni.get_next_parameter",
    "get_next_parameters": "use nni.get_next_parameter",
    "training_update": "the NAS mode of v1.0 is not supported",
    "networkmorphism_tuner": "NNI itself builds its graphs. Use evolution over a space of layers",
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
    """Returns why ``nni.<name>`` is not available."""
    reason = _REASONS.get(name.partition(".")[0], "docs/reference/nni.md lists all supported names")
    return f"nni.{name} is not available: {reason}"


class MissingFinder:
    """The last import finder: it refuses all modules of ``nni`` that this package does not have."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        """Returns None for modules of other packages.

        Raises:
            ModuleNotFoundError: the module is one of ``nni``.
        """
        if name.startswith("nni."):
            refuse(name.removeprefix("nni."))


def refuse(name: str) -> NoReturn:
    """Raises an error without the attribute ``name``, because ``from nni import ...`` would hide that one."""
    raise ModuleNotFoundError(explain(name))
