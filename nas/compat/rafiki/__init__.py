"""Model templates of Rafiki and SINGA-Auto, run as they are (docs/reference/rafiki.md)."""
