"""Problems whose answers stand in a table: published benchmarks, or one's own results, searched without training."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, ClassVar, cast

from nas.core.errors import ConfigurationError, closest_names
from nas.core.metric import Direction, Metric, is_finite
from nas.core.point import Point, point_key
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.storage.remote_file import options_of
from nas.training.problem import Ability, Problem, Simulation

if TYPE_CHECKING:
    import pandas as pd

    from nas.core.trial import Trial
    from nas.training.trial_run import TrialRun


class TabularProblem(Problem):
    """Each row of a table is a point with its scores and its cost.

    Args:
        table: A parquet or csv file: a path, or any URL that fsspec knows.
        parameters: The columns that make a point.
        letters: A column of texts of one length; each letter is a parameter ``<column>_0``, ``<column>_1``, ...
        metrics: By name: ``{"column": ..., "direction": "maximize", "reference": 0.5, "curve": "accuracy_*"}``; the
            first ranks. The column is the name where it is not given; the reference is that of ``nas.Metric``.
            ``curve`` names the columns of what a trial reports on the way, if there are any: a whole number in place
            of ``*`` is the step, the greatest step is reached at the end of the trial's time, and where a cell is empty
            nothing is reported.
        known: Columns that are known before training, by name: ``constraints`` may limit them, and a metric of such a
            name is that column.
        tests: Columns of test scores by metric's name, for the finalists.
        seconds: What a trial takes: ``{"column": ..., "factor": 1.0}``, or a number of seconds for all.
        options: For fsspec, where the table is remote.

    Raises:
        ConfigurationError: the table can't be read, lacks a column, or holds a point twice.
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
            raise ConfigurationError(f"a tabular problem needs a table (parquet or csv) and metrics: add {missing}")
        self._table_url = str(table)
        self._options = options_of("problem.options", options)
        self._parameters = list(parameters)
        self._letters = letters
        if bool(self._parameters) == bool(letters):
            raise ConfigurationError("a tabular problem needs `parameters` (columns), or `letters` (one column)")
        self._known = dict(known or {})
        self._columns = {name: kind.get("column", self._known.get(name, name)) for name, kind in metrics.items()}
        self.metrics = tuple(
            Metric(name, cast("Direction", kind.get("direction", "maximize")), kind.get("reference"))
            for name, kind in metrics.items()
        )
        self._curves = {name: kind["curve"] for name, kind in metrics.items() if kind.get("curve")}
        for name, pattern in self._curves.items():
            if pattern.count("*") != 1:
                raise ConfigurationError(
                    f"problem.metrics.{name}.curve ({pattern!r}) must hold one `*`, for the step: accuracy_*, say"
                )
        self._tests = dict(tests or {})
        given: Mapping[str, Any] = seconds if isinstance(seconds, Mapping) else {"factor": seconds}
        self._seconds_column: str | None = given.get("column")
        self._factor = float(given.get("factor", 1.0))

    @cached_property
    def space(self) -> ParameterSpace:  # type: ignore[override]
        """Every value that a parameter has in the table, in the order of sorting."""
        points = self._points
        self._check_columns()
        _ = self._steps  # a curve that is not there is named before anything runs
        options = {name: sorted({point[name] for point in points}, key=_sort_key) for name in points[0]}
        return ParameterSpace({name: Choice(*values) for name, values in options.items()})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Returns the scores in the table, at once; ``runner=simulated`` takes the time that the table says."""
        for step, metrics in self._reports(run.point):
            run.report(step, **metrics)
        return self._scores(run.point, self._columns)

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """Returns the test scores in the table, where ``tests`` names their columns."""
        return self._scores(run.point, self._tests)

    @property
    def abilities(self) -> frozenset[Ability]:
        """The abilities of the class, without ``test`` if the table has no test scores."""
        return super().abilities if self._tests else super().abilities - {Ability.TEST}

    def simulate(self, trial: Trial) -> Simulation:
        """What the table says of the trial's point."""
        row = self._row(trial.point)
        seconds = (
            self._factor if self._seconds_column is None else self._factor * self._values(self._seconds_column)[row]
        )
        reports = self._reports(trial.point)
        curve = tuple((step / max(self._steps), step, metrics) for step, metrics in reports)
        return Simulation(seconds, self._scores(trial.point, self._columns), curve)

    def static_metrics(self, point: Point) -> Mapping[str, float]:
        """What the table says of the point in the columns of ``known``."""
        return self._scores(point, self._known)

    def value(self, point: Point, column: str) -> float:
        """What the table says of a point in any of its columns of numbers."""
        return self._values(column)[self._row(point)]

    def _scores(self, point: Point, columns: Mapping[str, str]) -> dict[str, float]:
        row = self._row(point)
        return {name: self._values(column)[row] for name, column in columns.items()}

    def _reports(self, point: Point) -> list[tuple[int, dict[str, float]]]:
        """What a trial of the point reports on the way, step by step."""
        row = self._row(point)
        found = []
        for step, columns in sorted(self._steps.items()):
            values = {name: self._values(column)[row] for name, column in columns.items()}
            if metrics := {name: value for name, value in values.items() if is_finite(value)}:
                found.append((step, metrics))
        return found

    @cached_property
    def _steps(self) -> dict[int, dict[str, str]]:
        """By step, the columns of the metrics' curves by name."""
        steps: dict[int, dict[str, str]] = {}
        for name, pattern in self._curves.items():
            before, after = map(re.escape, pattern.split("*"))
            found = [
                (m, str(c)) for c in self._frame.columns if (m := re.fullmatch(f"{before}([0-9]+){after}", str(c)))
            ]
            found = [(match, column) for match, column in found if int(match[1]) > 0]
            if not found:
                raise ConfigurationError(
                    f"problem.metrics.{name}.curve ({pattern!r}): {self._table_url} has no such column with a whole "
                    f"number from 1 on in place of `*`; it has {self._columns_like(pattern)}"
                )
            for match, column in found:
                steps.setdefault(int(match[1]), {})[name] = column
        return steps

    def _row(self, point: Point) -> int:
        row = self._rows.get(point_key(point))
        if row is None:
            raise LookupError(f"the table {self._table_url} has no row for the point {point}")
        return row

    @cached_property
    def _rows(self) -> dict[str, int]:
        return {point_key(point): row for row, point in enumerate(self._points)}

    @cached_property
    def _points(self) -> list[Point]:
        frame = self._frame
        if self._letters is not None:
            texts = [str(text) for text in self._column(self._letters)]
            if not texts or len({len(text) for text in texts}) != 1:
                raise ConfigurationError(f"column {self._letters} of {self._table_url} must hold texts of one length")
            points: list[Point] = [{f"{self._letters}_{i}": letter for i, letter in enumerate(t)} for t in texts]
        else:
            values = [self._column(name) for name in self._parameters]
            points = [dict(zip(self._parameters, row, strict=True)) for row in zip(*values, strict=True)]
        if not points:
            raise ConfigurationError(f"the table {self._table_url} has no row")
        if len({point_key(point) for point in points}) < len(frame):
            raise ConfigurationError(f"the table {self._table_url} holds a point twice; name more `parameters`")
        return points

    def _check_columns(self) -> None:
        """Refuses what names a column that is not there, before a trial looks it up."""
        named = {f"problem.known.{name}": column for name, column in self._known.items()}
        named |= {f"problem.metrics.{name}.column": column for name, column in self._columns.items()}
        named |= {f"problem.tests.{name}": column for name, column in self._tests.items()}
        named |= {} if self._seconds_column is None else {"problem.seconds.column": self._seconds_column}
        for key, column in named.items():
            if column not in self._frame.columns:
                raise ConfigurationError(
                    f"{key} ({column!r}): the table {self._table_url} has no such column; "
                    f"it has {self._columns_like(str(column))}"
                )

    def _columns_like(self, name: str) -> str:
        return closest_names(name, map(str, self._frame.columns))

    def _column(self, name: str) -> list[Any]:
        if name not in self._frame.columns:
            raise ConfigurationError(
                f"the table {self._table_url} has no column {name!r}; it has {self._columns_like(name)}"
            )
        return list(self._frame[name].astype(object).tolist())

    def _values(self, column: str) -> list[float]:
        if column not in self._numbers:
            self._numbers[column] = [float(value) for value in self._column(column)]
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
            raise ConfigurationError(f"problem.table ({url!r}) must be a .parquet, .csv or .csv.gz file")
        try:
            with fsspec.open(url, "rb", compression="gzip" if url.endswith(".gz") else None, **self._options) as file:
                return pd.read_parquet(file) if url.endswith(".parquet") else pd.read_csv(file)
        except FileNotFoundError as error:
            raise ConfigurationError(f"problem.table ({url}) is not there") from error
        except ImportError as error:
            raise ConfigurationError(f"problem.table ({url}) needs pyarrow: pip install pyarrow") from error


def _sort_key(value: Any) -> tuple[str, Any]:
    return type(value).__name__, value
