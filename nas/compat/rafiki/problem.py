"""A model template as a problem: a trial trains one model and keeps its parameters."""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, ClassVar

from nas.compat.rafiki.model import BaseModel, Params
from nas.compat.rafiki.params import from_tensors, to_tensors
from nas.compat.rafiki.space import knob_policies, knob_space, knob_values, replaced_knobs
from nas.compat.rafiki.supernet import (
    EPOCH_POLICIES,
    SUBNET_POLICIES,
    check_supernet,
    epoch_points,
    panel,
    trained_policies,
)
from nas.compat.rafiki.template import destroy_after_error, load_template
from nas.compat.rafiki.utils import logger
from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.supernet import epoch_of
from nas.core.tracebacks import error_line, raise_ctrl_c, traceback_of
from nas.core.validation import check_int
from nas.spaces.space import Space
from nas.spaces.supernet import SupernetSpace
from nas.training.code_digests import imported_files
from nas.training.problem import Ability, Problem
from nas.training.trial_run import TrialRun

CALLS: Mapping[str, tuple[str, ...]] = {
    "evaluate": ("dataset_path",),
    "predict": ("queries",),
    "dump_parameters": (),
    "load_parameters": ("params",),
    "destroy": (),
}


class RafikiProblem(Problem):
    """Trains a model class of Rafiki or SINGA-Auto.

    The metric ``score`` is the result of ``evaluate`` on the validation data. The result of ``dump_parameters`` is
    published; a child receives that of its donor as ``shared_params``. ``destroy`` is called in all cases, and
    ``teardown`` after the last trial of the process.

    Args:
        file: The Python file that defines the class.
        class_name: The class; None: the only model class in the file.
        train_data: Argument of ``train``, usually a path.
        val_data: Argument of ``evaluate``.
        test_data: Argument of ``evaluate`` for a finalist, loaded from its parameters.
        queries: A JSON file with a list of queries for ``predict`` of a finalist. Its log shows the answers.
        train_args: Further keyword arguments of ``train``.
        knobs: Values that replace knobs, by name.
        supernet_paths: The architectures that a supernet epoch trains, one after the other; 0: there are no epochs. As
            in Rafiki's ENAS, an epoch is trained with EARLY_STOP and DOWNSCALE, and subnets have DOWNSCALE.

    Raises:
        ConfigurationError: a file or the class is missing, or the class is invalid.
    """

    metrics = (Metric("score"),)
    scores_optional = True  # of a finalist that only answers queries
    code_arguments: ClassVar[frozenset[str]] = frozenset({"file"})
    data_arguments: ClassVar[frozenset[str]] = frozenset({"file", "train_data", "val_data", "test_data", "queries"})
    foreign_arguments: ClassVar[frozenset[str]] = frozenset({"train_args", "knobs"})
    data_files: ClassVar[frozenset[str]] = frozenset({"train_data", "val_data", "test_data"})

    def __init__(
        self,
        *,
        file: str | None = None,
        class_name: str | None = None,
        train_data: str | None = None,
        val_data: str | None = None,
        test_data: str | None = None,
        queries: str | None = None,
        train_args: Mapping[str, Any] | None = None,
        knobs: Mapping[str, Any] | None = None,
        supernet_paths: int = 0,
    ) -> None:
        check_int("problem.supernet_paths", supernet_paths, 0)
        self.template = load_template(file, class_name)
        self.train_data, self.val_data = str(train_data), str(val_data)
        self.test_data = None if test_data is None else str(test_data)
        self.queries = queries
        self.train_args = dict(train_args or {})
        self.pinned = dict(knobs or {})
        if unknown := [name for name in self.pinned if name not in self.template.knobs]:
            known = ", ".join(self.template.knobs) or "none"
            raise ConfigurationError(
                f"problem.knobs.{unknown[0]}: {self.template.name} has no such knob; its knobs: {known}"
            )
        self.knobs = replaced_knobs(self.template.knobs, self.pinned)
        self._subnets = knob_space(self.knobs)
        self.supernet_paths = supernet_paths
        self.space: Space = SupernetSpace(self._subnets) if supernet_paths else self._subnets
        self.policies = knob_policies({name: knob for name, knob in self.knobs.items() if name not in self.pinned})
        kept_on = knob_policies({name: knob for name, knob in self.knobs.items() if self.pinned.get(name) is True})
        self.policies |= kept_on & {Policy.SHARE_PARAMS}  # the search gives the donor
        self._check_data({"train_data": train_data, "val_data": val_data, "test_data": test_data, "queries": queries})
        self._check_calls()
        if supernet_paths:
            check_supernet(self.policies, f"{self.template.name} in {self.template.file}")
        self.label = self.template.name
        self.about = {"template": f"{self.template.name} in {self.template.file.name}"}
        self._has_trained = False

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Creates, trains and evaluates a model, saves its parameters, and returns its score."""
        self._has_trained = True
        shared = self._shared_params(run) if self.template.takes("train", "shared_params") else None
        with self.template.importing(), logger.reporting_to(run):
            if epoch_of(run.point) is not None:
                score = self._train_epoch(run, shared)
            else:
                with self._trained(run.point, self._policies_of(run), shared) as model:
                    score = self._score(model, self.val_data)
                    run.save(to_tensors(self._dumped(model)))
        run.result_error = f"{self.template.name}.evaluate returned {score}: must be a finite number"
        return {"score": score}

    def _train_epoch(self, run: TrialRun, shared: Params | None) -> float:
        """Trains the paths of an epoch one after the other, and returns the panel's mean score."""
        for point in epoch_points(run, self._subnets, self.supernet_paths):
            with self._trained(point, EPOCH_POLICIES, shared) as model:
                shared = self._dumped(model)
        assert shared is not None
        run.save(to_tensors(shared))
        return statistics.fmean(self._panel_score(point, shared) for point in panel(self._subnets))

    def _panel_score(self, point: Point, shared: Params) -> float:
        with self._trained(point, SUBNET_POLICIES, shared) as model:
            return self._score(model, self.val_data)

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """Returns the score of a loaded model on the test data; the log shows its predictions."""
        metrics: dict[str, float] = {}
        model = self.load(run)
        try:
            with self.template.importing(), self._destroying(model):
                if self.test_data is not None:
                    metrics["score"] = self._score(model, self.test_data)
                if self.queries is not None:
                    for query, answer in zip(self._queries, self.predict(model, self._queries), strict=True):
                        print(f"predict {json.dumps(query):.200}: {json.dumps(answer)}")
        except BaseException as error:
            raise_ctrl_c(error)
            if not metrics:
                raise
            print(traceback_of(error), end="", file=sys.stderr)
            run.test_error = error_line(error)
        return metrics

    @property
    def code_files(self) -> Mapping[str, Path]:
        """The template's file and the files that it imports."""
        return {**imported_files(self.template.file), "file": self.template.file}

    @property
    def abilities(self) -> frozenset[Ability]:
        """Abilities of the class, without ``test`` if there is no test data and no query."""
        can_test = self.test_data is not None or self.queries is not None
        return super().abilities if can_test else super().abilities - {Ability.TEST}

    def close(self) -> None:
        """Calls ``teardown`` if a trial ran in this process."""
        if self._has_trained:
            self._has_trained = False
            with self.template.importing(), self.template.method_in_errors("teardown"):
                self.template.class_.teardown()

    def load(self, run: TrialRun) -> BaseModel:
        """Returns a model with the knobs and parameters of a finished trial; the caller destroys it."""
        with self.template.importing():
            model = self._create_model(run.point, self._policies_of(run))
            return self.template.load(model, from_tensors(run.restore_tensors()))

    def predict(self, model: BaseModel, queries: list[Any]) -> list[Any]:
        """Returns the predictions of a loaded model, one per query, as JSON.

        Raises:
            TypeError: ``predict`` returns another type or number.
        """
        with self.template.importing(), self.template.method_in_errors("predict"):
            answers = model.predict(queries)
            if not isinstance(answers, list) or len(answers) != len(queries):
                raise TypeError(f"it must return a list of {len(queries)} predictions, not {answers!r:.200}")
            json.dumps(answers)
        return answers

    def _create_model(self, point: Point, policies: frozenset[Policy]) -> BaseModel:
        with self.template.method_in_errors("__init__"):
            return self.template.class_(**knob_values(self.knobs, point, policies, self.pinned))

    @contextmanager
    def _trained(self, point: Point, policies: frozenset[Policy], shared: Params | None) -> Iterator[BaseModel]:
        """Yields a model after its ``train``, and destroys it at the end of the context."""
        arguments = dict(self.train_args)
        if self.template.takes("train", "shared_params"):
            arguments["shared_params"] = shared
        model = self._create_model(point, policies)
        with self._destroying(model):
            with self.template.method_in_errors("train"):
                model.train(self.train_data, **arguments)
            yield model

    def _dumped(self, model: BaseModel) -> Params:
        with self.template.method_in_errors("dump_parameters"):
            return model.dump_parameters()

    def _policies_of(self, run: TrialRun) -> frozenset[Policy]:
        """Returns the policies of a trial, those that shared parameters need included."""
        return trained_policies(run.policies) if self.supernet_paths else run.policies

    @contextmanager
    def _destroying(self, model: BaseModel) -> Iterator[None]:
        """Destroys the model at the end of the context."""
        try:
            yield
        except BaseException:
            destroy_after_error(model)
            raise
        with self.template.method_in_errors("destroy"):
            model.destroy()

    def _score(self, model: BaseModel, data: str) -> float:
        with self.template.method_in_errors("evaluate"):
            score: Any = model.evaluate(data)
            item = score.item() if hasattr(score, "item") else score
            if isinstance(item, bool) or not isinstance(item, int | float):
                raise TypeError(f"it must return a number, not {score!r:.200} ({type(score).__name__})")
        return float(item)

    def _shared_params(self, run: TrialRun) -> Params | None:
        tensors = run.inherit_tensors()
        return None if tensors is None else from_tensors(tensors)

    @cached_property
    def _queries(self) -> list[Any]:
        assert self.queries is not None
        try:
            found = json.loads(Path(self.queries).read_bytes())
        except (OSError, ValueError) as error:
            raise ConfigurationError(f"problem.queries={self.queries}: can't be read as JSON: {error}") from error
        if not isinstance(found, list):
            raise ConfigurationError(f"problem.queries={self.queries}: must contain a JSON list of queries")
        return found

    def _check_data(self, given: Mapping[str, str | None]) -> None:
        for name, value in given.items():
            if value is None and name in ("train_data", "val_data"):
                raise ConfigurationError(
                    f"problem.{name} is missing: add problem.{name}=FILE, which {self.template.name} reads"
                )
            if value is not None and "://" not in str(value) and not Path(str(value)).exists():
                raise ConfigurationError(f"problem.{name}={value}: must be an existing file or folder")
        if self.queries is not None:
            _ = self._queries

    def _check_calls(self) -> None:
        template = self.template
        shared = {"shared_params": None} if template.takes("train", "shared_params") else {}
        if Policy.SHARE_PARAMS in self.policies and not shared:
            raise ConfigurationError(
                f"{template.name}.train in {template.file} must accept shared_params: a knob declares SHARE_PARAMS"
            )
        template.check_call("__init__", **dict.fromkeys(self.knobs))
        template.check_call("train", "dataset_path", **shared, **self.train_args)
        for method, arguments in CALLS.items():
            template.check_call(method, *arguments)
