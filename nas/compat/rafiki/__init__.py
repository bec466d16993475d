"""Runs model templates of Rafiki and SINGA-Auto unchanged (docs/reference/rafiki.md)."""
