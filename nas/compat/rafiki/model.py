"""The base class of model templates, and SINGA-Auto's names of it for each task."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

from nas.compat.rafiki.knobs import BaseKnob

KnobConfig: TypeAlias = Mapping[str, BaseKnob]
Knobs: TypeAlias = Mapping[str, Any]
Params: TypeAlias = dict[str, Any] | bytes
"""Strings, numbers and numpy arrays by name, or bytes; see ``nas.compat.rafiki.params``."""


class BaseModel(ABC):
    """A model with one set of knobs.

    Calls of a trial: ``__init__``, ``train``, ``evaluate``, ``dump_parameters``, ``destroy``. Calls of a trained model:
    ``__init__``, ``load_parameters``, ``evaluate`` or ``predict``, ``destroy``.

    Args:
        knobs: Values by name: a list for each ``ArchKnob``, a boolean for each ``PolicyKnob``.
    """

    def __init__(self, **knobs: Any) -> None:  # noqa: B027 - optional
        pass

    @staticmethod
    @abstractmethod
    def get_knob_config() -> KnobConfig:
        """Returns the knobs by name."""

    @abstractmethod
    def train(self, dataset_path: str, shared_params: Params | None = None, **train_args: Any) -> None:
        """Trains on a data set; ``shared_params`` are the parameters of an earlier trial, or None."""

    @abstractmethod
    def evaluate(self, dataset_path: str) -> float:
        """Returns the score on a data set; higher is better."""

    @abstractmethod
    def predict(self, queries: list[Any]) -> list[Any]:
        """Returns a prediction for each query, as JSON."""

    @abstractmethod
    def dump_parameters(self) -> Params:
        """Returns the parameters of the trained model."""

    @abstractmethod
    def load_parameters(self, params: Params) -> None:
        """Loads parameters into a new model with the same knobs."""

    def destroy(self) -> None:  # noqa: B027 - optional
        """Releases the resources of this model; the last call."""

    @staticmethod  # noqa: B027 - optional
    def teardown() -> None:
        """Releases the resources of the class; called once, after the last trial of the process."""


class ImageClfBase(BaseModel):
    """A model for image classification."""


class ObjtDetModel(BaseModel):
    """A model for object detection."""


class ImageSegModel(BaseModel):
    """A model for image segmentation."""


class PosTagModel(BaseModel):
    """A model for part-of-speech tagging."""


class TabularClfModel(BaseModel):
    """A model for the classification of tables."""
