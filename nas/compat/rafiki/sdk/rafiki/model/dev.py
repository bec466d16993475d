"""Tests of a template by its own file."""

from nas.compat.rafiki.dev import test_model_class, tune_model

__all__ = ["test_model_class", "tune_model"]
