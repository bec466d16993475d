"""Experiments of NNI v0.5 to v1.9, run as they lie in their folder (docs/reference/nni.md)."""
