"""The module ``nni``. Only processes of an NNI experiment have this folder in their path."""

from pathlib import Path

SDK = Path(__file__).parent
"""The folder to add to ``PYTHONPATH``."""
