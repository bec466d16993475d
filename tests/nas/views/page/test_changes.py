"""Changes against the parent: parameters, networks, and what is told of many."""

from __future__ import annotations

from typing import Any

import pytest

from nas.core.lineage import Lineage
from nas.views.page.changes import MAX_CHANGES, changes, changes_text, point_changes
from tests.support.sample_searches import trial


def node(id: int, op: str, inputs: list[int], **more: Any) -> dict[str, Any]:
    return {"id": id, "op": op, "inputs": inputs, **more}


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        ({"width_1": 32, "rate": 0.1}, {"width_1": 24, "rate": 0.1}, ["width_1 32 → 24"]),
        ({"cell": {"ops": ["conv", "skip"]}}, {"cell": {"ops": ["conv", "none"]}}, ["cell.ops[1] skip → none"]),
        ({"n": 1}, {"n": 1, "width_2": 8}, ["width_2 none → 8"]),
        ({"n": 1, "width_2": 8}, {"n": 1}, ["width_2 8 → none"]),
        ({"rate": 0.12345678}, {"rate": 0.12345679}, ["rate 0.12345678 → 0.12345679"]),
        ({"ops": [1, 2]}, {"ops": [1, 2, 3]}, ["ops [1, 2] → [1, 2, 3]"]),
        ({"n": 1}, {"n": 1}, []),
    ],
)
def test_changes_of_parameters(before: dict[str, Any], after: dict[str, Any], said: list[str]) -> None:
    """A change names the parameter, the parent's value and the child's; equal ones are left out."""
    assert [str(change) for change in point_changes(before, after)] == said


def test_changes_of_a_network() -> None:
    """Nodes of a network are compared by id, wherever they stand: one is wider, one is new, one is rewired."""
    before = {"network": {"nodes": [node(1, "conv", [0], channels=8), node(2, "dense", [1])]}}
    after = {
        "network": {
            "nodes": [node(1, "conv", [0], channels=16), node(7, "norm", [1]), node(2, "dense", [7])],
        }
    }

    assert [str(change) for change in point_changes(before, after)] == [
        "network.nodes[1].channels 8 → 16",
        "network.nodes[2].inputs[0] 1 → 7",
        "network.nodes[7] none → norm (inputs [1])",
    ]


def test_text_of_changes() -> None:
    """A founder has no text, an equal child says so, and of very many changes the number of the others is told."""
    many = {f"p{i}": i for i in range(MAX_CHANGES + 2)}
    lineage = Lineage.of(
        [
            trial(0, point=many),
            trial(1, parents=(0,), point=many),
            trial(2, parents=(0,), point={name: value + 1 for name, value in many.items()}),
            trial(3, parents=(99,)),
        ]
    )
    said = [changes_text(changes(lineage, lineage[number])) for number in range(4)]

    assert (said[0], said[1], said[3]) == (None, "same point", None)
    assert (said[2] or "").startswith("p0 0 → 1, p1 1 → 2")
    assert (said[2] or "").endswith(" and 2 more")
