"""Words of passages and questions, their numbers, and the span of an answer."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_WORD = re.compile(r"\w+|[^\w\s]")
_SENTENCE_END = re.compile(r"[.!?]\s")
_CHARACTERS = {character: n for n, character in enumerate(string.printable[:94], 1)}
N_CHARACTERS = len(_CHARACTERS) + 2
"""The numbers of characters: 0 for none, the last for any other."""
WORD_LENGTH = 10
"""The characters of a word that the network sees."""
_PREFIX = 5
N_MATCHES = 3
_FREQUENT = "a an and are by did do does for from how in is of on or the to was were what when where which who why with"
_STOP_WORDS = frozenset(_FREQUENT.split())


class Token(NamedTuple):
    """A word or a punctuation mark, with its place in the text."""

    text: str
    start: int
    end: int


def tokens_of(text: str) -> list[Token]:
    """Returns the words and punctuation marks of a text."""
    return [Token(found.group(), found.start(), found.end()) for found in _WORD.finditer(text)]


def words_of(texts: Iterable[str]) -> set[str]:
    """Returns the words and punctuation marks of texts, as they are written."""
    return {token.text for text in texts for token in tokens_of(text)}


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """The known words, from number 2.

    Number 0 is no word, and 1 is an unknown one. Words of training texts are in lower case.

    Attributes:
        numbers: The number of each word.
        vectors: Their vectors, float32 ``(number of words + 2, size)``; None: the network learns them.
    """

    numbers: Mapping[str, int]
    vectors: NDArray[np.float32] | None

    @classmethod
    def of(cls, texts: Iterable[str], given: tuple[Sequence[str], NDArray[np.float32]] | None) -> Vocabulary:
        """Returns the words of the training texts that occur twice, or the words that have vectors.

        Args:
            texts: The training texts.
            given: Words and their vectors.
        """
        if given is not None:
            words, vectors = given
            known = np.concatenate([np.zeros((2, vectors.shape[1]), np.float32), vectors.astype(np.float32)])
            return cls({word: n for n, word in enumerate(words, 2)}, known)
        counted = Counter(token.text.lower() for text in texts for token in tokens_of(text))
        frequent = sorted(word for word, n in counted.items() if n > 1)
        return cls({word: n for n, word in enumerate(frequent, 2)}, None)

    def __len__(self) -> int:
        return len(self.numbers) + 2

    def number(self, word: str) -> int:
        """Returns the number of a word as it is written, else that of its lower case."""
        return self.numbers.get(word) or self.numbers.get(word.lower(), 1)


@lru_cache(maxsize=1 << 17)
def character_numbers(word: str) -> bytes:
    """Returns the numbers of the first characters of a word, filled up with 0."""
    numbers = [_CHARACTERS.get(character, N_CHARACTERS - 1) for character in word[:WORD_LENGTH]]
    return bytes(numbers).ljust(WORD_LENGTH, b"\0")


def matches(passage: Sequence[Token], question: Sequence[Token]) -> list[tuple[bool, bool, bool]]:
    """Returns whether the question has each word of the passage, in three ways.

    Without case, leaving out frequent words; with case; by the first five letters.
    """
    spelled = {token.text for token in question}
    lower = {text.lower() for text in spelled}
    begins = {word[:_PREFIX] for word in lower if len(word) >= _PREFIX}
    content = lower - _STOP_WORDS
    return [
        (low in content, text in spelled, low[:_PREFIX] in begins)
        for text, low in ((token.text, token.text.lower()) for token in passage)
    ]


def answer_span(passage: str, tokens: Sequence[Token], question: str, answers: Sequence[str]) -> tuple[int, int] | None:
    """Returns the first and the last token of the most frequent answer, or None.

    Of several occurrences, that in the sentence with most words of the question is used: the data set names the first.
    """
    text = Counter(answers).most_common(1)[0][0]
    if not text:
        return None
    asked = {token.text.lower() for token in tokens_of(question)} - _STOP_WORDS
    found = [match.start() for match in re.finditer(f"(?={re.escape(text)})", passage)]
    best = max(found, key=lambda start: len(asked & _sentence_words(passage, start)), default=None)
    if best is None:
        return None
    inside = [n for n, token in enumerate(tokens) if token.end > best and token.start < best + len(text)]
    return (inside[0], inside[-1]) if inside else None


def _sentence_words(passage: str, place: int) -> set[str]:
    """Returns the words of the sentence at a place of the passage."""
    begins = [0, *(match.end() for match in _SENTENCE_END.finditer(passage))]
    start = max(begin for begin in begins if begin <= place)
    end = min((begin for begin in begins if begin > place), default=len(passage))
    return {token.text.lower() for token in tokens_of(passage[start:end])}
