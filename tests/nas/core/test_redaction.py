"""Texts that are shown: no passwords, nothing that a terminal obeys."""

from __future__ import annotations

import unicodedata

import pytest

from nas.core.redaction import clean, escaped_json, one_line

OBEYED = [
    *(chr(code) for code in range(0x20) if chr(code) not in "\t\n\r"),
    *map(chr, range(0x7F, 0xA0)),
    *(chr(code) for code in range(0xD800) if unicodedata.bidirectional(chr(code)) in {"LRE", "RLE", "PDF", "LRO"}),
    *"\u061c\u200e\u200f\u2028\u2029\u202e\u2066\u2067\u2068\u2069\ufff9\ufffe\ud800\udfff",
]


@pytest.mark.parametrize("obeyed", OBEYED, ids=lambda character: f"{ord(character):04x}")
def test_obeyed_characters_are_replaced(obeyed: str) -> None:
    """Control characters, bidirectional controls and surrogates do not remain; in JSON they are escapes."""
    assert clean(f"a{obeyed}b") == "a\ufffdb"
    assert escaped_json(f'"{obeyed}"') == f'"\\u{ord(obeyed):04x}"'


def test_lines_and_letters_stay() -> None:
    """Tabs, newlines and letters of any script stay; carriage returns of progress bars end lines."""
    text = "größe\t大 \u0645 \N{GRINNING FACE}\n"

    assert clean(text) == text
    assert clean("1/2\r2/2\r\ndone") == "1/2\n2/2\ndone"
    assert one_line("first\nnext: rm\n") == "first next: rm"
