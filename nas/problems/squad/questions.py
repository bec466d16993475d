"""Questions as tensors: batches of similar length for training, and answers from logits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from nas.problems.squad.articles import Paragraph
from nas.problems.squad.network import Inputs
from nas.problems.squad.text import Token, Vocabulary, answer_span, character_numbers, matches, tokens_of

MAX_PASSAGE, MAX_QUESTION = 300, 30
"""The words that the network reads."""
MAX_ANSWER = 15
"""The greatest number of words of an answer."""
_SORTED_TOGETHER = 20
"""The batches whose examples are sorted by length."""


class Reading(NamedTuple):
    """The words of a text as numbers: ``(length,)`` and ``(length, 10)``."""

    words: NDArray[np.int32]
    characters: NDArray[np.uint8]


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question, its passage, and its answer.

    Attributes:
        id: The id in the data set.
        passage: The text.
        places: For each word of the passage, its first character and the character after its last.
        read: The passage as numbers.
        matches: Whether the question has the words of the passage, ``(length, 3)``.
        asked: The question as numbers.
        answers: The reference answers.
        span: The first and last word of the answer to train on, or None.
    """

    id: str
    passage: str
    places: tuple[tuple[int, int], ...]
    read: Reading
    matches: NDArray[np.bool_]
    asked: Reading
    answers: tuple[str, ...]
    span: tuple[int, int] | None

    def answer(self, first: int, last: int) -> str:
        """Returns the text from a word to another; words after the end count as the last."""
        n = len(self.places) - 1
        return self.passage[self.places[min(first, n)][0] : self.places[min(last, n)][1]] if self.places else ""


def questions_of(paragraphs: Sequence[Paragraph], vocabulary: Vocabulary) -> list[Question]:
    """Returns the questions of paragraphs. Passages without a word are left out."""
    found = []
    for paragraph in paragraphs:
        tokens = tokens_of(paragraph.passage)[:MAX_PASSAGE]
        if not tokens:
            continue
        read = _read(tokens, vocabulary)
        places = tuple((token.start, token.end) for token in tokens)
        for one in paragraph.questions:
            asked = tokens_of(one.question)[:MAX_QUESTION] or [Token("?", 0, 1)]
            found.append(
                Question(
                    id=one.id,
                    passage=paragraph.passage,
                    places=places,
                    read=read,
                    matches=np.array(matches(tokens, asked)),
                    asked=_read(asked, vocabulary),
                    answers=one.answers,
                    span=answer_span(paragraph.passage, tokens, one.question, one.answers),
                )
            )
    return found


def _read(tokens: Sequence[Token], vocabulary: Vocabulary) -> Reading:
    words = np.array([vocabulary.number(token.text) for token in tokens], np.int32)
    characters = np.frombuffer(b"".join(character_numbers(token.text) for token in tokens), np.uint8)
    return Reading(words, characters.reshape(len(tokens), -1))


def inputs_of(questions: Sequence[Question], device: str = "cpu") -> Inputs:
    """Returns the inputs of the network for these questions, filled up to equal lengths."""
    words, characters = _padded([one.read for one in questions])
    found = torch.zeros(*words.shape, questions[0].matches.shape[1])
    for row, one in enumerate(questions):
        found[row, : len(one.matches)] = torch.from_numpy(one.matches)
    asked, asked_characters = _padded([one.asked for one in questions])
    words, characters, found, asked, asked_characters = (
        tensor.to(device) for tensor in (words, characters, found, asked, asked_characters)
    )
    return words, characters, found, asked, asked_characters


def _padded(texts: Sequence[Reading]) -> tuple[Tensor, Tensor]:
    length = max(len(text.words) for text in texts)
    words = np.zeros((len(texts), length), np.int64)
    characters = np.zeros((len(texts), length, texts[0].characters.shape[1]), np.int64)
    for row, text in enumerate(texts):
        words[row, : len(text.words)] = text.words
        characters[row, : len(text.words)] = text.characters
    return torch.from_numpy(words), torch.from_numpy(characters)


def epoch_batches(n: Sequence[int], batch_size: int, generator: torch.Generator) -> Iterator[list[int]]:
    """Yields the indices of random batches of similar length, each example once.

    Args:
        n: The length of each example.
        batch_size: The examples of a batch; the last batches may have fewer.
        generator: The generator of the order.
    """
    order = torch.randperm(len(n), generator=generator).tolist()
    batches = []
    for start in range(0, len(order), batch_size * _SORTED_TOGETHER):
        together = sorted(order[start : start + batch_size * _SORTED_TOGETHER], key=n.__getitem__)
        batches += [together[at : at + batch_size] for at in range(0, len(together), batch_size)]
    for place in torch.randperm(len(batches), generator=generator).tolist():
        yield batches[place]


def best_spans(logits: Tensor) -> list[tuple[int, int]]:
    """Returns the most probable first and last word of each answer of at most 15 words.

    Args:
        logits: ``(batch, 2, length)``.
    """
    first, last = logits.log_softmax(2).unbind(1)
    together = first[:, :, None] + last[:, None]
    length = logits.shape[2]
    allowed = torch.ones(length, length, dtype=torch.bool, device=logits.device).triu().tril(MAX_ANSWER - 1)
    best = together.masked_fill(~allowed, -torch.inf).flatten(1).argmax(1).tolist()
    return [divmod(place, length) for place in best]
