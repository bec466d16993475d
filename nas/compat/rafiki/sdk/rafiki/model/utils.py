"""The logger and the loaders of data sets."""

from nas.compat.rafiki.utils import logger, utils_of

utils = utils_of(__name__)
dataset = utils.dataset

__all__ = ["dataset", "logger", "utils"]
