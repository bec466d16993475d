"""Tabular problems: rows are points, columns are scores and costs."""

from __future__ import annotations

import gzip
import random
import sys
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.trial import Proposal, Trial
from nas.problems.tabular import TabularProblem
from nas.storage.open import open_root
from nas.training.trial_run import TrialRun

FRAME = pd.DataFrame(
    {
        "width": [16, 16, 32, 32],
        "op": ["conv", "pool", "conv", "pool"],
        "code": ["01", "00", "11", "10"],
        "acc": [0.5, 0.4, 0.0, 0.9],
        "test": [0.1, 0.2, 0.3, 0.4],
        "time": [10.0, 20.0, 30.0, 40.0],
    }
)
ZIPPED = gzip.compress(b"width,op,acc\n8,conv,0.5\n" * 50)


@pytest.fixture(params=["csv", "csv.gz", "parquet", "file://csv", "memory://csv"])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    kind = request.param
    if kind == "memory://csv":
        FRAME.to_csv(url := f"memory://{tmp_path.name}/t.csv", index=False)
        return url
    path = tmp_path / f"t.{kind.rpartition('/')[2]}"
    if kind == "parquet":
        pytest.importorskip("pyarrow")
        FRAME.to_parquet(path)
    else:
        FRAME.to_csv(path, index=False)
    return f"file://{path}" if kind.startswith("file") else str(path)


def trial(point: dict[str, Any]) -> Trial:
    return Trial(number=0, index=0, proposal=Proposal(point=point))


def make(table: str, **more: Any) -> TabularProblem:
    given = {"parameters": ["width", "op"], "metrics": {"acc": {}}, "tests": {"acc": "test"}} | more
    return TabularProblem(table, **given)


def test_rows_are_points_with_scores_and_costs(table: str) -> None:
    """Each row's point is in the space, with the row's scores, test scores and seconds; zero is a score."""
    problem = make(table, seconds={"column": "time", "factor": 0.5})
    files = open_root("memory://nothing")

    assert problem.space.n_points == 4
    for row in FRAME.to_dict("records"):
        point = {"width": row["width"], "op": row["op"]}
        problem.space.validate(point)
        run = TrialRun(trial(point), files)
        assert problem.train(run) == {"acc": row["acc"]}
        assert problem.test(run) == {"acc": row["test"]}
        simulation = problem.simulate(trial(point))
        assert (simulation.seconds, simulation.metrics) == (row["time"] / 2, {"acc": row["acc"]})


def test_curves_are_reported_on_the_way(tmp_path: Path) -> None:
    """Columns named by step are reported in order at their share of the time, without empty cells."""
    frame = FRAME.assign(**{"acc@10": 0.3, "acc@2": [0.1, None, 0.1, 0.1], "loss_2": 7.0, "acc@x": 9, "acc@0": 9})
    frame.to_csv(tmp_path / "t.csv", index=False)
    metrics = {"acc": {"curve": "acc@*"}, "loss": {"column": "acc", "curve": "loss_*", "direction": "minimize"}}
    problem = make(str(tmp_path / "t.csv"), metrics=metrics, tests={})
    full, gap = ({"width": 16, "op": op} for op in ("conv", "pool"))
    run = TrialRun(trial(full), open_root("memory://nothing"))

    assert problem.train(run) == {"acc": 0.5, "loss": 0.5}
    assert run.curve == [(2, {"acc": 0.1, "loss": 7.0}), (10, {"acc": 0.3})]
    assert problem.simulate(trial(full)).curve == ((0.2, 2, {"acc": 0.1, "loss": 7.0}), (1.0, 10, {"acc": 0.3}))
    assert problem.simulate(trial(gap)).curve == ((0.2, 2, {"loss": 7.0}), (1.0, 10, {"acc": 0.3}))


def test_letters_of_a_column_are_parameters(table: str) -> None:
    """A text column becomes one parameter per letter; leading zeros count."""
    problem = make(table, parameters=[], letters="code", seconds=3)
    assert problem.space.sample(random.Random(0)).keys() == {"code_0", "code_1"}
    for row, code in enumerate(FRAME["code"]):
        found = problem.simulate(trial({"code_0": code[0], "code_1": code[1]}))
        assert (found.seconds, found.metrics) == (3.0, {"acc": FRAME["acc"][row]})


def test_options_of_a_csv_are_texts_as_written(tmp_path: Path) -> None:
    """None, NA and null are options; in columns of numbers they are missing values."""
    (tmp_path / "t.csv").write_text("op,width,acc,ok\nNone,1,0.5,True\nNA,1,#NA,NA\nnull,2,nan,False\n")
    problem = TabularProblem(str(tmp_path / "t.csv"), parameters=["op", "width"], metrics={"acc": {}, "ok": {}})

    assert problem.points == [{"op": "None", "width": 1}, {"op": "NA", "width": 1}, {"op": "null", "width": 2}]
    assert problem.space.n_points == 6
    assert repr(problem.values("acc")) == "[0.5, nan, nan]"
    assert repr(problem.values("ok")) == "[1.0, nan, 0.0]"


@pytest.mark.parametrize("kind", ["csv", "parquet"])
@pytest.mark.parametrize("column", ["width", "op", "code"])
def test_point_without_a_value_is_named(tmp_path: Path, kind: str, column: str) -> None:
    """An empty cell of a parameter is refused with its column and row."""
    frame = FRAME.assign(**{column: [*FRAME[column][:3], None]})
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    write = frame.to_parquet if kind == "parquet" else frame.to_csv
    write(table := str(tmp_path / f"t.{kind}"), index=False)
    letters = {"parameters": [], "letters": "code"} if column == "code" else {}

    with pytest.raises(ConfigurationError, match=rf"column '{column}': must have a value .*t\.{kind}\. Row 4 has none"):
        assert make(table, **letters).space


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"parameters": ["width", "depth"]}, r"column 'depth': must be in .*t\.csv\. It has width, op"),
        ({"parameters": ["width"]}, "must have each point once"),
        ({"parameters": []}, "`parameters`"),
        ({"parameters": "width"}, r"^problem\.parameters=width: must be a list .*Write problem\.parameters=\[width\]"),
        ({"letters": "code"}, "`letters`"),
        ({"metrics": {}}, r"problem\.metrics"),
        ({"metrics": {"acc": {"direction": "up"}}}, "direction"),
        ({"metrics": {"acc": {"directon": "minimize"}}}, r"metrics\.acc\.directon: .*did you mean direction"),
        ({"metrics": {"acc": {"curve": "acc_"}}}, r"metrics\.acc\.curve='acc_': must have one `\*`"),
        ({"metrics": {"acc": {"curve": 5}}}, r"metrics\.acc\.curve=5: must have one `\*`"),
        ({"metrics": {"acc": {"column": "op"}}}, r"metrics\.acc\.column='op': .* Row 1 of column 'op' .* has 'conv'"),
        ({"metrics": {"acc": {"curve": "no_*"}}}, r"acc\.curve='no_\*': must have numbers .* column 'no_1' .* 'x'"),
        ({"known": ["op"]}, r"problem\.known=\*\*\*: must hold keys"),
        ({"known": {"flops": "op"}}, r"problem\.known\.flops='op': must have numbers only"),
        ({"tests": "op"}, r"problem\.tests=\*\*\*: must hold keys"),
        ({"seconds": -5}, r"problem\.seconds=-5: must be a number of at least 0"),
        ({"seconds": "abc"}, r"problem\.seconds='abc': must be a number"),
        ({"seconds": {"column": "time", "factor": -1}}, r"problem\.seconds\.factor=-1: must be a number of at least 0"),
        ({"seconds": {"colum": "time"}}, r"problem\.seconds\.colum: must be one of column, factor"),
        (
            {"metrics": {"accuracy": {"column": "accc"}}},
            r"metrics\.accuracy\.column='accc': must be a column of \S+t\.csv\. It has acc, width, op",
        ),
        (
            {"metrics": {"acc": {}, "flop_m": {"direction": "minimize"}}},
            r"metrics\.flop_m\.column='flop_m': must be a column",
        ),
        ({"seconds": {"column": "tim"}}, r"problem\.seconds\.column='tim': .* It has time, width, op"),
        ({"tests": {"acc": "nocol"}}, r"problem\.tests\.acc='nocol': .* It has \w"),
        ({"known": {"flops": "flop"}}, r"problem\.known\.flops='flop': .* It has \w"),
        ({"metrics": {"acc": {"curve": "acc_*"}}}, r"must match columns of .*\. It has acc, width, op"),
    ],
)
def test_mistakes_are_named(tmp_path: Path, wrong: dict[str, Any], message: str) -> None:
    """Unknown columns, too few parameters and missing arguments are named."""
    frame = FRAME.assign(no_1="x")
    frame.to_csv(tmp_path / "t.csv", index=False)

    with pytest.raises(ConfigurationError, match=message):
        assert make(str(tmp_path / "t.csv"), **wrong).space


@pytest.mark.parametrize(
    ("table", "message"), [("no/such.csv", "the file does not exist"), ("a.xls", "parquet"), ("", "problem.table")]
)
def test_missing_table_is_named(table: str, message: str) -> None:
    """A missing file, another kind of file and no file at all are named."""
    with pytest.raises(ConfigurationError, match=message):
        assert make(table).space


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet"])
@pytest.mark.parametrize("content", ["", "a,b\n1,2\n3,4,5,6\n"])
def test_unreadable_table_is_named(tmp_path: Path, kind: str, content: str) -> None:
    """An empty or uneven csv, and a file of another format, are refused by name."""
    if kind == "parquet":
        pytest.importorskip("pyarrow")
    (tmp_path / f"t.{kind}").write_text(content)
    with pytest.raises(ConfigurationError, match=rf"problem\.table=\S+t\.{kind}: can't be read: \w"):
        assert make(str(tmp_path / f"t.{kind}")).space


@pytest.mark.parametrize(
    ("module", "table", "message"),
    [
        ("pyarrow", "t.parquet", r"needs pyarrow. Run pip install 'heirloom-nas\[tabular\]'"),
        ("s3fs", "s3://bucket/t.csv", "can't be read: Install s3fs"),
    ],
)
def test_missing_library_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, module: str, table: str, message: str
) -> None:
    """A table that needs a library names the extra to install, or the library behind its URL."""
    monkeypatch.setitem(sys.modules, module, None)
    (tmp_path / "t.parquet").touch()
    with pytest.raises(ConfigurationError, match=rf"problem\.table=\S+: {message}"):
        assert make(table if "://" in table else str(tmp_path / table)).space


def test_fields_without_a_name_are_refused(tmp_path: Path) -> None:
    """pandas would take the first column for names of rows, and shift the others."""
    (tmp_path / "t.csv").write_text("width,op,acc\n8,conv,0.5,1\n16,conv,0.6,1\n")
    with pytest.raises(ConfigurationError, match=r"t\.csv: must have a name in the header for each field of a row"):
        assert make(str(tmp_path / "t.csv")).space


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("t.csv.gz", ZIPPED[:-20]),
        ("t.csv.gz", ZIPPED[:10] + b"\xff" * 20),
        ("t.parquet", b"PAR1" + b"\xff" * 32 + (32).to_bytes(4, "little") + b"PAR1"),
        ("t.csv", None),
    ],
    ids=["cut", "damaged", "metadata", "folder"],
)
def test_damaged_table_is_named(tmp_path: Path, name: str, content: bytes | None) -> None:
    """A cut or damaged table, and a folder in its place, are refused by name."""
    path = tmp_path / name
    if content is None:
        path.mkdir()
    else:
        path.write_bytes(content)
    if name == "t.parquet":
        pytest.importorskip("pyarrow")
    with pytest.raises(ConfigurationError, match=rf"problem\.table={path}: can't be read: \w"):
        assert make(str(path)).space


def test_column_that_is_twice_is_refused(tmp_path: Path) -> None:
    """pandas would rename the second column; columns without a name are none."""
    (tmp_path / "t.csv").write_text("width,acc,acc\n8,0.5,0.6\n16,0.1,0.2\n")
    (tmp_path / "u.csv").write_text("width,acc,acc.1,,\n8,0.5,0.6,,\n16,0.1,0.2,,\n")
    given: dict[str, Any] = {"parameters": ["width"], "tests": {}}

    with pytest.raises(ConfigurationError, match=r"t\.csv: must have each column once, but has 'acc' twice"):
        assert make(str(tmp_path / "t.csv"), **given).space
    assert make(str(tmp_path / "u.csv"), **given).values("acc") == [0.5, 0.1]


def test_point_without_a_row_fails_by_name(tmp_path: Path) -> None:
    """A point without a row raises an error that shows the point."""
    FRAME.iloc[:3].to_csv(tmp_path / "t.csv", index=False)
    problem = make(str(tmp_path / "t.csv"))

    with pytest.raises(LookupError, match=r"no row for the point.*'pool'"):
        problem.simulate(trial({"width": 32, "op": "pool"}))


def test_known_columns(table: str) -> None:
    """A known column can be constrained, also if it is a metric."""
    problem = make(table, known={"latency": "time"}, metrics={"acc": {}, "latency": {"direction": "minimize"}})

    assert problem.static_metrics({"width": 32, "op": "conv"}) == {"latency": 30.0}
    assert problem.metrics[1] == Metric("latency", "minimize")
    assert problem.simulate(trial({"width": 32, "op": "conv"})).metrics == {"acc": 0.0, "latency": 30.0}
    assert make(table).static_metrics({"width": 32, "op": "conv"}) == {}


def test_reference_of_a_metric(table: str) -> None:
    """A metric sets its part of the hypervolume's reference point; other types are refused by name."""
    assert make(table, metrics={"acc": {"reference": 0.1}}).metrics == (Metric("acc", reference=0.1),)
    with pytest.raises(ConfigurationError, match=r"metric acc: reference='low': must be a finite number"):
        make(table, metrics={"acc": {"reference": "low"}})
