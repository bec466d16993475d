"""The loaders of data sets."""

from nas.compat.rafiki.dataset import (
    AudioFilesDataset,
    CorpusDataset,
    DatasetUtils,
    ImageFilesDataset,
    ImageFilesDatasetLazy,
    InvalidDatasetFormatException,
    ModelDataset,
    TabularDataset,
)

__all__ = [
    "AudioFilesDataset",
    "CorpusDataset",
    "DatasetUtils",
    "ImageFilesDataset",
    "ImageFilesDatasetLazy",
    "InvalidDatasetFormatException",
    "ModelDataset",
    "TabularDataset",
]
