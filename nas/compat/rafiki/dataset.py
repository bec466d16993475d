"""Loaders of data sets in Rafiki's formats: zip and csv files."""

from __future__ import annotations

import csv
import io
import posixpath
import random
import zipfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from PIL.Image import Image


class InvalidDatasetFormatException(Exception):  # noqa: N818 - Rafiki's name
    """A file is not a valid data set; the message names the file and the fault."""


class ModelDataset:
    """Examples by index.

    Attributes:
        path: The file.
        size: Number of examples.
    """

    def __init__(self, dataset_path: str) -> None:
        self.path = dataset_path
        self.size = 0

    def __len__(self) -> int:
        return self.size


class _ImageFiles(ModelDataset, ABC):
    """Images of a zip file and their classes."""

    def __init__(
        self,
        dataset_path: str,
        *,
        min_image_size: int | None = None,
        max_image_size: int | None = None,
        mode: str = "RGB",
        if_shuffle: bool = False,
    ) -> None:
        super().__init__(dataset_path)
        self._sizes, self._mode = (min_image_size, max_image_size), mode
        with _open_zip(dataset_path) as folder:
            self._examples = self._read_examples(folder)
        self.size, self.classes = len(self._examples), len({str(label) for _, label in self._examples})
        if if_shuffle:
            random.shuffle(self._examples)

    @abstractmethod
    def _read_examples(self, folder: zipfile.ZipFile) -> list[tuple[Any, Any]]:
        """Returns the content or name of each image, and its class."""


class ImageFilesDataset(_ImageFiles):
    """Pairs of an image and a class, a number from 0.

    An image is a uint8 array of shape ``(size, size, channels)``.

    Attributes:
        classes: Number of classes.
        image_size: Width and height: the shorter side of the first image, limited by ``min_image_size`` and
            ``max_image_size``.
    """

    def _read_examples(self, folder: zipfile.ZipFile) -> list[tuple[Any, Any]]:
        names, classes = _listed_images(folder, self.path)
        images = [_image(folder.read(name), self._mode) for name in names]
        self.image_size = _square(images[0], *self._sizes)
        arrays = [np.asarray(image.resize((self.image_size, self.image_size))) for image in images]
        return list(zip(arrays, classes, strict=True))

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        return self._examples[index]


class ImageFilesDatasetLazy(_ImageFiles):
    """Pairs of a Pillow image, read on access, and its class. The central square is resized.

    A class is a list with one number. Without ``images.csv`` in the zip file it is the number of the image's folder, in
    the order of names.
    """

    def _read_examples(self, folder: zipfile.ZipFile) -> list[tuple[Any, Any]]:
        names = [name for name in folder.namelist() if not name.endswith("/")]
        if "images.csv" in names:
            paths, classes = _listed_images(folder, self.path)
            return [(name, [number]) for name, number in zip(paths, classes, strict=True)]
        if not names:
            raise InvalidDatasetFormatException(f"{self.path} contains no image")
        self.str_labels_set = sorted({posixpath.dirname(name) for name in names})
        return [(name, self.str_labels_set.index(posixpath.dirname(name))) for name in names]

    def __getitem__(self, index: int) -> tuple[Image, Any]:
        name, label = self._examples[index]
        with _open_zip(self.path) as folder:
            image = _image(folder.read(name), self._mode)
        side, size = min(image.size), _square(image, *self._sizes)
        left, top = ((length - side) // 2 for length in image.size)
        return image.crop((left, top, left + side, top + side)).resize((size, size)), label

    def get_item(self, index: int) -> tuple[Image, Any]:
        """Returns the example with this index."""
        return self[index]

    def get_stat(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Returns mean and standard deviation of the images' mean colors (0 to 1), of shape ``(channels,)``."""
        means = np.array([np.asarray(self[index][0]).mean(axis=(0, 1)) for index in range(self.size)]) / 255
        return means.mean(axis=0), means.std(axis=0)


class CorpusDataset(ModelDataset):
    """Sentences: lists of ``[token, tag, ...]`` with tags as numbers from 0.

    Attributes:
        tags: Names of the tags.
        tag_num_classes: Number of classes of each tag.
        max_token_len: Length of the longest token.
        max_sent_len: Length of the longest sentence.
    """

    def __init__(self, dataset_path: str, tags: Sequence[str], split_by: str) -> None:
        super().__init__(dataset_path)
        self.tags = list(tags)
        self._sentences: list[list[list[Any]]] = []
        sentence: list[list[Any]] = []
        for row in _rows(dataset_path, "corpus.tsv", "excel-tab", ["token", *self.tags]):
            if row["token"] == split_by:
                self._sentences.append(sentence)
                sentence = []
            else:
                sentence.append([row["token"], *(_parse_int(row[tag], dataset_path) for tag in self.tags)])
        if sentence:
            self._sentences.append(sentence)
        tokens = [token for sentence in self._sentences for token in sentence]
        self.size = len(self._sentences)
        self.tag_num_classes = [max((t[i + 1] + 1 for t in tokens), default=0) for i in range(len(self.tags))]
        self.max_token_len = max((len(token[0]) for token in tokens), default=0)
        self.max_sent_len = max(map(len, self._sentences), default=0)

    def __getitem__(self, index: int) -> list[list[Any]]:
        return self._sentences[index]


class AudioFilesDataset(ModelDataset):
    """The table ``audios.csv`` of a zip file; all files are extracted into a folder.

    Attributes:
        df: A table with the columns ``wav_filename``, ``wav_filesize`` and ``transcript``.
    """

    def __init__(self, dataset_path: str, dataset_dir: Any) -> None:
        import pandas as pd

        super().__init__(dataset_path)
        with _open_zip(dataset_path) as folder:
            folder.extractall(getattr(dataset_dir, "name", dataset_dir))
            table = _read(folder, "audios.csv", dataset_path)
        self.df = pd.read_csv(io.BytesIO(table), encoding="utf-8", na_filter=False)
        self.size = len(self.df)


class TabularDataset(ModelDataset):
    """A csv file.

    Attributes:
        data: A pandas table.
    """

    def __init__(self, dataset_path: str) -> None:
        import pandas as pd

        super().__init__(dataset_path)
        self.data: pd.DataFrame = pd.read_csv(dataset_path)
        self.size = len(self.data)


class DatasetUtils:
    """The type of ``utils.dataset``. Each call reads everything into memory, except with ``lazy_load``."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"utils.dataset has no {name}. docs/reference/rafiki.md lists all names")

    def load_dataset_of_image_files(
        self,
        dataset_path: str,
        min_image_size: int | None = None,
        max_image_size: int | None = None,
        mode: str = "RGB",
        if_shuffle: bool = False,
        lazy_load: bool = False,
    ) -> ImageFilesDataset | ImageFilesDatasetLazy:
        """Loads a zip file of images and ``images.csv`` with the columns ``path`` and ``class``."""
        dataset = ImageFilesDatasetLazy if lazy_load else ImageFilesDataset
        return dataset(
            dataset_path,
            min_image_size=min_image_size,
            max_image_size=max_image_size,
            mode=mode,
            if_shuffle=if_shuffle,
        )

    def load_dataset_of_corpus(
        self, dataset_path: str, tags: Sequence[str] | None = None, split_by: str = "\\n"
    ) -> CorpusDataset:
        """Loads a zip file with ``corpus.tsv``: a column ``token`` and one per tag.

        The token ``split_by`` ends a sentence.
        """
        return CorpusDataset(dataset_path, tags or ["tag"], split_by)

    def load_dataset_of_audio_files(self, dataset_path: str, dataset_dir: Any) -> AudioFilesDataset:
        """Extracts a zip file with ``audios.csv`` into a folder (a path or a ``TemporaryDirectory``)."""
        return AudioFilesDataset(dataset_path, dataset_dir)

    def load_dataset_of_tabular(self, dataset_path: str) -> TabularDataset:
        """Loads a csv file."""
        return TabularDataset(dataset_path)

    def normalize_images(
        self, images: Any, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> tuple[Any, Any, Any]:
        """Returns normalized images, the mean and the standard deviation.

        The images are scaled to 0 to 1. A standard deviation of 0 is not divided by.

        Args:
            images: ``(n, width, height, channels)``, from 0 to 255.
            mean: The mean of each channel; None: computed from these images.
            std: The standard deviation of each channel; None: computed from these images.
        """
        if len(images) == 0:
            return images, mean, std
        scaled = np.asarray(images) / 255
        mean = scaled.mean(axis=(0, 1, 2)).tolist() if mean is None else mean
        std = scaled.std(axis=(0, 1, 2)).tolist() if std is None else std
        return (scaled - np.asarray(mean)) / np.where(np.asarray(std) == 0, 1.0, std), mean, std

    def transform_images(self, images: Any, image_size: int | None = None, mode: str | None = None) -> Any:
        """Returns an array of the images as squares of this size in this mode."""
        return np.asarray([np.asarray(image) for image in _transformed(images, image_size, mode)])

    def load_images(self, image_paths: Sequence[str], mode: str = "RGB") -> np.ndarray[Any, Any]:
        """Returns image files of one size as an array ``(n, height, width, channels)``."""
        contents = []
        for path in image_paths:
            with open(path, "rb") as file:
                contents.append(file.read())
        return self.load_images_from_bytes(contents, mode)

    def load_images_from_bytes(self, image_bytes: Sequence[bytes], mode: str = "RGB") -> np.ndarray[Any, Any]:
        """Returns images of one size as an array, from the contents of their files."""
        return np.array([np.asarray(_image(content, mode)) for content in image_bytes])


class SingaAutoDatasetUtils(DatasetUtils):
    """The type of SINGA-Auto's ``utils.dataset``."""

    def transform_images(self, images: Any, image_size: int | None = None, mode: str | None = None) -> Any:
        """Returns squares of this size in this mode, as an array and as Pillow images."""
        squares = _transformed(images, image_size, mode)
        return np.asarray([np.asarray(image) for image in squares]), squares


def _transformed(images: Any, image_size: int | None, mode: str | None) -> list[Image]:
    found = [_pillow().fromarray(np.asarray(image, dtype=np.uint8)) for image in images]
    if image_size is not None:
        found = [image.resize((image_size, image_size)) for image in found]
    return found if mode is None else [image.convert(mode) for image in found]


@contextmanager
def _open_zip(path: str) -> Iterator[zipfile.ZipFile]:
    try:
        folder = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InvalidDatasetFormatException(f"{path} is not a zip file") from error
    with folder:
        yield folder


def _read(folder: zipfile.ZipFile, name: str, path: str) -> bytes:
    try:
        return folder.read(name)
    except KeyError as error:
        raise InvalidDatasetFormatException(f"{path} contains no {name}") from error


def _rows(path: str, name: str, dialect: str, columns: Sequence[str]) -> list[dict[str, str]]:
    with _open_zip(path) as folder:
        return _table(folder, name, dialect, columns, path)


def _table(folder: zipfile.ZipFile, name: str, dialect: str, columns: Sequence[str], path: str) -> list[dict[str, str]]:
    text = _read(folder, name, path).decode("utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""), dialect=dialect)
    if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
        raise InvalidDatasetFormatException(f"{name} in {path} has no column {missing[0]}, but {reader.fieldnames}")
    return list(reader)


def _listed_images(folder: zipfile.ZipFile, path: str) -> tuple[list[str], list[int]]:
    """Returns names and classes of the images from the first csv file in the zip file."""
    name = next((name for name in folder.namelist() if name.endswith(".csv")), "images.csv")
    rows = _table(folder, name, "excel", ["path", "class"], path)
    if not rows:
        raise InvalidDatasetFormatException(f"{name} in {path} lists no image")
    known = set(folder.namelist())
    if missing := [row["path"] for row in rows if row["path"] not in known]:
        raise InvalidDatasetFormatException(f"{name} in {path} lists {missing[0]}, which is not in the zip file")
    return [row["path"] for row in rows], [_parse_int(row["class"], path) for row in rows]


def _parse_int(text: str, path: str) -> int:
    try:
        return int(text)
    except (TypeError, ValueError) as error:
        raise InvalidDatasetFormatException(f"{path}: {text!r} must be a whole number") from error


def _square(image: Image, least: int | None, most: int | None) -> int:
    width, height = image.size
    return max(min(width, height, most or width), least or 0)


def _image(content: bytes, mode: str) -> Image:
    image: Image = _pillow().open(io.BytesIO(content)).convert(mode)
    return image


def _pillow() -> Any:
    try:
        import PIL.Image
    except ImportError as error:
        raise ImportError("image data sets need Pillow. Run pip install 'heirloom-nas[rafiki]'") from error
    return PIL.Image
