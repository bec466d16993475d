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


def read_articles(url: str, options: Mapping[str, Any]) -> dict[str, list[Paragraph]]:
    """Returns the articles of a file in SQuAD's format, which may be compressed with gzip.

    Raises:
        ConfigurationError: the file can't be read or has another format.
    """
    parsed = _read_json(url, options)
    found: dict[str, list[Paragraph]] = {}
    try:
        for article in parsed["data"]:
            found.setdefault(str(article["title"]), []).extend(map(_paragraph, article["paragraphs"]))
    except (KeyError, TypeError, AttributeError) as error:
        raise ConfigurationError(
            f"{url} is not in the format of SQuAD v1.1: {type(error).__name__}: {error}. Give train-v1.1.json."
        ) from error
    if len(found) < 2:
        raise ConfigurationError(f"{url} has {len(found)} articles: must have at least 2, for training and validation.")
    return found


def split_titles(
    articles: Articles, split: Mapping[str, Any] | None, seed: int, url: str
) -> tuple[list[str], list[str]]:
    """Returns the titles of the articles for training and for validation.

    Args:
        articles: The articles.
        split: Lists ``train_articles`` and ``eval_articles``; None: a quarter of the articles, at random.
        seed: The seed of the random choice.
        url: The file of the split, for messages.

    Raises:
        ConfigurationError: the split does not name at least one article for each purpose.
    """
    if split is None:
        titles = sorted(articles)
        random.Random(seed).shuffle(titles)
        n_validation = max(1, len(titles) // 4)
        return sorted(titles[n_validation:]), sorted(titles[:n_validation])
    chosen = [[title for title in _titles(split.get(name)) if title in articles] for name in _PARTS]
    if not all(chosen) or not set(chosen[0]).isdisjoint(chosen[1]):
        raise ConfigurationError(
            f"problem.split_file={url}: must list titles of the data as {' and '.join(_PARTS)}, each at most once."
        )
    return chosen[0], chosen[1]


def read_split(url: str, options: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the content of a split file.

    Raises:
        ConfigurationError: the file can't be read.
    """
    parsed: Mapping[str, Any] = _read_json(url, options)
    return parsed


def read_vectors(url: str, options: Mapping[str, Any]) -> tuple[list[str], NDArray[np.float32]]:
    """Returns words and their vectors.

    The file is an npz of ``words`` and ``vectors``, or GloVe's text, which may be compressed with gzip.

    Raises:
        ConfigurationError: the file can't be read or has another format.
    """
    try:
        content = read_file(url, options)
        words, vectors = _from_npz(content) if content.startswith(b"PK") else _from_text(unzipped(content))
        if vectors.ndim != 2 or len(words) != len(vectors) or not words or not np.isfinite(vectors).all():
            raise ValueError(f"{len(words)} words and vectors of shape {vectors.shape}")
    except (OSError, EOFError, ValueError, TypeError, KeyError, zipfile.BadZipFile, zlib.error) as error:
        raise ConfigurationError(
            f"problem.vectors_file={url} can't be read: {error}. Give an npz of words and vectors, or GloVe's text."
        ) from error
    return words, vectors


_PARTS = ("train_articles", "eval_articles")


def _titles(value: object) -> list[str]:
    return [title for title in value if isinstance(title, str)] if isinstance(value, list) else []


def _read_json(url: str, options: Mapping[str, Any]) -> dict[str, Any]:
    try:
        parsed = json.loads(unzipped(read_file(url, options)))
    except (OSError, EOFError, ValueError, RecursionError, zlib.error) as error:
        raise ConfigurationError(f"{url} can't be read: {error}") from error
    if not isinstance(parsed, dict):
        raise ConfigurationError(f"{url} can't be read: it must hold a JSON object")
    return parsed


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
