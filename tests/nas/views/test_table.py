"""The lineage as a table: columns, order and types, and its csv and json."""

from __future__ import annotations

import csv
import io
import json
import math
from dataclasses import replace

import pandas as pd
import pytest

from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.redaction import clean
from nas.core.trial import Reason, State
from nas.views.table import lineage_table, to_csv, to_json, to_table
from tests.support.sample_searches import evolved, trial

FIRST = [
    *("trial", "parent", "donor", "generation", "job", "stage", "state", "reason", "policies", "attempt"),
    *("started", "finished", "duration_s", "inherited"),
]


def strict(text: str) -> list[dict[str, object]]:
    """Parses JSON without NaN, Infinity or repeated keys."""

    def once(pairs: list[tuple[str, object]]) -> dict[str, object]:
        assert len({name for name, _ in pairs}) == len(pairs)
        return dict(pairs)

    def never(constant: str) -> None:
        raise AssertionError(constant)

    parsed: list[dict[str, object]] = json.loads(text, parse_constant=never, object_pairs_hook=once)
    return parsed


def test_columns() -> None:
    """The columns are the contract's, in order, with test scores after validation scores."""
    one = trial(
        0, score=0.5, point={"b": 1, "a": {"deep": {"er": 2}, "wide": 3}}, metrics={"accuracy": 0.5, "loss": 1.0}
    )
    table = lineage_table(Lineage.of([one]), {0: {"trial": 0, "metrics": {"accuracy": 0.4}}})

    metrics = ["metric.accuracy", "metric.loss", "test.accuracy"]
    assert list(table.columns) == [
        *FIRST,
        *metrics,
        *("point.b", "point.a.deep.er", "point.a.wide", "checkpoint_bytes", "weights_deleted", "error"),
    ]


def test_no_trials() -> None:
    """A lineage without trials has the known columns with their types, and no rows."""
    table = lineage_table(Lineage.of([]), metrics=[Metric("accuracy")])

    assert list(table.columns) == [*FIRST, "metric.accuracy", "checkpoint_bytes", "weights_deleted", "error"]
    assert (len(table), table["parent"].dtype, table["stage"].dtype) == (0, "Int64", "string")
    assert strict(to_json(table)) == []


def test_a_second_parent_has_a_column() -> None:
    """The column exists only if a trial has two parents, as a whole number."""
    trials = [trial(0), trial(1), trial(2, parents=(1, 0)), trial(3, parents=(2,))]
    table = lineage_table(Lineage.of(trials))

    assert table["second_parent"].dtype == "Int64"
    assert [None if pd.isna(n) else n for n in table["second_parent"]] == [None, None, 0, None]
    assert "second_parent" not in lineage_table(Lineage.of(trials[:2]))


def test_rows_in_order_of_number() -> None:
    """Each trial has one row, in order of number, unfinished ones included."""
    trials = evolved(20)
    table = lineage_table(Lineage.of([*reversed(trials), trial(20, parents=(3,))]))

    assert table["trial"].tolist() == list(range(21))
    assert table["state"].iloc[-1] == "WAITING"
    assert table["metric.accuracy"].isna().iloc[-1]


def test_types_are_nullable() -> None:
    """Columns with gaps keep integers and bools."""
    trials = [trial(0, score=0.5, point={"n": 3, "flag": True}), trial(1, parents=(0,), score=1, point={"name": "x"})]
    table = lineage_table(Lineage.of(trials))

    types = {name: str(dtype) for name, dtype in table.dtypes.items()}
    assert types["parent"] == types["point.n"] == types["checkpoint_bytes"] == "Int64"
    assert types["started"] == types["metric.accuracy"] == "Float64"
    assert (types["point.flag"], types["point.name"], types["state"]) == ("boolean", "string", "string")
    assert to_csv(table[["parent", "point.n", "point.flag"]]) == "parent,point.n,point.flag\n,3,True\n0,,\n"
    assert '"parent": 0' in to_json(table)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_not_finite_is_unknown(value: float) -> None:
    """NaN and infinities are empty in csv and null in json."""
    table = lineage_table(Lineage.of([trial(0, score=value, inherited=value)]))

    assert table["metric.accuracy"].isna().all()
    (row,) = strict(to_json(table))
    assert (row["metric.accuracy"], row["inherited"]) == (None, None)
    assert pd.read_csv(io.StringIO(to_csv(table)))["metric.accuracy"].isna().all()


def test_donor() -> None:
    """The donor is the trial that gave weights, by number or name, not the proposed one."""
    trials = [
        trial(0, score=0.5),
        trial(1, parents=(0,), donors=(0,), score=0.6, donor=None),
        trial(2, parents=(1,), score=0.6, donor=0, inherited=0.25),
    ]
    numbers = lineage_table(Lineage.of(trials))
    names = lineage_table(Lineage.of([*trials, trial(3, score=0.6, donors=("far:42",), donor="far:42")]))

    assert str(numbers["donor"].dtype) == "Int64"
    assert numbers["parent"].tolist()[1:] == [0, 1]
    assert [row["donor"] for row in strict(to_json(names))] == [None, None, 0, "far:42"]
    assert to_csv(names[["trial", "donor"]]) == "trial,donor\n0,\n1,\n2,0\n3,far:42\n"


def test_policies_are_joined() -> None:
    """Policies are in one cell, in alphabetical order, joined by '+'."""
    table = lineage_table(Lineage.of([trial(0, policies=frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP}))]))

    assert table["policies"].tolist() == ["EARLY_STOP+SHARE_PARAMS"]


def test_error_is_the_last_line() -> None:
    """The error is a traceback's last line, or that a finalist's test failed."""
    failed = replace(trial(0), state=State.FAILED, reason=Reason.EXCEPTION, error="Traceback:\n  x\nValueError: no\n\n")
    table = lineage_table(Lineage.of([failed, trial(1, score=0.5)]), {1: {"trial": 1, "error": "no test data"}})

    assert table["error"].tolist() == ["ValueError: no", "test: no test data"]
    assert table["reason"].iloc[0] == "exception"


def test_csv_round_trip() -> None:
    """pandas reads the csv as the table's values, to the last bit."""
    table = lineage_table(Lineage.of(evolved(40)))
    back = pd.read_csv(io.StringIO(to_csv(table)), dtype=str)

    assert list(back.columns) == list(table.columns)
    for name in ("trial", "parent", "generation", "inherited", "metric.accuracy", "point.rate", "started"):
        read = [None if pd.isna(text) else float(text) for text in back[name]]
        assert read == [None if value is pd.NA else value for value in table[name]]
    assert json.loads(back["point.cell.ops"][0]) == ["conv", "skip"]


def test_csv_has_no_formulas() -> None:
    """Texts that a spreadsheet would compute get a ``'``; numbers, and texts that are numbers, stay as they are."""
    texts = ["=1+1", "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "\uff1d1", "-nan", "plain", "-1.5e-3", "\x1b[2J\u202e"]
    trials = [trial(n, score=-0.5, point={"word": text, "list": ["=1"]}) for n, text in enumerate(texts)]
    rows = list(csv.DictReader(io.StringIO(to_csv(lineage_table(Lineage.of(trials))))))

    assert [row["point.word"] for row in rows] == [
        *("'=1+1", "'+1+1", "'-1+1", "'@SUM(A1)", "'\t=1", "'\n=1", "'\uff1d1", "'-nan", "plain", "-1.5e-3"),
        "\ufffd[2J\ufffd",
    ]
    assert {row["metric.accuracy"] for row in rows} == {"-0.5"}
    assert to_csv(to_table({"=name": [1]})) == "'=name\n1\n"


def test_json_escapes_what_a_terminal_obeys() -> None:
    """The json is printable as it stands, and its values are the records'."""
    odd = "\x1b]0;t\x07\x9b2J\u202e\u2066\u2028"
    text = to_json(lineage_table(Lineage.of([trial(0, point={odd: odd})])))

    assert clean(text) == text
    assert strict(text)[0][f"point.{odd}"] == odd


def test_json_rows() -> None:
    """The json is an array of objects with all columns as keys; lists stay lists."""
    table = lineage_table(Lineage.of(evolved(40)))
    rows = strict(to_json(table))

    assert {tuple(row) for row in rows} == {tuple(table.columns)}
    assert rows[0]["point.cell.ops"] == ["conv", "skip"]
    assert rows[0]["checkpoint_bytes"] == 202_000
    assert isinstance(rows[0]["trial"], int)


def test_numbers_beyond_64_bits() -> None:
    """Integers beyond 64 bits, and a mixed column of words and numbers, are unchanged."""
    table = lineage_table(Lineage.of([trial(0, point={"seed": 2**70, "x": 1}), trial(1, point={"x": "one"})]))

    rows = strict(to_json(table))
    assert (rows[0]["point.seed"], rows[0]["point.x"], rows[1]["point.x"]) == (2**70, 1, "one")


def test_halves_of_characters_are_escaped() -> None:
    """Surrogates from undecodable file names are escaped."""
    odd = trial(0, point={"data": "a\udcff", "files": ["é", "\udcfe"]}, metrics={"m\ud800": 0.5})
    failed = replace(trial(1), state=State.FAILED, reason=Reason.EXCEPTION, error="OSError: no file a\udcff")
    table = lineage_table(Lineage.of([odd, failed]))

    assert table["error"].tolist() == [pd.NA, r"OSError: no file a\udcff"]
    assert table["point.data"].iloc[0] == r"a\udcff"
    assert table["point.files"].iloc[0] == ["é", r"\udcfe"]
    assert table[r"metric.m\ud800"].iloc[0] == 0.5
    for text in (to_csv(table), to_json(table)):
        assert "é" in text.encode().decode()
