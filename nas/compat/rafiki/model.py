"""The class that a model template extends, and what SINGA-Auto named after tasks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, TypeAlias

from nas.compat.rafiki.knobs import BaseKnob

KnobConfig: TypeAlias = Mapping[str, BaseKnob]
Knobs: TypeAlias = Mapping[str, Any]
Params: TypeAlias = dict[str, Any] | bytes
"""Texts, numbers and numpy arrays by name, or bytes; see ``nas.compat.rafiki.params``."""


class BaseModel(ABC):
    """A model with one set of knobs.

    It is called in this order: ``__init__``, ``train``, ``evaluate``, ``dump_parameters``, ``destroy``; or, where it
    was trained before: ``__init__``, ``load_parameters``, ``evaluate`` or ``predict``, ``destroy``.

    Args:
        knobs: By name: values, a list for each ``ArchKnob``, a boolean for each ``PolicyKnob``.
    """

    def __init__(self, **knobs: Any) -> None:  # noqa: B027 - what it does with them is the template's
        pass

    @staticmethod
    @abstractmethod
    def get_knob_config() -> KnobConfig:
        """Returns the knobs by name."""

    @abstractmethod
    def train(self, dataset_path: str, shared_params: Params | None = None, **train_args: Any) -> None:
        """Trains on a data set; ``shared_params`` is what an earlier trial dumped, or None."""

    @abstractmethod
    def evaluate(self, dataset_path: str) -> float:
        """Returns the score on a data set, the higher the better."""

    @abstractmethod
    def predict(self, queries: list[Any]) -> list[Any]:
        """One prediction a query, as JSON."""

    @abstractmethod
    def dump_parameters(self) -> Params:
        """Returns all that the trained model is."""

    @abstractmethod
    def load_parameters(self, params: Params) -> None:
        """Makes a fresh model of the same knobs the one that dumped these."""

    def destroy(self) -> None:  # noqa: B027 - optional
        """Frees what this model holds; nothing is called after it."""

    @staticmethod  # noqa: B027 - optional
    def teardown() -> None:
        """Frees what the class holds; called once, when the process trains no more."""


class ImageClfBase(BaseModel):
    """Image classification."""


class ObjtDetModel(BaseModel):
    """Object detection."""


class ImageSegModel(BaseModel):
    """Image segmentation."""


class PosTagModel(BaseModel):
    """Part-of-speech tagging."""


class TabularClfModel(BaseModel):
    """Classification of tables."""
