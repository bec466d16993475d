"""YAML with the scalars of version 1.2, as NNI 1.x read its configuration (by ruamel.yaml)."""

from __future__ import annotations

import re
from typing import Any

import yaml

_BOOL, _INT, _FLOAT, _MERGE = (f"tag:yaml.org,2002:{name}" for name in ("bool", "int", "float", "merge"))
_RULES = (
    (_BOOL, "tTfF", r"true|True|TRUE|false|False|FALSE"),
    (_INT, "-+0123456789", r"[-+]?(?:0b[01_]+|0o[0-7_]+|0x[0-9a-fA-F_]+|[0-9][0-9_]*)"),
    (
        _FLOAT,
        "-+.0123456789",
        r"[-+]?(?:[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[0-9][0-9_]*[eE][-+]?[0-9]+|\.[0-9][0-9_]*(?:[eE][-+]?[0-9]+)?"
        r"|\.(?:inf|Inf|INF))|\.(?:nan|NaN|NAN)",
    ),
)
_BASES = {"0b": 2, "0o": 8, "0x": 16}


class _Loader(yaml.SafeLoader):  # type: ignore[misc]  # PyYAML has no types
    """Reads ``on``, ``no`` and ``1:30`` as strings, ``1e-3`` as a float, and ``010`` as ten.

    A key that is twice in a mapping is an error, as in ruamel.yaml.
    """

    def compose_mapping_node(self, anchor: str | None) -> yaml.MappingNode:
        node = super().compose_mapping_node(anchor)
        names: set[tuple[str, str]] = set()
        for key, _ in node.value:
            name = key.tag, str(key.value)
            if name in names and key.tag != _MERGE:
                line = key.start_mark.line + 1
                raise yaml.YAMLError(f"{key.value} is there twice, the second time in line {line}. Remove one")
            names.add(name)
        return node


def read_yaml(text: str) -> Any:
    """Returns the content of a YAML document.

    Raises:
        yaml.YAMLError: the text is not YAML, or a mapping has a key twice.
    """
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


def _int(loader: _Loader, node: yaml.ScalarNode) -> int:
    text = node.value.replace("_", "")
    digits = text.lstrip("+-")
    value = int(digits, _BASES.get(digits[:2], 10))
    return -value if text.startswith("-") else value


_Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in found if tag not in (_BOOL, _INT, _FLOAT)]
    for first, found in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
for _tag, _firsts, _pattern in _RULES:
    _Loader.add_implicit_resolver(_tag, re.compile(rf"(?:{_pattern})$"), list(_firsts))
_Loader.add_constructor(_INT, _int)
