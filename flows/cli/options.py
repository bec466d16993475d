"""Options of the commands with type, default and meaning, read from the lines of ``conf/``.

A line reads ``key: value # type: meaning; default: words (docs/guides/page.md)``. The words say what ``null`` stands
for. The words and the guide may be left out, and the type if the default has it. A line behind ``# `` is an option
that the file leaves to its class. Only options that are set belong to the identity of a search.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import yaml

CONF = Path(__file__).resolve().parents[2] / "conf"
"""Folder of the yaml files that come with Heirloom."""
PAGES_OF_GROUPS = {"storage": ("storage/local",), "runner": ("runner/dask", "runner/ray", "runner/simulated")}
"""Pages with options of a session that a group adds; all storages have those of ``local``."""
_TYPE = re.compile(r"((?:str|int|float|bool|list|dict)(?: or (?:str|int|float|bool|list|dict))*): (.*)")
_LINE = re.compile(r"( *)(# )?([\w.]+):(?: (.+?))?(?: +# (.*))?")


@dataclass(frozen=True, slots=True)
class Option:
    """An option, the text of its default and its comment."""

    key: str
    default: str
    comment: str
    is_set: bool = True
    """Whether the file sets it, not only its class."""

    @property
    def type(self) -> str:
        """The types of Python that the value may have, joined by ``or``."""
        found = _TYPE.fullmatch(self.comment)
        return found[1] if found else type(yaml.safe_load(self.default)).__name__

    @property
    def meaning(self) -> str:
        """The comment without the type."""
        found = _TYPE.fullmatch(self.comment)
        return found[2] if found else self.comment

    def __str__(self) -> str:
        return f"{self.key}: {self.default} # {self.comment}"


def page_of(config: str) -> str:
    """Returns the text of ``conf/<config>.yaml``."""
    return (CONF / f"{config}.yaml").read_text(encoding="utf-8")


def options_of(config: str) -> Iterator[Option]:
    """Yields the options of ``conf/<config>.yaml``, those inside others too."""
    group = config.rpartition("/")[0].replace("/", ".")
    parent = ""
    for line in page_of(config).splitlines():
        found = _LINE.fullmatch(line)
        if found is None or found[3] in ("defaults", "kind", "_target_") or (found[2] and not found[5]):
            continue
        if found[4] is None:
            parent = found[3]
        else:
            path = (group, parent if found[1] else "", found[3])
            yield Option(".".join(filter(None, path)), found[4], found[5] or "", is_set=not found[2])


def keys_of(config: str) -> dict[str, list[str]]:
    """Returns each key of a command, with the keys inside it."""
    keys: dict[str, list[str]] = {}
    for option in options_of(config):
        key, _, inner = option.key.partition(".")
        keys.setdefault(key, []).extend([inner] if inner else [])
    return keys
