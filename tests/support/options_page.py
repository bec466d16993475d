"""Tables of options in ``docs/reference/``, made from ``conf/``.

    $ python -m tests.support.options_page

rewrites them.
"""

from __future__ import annotations

import re
from itertools import takewhile
from pathlib import Path

from flows.cli.options import Option, options_of, page_of
from flows.cli.settings.search import IDENTITY_KEYS

PAGE, CHOICES = (Path(__file__).parents[2] / "docs" / "reference" / name for name in ("options.md", "choices.md"))
"""The options of the commands, and those of the choices of some groups."""
GROUPS = ("tuner", "problem", "stopper", "runner/cluster")
"""The groups of ``CHOICES``."""
BLOCK = re.compile(r"(<!-- options: (\S+(?: \S+)*) -->\n).*?(?=<!-- end -->)", re.DOTALL)
"""A table, and the files of ``conf/`` whose options it shows."""
COMMENT = re.compile(r"(?P<meaning>.*?)(?:; default: (?P<words>.*?))?(?: \(docs/(?P<guide>[\w/]+\.md(?:#[\w-]+)?)\))?")
CODE = re.compile(
    r"pip install [^\s)]+|\{.*?\}|\[.*?\]|[^\s,;()]*?(?:[=_<]|:(?=\w)|://|\[)[^\s;()]*?(?=[,.:]?(?:[\s;()]|$))"
)
"""Keys, values and placeholders in a comment."""
COMMAND = re.compile(r"(python -m flows\.search (?:'[^']*'|[^':]|:(?! ))+): (.*)")
"""The comment at the start of a choice: the command that selects it, and its description."""
WITH_DETERMINISTIC = ("slots", "threads")
"""Options that belong to the identity of a deterministic search only."""


def row(option: Option, config: str, owners: str = "") -> str:
    """Returns the row of an option, which may belong to some of a table's choices only."""
    found = COMMENT.fullmatch(option.meaning)
    assert found is not None
    default = "none" if option.default == "null" else f"`{option.default}`"
    if found["words"]:
        default = marked(found["words"])
    guide = f" ([guide](../{found['guide']}))" if found["guide"] else ""
    cells = [f"`{option.key}`", option.type, default, owners + marked(found["meaning"]) + guide]
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


def of_choices(configs: list[str]) -> str:
    """Returns the commands that select some choices of a group, and one table of their options."""
    owners: dict[Option, list[str]] = {}
    for config in configs:
        for option in options_of(config):
            owners.setdefault(option, []).append(f"`{config.rpartition('/')[2]}`")
    only = {option: f"{', '.join(names)}: " if len(names) < len(configs) else "" for option, names in owners.items()}
    rows = [row(option, configs[0], of) for option, of in only.items()]
    heads = ["| option | type | default | meaning |", "| --- | --- | --- | --- |"] if rows else []
    commands = [f"{'* ' if configs[1:] else ''}{described(config)}" for config in configs]
    return "\n".join([*commands, "", *heads, *rows]).strip() + "\n"


def described(config: str) -> str:
    """Returns the command that selects a choice, and its description."""
    lines = takewhile(lambda line: line.startswith("# "), page_of(config).splitlines())
    found = COMMAND.fullmatch(" ".join(line.removeprefix("# ") for line in lines))
    assert found is not None, config
    return f"`{found[1]}`: {marked(found[2])}"


def with_tables(page: str) -> str:
    """Returns the page with its tables made anew."""

    def made(found: re.Match[str]) -> str:
        configs = found[2].split()
        is_choice = configs[0].rpartition("/")[0] in GROUPS
        return f"{found[1]}\n{of_choices(configs) if is_choice else table(configs[0])}\n"

    return BLOCK.sub(made, page)


if __name__ == "__main__":
    for path in (PAGE, CHOICES):
        path.write_text(with_tables(path.read_text()))
