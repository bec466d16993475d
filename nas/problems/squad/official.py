"""The official scores of SQuAD v1.1 (Rajpurkar et al. 2016, arXiv:1606.05250): exact match and F1."""

from __future__ import annotations

import re
import string
from collections import Counter
from collections.abc import Mapping, Sequence

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_WITHOUT_PUNCTUATION = str.maketrans("", "", string.punctuation)


def normalized(answer: str) -> str:
    """Returns the answer in lower case, without punctuation and articles, with single spaces."""
    return " ".join(_ARTICLES.sub(" ", answer.lower().translate(_WITHOUT_PUNCTUATION)).split())


def exact_match(answer: str, references: Sequence[str]) -> float:
    """Returns 1 if the answer equals one of the references after normalization, else 0."""
    return float(any(normalized(answer) == normalized(reference) for reference in references))


def f1(answer: str, references: Sequence[str]) -> float:
    """Returns the largest F1 of the answer's words and those of a reference."""
    return max(_f1(normalized(answer).split(), normalized(reference).split()) for reference in references)


def scores(answers: Mapping[str, str], references: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Returns ``f1`` and ``exact_match`` in percent, the means over all questions.

    Args:
        answers: Answers by question id. A question without one scores 0.
        references: The reference answers of each question by id, at least one.
    """
    answered = [(answers[id], answer) for id, answer in references.items() if id in answers]
    return {
        "f1": 100 * sum(f1(*pair) for pair in answered) / len(references),
        "exact_match": 100 * sum(exact_match(*pair) for pair in answered) / len(references),
    }


def _f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """Returns the harmonic mean of precision and recall; 0 without a common word."""
    n_same = (Counter(answer) & Counter(reference)).total()
    return 2 * n_same / (len(answer) + len(reference)) if n_same else 0.0
