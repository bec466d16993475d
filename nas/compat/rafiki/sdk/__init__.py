"""The modules ``rafiki`` and ``singa_auto``; only code of model templates has this folder in its path."""
