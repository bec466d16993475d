"""The modules that model templates import: ``model``, ``model.dev`` and ``constants``."""
