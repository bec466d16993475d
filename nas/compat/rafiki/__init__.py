"""Model templates of Rafiki and SINGA-Auto, run as they are (docs/coming_from_rafiki.md)."""
