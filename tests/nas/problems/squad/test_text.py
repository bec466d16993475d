"""Words with their places, the vocabulary, and the answer to train on."""

from __future__ import annotations

import numpy as np

from nas.problems.squad.text import (
    N_CHARACTERS,
    WORD_LENGTH,
    Vocabulary,
    answer_span,
    character_numbers,
    matches,
    tokens_of,
)

PASSAGE = "In 1990 the tower fell. It was rebuilt after the war, in 1990. Nobody knows why."


def test_tokens_keep_their_places() -> None:
    """Words and punctuation marks are tokens, and the text at their places is theirs."""
    text = "Tesla's coil (1891) — naïve!"
    tokens = tokens_of(text)

    assert [token.text for token in tokens] == ["Tesla", "'", "s", "coil", "(", "1891", ")", "—", "naïve", "!"]
    assert all(text[token.start : token.end] == token.text for token in tokens)


def test_vocabulary_of_training_words() -> None:
    """Without vectors, sorted words that training texts have twice are known, whatever the order of texts."""
    one = Vocabulary.of(["The tower, the war", "war and peace"], None)
    other = Vocabulary.of(["war and peace", "The tower, the war"], None)

    assert one.numbers == other.numbers == {"the": 2, "war": 3}
    assert (one.number("WAR"), one.number("peace"), len(one)) == (3, 1, 4)


def test_vocabulary_of_vectors() -> None:
    """With vectors, all their words are known, and unknown words have the vector 0."""
    found = Vocabulary.of(["war"], (["sea", "tower"], np.array([[1, 2], [3, 4]], np.float32)))

    assert found.vectors is not None
    assert found.vectors[[found.number("Tower"), found.number("war"), 0]].tolist() == [[3, 4], [0, 0], [0, 0]]


def test_cased_vectors_are_found() -> None:
    """A word has the vector of its own spelling if there is one, else that of its lower case."""
    words = ["the", "The", "Paris", "tower"]
    found = Vocabulary.of([], (words, np.zeros((4, 2), np.float32)))

    assert [found.number(word) for word in ("the", "The", "THE", "Paris", "paris", "Tower")] == [2, 3, 2, 4, 1, 5]


def test_characters_are_numbers() -> None:
    """A word has ten numbers from 0; characters outside ASCII have the last one."""
    assert character_numbers("0a") == bytes([1, 11]).ljust(WORD_LENGTH, b"\0")
    assert character_numbers("é" * 12) == bytes([N_CHARACTERS - 1] * WORD_LENGTH)


def test_matches_of_a_question() -> None:
    """A word matches without case unless it is frequent, with case, or by its first five letters."""
    found = matches(tokens_of("the Tower rebuilt war"), tokens_of("Was the tower rebuilding War?"))

    assert found == [(False, True, False), (True, False, True), (False, False, True), (True, False, False)]


def test_answer_is_in_the_sentence_of_the_question() -> None:
    """Of two occurrences, that in the sentence with the words of the question is trained, not the first."""
    tokens = tokens_of(PASSAGE)
    rebuilt = answer_span(PASSAGE, tokens, "When was it rebuilt after the war?", ["1990", "1990", "in 1990"])
    fell = answer_span(PASSAGE, tokens, "When did the tower fall?", ["1990"])

    assert rebuilt is not None
    assert fell == (1, 1)
    assert [token.text for token in tokens[slice(rebuilt[0], rebuilt[1] + 1)]] == ["1990"]
    assert rebuilt[0] > 10


def test_answer_without_tokens_has_no_span() -> None:
    """An answer that is not in the text, or after the words that are read, gives nothing to train on."""
    assert answer_span(PASSAGE, tokens_of(PASSAGE), "Who?", ["Napoleon"]) is None
    assert answer_span(PASSAGE, tokens_of(PASSAGE)[:3], "Why?", ["Nobody"]) is None
    assert answer_span(PASSAGE, tokens_of(PASSAGE), "Why?", [""]) is None
