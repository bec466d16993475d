"""The README says what is there."""

from __future__ import annotations

import re
from pathlib import Path

from nas.search.definition import TWO_STAGE

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, re.DOTALL)


def test_readme_shows_the_examples_that_are_tested() -> None:
    """The programs that the README shows are files of examples/, word for word."""
    for example in ("01_first_search.py", "02_bring_your_problem/my_problem.py"):
        assert (ROOT / "examples" / example).read_text() in blocks("python")


def test_readme_quotes_the_line_on_policies() -> None:
    """The line that the README explains is the one that the command prints for the README's own problem."""
    spoken = re.search(r"progress\.note\(f\"(policies skipped[^{]*)", (ROOT / "flows/engine/runner.py").read_text())
    problem = (ROOT / "examples/02_bring_your_problem/my_problem.py").read_text()
    left_out = ", ".join(sorted(p for p in TWO_STAGE.search.policies if f"Policy.{p}" not in problem))

    assert spoken is not None
    assert f"`{spoken[1]}{left_out}`" in README


def test_ci_runs_the_readmes_test_command() -> None:
    """The block after the marker is one line that installs and tests, which .ci/run takes from here."""
    found = re.findall(r"<!-- test command -->\n```bash\n(.*?)\n```", README)

    assert found == ['pip install -c constraints.txt -e ".[test]" && python -m pytest -n 2 --dist loadfile']
    assert "<!-- test command -->" in (ROOT / ".ci/run").read_text()


def test_readmes_links_lead_somewhere() -> None:
    """Every file that the README links or names in backquotes with a folder is there."""
    linked = re.findall(r"\]\(((?!http)[^)#]+)", README)
    named = re.findall(r"`((?:docs|examples|benchmarks|tests)/[\w./-]+|[A-Z]+\.md)`", README)

    assert linked
    assert [path for path in (*linked, *named) if not (ROOT / path).exists()] == []


def test_constraints_pin_every_dependency() -> None:
    """Each dependency of pyproject.toml has a pinned version in constraints.txt."""
    import tomllib

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    names = {re.split(r"[^A-Za-z0-9_.-]", one)[0].lower() for one in wanted} - {project["name"]}
    pinned = {
        line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line
    }

    assert names - pinned == set()
