"""Tables of options in ``docs/reference/options.md``, made from ``conf/``.

    $ python -m tests.support.options_page

rewrites them.
"""

from __future__ import annotations

import re
from pathlib import Path

from flows.cli.options import Option, options_of
from flows.cli.settings.search import IDENTITY_KEYS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"
BLOCK = re.compile(r"(<!-- options: (\S+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""A table, and the file of ``conf/`` whose options it shows."""
COMMENT = re.compile(r"(?P<meaning>.*?)(?:; default: (?P<words>.*?))?(?: \(docs/(?P<guide>[\w/]+\.md)\))?")
CODE = re.compile(r"[^\s,;()]*(?:[=_<]|:(?=\w)|://|\[)[^\s;()]*?(?=[,.:]?(?:[\s;()]|$))")
"""Keys, values and placeholders in a comment."""
WITH_DETERMINISTIC = ("slots", "threads")
"""Options that belong to the identity of a deterministic search only."""


def row(option: Option, config: str) -> str:
    """Returns the row of an option."""
    found = COMMENT.fullmatch(option.meaning)
    assert found is not None
    default = "none" if option.default == "null" else f"`{option.default}`"
    if found["words"]:
        default = marked(found["words"])
    guide = f" ([guide](../{found['guide']}))" if found["guide"] else ""
    cells = [f"`{option.key}`", option.type, default, marked(found["meaning"]) + guide]
    return f"| {' | '.join([*cells, *([identity(option)] if config == 'search' else [])])} |"


def identity(option: Option) -> str:
    """Returns whether an option belongs to the identity of a search."""
    if option.key in WITH_DETERMINISTIC:
        return "with `deterministic`"
    return "yes" if option.key.partition(".")[0] in IDENTITY_KEYS else "no"


def marked(text: str) -> str:
    """Returns a comment with keys and values in backquotes."""
    return CODE.sub(lambda found: f"`{found[0]}`", text)


def table(config: str) -> str:
    """Returns the table of one file; that of another command leaves out what is as in ``flows.search``."""
    known = () if config == "search" else tuple(options_of("search"))
    heads = ["option", "type", "default", "meaning", *(["identity"] if config == "search" else [])]
    rows = [row(option, config) for option in options_of(config) if option not in known]
    return "\n".join([f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|", *rows, ""])


def with_tables(page: str) -> str:
    """Returns the page with its tables made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{table(found[2])}\n", page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
