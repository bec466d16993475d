"""The documents agree with the code, and stay short."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import nas
from nas.search.definition import TWO_STAGE
from tests.support import api_pages

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"
FIRST_SEARCH = ROOT / "docs" / "tutorial" / "first_search.md"
TUNERS = ROOT / "docs" / "reference" / "tuners.md"
OWN_PROBLEM = ROOT / "docs" / "tutorial" / "own_problem.md"
PAGES = sorted((ROOT / "docs").rglob("*.md"))
DECISIONS = [page for page in PAGES if page.parent.name == "decisions"]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *PAGES,
    *sorted((ROOT / "examples").rglob("*.md")),
]
MAX_COLUMNS = 120
MAX_WORDS_OF_DOCS = 25_000
"""15,000 for features until November 2026, 2,000 for clusters, 2,900 for one-shot search and other networks.

5,100 for the site and the features of 0.1 (docs/decisions/054-allow-25-000-words-of-documentation.md)."""


def blocks(page: Path, language: str) -> list[str]:
    """Returns the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.MULTILINE | re.DOTALL)


def prose(page: Path) -> str:
    """Returns the text outside code blocks and comments."""
    return re.sub(r"^```.*?^```$|<!--.*?-->", "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def by_hand(page: Path) -> str:
    """Returns the text outside code blocks, comments and generated blocks."""
    left_out = r"<!-- options: .*?<!-- end -->|^```.*?^```$|<!--.*?-->"
    return re.sub(left_out, "", page.read_text(), flags=re.MULTILINE | re.DOTALL)


def n_words(page: Path) -> int:
    """Returns the number of words written by hand; figures, marks and targets are none."""
    text = re.sub(r"\]\([^)]*\)", "]", by_hand(page))
    return sum(re.search("[A-Za-z]", word) is not None for word in text.split())


def relative(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def max_words(page: Path) -> int | None:
    """Returns the most words that a page may have; None for a page without a limit of its own."""
    if page.parent.name == "decisions":
        return 250
    if page.parent.name == "guides":
        return 900
    return {"README.md": 700, "ARCHITECTURE.md": 900}.get(relative(page))


@pytest.mark.parametrize("page", DOCUMENTS, ids=relative)
def test_page_is_short(page: Path) -> None:
    """README, ARCHITECTURE, guides and decisions keep their limits of words."""
    limit = max_words(page)

    assert limit is None or n_words(page) <= limit


def test_docs_are_short() -> None:
    """All pages of docs/ together keep their limit of words, decisions not counted."""
    pages = [page for page in PAGES if page not in DECISIONS and page.parent != api_pages.FOLDER]

    assert sum(n_words(page) for page in pages) <= MAX_WORDS_OF_DOCS


@pytest.mark.parametrize("page", DOCUMENTS, ids=relative)
def test_lines_fit(page: Path) -> None:
    """Lines have at most 120 columns; tables, code, generated lines and lines with a link are exempt."""
    lines = [line for line in by_hand(page).splitlines() if not line.startswith("|") and "](" not in line]

    assert [line for line in lines if len(line) > MAX_COLUMNS] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=relative)
def test_links_lead_to_files(page: Path) -> None:
    """Each relative link, and each path in backquotes below a folder of the repository, exists."""
    links = re.findall(r"\]\(((?!http|#)[^)#]+)", prose(page))
    paths = re.findall(
        r"`((?:nas|flows|conf|docs|examples|benchmarks|tests)/[\w./-]+\.(?:py|yaml|md|csv))`", prose(page)
    )

    assert [link for link in links if not (page.parent / link).exists()] == []
    assert [path for path in paths if "NAME" not in path and not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=relative)
def test_links_to_the_repository_exist(page: Path) -> None:
    """Each file or folder of the repository that a page names by its address on GitHub exists."""
    paths = re.findall(r"\]\(https://github\.com/heirloom-nas/heirloom/(?:blob|tree)/main/([^)#]+)", prose(page))

    assert [path for path in paths if not (ROOT / path).exists()] == []


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_links_stay_on_the_site(page: Path) -> None:
    """A relative link of a page of docs/ leads to docs/: the site has nothing else."""
    links = re.findall(r"\]\(((?!http|#)[^)#]+)", prose(page))

    assert [link for link in links if not (page.parent / link).resolve().is_relative_to(ROOT / "docs")] == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=relative)
def test_links_lead_to_headings(page: Path) -> None:
    """Each link with a fragment leads to a heading of its page."""
    missing = []
    for target, fragment in re.findall(r"\]\(((?!http)[^)#]*)#([^)]+)\)", prose(page)):
        text = prose(page.parent / target) if target else prose(page)
        headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
        slugs = {re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-") for heading in headings}
        if fragment not in slugs:
            missing.append(f"{target}#{fragment}")

    assert missing == []


@pytest.mark.parametrize("page", DOCUMENTS, ids=relative)
def test_python_is_valid(page: Path) -> None:
    """Each block of Python compiles."""
    for block in blocks(page, "python"):
        compile(block, relative(page), "exec", dont_inherit=True)


def test_examples_are_shown_word_for_word() -> None:
    """The programs of the README, the tutorial and the reference are files of examples/, which other tests run."""
    problem = (ROOT / "examples" / "02_bring_your_problem" / "my_problem.py").read_text()

    assert problem in blocks(README, "python")
    assert problem in blocks(OWN_PROBLEM, "python")
    assert (ROOT / "examples" / "02_bring_your_problem" / "my_tuner.py").read_text() in blocks(TUNERS, "python")
    assert (ROOT / "examples" / "01_first_search.py").read_text() in blocks(FIRST_SEARCH, "python")


def test_tutorial_quotes_the_line_on_policies() -> None:
    """The line that the tutorial explains is the one that the command prints for the tutorial's problem."""
    line = re.search(r"progress\.note\(f\"(policies skipped[^{]*)", (ROOT / "flows/engine/runner.py").read_text())
    problem = (ROOT / "examples/02_bring_your_problem/my_problem.py").read_text()
    left_out = ", ".join(sorted(p for p in TWO_STAGE.search.policies if f"Policy.{p}" not in problem))

    assert line is not None
    assert f"`{line[1]}{left_out}`" in OWN_PROBLEM.read_text()


def test_ci_runs_the_readmes_test_command() -> None:
    """The block after the marker is one line that installs and tests, which .ci/run takes from here."""
    found = re.findall(r"<!-- test command -->\n```bash\n(.*?)\n```", README.read_text())

    assert found == ['pip install -c constraints.txt -e ".[test]" && python -m pytest -n 2 --dist loadfile']
    assert "<!-- test command -->" in (ROOT / ".ci/run").read_text()


def test_readme_has_the_search_command() -> None:
    """The block after the marker is one line that installs and searches."""
    found = re.findall(r"<!-- search command -->\n```bash\n(.*?)\n```", README.read_text())

    assert found == ["pip install -c constraints.txt . && python -m flows.search +tuner=evolution"]


def test_api_pages_are_made_from_the_public_names() -> None:
    """No public name of `nas` lacks an entry; ``python -m tests.support.api_pages`` fixes it."""
    shown = {path.name: path.read_text() for path in api_pages.FOLDER.glob("*.md")}
    named = [name for text in shown.values() for name in re.findall(r"^::: nas\.(\w+)$", text, re.MULTILINE)]

    assert shown == {path.name: text for path, text in api_pages.pages().items()}
    assert sorted(named) == sorted(nas.__all__)


def requirements() -> list[Requirement]:
    """Returns the dependencies of pyproject.toml, those of extras included."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    texts = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    return [found for found in map(Requirement, texts) if found.name != project["name"]]


def pins(name: str) -> dict[str, Version]:
    """Returns the versions that a file of constraints pins, by normalized name."""
    lines = [line.split() for line in (ROOT / name).read_text().splitlines() if "==" in line]
    parts = [words[0].partition("==") for words in lines]
    return {canonicalize_name(package): Version(version) for package, _, version in parts}


def test_constraints_pin_every_dependency() -> None:
    """Each dependency of pyproject.toml has a pinned version in constraints.txt that its bounds allow."""
    pinned = pins("constraints.txt")

    assert [str(one) for one in requirements() if pinned[canonicalize_name(one.name)] not in one.specifier] == []


def test_lowest_constraints_are_the_lower_bounds() -> None:
    """constraints-lowest.txt pins each dependency of pyproject.toml to its lower bound."""
    pinned = pins("constraints-lowest.txt")
    bounds = {
        one.name: Version(bound.version) for one in requirements() for bound in one.specifier if bound.operator == ">="
    }

    assert {name: str(bound) for name, bound in bounds.items() if pinned[canonicalize_name(name)] != bound} == {}
    assert bounds.keys() == {one.name for one in requirements()}
