"""Tests of a template: a whole search and predictions in this process, without stored results."""

from __future__ import annotations

import ast
import importlib.metadata
import inspect
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any
from uuid import uuid4

from nas.compat.rafiki.log import number_text
from nas.compat.rafiki.model import BaseModel, Params
from nas.compat.rafiki.params import from_tensors
from nas.compat.rafiki.problem import RafikiProblem
from nas.compat.rafiki.space import knob_values
from nas.compat.rafiki.template import Template, load_template
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, HeirloomError
from nas.core.redaction import clean
from nas.core.spec import Spec
from nas.core.trial import State, Trial
from nas.core.validation import closest_names
from nas.executors.events import Event, Finished
from nas.search.definition import Search
from nas.search.identity import claim_identity
from nas.search.pipeline import SearchPipeline
from nas.search.session import run_session
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.trial_run import TrialRun

HOURS = 0.01
"""The default budget, as in Rafiki."""


class TemplateFailedError(HeirloomError, RuntimeError):
    """A method of the template raised; the message names it, and its traceback was printed."""


def tune_model(
    py_model_class: type[BaseModel],
    train_dataset_path: str,
    val_dataset_path: str,
    test_dataset_path: str | None = None,
    budget: Mapping[str, float] | None = None,
    train_args: Mapping[str, Any] | None = None,
) -> tuple[dict[str, Any] | None, float | None, Params | None]:
    """Searches like ``+tuner=auto``, one trial at a time; returns the best knobs, test score and parameters.

    Options of the command line override the arguments: ``--KNOB=VALUE`` for any knob, ``--TIME_HOURS``,
    ``--MODEL_TRIAL_COUNT``, ``--GPU_COUNT``. If the template's file is the program, other options are refused unless
    they occur in the file.

    Args:
        py_model_class: The class, defined in a file.
        train_dataset_path: Argument of ``train``.
        val_dataset_path: Argument of ``evaluate``.
        test_dataset_path: Argument of ``evaluate`` for the best model.
        budget: ``TIME_HOURS`` (0.01 without any budget), ``MODEL_TRIAL_COUNT`` and ``GPU_COUNT``.
        train_args: Further arguments of ``train``.

    Raises:
        ConfigurationError: the class or an option is invalid.
        TemplateFailedError: a trial or the test of the best model failed.
    """
    try:
        file = inspect.getfile(py_model_class)
    except (OSError, TypeError) as error:
        raise ConfigurationError(f"{py_model_class.__name__} must be defined in a file") from error
    data = {"train_data": train_dataset_path, "val_data": val_dataset_path, "test_data": test_dataset_path}
    with _in_memory() as files:
        tuned = _SearchRun(files, file, py_model_class.__name__, data, train_args or {}, budget or {})
        if tuned.best is None:
            return None, None, None
        return tuned.knobs(tuned.best), tuned.test_score, tuned.params(tuned.best)


def test_model_class(
    model_file_path: str,
    model_class: str,
    task: str | None = None,
    dependencies: Mapping[str, str] | None = None,
    train_dataset_path: str = "",
    val_dataset_path: str = "",
    test_dataset_path: str | None = None,
    budget: Mapping[str, float] | None = None,
    train_args: Mapping[str, Any] | None = None,
    queries: Sequence[Any] | None = None,
) -> tuple[list[Any] | None, BaseModel | None]:
    """Tunes the class like ``tune_model``, loads the best model, and calls ``predict``.

    Args:
        model_file_path: The file of the template.
        model_class: The name of the class.
        task: No effect.
        dependencies: Versions by package; packages that are not installed are printed.
        train_dataset_path: See ``tune_model``.
        val_dataset_path: See ``tune_model``.
        test_dataset_path: See ``tune_model``.
        budget: See ``tune_model``.
        train_args: See ``tune_model``.
        queries: Argument of ``predict``.

    Returns:
        The predictions and the model.
    """
    for package, version in (dependencies or {}).items():
        _check_dependency(package, version)
    data = {"train_data": train_dataset_path, "val_data": val_dataset_path, "test_data": test_dataset_path}
    with _in_memory() as files:
        tuned = _SearchRun(files, model_file_path, model_class, data, train_args or {}, budget or {})
        if tuned.best is None:
            return None, None
        model = tuned.problem.template.with_imports(tuned.problem.load(TrialRun(tuned.best, tuned.records.files)))
    if queries is None:
        return None, model
    predictions = tuned.problem.predict(model, list(queries))
    print(f"predictions: {predictions}")
    return predictions, model


test_model_class.__test__ = False  # type: ignore[attr-defined] # not a test of pytest


@contextmanager
def _in_memory() -> Iterator[BlobStore]:
    """Yields a storage folder in memory and empties it at the end."""
    files = open_root(f"memory://rafiki-{uuid4().hex}")
    try:
        yield files
    finally:
        files.delete_all([stored.path for stored in files.walk()])


class _SearchRun:
    """A search that runs to its end when it is constructed."""

    def __init__(
        self,
        files: BlobStore,
        file: str,
        class_name: str,
        data: Mapping[str, str | None],
        train_args: Mapping[str, Any],
        budget: Mapping[str, float],
    ) -> None:
        from nas.training.seeds import kept_torch_state

        options = _options(sys.argv[1:])
        template = load_template(file, class_name)
        _check_options(options, template)
        pins = {name: value for name, value in options.items() if name in template.knobs}
        limits = {**budget, **{name: options[name] for name in BUDGET if name in options}}
        arguments = {"file": file, "class_name": class_name, **data, "train_args": dict(train_args), "knobs": pins}
        search = Search(
            problem=Spec("nas.compat.rafiki.problem.RafikiProblem", arguments), tuner=Spec("nas.tuners.auto.AutoTuner")
        )
        built = search.build()
        assert isinstance(built.problem, RafikiProblem)
        self.problem = built.problem
        files.check_writable()
        self.records = Records(files)
        claim_identity(self.records, built)
        pipeline = SearchPipeline(built, self.records, _budget(limits), finalists=1)
        with kept_torch_state():
            run_session(pipeline, device=_device(limits.get("GPU_COUNT", 0)), observe=self._print)
        summary = pipeline.summary()
        self.best: Trial | None = summary.winner
        self.test_score: float | None = None
        if self.best is not None:
            tested = summary.tests.get(self.best.number, {})
            if "error" in tested:
                log = self.records.other_logs(self.best)["test"]
                print(clean(log), end="")
                raise TemplateFailedError(f"the test of trial {self.best.number} failed: {log.splitlines()[-1]}")
            self.test_score = tested.get("metrics", {}).get("score")
            score = number_text(self.best.metrics["score"])
            print(f"best: trial {self.best.number}, score {score}, knobs {clean(self.knobs(self.best))}")
            if self.test_score is not None:
                print(f"score on the test data: {number_text(self.test_score)}")

    def knobs(self, trial: Trial) -> dict[str, Any]:
        """Returns the knobs of the trial's model."""
        return knob_values(self.problem.knobs, trial.point, trial.policies, self.problem.pinned)

    def params(self, trial: Trial) -> Params:
        """Returns the parameters of the trial's model."""
        return from_tensors(TrialRun(trial, self.records.files).restore_tensors())

    def _print(self, event: Event) -> None:
        if isinstance(event, Finished):
            trial = event.trial
            print(f"trial {trial.number} ({trial.stage}): {clean(self.knobs(trial))}")
            print(clean(self.records.log(trial.number)), end="")
            if trial.state is State.FAILED:
                why = ((trial.error or "").strip() or f"{trial.reason}").splitlines()[-1]
                raise TemplateFailedError(f"trial {trial.number} failed: {why}")
            print(f"score: {number_text(trial.metrics['score'])}" if trial.metrics else "no score")


BUDGET = ("TIME_HOURS", "MODEL_TRIAL_COUNT", "GPU_COUNT")


def _budget(limits: Mapping[str, Any]) -> Budget:
    """Returns the budget of Rafiki's limits; -1 trials mean any number, and running trials finish."""
    if unknown := limits.keys() - {*BUDGET}:
        raise ConfigurationError(f"budget: {min(unknown)} must be one of {', '.join(BUDGET)}")
    for name, value in limits.items():
        kinds, allowed = ((int, float), "a number") if name == "TIME_HOURS" else (int, "a whole number")
        if isinstance(value, bool) or not isinstance(value, kinds):
            raise ConfigurationError(f"budget: {name}={value!r}: must be {allowed}")
    trials, hours = limits.get("MODEL_TRIAL_COUNT"), limits.get("TIME_HOURS")
    trials = None if trials is None or trials < 0 else trials
    hours = HOURS if trials is None and hours is None else hours
    return Budget(trials=trials, hours=hours, at_deadline="finish")


def _device(n_gpus: float) -> str:
    import torch

    if n_gpus > 0 and not torch.cuda.is_available():
        raise ConfigurationError(f"budget: GPU_COUNT={n_gpus:g}: needs a GPU, but torch finds none on this machine")
    return "cuda" if n_gpus > 0 else "cpu"


def _options(arguments: Sequence[str]) -> dict[str, Any]:
    """Returns the options ``--name=value`` and ``--name value`` of a command line.

    Values that are Python literals are evaluated. An option without a value is None.
    """
    found: dict[str, Any] = {}
    rest = list(arguments)
    while rest:
        text = rest.pop(0)
        if not text.startswith("--"):
            continue
        name, equals, value = text[2:].partition("=")
        if not equals:
            value = rest.pop(0) if rest and not rest[0].startswith("--") else "None"
        try:
            found[name] = ast.literal_eval({"true": "True", "false": "False"}.get(value, value))
        except (SyntaxError, ValueError):
            found[name] = value
    return found


def _check_options(given: Mapping[str, Any], template: Template) -> None:
    """Refuses unknown options if the template is the program. Options that its code names are allowed."""
    if not (os.path.exists(sys.argv[0]) and template.file.samefile(sys.argv[0])):
        return
    texts = {
        node.value
        for node in ast.walk(ast.parse(template.file.read_bytes()))
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    allowed = [*template.knobs, *BUDGET]
    for name in given:
        # argparse accepts the beginning of a name
        if name not in {*allowed, *texts} and not any(text.startswith(f"--{name}") for text in texts):
            raise ConfigurationError(
                f"--{name}: {template.name} has no such knob, and {template.file} has no such option; "
                f"allowed: {closest_names(name, allowed)}"
            )


def _check_dependency(package: str, version: str) -> None:
    try:
        found = importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        print(f"{package} is not installed. Run pip install {package}")
        return
    if found != version:
        print(f"{package} {found} is installed, the template requires {version}")
