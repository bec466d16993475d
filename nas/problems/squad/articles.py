"""Articles in SQuAD's format, with their questions, read from files."""

from __future__ import annotations

import json
import random
import zipfile
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.validation import short_repr
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


def texts_of(paragraphs: Iterable[Paragraph]) -> Iterator[str]:
    """Yields the passages and the questions."""
    for paragraph in paragraphs:
        yield paragraph.passage
        yield from (one.question for one in paragraph.questions)


Articles = Mapping[str, Sequence[Paragraph]]
"""Paragraphs by the article's title."""
FORMAT_ERRORS = (
    *(OSError, EOFError, zlib.error, zipfile.BadZipFile),
    *(ValueError, KeyError, TypeError, AttributeError, RecursionError),
)
"""Errors of reading a file that is missing, cut or of another format."""
_PARTS = ("train_articles", "eval_articles")


class PlaceError(ValueError):
    """A place in a file that has another form. Its text says which."""


def cause(error: Exception) -> str:
    """Returns the cause of an error in a file, in words if it is a ``PlaceError``."""
    return str(error) if isinstance(error, PlaceError) else f"{type(error).__name__}: {error}"


def read_articles(option: str, url: str, options: Mapping[str, Any]) -> dict[str, list[Paragraph]]:
    """Returns the articles of a file in SQuAD's format, which may be compressed with gzip.

    Questions without answers are left out.

    Raises:
        ConfigurationError: the file can't be read or has another format, or two questions have one id. The message
            names the option.
    """
    found: dict[str, list[Paragraph]] = {}
    n_asked = Counter[str]()
    try:
        for title, paragraphs in _articles(json.loads(unzipped(read_file(url, options)))):
            n_asked.update(one.id for paragraph in paragraphs for one in paragraph.questions)
            answered = [replace(one, questions=tuple(q for q in one.questions if q.answers)) for one in paragraphs]
            found.setdefault(title, []).extend(answered)
    except FORMAT_ERRORS as error:
        raise ConfigurationError(
            f"{option}={url}: must be JSON in the format of SQuAD v1.1, maybe with gzip ({cause(error)}). "
            "Give train-v1.1.json."
        ) from error
    if twice := [id for id, n in n_asked.items() if n > 1]:
        raise ConfigurationError(
            f"{option}={url}: must have each question id once, but has {short_repr(twice[0])} "
            f"{n_asked[twice[0]]} times. Give each question an id of its own."
        )
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
        train, validation = ([t for t in dict.fromkeys(map(str, split[part])) if t in articles] for part in _PARTS)
        if not train or not validation or not {*train}.isdisjoint(validation):
            raise ValueError(f"{len(train)} and {len(validation)} titles, {len({*train} & {*validation})} in both")
    except FORMAT_ERRORS as error:
        raise ConfigurationError(
            f"problem.split_file={url}: must be JSON that lists titles of the data as {' and '.join(_PARTS)}, each in "
            f"one list ({type(error).__name__}: {error}). Correct it, or write null for a random quarter."
        ) from error
    return train, validation


def _articles(content: Any) -> Iterator[tuple[str, list[Paragraph]]]:
    """Yields titles and paragraphs.

    Raises:
        PlaceError: something is missing or of another type.
    """
    for article, place in _items(content, "data", ""):
        paragraphs = [_paragraph(found, at) for found, at in _items(article, "paragraphs", place)]
        yield _text(article, "title", place), paragraphs


def _paragraph(found: Any, place: str) -> Paragraph:
    asked = [
        Asked(
            str(_value(one, "id", (str, int), at)),
            _text(one, "question", at),
            tuple(_text(answer, "text", beside) for answer, beside in _items(one, "answers", at)),
        )
        for one, at in _items(found, "qas", place)
    ]
    return Paragraph(_text(found, "context", place), tuple(asked))


def _items(parent: Any, name: str, place: str) -> Iterator[tuple[Any, str]]:
    """Yields the items of a list, each with its place."""
    path = f"{place}.{name}".lstrip(".")
    return ((item, f"{path}[{n}]") for n, item in enumerate(_value(parent, name, list, place)))


def _text(parent: Any, name: str, place: str) -> str:
    text: str = _value(parent, name, str, place)
    return text


def _value(parent: Any, name: str, kind: type | tuple[type, ...], place: str) -> Any:
    where = place or "the file"
    if not isinstance(parent, dict):
        raise PlaceError(f"{where} is no object with {name}")
    if not isinstance(parent.get(name), kind):
        what = "no list" if kind is list else "no text"
        raise PlaceError(f"{where}: {name} is {what if name in parent else 'missing'}")
    return parent[name]
