"""SINGA-Auto's name of the same modules."""

from pathlib import Path

__path__ = [str(Path(__file__).parent.with_name("rafiki"))]
