"""Runs experiments of NNI v0.5 to v1.9 unchanged (docs/reference/nni.md)."""
