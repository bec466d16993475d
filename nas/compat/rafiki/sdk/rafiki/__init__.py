"""The modules that Rafiki's model templates import: ``model``, ``model.dev`` and ``constants``."""
