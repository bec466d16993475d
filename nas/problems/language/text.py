"""Texts as sequences of symbols: characters, or byte pairs learned from the text itself."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nas.core.errors import ConfigurationError
from nas.inheritance.vocabularies import vocabulary_digest
from nas.storage.remote_file import read_file, unzipped

_MAX_CHARACTERS = 4096
_SHARES = (0.8, 0.1)  # training and validation; the rest is for tests
_REMEDY = "Give another file, or null for Python's own help texts"

Encode = Callable[[str], Tensor]


@dataclass(frozen=True, slots=True)
class Corpus:
    """A text in three parts, one after the other.

    Attributes:
        train: The symbols of the first 80 %.
        validation: Those of the next 10 %.
        test: Those of the last 10 %.
        n_symbols: The number of different symbols.
        vocabulary: The digest of the symbols in order.
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    n_symbols: int
    vocabulary: Tensor

    @classmethod
    def of(cls, text: str, vocabulary: int | None) -> Corpus:
        """Returns a text as symbols. Only the training part decides which symbols there are.

        Args:
            text: The text.
            vocabulary: The number of byte pairs, at least 256; None: characters.

        Raises:
            ConfigurationError: the library for byte pairs is missing.
        """
        first, second = (round(sum(_SHARES[: n + 1]) * len(text)) for n in range(2))
        parts = text[:first], text[first:second], text[second:]
        encode, symbols = _characters(parts[0]) if vocabulary is None else _byte_pairs(parts[0], vocabulary)
        train, validation, test = map(encode, parts)
        return cls(train, validation, test, len(symbols), vocabulary_digest(symbols))


def bundled_text() -> str:
    """Returns the help texts of Python's language reference, 465,000 characters in Python 3.11.

    Raises:
        ConfigurationError: this Python was installed without them.
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ConfigurationError(
            "problem.text=null: must be a file, since this Python has no pydoc_data. Write problem.text=FILE."
        ) from error
    return "\n".join(topics[name] for name in sorted(topics))


def file_text(url: str, options: Mapping[str, Any]) -> str:
    """Returns the text of a file; of SQuAD's json the passages.

    Raises:
        ConfigurationError: it can't be read, is no text, or other json.
    """
    try:
        text = unzipped(read_file(url, options)).decode()
        return _passages(text) if str(url).endswith((".json", ".json.gz")) else text
    except (ValueError, OSError, EOFError, KeyError, TypeError, RecursionError, zlib.error) as error:
        raise ConfigurationError(
            f"problem.text={url}: must be a text in UTF-8, or SQuAD's json, maybe with gzip "
            f"({type(error).__name__}: {error}). {_REMEDY}."
        ) from error


def windows(symbols: Tensor, length: int) -> Tensor:
    """Returns the windows ``(n, length + 1)`` of a text, in a random but fixed order."""
    n = (len(symbols) - 1) // length
    rows = symbols[: n * length + 1].unfold(0, length + 1, length)
    return rows[torch.randperm(n, generator=torch.Generator().manual_seed(0))]


def _passages(text: str) -> str:
    try:
        articles = json.loads(text)["data"]
        return "\n".join(paragraph["context"] for article in articles for paragraph in article["paragraphs"])
    except (KeyError, TypeError) as error:
        raise ValueError("data must list articles, whose paragraphs each have a context") from error


def _characters(train: str) -> tuple[Encode, list[str]]:
    """Returns the function from texts to characters, and these. 0 stands for any other."""
    counts = Counter(train)
    common = sorted(counts, key=lambda character: (-counts[character], character))[: _MAX_CHARACTERS - 1]
    index_of = {character: index for index, character in enumerate(common, 1)}
    return lambda text: torch.tensor([index_of.get(character, 0) for character in text]), ["", *common]


def _byte_pairs(train: str, vocabulary: int) -> tuple[Encode, list[str]]:
    """Returns the function from texts to byte pairs (Sennrich et al. 2016, arXiv:1508.07909), and these.

    Raises:
        ConfigurationError: Hugging Face's tokenizers is not installed.
    """
    try:
        from tokenizers import Tokenizer, models, pre_tokenizers, trainers
    except ImportError as error:
        raise ConfigurationError(
            f"problem.vocabulary={vocabulary}: must be null without the library for byte pairs. "
            "Install it: pip install 'heirloom-nas[language]'."
        ) from error
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=vocabulary, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(train.splitlines(keepends=True), trainer)

    def encode(text: str) -> Tensor:
        lines = tokenizer.encode_batch(text.splitlines(keepends=True))
        return torch.tensor([symbol for line in lines for symbol in line.ids])

    index_of = tokenizer.get_vocab()
    return encode, sorted(index_of, key=index_of.__getitem__)
