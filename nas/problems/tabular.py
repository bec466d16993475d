"""Problems that read scores from a table instead of training: published benchmarks, or your own results."""

from __future__ import annotations

import math
import re
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from nas.core.errors import ConfigurationError
from nas.core.metric import Direction, Metric, is_finite
from nas.core.point import Point, point_key
from nas.core.tracebacks import ends_of
from nas.core.validation import check_keys, check_mapping, check_number, closest_names, short_repr
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.storage.remote_file import checked_options
from nas.storage.secrets import Secrets
from nas.training.problem import Ability, Problem, Simulation

if TYPE_CHECKING:
    import pandas as pd

    from nas.core.trial import Trial
    from nas.training.trial_run import TrialRun

_METRIC_KEYS = ("column", "direction", "reference", "curve")
_NO_NUMBER = (
    *("", " ", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A"),
    *("NA", "NULL", "NaN", "None", "n/a", "nan", "null"),
)
"""Cells of a csv without a number, as pandas documents them.

In a column of parameters only the first has no value.
"""


class TabularProblem(Problem):
    """Each row of a table is a point with its scores and its cost.

    Args:
        table: A parquet or csv file: a path or an fsspec URL.
        parameters: The columns that make a point.
        letters: A column of texts of equal length. Each letter is a parameter ``<column>_0``, ``<column>_1``, ...
        metrics: By name: ``{"column": ..., "direction": "maximize", "reference": 0.5, "curve": "accuracy_*"}``. The
            first ranks. ``column`` is the name by default; ``reference`` is that of ``nas.Metric``. ``curve`` names the
            columns of intermediate reports, with the step in place of ``*``. The greatest step is reported at the end
            of the trial. An empty cell reports nothing.
        known: Columns that are known before training, by name. ``constraints`` may limit them. A metric of the same
            name is that column.
        tests: Columns of the finalists' test scores, by metric.
        seconds: The duration of a trial: ``{"column": ..., "factor": 1.0}``, or a number of seconds for all.
        options: Options for fsspec.

    Raises:
        ConfigurationError: the table can't be read, lacks a column, or has a point twice.
    """

    data_arguments: ClassVar[frozenset[str]] = frozenset({"table", "options"})
    data_files: ClassVar[frozenset[str]] = frozenset({"table"})

    def __init__(
        self,
        table: str | None = None,
        *,
        metrics: Mapping[str, Mapping[str, Any]] | None = None,
        parameters: Sequence[str] = (),
        letters: str | None = None,
        known: Mapping[str, str] | None = None,
        tests: Mapping[str, str] | None = None,
        seconds: Mapping[str, Any] | float = 1.0,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        if not table or not metrics:
            missing = "problem.table=FILE" if not table else "problem.metrics.NAME.column=COLUMN"
            raise ConfigurationError(f"problem=tabular: must have a table (parquet or csv) and metrics. Add {missing}")
        if not isinstance(metrics, Mapping) or not all(isinstance(kind, Mapping) for kind in metrics.values()):
            raise ConfigurationError(
                "problem.metrics: must have a mapping for each metric. Write problem.metrics.NAME.column=COLUMN"
            )
        self._table_url = str(table)
        self._options = checked_options("problem.options", options)
        if isinstance(parameters, str):
            raise ConfigurationError(
                f"problem.parameters={parameters}: must be a list of columns. Write problem.parameters=[{parameters}]"
            )
        self._parameters = list(parameters)
        self._letters = letters
        if bool(self._parameters) == bool(letters):
            raise ConfigurationError("problem=tabular: must have `parameters` (columns) or `letters` (one column)")
        for name, kind in metrics.items():
            check_keys(f"problem.metrics.{name}", kind, _METRIC_KEYS)
        self._known = check_mapping("problem.known", known or {})
        self._columns = {name: kind.get("column", self._known.get(name, name)) for name, kind in metrics.items()}
        self.metrics = tuple(
            Metric(name, cast("Direction", kind.get("direction", "maximize")), kind.get("reference"))
            for name, kind in metrics.items()
        )
        self._curves = {name: kind["curve"] for name, kind in metrics.items() if kind.get("curve")}
        for name, pattern in self._curves.items():
            if not isinstance(pattern, str) or pattern.count("*") != 1:
                raise ConfigurationError(
                    f"problem.metrics.{name}.curve={pattern!r}: must have one `*`, for the step, as in accuracy_*"
                )
        self._tests = check_mapping("problem.tests", tests or {})
        if isinstance(seconds, Mapping):
            check_keys("problem.seconds", seconds, ("column", "factor"))
            self._seconds_column: str | None = seconds.get("column")
            self._factor = check_number("problem.seconds.factor", seconds.get("factor", 1.0), 0)
        else:
            self._seconds_column, self._factor = None, check_number("problem.seconds", seconds, 0)
        named = (self._columns, self._curves, self._known, self._tests)
        names = [name for columns in named for name in columns.values()]
        for column in [*names, *self._parameters, self._letters, self._seconds_column]:
            if not isinstance(column, str | int | None):
                raise ConfigurationError(f"problem=tabular: {short_repr(column)}: must be the name of a column")

    @cached_property
    def space(self) -> ParameterSpace:  # type: ignore[override]
        """The space of all values that the parameters have in the table, sorted."""
        points = self.points
        self._check_columns()
        _ = self._steps  # so that a missing curve raises before anything runs
        options = {name: sorted({point[name] for point in points}, key=_sort_key) for name in points[0]}
        return ParameterSpace({name: Choice(*values) for name, values in options.items()})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Returns the scores in the table at once. Only ``runner=simulated`` uses the durations."""
        for step, metrics in self._reports(run.point):
            run.report(step, **metrics)
        return self._scores(run.point, self._columns)

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """Returns the test scores in the table, from the columns that ``tests`` names."""
        return self._scores(run.point, self._tests)

    @property
    def abilities(self) -> frozenset[Ability]:
        """The abilities of the class, without ``test`` if the table has no test scores."""
        return super().abilities if self._tests else super().abilities - {Ability.TEST}

    def simulate(self, trial: Trial) -> Simulation:
        """Returns the duration, reports and scores of the point in the table."""
        row = self._row(trial.point)
        seconds = self._factor
        if self._seconds_column is not None:
            seconds *= self.values(self._seconds_column)[row]
        reports = self._reports(trial.point)
        curve = tuple((step / max(self._steps), step, metrics) for step, metrics in reports)
        return Simulation(seconds, self._scores(trial.point, self._columns), curve)

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        """Returns the point's values in the columns of ``known``."""
        return self._scores(point, self._known)

    def value(self, point: Point, column: str) -> float:
        """Returns a point's value in any numeric column.

        Raises:
            LookupError: the table has no such row, or no finite number in it.
        """
        value = self.values(column)[self._row(point)]
        if not is_finite(value):
            raise LookupError(f"the table {self._table_url} has no {column} for the point {point}")
        return value

    def _scores(self, point: Point, columns: Mapping[str, str]) -> dict[str, float]:
        row = self._row(point)
        return {name: self.values(column)[row] for name, column in columns.items()}

    def _reports(self, point: Point) -> list[tuple[int, dict[str, float]]]:
        """Returns the intermediate reports of the point, by step."""
        row = self._row(point)
        reports = []
        for step, columns in sorted(self._steps.items()):
            values = {name: self.values(column)[row] for name, column in columns.items()}
            if metrics := {name: value for name, value in values.items() if is_finite(value)}:
                reports.append((step, metrics))
        return reports

    @cached_property
    def _steps(self) -> dict[int, dict[str, str]]:
        """The columns of the metrics' curves: by step, then by metric."""
        steps: dict[int, dict[str, str]] = {}
        for name, pattern in self._curves.items():
            before, after = map(re.escape, pattern.split("*"))
            matches = [re.fullmatch(f"{before}([0-9]+){after}", str(column)) for column in self._frame.columns]
            columns = {int(match[1]): match[0] for match in matches if match is not None and int(match[1]) > 0}
            if not columns:
                raise ConfigurationError(
                    f"problem.metrics.{name}.curve={pattern!r}: must match columns of {self._table_url} with a whole "
                    f"number of at least 1 in place of `*`. It has {self._columns_like(pattern)}"
                )
            for step, column in columns.items():
                self._numbers_of(column, f"problem.metrics.{name}.curve={pattern!r}")
                steps.setdefault(step, {})[name] = column
        return steps

    def _row(self, point: Point) -> int:
        row = self._rows.get(point_key(point))
        if row is None:
            raise LookupError(f"the table {self._table_url} has no row for the point {point}")
        return row

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {point_key(point): row for row, point in enumerate(self.points)}

    @cached_property
    def points(self) -> list[Point]:
        """The points of all rows, in their order."""
        frame = self._frame
        if self._letters is not None:
            texts = [str(text) for text in self._options_of(self._letters)]
            if not texts or len({len(text) for text in texts}) != 1:
                raise ConfigurationError(
                    f"problem.letters={self._letters}: must be a column of {self._table_url} with texts of one length"
                )
            points: list[Point] = [_letters_by_name(self._letters, text) for text in texts]
        else:
            values = [self._options_of(name) for name in self._parameters]
            points = [dict(zip(self._parameters, row, strict=True)) for row in zip(*values, strict=True)]
        if not points:
            raise ConfigurationError(f"problem.table={self._table_url}: must have at least one row")
        if len({point_key(point) for point in points}) < len(frame):
            raise ConfigurationError(
                f"problem.table={self._table_url}: must have each point once. Name more `parameters`"
            )
        return points

    def _check_columns(self) -> None:
        """Raises if an argument names a missing column or one with texts, before any trial runs."""
        named = {f"problem.known.{name}": column for name, column in self._known.items()}
        named |= {f"problem.metrics.{name}.column": column for name, column in self._columns.items()}
        named |= {f"problem.tests.{name}": column for name, column in self._tests.items()}
        named |= {} if self._seconds_column is None else {"problem.seconds.column": self._seconds_column}
        for option, column in named.items():
            self.check_column(option, column)

    def check_column(self, option: str, column: str) -> None:
        """Raises if the column that an option names is missing, or has something else than numbers."""
        if column not in self._frame.columns:
            raise ConfigurationError(
                f"{option}={column!r}: must be a column of {self._table_url}. It has {self._columns_like(str(column))}"
            )
        self._numbers_of(column, f"{option}={column!r}")

    def _columns_like(self, name: str) -> str:
        return closest_names(name, map(str, self._frame.columns))

    def _column(self, name: str) -> list[Any]:
        if name not in self._frame.columns:
            raise ConfigurationError(
                f"column {name!r}: must be in {self._table_url}. It has {self._columns_like(name)}"
            )
        cells = self._frame[name]
        return [None if is_empty else cell for cell, is_empty in zip(cells.astype(object), cells.isna(), strict=True)]

    def _options_of(self, parameter: str) -> list[Any]:
        """Returns a column of parameters; no cell may be empty."""
        cells = self._column(parameter)
        for row, cell in enumerate(cells, 1):
            if cell is None:
                raise ConfigurationError(
                    f"column {parameter!r}: must have a value in each row of {self._table_url}. Row {row} has none"
                )
        return cells

    def values(self, column: str) -> list[float]:
        """Returns a numeric column; empty cells are NaN."""
        return self._numbers_of(column, f"column {column!r}")

    def _numbers_of(self, column: str, option: str) -> list[float]:
        """Returns a numeric column that an option names."""
        if column not in self._numbers:
            numbers = []
            for row, cell in enumerate(self._column(column), 1):
                try:
                    numbers.append(math.nan if cell is None else float(cell))
                except (TypeError, ValueError):
                    raise ConfigurationError(
                        f"{option}: must have numbers only. Row {row} of column {column!r} in {self._table_url} has "
                        f"{short_repr(cell)}"
                    ) from None
            self._numbers[column] = numbers
        return self._numbers[column]

    @cached_property
    def _numbers(self) -> dict[str, list[float]]:
        return {}

    @cached_property
    def _frame(self) -> pd.DataFrame:
        import fsspec
        import pandas as pd

        url = self._table_url
        if not url.endswith((".parquet", ".csv", ".csv.gz")):
            raise ConfigurationError(f"problem.table={url!r}: must be a .parquet, .csv or .csv.gz file")
        try:
            with fsspec.open(url, "rb", compression="gzip" if url.endswith(".gz") else None, **self._options) as file:
                if url.endswith(".parquet"):
                    frame = pd.read_parquet(file)
                    header = [*frame.columns]
                else:
                    frame, header = self._read_csv(file)
        except FileNotFoundError as error:
            raise ConfigurationError(f"problem.table={url}: the file does not exist") from error
        except ImportError as error:
            if "pyarrow" not in str(error):  # of a library behind fsspec
                raise ConfigurationError(f"problem.table={url}: can't be read: {error}") from error
            raise ConfigurationError(
                f"problem.table={url}: needs pyarrow. Run pip install 'heirloom-nas[tabular]'"
            ) from error
        except pd.errors.ParserWarning as error:
            raise ConfigurationError(
                f"problem.table={url}: must have a name in the header for each field of a row. Name each column."
            ) from error
        except Exception as error:  # each library behind fsspec has its own
            secrets = Secrets(url, self._options)
            text = f"problem.table={url}: can't be read: {ends_of(secrets.masked(error))}"
            raise ConfigurationError(text) from secrets.cause(error)
        if twice := [name for name, n in Counter(header).items() if n > 1 and name != ""]:
            raise ConfigurationError(
                f"problem.table={url}: must have each column once, but has {short_repr(twice[0])} twice. Rename one."
            )
        return frame

    def _read_csv(self, file: Any) -> tuple[pd.DataFrame, list[str]]:
        """Returns a csv file and its header as written: pandas renames columns of the same name."""
        import pandas as pd

        header = pd.read_csv(file, header=None, nrows=1, dtype=str, na_filter=False)
        file.seek(0)
        texts = {*self._parameters, self._letters}
        empty = {name: [""] if name in texts else _NO_NUMBER for name in pd.read_csv(file, nrows=0).columns}
        file.seek(0)
        # the letters 01 are no number, and None may be an option
        with warnings.catch_warnings():  # rows with more fields than the header
            warnings.simplefilter("error", pd.errors.ParserWarning)
            frame = pd.read_csv(
                file, dtype={self._letters: str}, index_col=False, keep_default_na=False, na_values=empty
            )
        return frame, [*header.iloc[0]]


def _letters_by_name(column: str, text: str) -> Point:
    return {f"{column}_{index}": letter for index, letter in enumerate(text)}


def _sort_key(value: Any) -> tuple[str, Any]:
    return type(value).__name__, value
