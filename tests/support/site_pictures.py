"""Pictures of the documentation site, made by the commands that the tutorial shows.

    $ python -m tests.support.site_pictures

searches in a temporary folder, a minute on two cores, and takes the pictures in Chromium.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.support.commands import ROOT, environment

ASSETS = ROOT / "docs" / "assets"
SEARCH = ("flows.search", "+tuner=evolution")
PAGE = ("flows.report", "name=last", "format=html", "out=page.html")


def run(folder: Path, module: str, *overrides: str) -> None:
    """Runs a command of Heirloom."""
    subprocess.run([sys.executable, "-m", module, *overrides], cwd=folder, env=environment(), check=True)


def take(page: Path, picture: Path, *, width: int = 1280, height: int = 1200) -> None:
    """Takes a picture of a page.

    Raises:
        FileNotFoundError: Chromium is not installed.
    """
    chromium = shutil.which("chromium")
    if chromium is None:
        raise FileNotFoundError("chromium is not on the PATH: apt-get install chromium")
    flags = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={width},{height}")
    subprocess.run([chromium, *flags, f"--screenshot={picture}", page.as_uri()], check=True, capture_output=True)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        run(Path(name), *SEARCH)
        run(Path(name), *PAGE)
        take(Path(name) / "page.html", ASSETS / "lineage-page.png")
