"""What a release needs agrees with the project: version, citation, workflow and the sdist's files."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def loaded(name: str) -> Any:
    """Returns the content of a yaml file of the repository."""
    return yaml.safe_load((ROOT / name).read_text())


def test_the_citation_is_the_projects() -> None:
    """Version and license of CITATION.cff are those of pyproject.toml, and it has the fields that the format needs."""
    citation = loaded("CITATION.cff")

    assert (str(citation["version"]), citation["license"]) == (PROJECT["version"], PROJECT["license"])
    assert {"cff-version", "message", "title", "authors"} <= citation.keys()
    assert citation["repository-code"] == PROJECT["urls"]["Documentation"]


def test_the_workflow_runs_the_scripts_of_ci() -> None:
    """Each script of .ci is a job of the workflow, in a Debian image of the lowest Python, and can be executed."""
    [job] = loaded(".github/workflows/ci.yml")["jobs"].values()
    scripts = sorted(job["strategy"]["matrix"]["script"])

    assert scripts == sorted(path.name for path in (ROOT / ".ci").iterdir())
    assert job["steps"][-1] == {"run": ".ci/${{ matrix.script }}"}
    assert job["container"]["image"].startswith(f"python:{PROJECT['requires-python'].removeprefix('>=')}-")
    assert all(path.stat().st_mode & 0o111 for path in (ROOT / ".ci").iterdir())


def test_issue_templates_are_forms() -> None:
    """Each template has a name, a description, and fields with labels."""
    forms = [loaded(f".github/ISSUE_TEMPLATE/{name}.yml") for name in ("bug", "feature")]

    for form in forms:
        assert form["name"]
        assert form["description"]
        assert all(field["attributes"]["label"] for field in form["body"])
        ids = [field["id"] for field in form["body"]]
        assert len(set(ids)) == len(ids)


def test_the_sdist_lists_files_that_exist() -> None:
    """Each file that MANIFEST.in includes exists."""
    lines = [line.split() for line in (ROOT / "MANIFEST.in").read_text().splitlines()]
    named = [name for words in lines if words and words[0] == "include" for name in words[1:]]

    assert named
    assert [name for name in named if not (ROOT / name).is_file()] == []
