"""Writes a small file in SQuAD's format: who sold which thing in which town."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

NAMES = ("Ada", "Ben", "Cara", "Dan", "Eve", "Finn", "Gus", "Hal", "Ivy", "Jon")
TOWNS = ("Paris", "London", "Rome", "Oslo", "Bern", "Cairo", "Lima", "Kyoto")
THINGS = ("apples", "books", "cats", "drums", "eggs", "flags")


def squad(n_articles: int = 6, n_paragraphs: int = 3) -> dict[str, Any]:
    """Returns the content of the file, with three questions for each paragraph."""
    rng = random.Random(0)
    titles = [f"Sales {number}" for number in range(n_articles)]
    return {
        "version": "1.1",
        "data": [
            {"title": title, "paragraphs": [_paragraph(rng, f"{title}/{number}") for number in range(n_paragraphs)]}
            for title in titles
        ],
    }


def write_squad(path: Path, n_articles: int = 6, n_paragraphs: int = 3) -> Path:
    """Writes the file and returns its path."""
    path.write_text(json.dumps(squad(n_articles, n_paragraphs)))
    return path


def _paragraph(rng: random.Random, id: str) -> dict[str, Any]:
    sales = [(rng.choice(NAMES), rng.choice(THINGS), rng.choice(TOWNS)) for _ in range(3)]
    passage = " ".join(f"{name} sold the {thing} in {town}." for name, thing, town in sales)
    questions = [
        {
            "id": f"{id}/{number}",
            "question": f"Where did {name} sell the {thing}?",
            "answers": [{"text": town, "answer_start": passage.index(town)}],
        }
        for number, (name, thing, town) in enumerate(sales)
    ]
    return {"context": passage, "qas": questions}
