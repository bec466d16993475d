"""The official scores, on cases computed by hand."""

from __future__ import annotations

import pytest

from nas.problems.squad.official import exact_match, f1, normalized, scores


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ("The  Broncos!", "broncos"),
        ("a U.S. theatre", "us theatre"),
        ("An-tan", "antan"),
        ("another theme", "another theme"),
        ("the", ""),
        ("", ""),
        ("Ünîcode, 1,000 m", "ünîcode 1000 m"),
    ],
)
def test_normalization(answer: str, expected: str) -> None:
    """Case, ASCII punctuation, articles and repeated spaces do not count; parts of words stay."""
    assert normalized(answer) == expected


@pytest.mark.parametrize(
    ("answer", "references", "expected"),
    [
        ("the Broncos", ["Denver Broncos"], (0, 2 / 3)),
        ("Denver Broncos", ["Broncos", "denver  broncos."], (1, 1)),
        ("in Denver, Colorado", ["Denver"], (0, 0.5)),
        ("to be to be", ["to be"], (0, 2 * 0.5 * 1 / 1.5)),
        ("Rome", ["Paris", "London"], (0, 0)),
        ("", ["Paris"], (0, 0)),
        ("the", ["a"], (1, 0)),
    ],
)
def test_scores_of_an_answer(answer: str, references: list[str], expected: tuple[float, float]) -> None:
    """The best reference counts; without a word left, the official program gives an exact match and no F1."""
    assert exact_match(answer, references) == expected[0]
    assert f1(answer, references) == pytest.approx(expected[1])


def test_scores_of_a_set() -> None:
    """The scores are means in percent over all questions; a question without an answer scores 0."""
    references = {"1": ["Paris"], "2": ["the river Seine", "Seine"], "3": ["1789"], "4": ["red wine"]}
    answers = {"1": "Paris", "2": "river Seine", "4": "wine", "5": "unasked"}

    assert scores(answers, references) == {
        "exact_match": pytest.approx(100 * 2 / 4),
        "f1": pytest.approx(100 * (1 + 1 + 0 + 2 / 3) / 4),
    }
