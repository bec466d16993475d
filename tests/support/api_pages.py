"""Pages of the API reference in ``docs/api/``, made from the public names of ``nas`` and ``nas.testing``.

    $ python -m tests.support.api_pages

rewrites them. mkdocstrings fills in the docstrings when the site is built.
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

import nas
import nas.testing

FOLDER = Path(__file__).parents[2] / "docs" / "api"
NOTE = "<!-- made by: python -m tests.support.api_pages -->"
TITLES = {"api": "Running searches, and their results", "core": "Trials, metrics and policies", "training": "Problems"}
"""The titles of packages of ``nas`` whose names do not say what they hold."""

FIRST = ("nas.Problem", "nas.TrialRun", "nas.ParameterSpace", "nas.Trial", "nas.Metric", "nas.Policy", "nas.run_search")
"""The names that most users look for. Each is above the others of its page."""


def public_names() -> dict[str, list[str]]:
    """Returns the public names of each package of ``nas``, as a user imports them."""
    names = defaultdict(list)
    for name, module in nas._modules_of_names().items():
        names[module.split(".")[1]].append(f"nas.{name}")
    names["testing"] += [f"nas.testing.{name}" for name in nas.testing.__all__]
    return {package: sorted(found, key=_rank) for package, found in names.items()}


def _rank(name: str) -> int:
    return FIRST.index(name) if name in FIRST else len(FIRST)


def pages() -> dict[Path, str]:
    """Returns the text of each page of the reference."""
    return {FOLDER / f"{package}.md": page(package, names) for package, names in public_names().items()}


def page(package: str, names: list[str]) -> str:
    """Returns the page of a package: its title, and a line for each name."""
    lines = "\n\n".join(f"::: {name}" for name in names)
    return f"{NOTE}\n\n# {TITLES.get(package, package.capitalize())}\n\n{lines}\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for path in FOLDER.glob("*.md"):
        path.unlink()
    for path, text in pages().items():
        path.write_text(text)
