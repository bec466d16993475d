"""Articles in SQuAD's format, with their questions, and word vectors, read from files."""

from __future__ import annotations

import io
import json
import random
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from nas.core.errors import ConfigurationError
from nas.storage.remote_file import read_file, unzipped


@dataclass(frozen=True, slots=True)
class Asked:
    """A question with its id and its reference answers."""

    id: str
    question: str
    answers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """A passage and its questions."""

    passage: str
    questions: tuple[Asked, ...]


Articles = Mapping[str, Sequence[Paragraph]]
"""Paragraphs by the article's title."""
FORMAT_ERRORS = (
    *(OSError, EOFError, zlib.error, zipfile.BadZipFile),
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
)
"""Errors of reading a file that is missing, cut or of another format."""
_PARTS = ("train_articles", "eval_articles")


def read_articles(option: str, url: str, options: Mapping[str, Any]) -> dict[str, list[Paragraph]]:
    """Returns the articles of a file in SQuAD's format, which may be compressed with gzip.

    Raises:
        ConfigurationError: the file can't be read or has another format. The message names the option.
    """
    found: dict[str, list[Paragraph]] = {}
    try:
        for article in json.loads(unzipped(read_file(url, options)))["data"]:
            found.setdefault(str(article["title"]), []).extend(map(_paragraph, article["paragraphs"]))
    except FORMAT_ERRORS as error:
        raise ConfigurationError(
            f"{option}={url}: must be JSON in the format of SQuAD v1.1, maybe with gzip "
            f"({type(error).__name__}: {error}). Give train-v1.1.json."
        ) from error
    return found


def random_titles(articles: Articles, seed: int) -> tuple[list[str], list[str]]:
    """Returns the titles of the articles for training, and those of a random quarter for validation."""
    titles = sorted(articles)
    random.Random(seed).shuffle(titles)
    n_validation = max(1, len(titles) // 4)
    return sorted(titles[n_validation:]), sorted(titles[:n_validation])


def read_titles(articles: Articles, url: str, options: Mapping[str, Any]) -> tuple[list[str], list[str]]:
    """Returns the titles of articles that a split file lists for training and for validation.

    Raises:
        ConfigurationError: the file can't be read, or does not name an article of the data for each purpose.
    """
    try:
        split = json.loads(unzipped(read_file(url, options)))
        train, validation = ([title for title in map(str, split[part]) if title in articles] for part in _PARTS)
        if not train or not validation or not {*train}.isdisjoint(validation):
            raise ValueError(f"{len(train)} and {len(validation)} titles, {len({*train} & {*validation})} in both")
    except FORMAT_ERRORS as error:
        raise ConfigurationError(
            f"problem.split_file={url}: must be JSON that lists titles of the data as {' and '.join(_PARTS)}, each in "
            f"one list ({type(error).__name__}: {error}). Correct it, or write null for a random quarter."
        ) from error
    return train, validation


def read_vectors(url: str, options: Mapping[str, Any]) -> tuple[list[str], NDArray[np.float32]]:
    """Returns words and their vectors.

    The file is an npz of ``words`` and ``vectors``, or GloVe's text, which may be compressed with gzip.

    Raises:
        ConfigurationError: the file can't be read or has another format.
    """
    try:
        content = read_file(url, options)
        words, vectors = _from_npz(content) if content.startswith(b"PK") else _from_text(unzipped(content))
        if vectors.ndim != 2 or len(words) != len(vectors) or vectors.size < 2 * len(words) or not words:
            raise ValueError(f"{len(words)} words and vectors of shape {vectors.shape}")
        if not np.isfinite(vectors).all():
            raise ValueError("some numbers are not finite")
    except FORMAT_ERRORS as error:
        raise ConfigurationError(
            f"problem.vectors_file={url}: must be an npz of words and vectors, or GloVe's text "
            f"({type(error).__name__}: {error}). Give one, or null to learn vectors."
        ) from error
    return words, vectors


def _paragraph(found: Mapping[str, Any]) -> Paragraph:
    asked = [
        Asked(str(one["id"]), str(one["question"]), tuple(str(answer["text"]) for answer in one["answers"]))
        for one in found["qas"]
    ]
    return Paragraph(str(found["context"]), tuple(one for one in asked if one.answers))


def _from_npz(content: bytes) -> tuple[list[str], NDArray[np.float32]]:
    with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
        return [str(word) for word in arrays["words"]], arrays["vectors"].astype(np.float32)


def _from_text(content: bytes) -> tuple[list[str], NDArray[np.float32]]:
    """Returns the words and vectors of GloVe's text. Some of its words hold spaces."""
    lines = [line for line in content.decode().split("\n") if line]
    size = lines[0].count(" ") if lines else 0
    rows = [line.rsplit(" ", size) for line in lines]
    return [row[0] for row in rows], np.array([row[1:] for row in rows], np.float32)
