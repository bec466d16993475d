"""Tables of options in ``docs/reference/options.md``, made from the defaults and comments of ``conf/``.

    $ python -m tests.support.options_page

rewrites them. A line of yaml reads ``key: value # meaning; default: words (docs/guides/page.md)``. The words say what
``null`` stands for; they and the guide may be left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from flows.cli.overrides import page_of
from flows.cli.settings.search import IDENTITY_KEYS

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "options.md"
BLOCK = re.compile(r"(<!-- options: (\S+) -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""A table, and the file of ``conf/`` whose options it shows."""
LINE = re.compile(r"( *)(\w+):(?: (.+?))?(?: +# (.*))?")
COMMENT = re.compile(r"(?P<meaning>.*?)(?:; default: (?P<words>.*?))?(?: \(docs/(?P<guide>[\w/]+\.md)\))?")
CODE = re.compile(r"[^\s,;()]*(?:[=_<]|:(?=\w)|://|\[)[^\s;()]*?(?=[,.:]?(?:[\s;()]|$))")
"""Keys, values and placeholders in a comment."""
WITH_DETERMINISTIC = ("slots", "threads")
"""Options that belong to the identity of a deterministic search only."""


@dataclass(frozen=True, slots=True)
class Option:
    """An option with the default and the comment of its line."""

    key: str
    default: str
    comment: str

    def row(self, config: str) -> str:
        """Returns its row of the table."""
        found = COMMENT.fullmatch(self.comment)
        assert found is not None
        default = "none" if self.default == "null" else f"`{self.default}`"
        if found["words"]:
            default = marked(found["words"])
        meaning = marked(found["meaning"])
        if found["guide"]:
            meaning += f" ([guide](../{found['guide']}))"
        cells = [f"`{self.key}`", default, meaning]
        return f"| {' | '.join([*cells, *([self.identity] if config == 'search' else [])])} |"

    @property
    def identity(self) -> str:
        """Whether the option belongs to the identity of a search."""
        if self.key in WITH_DETERMINISTIC:
            return "with `deterministic`"
        return "yes" if self.key.partition(".")[0] in IDENTITY_KEYS else "no"


def marked(text: str) -> str:
    """Returns a comment with keys and values in backquotes."""
    return CODE.sub(lambda found: f"`{found[0]}`", text)


def options_of(config: str) -> Iterator[Option]:
    """Yields the options of a file of ``conf/``, those inside others too."""
    above, parent = [config.rpartition("/")[0]] if "/" in config else [], ""
    for line in page_of(config).splitlines():
        found = LINE.fullmatch(line)
        if found is None or found[2] in ("defaults", "kind"):
            continue
        if found[3] is None:
            parent = found[2]
        else:
            key = ".".join([*above, *([parent] if found[1] else []), found[2]])
            yield Option(key, found[3], found[4] or "")


def table(config: str) -> str:
    """Returns the table of one file; that of another command leaves out what is as in ``flows.search``."""
    known = () if config == "search" else tuple(options_of("search"))
    heads = ["option", "default", "meaning", *(["identity"] if config == "search" else [])]
    rows = [option.row(config) for option in options_of(config) if option not in known]
    return "\n".join([f"| {' | '.join(heads)} |", "| --- " * len(heads) + "|", *rows, ""])


def with_tables(page: str) -> str:
    """Returns the page with its tables made anew."""
    return BLOCK.sub(lambda found: f"{found[1]}\n{table(found[2])}\n", page)


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text()))
