"""Each test that docs/explanation/failure_modes.md names exists."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
TABLE = (ROOT / "docs" / "explanation" / "failure_modes.md").read_text()


def nodes_in(body: list[ast.stmt], stem: str) -> Iterator[str]:
    """The node ids of a file's or a class's tests, without parameters."""
    for node in body:
        if isinstance(node, ast.ClassDef):
            yield from nodes_in(node.body, f"{stem}::{node.name}")
        elif isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
            yield f"{stem}::{node.name}"


def test_every_fault_names_a_test_that_is_there() -> None:
    """Each row of the page on failure modes ends with the node ids of tests that exist."""
    rows = re.findall(r"^\| (?!\*\*|---|fault).* \| (.*) \|$", TABLE, re.MULTILINE)
    named = [re.findall(r"`(tests/[\w/]+\.py::[\w:]+)`", row) for row in rows]
    nodes = {node for nodes in named for node in nodes}
    paths = {node.partition("::")[0] for node in nodes}
    there = {node for path in paths for node in nodes_in(ast.parse((ROOT / path).read_text()).body, path)}

    assert len(named) > 40
    assert all(named)
    assert nodes - there == set()
