"""Prose rules that a program can check: docstrings, comments and messages."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FOLDERS = ("nas", "flows", "benchmarks", "examples")
SOURCES = sorted(path for folder in FOLDERS for path in (ROOT / folder).rglob("*.py"))
TESTS = sorted((ROOT / "tests").rglob("*.py"))

COMMANDS = ("compare", "doctor", "export", "final", "gc", "init", "nni", "report", "search", "ui", "verify")
MAX_FIRST_LINE_WORDS = 16
MAX_SENTENCE_WORDS = 22
VERB = re.compile(r"[A-Z][a-z-]*s[,:.]?")
"""The first word of a function's docstring: Returns, Yields, Writes, Is, Has."""
FIRST_WORDS = frozenset(("what", "who", "whose", "whom", "where", "when", "how"))
NOT_USED = re.compile(
    r"\b(?:whom|unawares|alas|lest|hither|thither|henceforth|for want of|in vain|all the same|come what may|as it were"
    r"|lament\w*|foret\w+|crown\w*|witness\w*|guilty|mailbox\w*|roster\w*|tenant\w*|(?<!NAS-)bench|litter)\b",
    re.IGNORECASE,
)
STEMS = (
    "optimis initialis normalis regularis serialis recognis organis summaris quantis minimis maximis generalis penalis "
    "parametris synchronis utilis visualis standardis specialis randomis equalis"
)
BRITISH = re.compile(
    rf"\b\w*(?:{'|'.join(STEMS.split())})(?!m\b|t)\w*|\bfinalis(?:e|ed|es|ing)\b"
    r"|\b(?:behaviour|neighbour|colour|honour|favour|centre|labell(?=ed|ing)|modell(?=ed|ing)|analys(?=e\b|ed|ing))\w*",
    re.IGNORECASE,
)

Nodes = list[ast.AST]
"""All nodes of a source, walked once: that takes longer than to parse it."""


def statements(tree: ast.AST) -> Iterator[ast.stmt]:
    """Yields the statements of a source at any depth, without their expressions, which are most of its nodes."""
    for name in ("body", "orelse", "finalbody", "handlers", "cases"):
        inner = getattr(tree, name, None)
        for child in inner if isinstance(inner, list) else ():
            if isinstance(child, ast.stmt):
                yield child
            yield from statements(child)


def docstrings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and text of each docstring: of modules, classes, functions and attributes."""
    for statement in statements(tree):
        match statement:
            case ast.Expr(value=ast.Constant(value=str(text))):
                yield statement.lineno, text


def functions(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yields line and docstring of each function that is no property."""
    for node in statements(tree):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_property = any("property" in ast.unparse(decorator) for decorator in node.decorator_list)
        if not is_property and (text := ast.get_docstring(node)):
            yield node.lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yields line and text of each comment."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def messages(nodes: Nodes) -> Iterator[tuple[int, str]]:
    """Yields line and text of each string with a space in it."""
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value.strip():
            yield node.lineno, node.value


def old_errors(nodes: Nodes) -> Iterator[int]:
    """Yields the line of each message with ``name (value) must be`` instead of ``name=value: must be``."""
    for node in nodes:
        if not isinstance(node, ast.JoinedStr):
            continue
        for before, value, after in zip(node.values, node.values[1:], node.values[2:], strict=False):
            match before, value, after:
                case ast.Constant(value=str(name)), ast.FormattedValue(), ast.Constant(value=str(rule)):
                    if re.search(r"(?:^|[\w.\]]) \($", name) and rule.startswith(") must be"):
                        yield node.lineno


def fixed_commands(tree: ast.AST, nodes: Nodes) -> Iterator[int]:
    """Yields the line of each message that spells ``python -m flows.report``, though `heirloom report` may be used."""
    quoted = {line for line, _ in docstrings(tree)}
    for line, text in messages(nodes):
        if re.search(rf"\bflows\.(?:{'|'.join(COMMANDS)})\b", text) and line not in quoted:
            yield line


def sentences(text: str) -> Iterator[str]:
    """Yields the sentences of a docstring, without code blocks; code in backquotes counts as one word."""
    text = re.sub(r"::?\n\n(?:[ ]{8,}.*\n|\n)+", ".\n\n", text)
    for paragraph in re.split(r"\n\s*\n", text):
        if re.search(r"^\s*(?:>>>|\.\. |\$ |\|)", paragraph, re.MULTILINE):
            continue
        for entry in re.split(r"\n\s*(?=(?:\* |- |\w+: [A-Z`]|\w+Error: ))", paragraph):
            plain = re.sub(r"``[^`]+``|`[^`]+`|\S+/\S+", "CODE", " ".join(entry.split()))
            yield from (part for part in re.split(r"(?<=[.!?])\s+(?=[A-Z(`])|;\s", plain) if part)


def long_sentences(tree: ast.AST, most: int) -> list[str]:
    """Returns a finding for each sentence of a docstring with more than ``most`` words."""
    found = ((line, sentence) for line, text in docstrings(tree) for sentence in sentences(text))
    return [
        f"{line}: {len(sentence.split())} words in a sentence: {sentence[:60]}"
        for line, sentence in found
        if len(sentence.split()) > most
    ]


def findings_of_source(path: Path) -> Iterator[str]:
    """Yields what the rules find in a source."""
    source = path.read_text()
    tree = ast.parse(source)
    nodes = list(ast.walk(tree))
    for line, text in docstrings(tree):
        first = text.split()[0].strip("`")
        if first.lower() in FIRST_WORDS:
            yield f"{line}: begins with {first!r}: name the thing, or begin with a verb"
        if len(text.strip().splitlines()[0].split()) > MAX_FIRST_LINE_WORDS:
            yield f"{line}: the first line has more than {MAX_FIRST_LINE_WORDS} words"
    for line, text in functions(tree):
        if not VERB.fullmatch(text.split()[0]):
            yield f"{line}: begins with {text.split()[0]!r}: begin with a verb, as in Returns"
    yield from long_sentences(tree, MAX_SENTENCE_WORDS)
    yield from (f"{line}: write `name={{value}}: must be`" for line in old_errors(nodes))
    if not path.is_relative_to(ROOT / "benchmarks"):  # they run the commands
        repeated = "repeat how the program was called, or write: the command `NAME`"
        yield from (f"{line}: {repeated}" for line in fixed_commands(tree, nodes))
    for line, text in [*comments(source), *messages(nodes)]:
        yield from (f"{line}: {word[0]!r} is not used here" for word in NOT_USED.finditer(text))
        yield from (f"{line}: {word[0]!r} is not American spelling" for word in BRITISH.finditer(text))


def findings_of_test(path: Path) -> Iterator[str]:
    """Yields what the rules find in a test or a helper of tests."""
    tree = ast.parse(path.read_text())
    yield from long_sentences(tree, 2 * MAX_SENTENCE_WORDS)
    for line, text in docstrings(tree):
        yield from (f"{line}: {word[0]!r} is not American spelling" for word in BRITISH.finditer(text))


@pytest.mark.parametrize("folder", FOLDERS)
def test_sources(folder: str) -> None:
    """Docstrings, comments and messages of sources keep the rules."""
    paths = [path for path in SOURCES if path.is_relative_to(ROOT / folder)]
    found = [f"{path.relative_to(ROOT)}:{finding}" for path in paths for finding in findings_of_source(path)]

    assert found == []


def test_tests() -> None:
    """Docstrings of tests have sentences of bounded length, in American English."""
    found = [f"{path.relative_to(ROOT)}:{finding}" for path in TESTS for finding in findings_of_test(path)]

    assert found == []


@pytest.mark.parametrize(
    ("text", "finding"),
    [
        ('"""What a module does."""', "begins with 'What'"),
        (f'"""{"A word " * 9}."""', "the first line has more than 16 words"),
        ('def f():\n    """The value."""', "begin with a verb"),
        (f'"""Module.\n\n{"A word " * 12}\n"""', "24 words in a sentence"),
        ("x = 1  # for want of a nail", "'for want of' is not used"),
        ('raise ValueError("the optimiser failed")', "'optimiser' is not American"),
        ('raise ValueError(f"size ({size}) must be 1")', "write `name={value}: must be`"),
        ('raise ValueError(f"{name} ({size}) must be 1")', "write `name={value}: must be`"),
        ('print(f"{n} left: run flows.gc")', "repeat how the program was called"),
    ],
)
def test_findings(tmp_path: Path, text: str, finding: str) -> None:
    """Each rule finds a sentence that breaks it."""
    path = tmp_path / "source.py"
    path.write_text(f"{text}\n")

    assert any(finding in line for line in findings_of_source(path))
