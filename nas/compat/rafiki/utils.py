"""The object ``utils`` of templates: the logger and the loaders of data sets."""

from __future__ import annotations

from nas.compat.rafiki.dataset import DatasetUtils, SingaAutoDatasetUtils
from nas.compat.rafiki.log import ModelLogger

logger = ModelLogger()
"""The logger of all templates in this process."""


class ModelUtils:
    """The type of ``utils``."""

    def __init__(self, dataset: DatasetUtils) -> None:
        self.logger = logger
        self.dataset = dataset


def utils_of(module: str) -> ModelUtils:
    """Returns the ``utils`` of ``rafiki.model`` or ``singa_auto.model``."""
    return ModelUtils(SingaAutoDatasetUtils() if module.startswith("singa_auto.") else DatasetUtils())
