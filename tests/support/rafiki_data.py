"""Small data sets in Rafiki's formats."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

TEMPLATES = Path(__file__).parents[2] / "examples" / "05_rafiki_template"


def table_files(folder: Path) -> dict[str, str]:
    """Runs ``examples/05_rafiki_template/make_data.py`` and returns its files as arguments of the problem."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        runpy.run_path(str(TEMPLATES / "make_data.py"))
    return {f"{name}_data": str(folder / f"{name}.csv") for name in ("train", "val", "test")}
