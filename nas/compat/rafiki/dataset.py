"""The loaders of data sets in Rafiki's formats: a zip of images, of a corpus or of audio files, and a csv table."""

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


class InvalidDatasetFormatException(Exception):  # noqa: N818 - the contract's name
    """A file is no data set of its kind; the message names the file and what it lacks."""


class ModelDataset:
    """Examples by index.

    Attributes:
        path: The file.
        size: How many examples there are.
    """

    def __init__(self, dataset_path: str) -> None:
        self.path = dataset_path
        self.size = 0

    def __len__(self) -> int:
        return self.size


class _ImageFiles(ModelDataset, ABC):
    """Images of a zip and their classes."""

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
        with _opened(dataset_path) as folder:
            self._examples = self._found(folder)
        self.size, self.classes = len(self._examples), len({str(label) for _, label in self._examples})
        if if_shuffle:
            random.shuffle(self._examples)

    @abstractmethod
    def _found(self, folder: zipfile.ZipFile) -> list[tuple[Any, Any]]:
        """What is kept of each image, and its class."""


class ImageFilesDataset(_ImageFiles):
    """``(image, class)``: arrays of shape ``(size, size, channels)`` in uint8, as squares of one size; classes from 0.

    Attributes:
        classes: How many classes occur.
        image_size: Width and height: the lesser of the first image's, within ``min_image_size`` and ``max_image_size``.
    """

    def _found(self, folder: zipfile.ZipFile) -> list[tuple[Any, Any]]:
        names, classes = _listed_images(folder, self.path)
        images = [_image(folder.read(name), self._mode) for name in names]
        self.image_size = _square(images[0], *self._sizes)
        arrays = [np.asarray(image.resize((self.image_size, self.image_size))) for image in images]
        return list(zip(arrays, classes, strict=True))

    def __getitem__(self, index: int) -> tuple[np.ndarray[Any, Any], int]:
        return self._examples[index]


class ImageFilesDatasetLazy(_ImageFiles):
    """``(image, class)``: images of Pillow's, read when they are asked for, their middle square resized.

    A class is a list with one number; where the zip has no ``images.csv``, the number of the image's folder, in the
    order of names.
    """

    def _found(self, folder: zipfile.ZipFile) -> list[tuple[Any, Any]]:
        names = [name for name in folder.namelist() if not name.endswith("/")]
        if "images.csv" in names:
            paths, classes = _listed_images(folder, self.path)
            return [(name, [number]) for name, number in zip(paths, classes, strict=True)]
        if not names:
            raise InvalidDatasetFormatException(f"{self.path} holds no image")
        self.str_labels_set = sorted({posixpath.dirname(name) for name in names})
        return [(name, self.str_labels_set.index(posixpath.dirname(name))) for name in names]

    def __getitem__(self, index: int) -> tuple[Image, Any]:
        name, label = self._examples[index]
        with _opened(self.path) as folder:
            image = _image(folder.read(name), self._mode)
        side, size = min(image.size), _square(image, *self._sizes)
        left, top = ((length - side) // 2 for length in image.size)
        return image.crop((left, top, left + side, top + side)).resize((size, size)), label

    def get_item(self, index: int) -> tuple[Image, Any]:
        """Returns the same as by index."""
        return self[index]

    def get_stat(self) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
        """Mean and standard deviation of the images' mean colors, from 0 to 1, each of shape ``(channels,)``."""
        means = np.array([np.asarray(self[index][0]).mean(axis=(0, 1)) for index in range(self.size)]) / 255
        return means.mean(axis=0), means.std(axis=0)


class CorpusDataset(ModelDataset):
    """Sentences: lists of ``[token, tag, ...]``, tags as numbers from 0.

    Attributes:
        tags: The tags' names.
        tag_num_classes: How many classes each tag has.
        max_token_len: Of the longest token.
        max_sent_len: Of the longest sentence.
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
                sentence.append([row["token"], *(_whole(row[tag], dataset_path) for tag in self.tags)])
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
    """The table ``audios.csv`` of a zip whose files are extracted into a folder.

    Attributes:
        df: ``wav_filename``, ``wav_filesize`` and ``transcript``.
    """

    def __init__(self, dataset_path: str, dataset_dir: Any) -> None:
        import pandas as pd

        super().__init__(dataset_path)
        with _opened(dataset_path) as folder:
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
    """What ``utils.dataset`` offers. Everything is read into memory each time, but for ``lazy_load``."""

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"utils.dataset has no {name}; docs/reference/rafiki.md lists what it has")

    def load_dataset_of_image_files(
        self,
        dataset_path: str,
        min_image_size: int | None = None,
        max_image_size: int | None = None,
        mode: str = "RGB",
        if_shuffle: bool = False,
        lazy_load: bool = False,
    ) -> ImageFilesDataset | ImageFilesDatasetLazy:
        """Returns a zip of images with ``images.csv``: columns ``path`` and ``class``."""
        kind = ImageFilesDatasetLazy if lazy_load else ImageFilesDataset
        return kind(
            dataset_path,
            min_image_size=min_image_size,
            max_image_size=max_image_size,
            mode=mode,
            if_shuffle=if_shuffle,
        )

    def load_dataset_of_corpus(
        self, dataset_path: str, tags: Sequence[str] | None = None, split_by: str = "\\n"
    ) -> CorpusDataset:
        """A zip with ``corpus.tsv``: columns ``token`` and one a tag; the token ``split_by`` ends a sentence."""
        return CorpusDataset(dataset_path, tags or ["tag"], split_by)

    def load_dataset_of_audio_files(self, dataset_path: str, dataset_dir: Any) -> AudioFilesDataset:
        """Returns a zip with ``audios.csv``, extracted into ``dataset_dir`` (a path, or a ``TemporaryDirectory``)."""
        return AudioFilesDataset(dataset_path, dataset_dir)

    def load_dataset_of_tabular(self, dataset_path: str) -> TabularDataset:
        """Returns a csv file."""
        return TabularDataset(dataset_path)

    def normalize_images(
        self, images: Any, mean: Sequence[float] | None = None, std: Sequence[float] | None = None
    ) -> tuple[Any, Any, Any]:
        """Returns the images from 0 to 1, minus the mean, over the standard deviation where that is not 0; and both.

        Args:
            images: ``(n, width, height, channels)``, from 0 to 255.
            mean: By channel; None: that of these images.
            std: Likewise.
        """
        if len(images) == 0:
            return images, mean, std
        scaled = np.asarray(images) / 255
        mean = scaled.mean(axis=(0, 1, 2)).tolist() if mean is None else mean
        std = scaled.std(axis=(0, 1, 2)).tolist() if std is None else std
        return (scaled - np.asarray(mean)) / np.where(np.asarray(std) == 0, 1.0, std), mean, std

    def transform_images(self, images: Any, image_size: int | None = None, mode: str | None = None) -> Any:
        """Returns the images as squares of this size and in this mode, as an array."""
        return np.asarray([np.asarray(image) for image in _transformed(images, image_size, mode)])

    def load_images(self, image_paths: Sequence[str], mode: str = "RGB") -> np.ndarray[Any, Any]:
        """Image files of one size, as ``(n, height, width, channels)``."""
        contents = []
        for path in image_paths:
            with open(path, "rb") as file:
                contents.append(file.read())
        return self.load_images_from_bytes(contents, mode)

    def load_images_from_bytes(self, image_bytes: Sequence[bytes], mode: str = "RGB") -> np.ndarray[Any, Any]:
        """Returns the same of their contents."""
        return np.array([np.asarray(_image(content, mode)) for content in image_bytes])


class SingaAutoDatasetUtils(DatasetUtils):
    """What ``utils.dataset`` of SINGA-Auto offers."""

    def transform_images(self, images: Any, image_size: int | None = None, mode: str | None = None) -> Any:
        """Returns the images as squares of this size and in this mode: as an array, and as Pillow's images."""
        made = _transformed(images, image_size, mode)
        return np.asarray([np.asarray(image) for image in made]), made


def _transformed(images: Any, image_size: int | None, mode: str | None) -> list[Image]:
    made = [_pillow().fromarray(np.asarray(image, dtype=np.uint8)) for image in images]
    if image_size is not None:
        made = [image.resize((image_size, image_size)) for image in made]
    return made if mode is None else [image.convert(mode) for image in made]


@contextmanager
def _opened(path: str) -> Iterator[zipfile.ZipFile]:
    try:
        folder = zipfile.ZipFile(path)
    except zipfile.BadZipFile as error:
        raise InvalidDatasetFormatException(f"{path} is no zip file") from error
    with folder:
        yield folder


def _read(folder: zipfile.ZipFile, name: str, path: str) -> bytes:
    try:
        return folder.read(name)
    except KeyError as error:
        raise InvalidDatasetFormatException(f"{path} holds no {name}") from error


def _rows(path: str, name: str, dialect: str, columns: Sequence[str]) -> list[dict[str, str]]:
    with _opened(path) as folder:
        return _table(folder, name, dialect, columns, path)


def _table(folder: zipfile.ZipFile, name: str, dialect: str, columns: Sequence[str], path: str) -> list[dict[str, str]]:
    text = _read(folder, name, path).decode("utf-8-sig")
    reader = csv.DictReader(io.StringIO(text, newline=""), dialect=dialect)
    if missing := [column for column in columns if column not in (reader.fieldnames or ())]:
        raise InvalidDatasetFormatException(f"{name} in {path} has no column {missing[0]}, but {reader.fieldnames}")
    return list(reader)


def _listed_images(folder: zipfile.ZipFile, path: str) -> tuple[list[str], list[int]]:
    """Returns the images' names and classes, as the first csv file of the zip lists them."""
    name = next((name for name in folder.namelist() if name.endswith(".csv")), "images.csv")
    rows = _table(folder, name, "excel", ["path", "class"], path)
    if not rows:
        raise InvalidDatasetFormatException(f"{name} in {path} lists no image")
    known = set(folder.namelist())
    if lost := [row["path"] for row in rows if row["path"] not in known]:
        raise InvalidDatasetFormatException(f"{name} in {path} lists {lost[0]}, which is not in the zip")
    return [row["path"] for row in rows], [_whole(row["class"], path) for row in rows]


def _whole(text: str, path: str) -> int:
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
        raise ImportError("image data sets need Pillow: pip install -c constraints.txt '.[rafiki]'") from error
    return PIL.Image
