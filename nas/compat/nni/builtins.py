"""The tuners and stoppers that replace NNI's builtin tuners and assessors."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nas.compat.nni.config import Experiment, TunerChoice, check_fields
from nas.compat.nni.parameters import to_point
from nas.core.errors import ConfigurationError
from nas.core.metric import Direction
from nas.core.spec import Spec
from nas.core.validation import check_int
from nas.spaces.parameters.nni_json import load_nni_space
from nas.tuners.grid import MAX_RESOLUTION, RESOLUTION

Arguments = dict[str, Any]


def optimize_mode(experiment: Experiment) -> Direction:
    """Returns ``optimize_mode`` of the tuner, else that of the assessor, by default ``maximize``.

    Raises:
        ConfigurationError: a value is invalid, or the two differ.
    """
    tuner, assessor = experiment.tuner, experiment.assessor
    of_tuner = _mode("tuner", tuner, strict=tuner.builtin is not None)
    of_assessor = None if assessor is None else _mode("assessor", assessor, strict=True)
    if of_tuner is not None and of_assessor is not None and of_tuner != of_assessor:
        raise ConfigurationError(f"assessor.classArgs.optimize_mode={of_assessor}: must be {of_tuner}, as in tuner")
    return of_tuner or of_assessor or "maximize"


def _mode(kind: str, choice: TunerChoice, *, strict: bool) -> Direction | None:
    """Returns ``classArgs.optimize_mode``, or None if it is not given.

    Args:
        kind: ``tuner`` or ``assessor``.
        choice: The tuner or assessor.
        strict: Whether other values are refused. A user's own tuner may give the argument another meaning.

    Raises:
        ConfigurationError: the value is invalid.
    """
    if "optimize_mode" not in choice.arguments:
        return None
    mode = choice.arguments["optimize_mode"]
    if mode not in ("maximize", "minimize") and not strict:
        return None
    if mode not in ("maximize", "minimize"):
        raise ConfigurationError(f"{kind}.classArgs.optimize_mode={mode!r}: must be maximize or minimize")
    return mode  # type: ignore[no-any-return]


def tuner_spec(experiment: Experiment) -> Spec:
    """Returns the tuner that replaces a builtin one.

    Raises:
        ConfigurationError: the tuner or one of its arguments is not supported.
    """
    choice = experiment.tuner
    name = str(choice.builtin)
    if name in _UNSUPPORTED_TUNERS:
        raise ConfigurationError(f"tuner.builtinTunerName={name}: not supported. {_UNSUPPORTED_TUNERS[name]}")
    if name not in _TUNERS:
        raise ConfigurationError(f"tuner.builtinTunerName={name}: must be one of {', '.join(_TUNERS)}")
    if experiment.space is None:
        raise ConfigurationError("searchSpacePath is missing: a builtin tuner needs a search space")
    replacement = _TUNERS[name]
    ignored = ("optimize_mode", *replacement.ignored)
    given = {key: value for key, value in choice.arguments.items() if key not in ignored}
    check_fields("tuner.classArgs", given, replacement.names, f"{name} has no such argument")
    for key, value in given.items():
        check_int(f"tuner.classArgs.{key}", value, *replacement.limits)
    arguments = {**replacement.arguments, **{replacement.names[key]: value for key, value in given.items()}}
    if "sample_size" in arguments and arguments["sample_size"] > arguments["population_size"]:
        raise ConfigurationError(
            f"tuner.classArgs.sample_size={arguments['sample_size']}: must be at most population_size "
            f"({arguments['population_size']})"
        )
    if name == "BatchTuner":
        arguments["points"] = _batch_points(experiment.space)
    if name == "GridSearch" and (n_values := _most_values(experiment.space)) > RESOLUTION:
        arguments["resolution"] = min(n_values, MAX_RESOLUTION)
    if name in _ENDING or choice.arguments.get("config_dedup"):
        return Spec(replacement.target, arguments)
    return Spec("nas.compat.nni.repeating_tuner.RepeatingTuner", {"builtin": name, "arguments": arguments})


def replacement_spec(name: str, arguments: Mapping[str, Any]) -> Spec:
    """Returns the tuner that replaces a builtin one, with these arguments.

    Raises:
        ConfigurationError: there is no such builtin tuner, or ``tuner_spec`` does not give it such an argument.
    """
    if name not in _TUNERS:
        raise ConfigurationError(f"builtin={name!r}: must be one of {', '.join(_TUNERS)}")
    replacement = _TUNERS[name]
    known = {*replacement.arguments, *replacement.names.values()}
    check_fields("arguments", arguments, known, f"must be one of {', '.join(sorted(known)) or 'none'}")
    return Spec(replacement.target, dict(arguments))


def stopper_spec(choice: TunerChoice) -> Spec:
    """Returns the stopper that replaces a builtin assessor.

    Raises:
        ConfigurationError: the assessor or one of its arguments is not supported.
    """
    arguments = dict(choice.arguments)
    arguments.pop("optimize_mode", None)
    if choice.builtin == "Medianstop":
        start_step = check_int("assessor.classArgs.start_step", arguments.pop("start_step", 0), 0)
        options = {"min_trials": 1, "warmup_steps": start_step}
        stopper = Spec("nas.stoppers.median.MedianStopper", options)
    elif choice.builtin == "Curvefitting":
        for name in _CURVE_IGNORED:
            arguments.pop(name, None)
        start_step = check_int("assessor.classArgs.start_step", arguments.pop("start_step", 6), 0)
        epoch_num = check_int("assessor.classArgs.epoch_num", arguments.pop("epoch_num", 20), 1)
        if epoch_num <= start_step:
            raise ConfigurationError(
                f"assessor.classArgs.epoch_num={epoch_num}: must be greater than start_step ({start_step})"
            )
        options = {"target_step": epoch_num, "start_step": start_step}
        stopper = Spec("nas.stoppers.curve.CurveStopper", options)
    else:
        given = "its own class" if choice.builtin is None else repr(choice.builtin)
        raise ConfigurationError(
            f"assessor={given}: must be Medianstop or Curvefitting. Write a stopper for other rules "
            "(docs/guides/stoppers.md)"
        )
    check_fields("assessor.classArgs", arguments, (), f"{choice.builtin} has no such argument")
    return stopper


def notes_on_builtins(experiment: Experiment) -> list[str]:
    """Returns lines about arguments of builtin classes without effect, and about values left out.

    Raises:
        ConfigurationError: the search space of GridSearch is invalid.
    """
    ignored = {name: replacement.ignored for name, replacement in _TUNERS.items()}
    ignored["Curvefitting"] = _CURVE_IGNORED
    notes: list[str] = []
    for kind, choice in (("tuner", experiment.tuner), ("assessor", experiment.assessor)):
        if choice is None:
            continue
        given = [key for key in ignored.get(str(choice.builtin), ()) if key in choice.arguments]
        why = f"docs/reference/nni.md says what replaces {choice.builtin}"
        notes += [f"{kind}.classArgs.{key} has no effect: {why}" for key in given if key != "config_dedup"]
    space = experiment.space
    if experiment.tuner.builtin == "GridSearch" and space is not None and _most_values(space) > MAX_RESOLUTION:
        notes.append(f"GridSearch tries {MAX_RESOLUTION:,} values of a parameter that has more")
    return notes


def _most_values(space: Mapping[str, Any]) -> int:
    """Returns the greatest number of values of an integer or quantized parameter; 1 without any.

    Raises:
        ConfigurationError: the space is invalid.
    """
    load_nni_space(space)
    return _most_values_in(space)


def _most_values_in(part: Any) -> int:
    if isinstance(part, dict) and part.get("_type") in _FINITE_RANGES:
        return load_nni_space({"x": part}).n_points or MAX_RESOLUTION + 1
    inner: Iterable[Any] = part.values() if isinstance(part, dict) else part if isinstance(part, list) else ()
    return max(map(_most_values_in, inner), default=1)


def _batch_points(space: Mapping[str, Any]) -> list[Arguments]:
    """Returns the values of the only choice as points: each is a whole configuration."""
    entry = next(iter(space.values()), None)
    if len(space) != 1 or not isinstance(entry, dict) or entry.get("_type") != "choice":
        raise ConfigurationError("BatchTuner: the search space must be one choice, whose values are the configurations")
    options = entry.get("_value")
    if not isinstance(options, list) or not options:
        raise ConfigurationError(f"BatchTuner: _value={options!r:.100}: must be a list of configurations")
    return [to_point(option) for option in options]


@dataclass(frozen=True, slots=True)
class _Replacement:
    """The tuner that replaces a builtin one.

    Attributes:
        target: Its class.
        arguments: Default arguments.
        names: Names of arguments, by their names in NNI. Their values are whole numbers.
        limits: The least and the most of these numbers.
        ignored: NNI's arguments that the class does not take. ``config_dedup`` has an effect nevertheless: no repeats.
    """

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, str] = field(default_factory=dict)
    limits: tuple[int, int | None] = (1, None)
    ignored: tuple[str, ...] = ()


_POPULATION = {"population_size": "population_size"}
_TUNERS: Mapping[str, _Replacement] = {
    "TPE": _Replacement(  # running trials always count as bad ones
        "nas.tuners.optuna.OptunaTuner", {"sampler": "tpe"}, ignored=("parallel_optimize", "constant_liar_type")
    ),
    "Random": _Replacement("nas.tuners.random.RandomTuner"),
    "Anneal": _Replacement("nas.tuners.anneal.AnnealTuner"),
    "Evolution": _Replacement(
        "nas.tuners.evolution.EvolutionTuner",
        {"population_size": 32, "sample_size": 2, "replacement": "loser"},
        names=_POPULATION,
        limits=(2, None),
    ),
    "RegularizedEvolutionTuner": _Replacement(
        "nas.tuners.evolution.EvolutionTuner",
        {"population_size": 100, "sample_size": 25},
        names=_POPULATION | {"sample_size": "sample_size"},
    ),
    "SMAC": _Replacement("nas.tuners.smac.SmacTuner", ignored=("config_dedup",)),
    "GridSearch": _Replacement("nas.tuners.grid.GridTuner"),
    "BatchTuner": _Replacement("nas.tuners.batch.BatchTuner", {"points": ()}),
    "MetisTuner": _Replacement(
        "nas.tuners.metis.MetisTuner",
        names={"cold_start_num": "n_initial_points"},
        limits=(2, 250),
        ignored=("no_resampling", "no_candidates", "selection_num_starting_points", "exploration_probability"),
    ),
    "GPTuner": _Replacement(
        "nas.tuners.optuna.OptunaTuner",
        {"sampler": "gp"},
        ignored=(
            *("utility", "kappa", "xi", "nu", "alpha"),
            *("cold_start_num", "selection_num_warm_up", "selection_num_starting_points"),
        ),
    ),
}
_CURVE_IGNORED = ("threshold", "gap")
_FINITE_RANGES = ("randint", "quniform", "qloguniform", "qnormal", "qlognormal")
"""Types of numbers that GridSearch tries all of."""
_ENDING = frozenset({"GridSearch", "BatchTuner"})
"""Tuners that end after their last configuration, in NNI too."""
_UNSUPPORTED_TUNERS: Mapping[str, str] = {
    "NetworkMorphism": "NNI itself builds its networks. Use the command `search +tuner=network_morphism`, or "
    "evolution over a space of layers (docs/reference/tuners.md)",
    "PBTTuner": "it passes folders of checkpoints. Use the command `search +tuner=pbt`, which keeps weights in the "
    "store (docs/reference/tuners.md)",
    "PPOTuner": "use the command `search +tuner=reinforce` (docs/reference/tuners.md)",
    "Hyperband": "use the command `search stopper=asha` (docs/guides/stoppers.md)",
    "BOHB": "use the command `search +tuner=tpe stopper=asha` (docs/guides/stoppers.md)",
}
