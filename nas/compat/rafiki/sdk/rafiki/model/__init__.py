"""The base class of templates, knobs and ``utils``."""

from nas.compat.rafiki.dataset import InvalidDatasetFormatException
from nas.compat.rafiki.knobs import (
    ArchKnob,
    BaseKnob,
    CategoricalKnob,
    CategoricalValue,
    FixedKnob,
    FloatKnob,
    IntegerKnob,
    KnobValue,
    PolicyKnob,
)
from nas.compat.rafiki.log import ModelLogger as LoggerUtils
from nas.compat.rafiki.model import (
    BaseModel,
    ImageClfBase,
    ImageSegModel,
    KnobConfig,
    Knobs,
    ObjtDetModel,
    Params,
    PosTagModel,
    TabularClfModel,
)
from nas.compat.rafiki.params import InvalidParamsFormatError

from .utils import dataset, logger, utils

__all__ = [
    "ArchKnob",
    "BaseKnob",
    "BaseModel",
    "CategoricalKnob",
    "CategoricalValue",
    "FixedKnob",
    "FloatKnob",
    "ImageClfBase",
    "ImageSegModel",
    "IntegerKnob",
    "InvalidDatasetFormatException",
    "InvalidParamsFormatError",
    "KnobConfig",
    "KnobValue",
    "Knobs",
    "LoggerUtils",
    "ObjtDetModel",
    "Params",
    "PolicyKnob",
    "PosTagModel",
    "TabularClfModel",
    "dataset",
    "logger",
    "utils",
]

_REMOVED = {
    "ListKnob": "Rafiki 0.2 has no conditional and list knobs. Use ArchKnob.",
    "DynamicListKnob": "Rafiki 0.2 has no conditional and list knobs. Use ArchKnob.",
    "MetadataKnob": "Rafiki 0.2 does not have it",
    "dataset_utils": "this is the module of Rafiki 0.2 and SINGA-Auto. Use utils.dataset.",
    "test_model_class": "import it from rafiki.model.dev",
    "InvalidModelParamsException": "this is the module of Rafiki 0.2 and SINGA-Auto. Raise an error of your own.",
    "PandaModel": "its gradients and explanations are not supported; extend BaseModel",
}


def __getattr__(name: str) -> object:
    if name in _REMOVED:  # `from rafiki.model import ...` would replace the message of an AttributeError
        raise ImportError(f"{__name__} has no {name}: {_REMOVED[name]}")
    raise AttributeError(f"{__name__} has no {name}. docs/reference/rafiki.md lists all names")
