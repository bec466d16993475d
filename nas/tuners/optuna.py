"""Optuna's samplers as tuners: TPE (Bergstra et al. 2011, NIPS 24) and Gaussian processes.

Differs from Optuna's own studies: nothing is stored. Each ask builds a study from the lineage, seeded by the search's
seed and the number. A repeated suggestion is replaced by a new point near it.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

from nas.core.errors import ConfigurationError, SpaceExhaustedError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.outliers import clip_outliers
from nas.core.parsing import signature_of
from nas.core.point import Point
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_choice
from nas.spaces.domain import Categorical, Domain, Numeric
from nas.spaces.space import Space
from nas.tuners.base import Answer, StartupTrials
from nas.tuners.shared.donor_tuner import DonorTuner
from nas.tuners.shared.flat import FlatSpace
from nas.tuners.shared.gaussian import check_max_points

if TYPE_CHECKING:
    import optuna

_SAMPLERS = {"tpe": "TPESampler", "gp": "GPSampler"}
_TRIES = {"tpe": 16, "gp": 1}
"""Suggestions per ask. ``gp`` has only one, since it fits its model for each."""
_N_STEPS = 64
"""The most mutations from a repeated suggestion to a new point."""
_MAX_LISTED = 100_000
"""Longer ranges of whole numbers are ranges of floats for Optuna, and suggestions are rounded."""
_ANY_TIME = datetime(1970, 1, 1)
"""Required by Optuna; no sampler reads it."""


class OptunaTuner(DonorTuner):
    """Proposes the suggestions of one of Optuna's samplers.

    Running and waiting trials are running ones for the sampler; TPE counts them as bad (constant liar). Failed trials
    are failed ones.

    Args:
        space: Any space; choices become categories. For conditional decisions ``gp`` uses default values
            (`nas.tuners.shared.flat`), and ``tpe`` the points that have them.
        metrics: The first one counts.
        seed: Seeds every ask, together with its number.
        sampler: ``tpe`` or ``gp``.
        options: Further arguments of Optuna's sampler.
        max_points: The most scored trials in the model: their best half and newest half. At least twice Optuna's
            ``n_startup_trials``, since the sampler is random with fewer.
        donor: The donor of a trial; see ``DonorChooser``.

    Raises:
        ConfigurationError: Optuna is not installed, or refuses the options.
    """

    foreign_arguments: ClassVar[frozenset[str]] = frozenset({"options"})

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        sampler: str = "tpe",
        options: Mapping[str, Any] | None = None,
        max_points: int | None = None,
        donor: str = "none",
    ) -> None:
        super().__init__(space, metrics, seed=seed, donor=donor)
        check_choice("tuner.sampler", sampler, tuple(_SAMPLERS))
        self.sampler = sampler
        self.options = dict(options or {})
        self.max_points = max_points
        self._flat = FlatSpace(space) if sampler == "gp" else None  # gp needs the same columns for all points
        self._known: dict[int, tuple[Trial, optuna.trial.FrozenTrial]] = {}  # a cache: finished trials, and Optuna's
        try:
            import optuna
        except ImportError as error:
            raise ConfigurationError('tuners tpe and gp need Optuna: pip install "heirloom-nas[optuna]"') from error
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        try:
            self._sampler(0)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"tuner.options={self.options}: {error}") from error
        self.startup_trials = StartupTrials(self._n_startup_trials(), "options.n_startup_trials")
        if max_points is not None:
            check_max_points(max_points, self.startup_trials.number, "options.n_startup_trials")

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns the sampler's suggestion, a new point near it, or a random one."""
        rng = self.rng(number)
        point = self._suggested(lineage, rng.getrandbits(31))
        try:
            for _ in range(_N_STEPS):
                if not lineage.has_point(point):
                    return self.propose(lineage, point, self.sampler)
                point = self.space.mutate(point, rng)
        except SpaceExhaustedError:
            pass  # no mutation is possible here; a random point is drawn
        return self.propose_new(lineage, rng, self.sampler)

    def _suggested(self, lineage: Lineage, seed: int) -> Point:
        """Returns the first suggestion that no trial has, else the last one."""
        import optuna

        direction = self.metrics[0].direction
        study = optuna.create_study(sampler=self._sampler(seed), direction=direction)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            study.add_trials(self._model_trials(lineage))
            for _ in range(_TRIES[self.sampler]):
                point = self._point(partial(_suggest, study.ask()), seed)
                if not lineage.has_point(point):
                    break
        return point

    def _point(self, suggest: Callable[[str, Domain], float], seed: int) -> Point:
        if self._flat is None:
            return self.space.decide(suggest)
        answers = {name: suggest(name, domain) for name, domain in self._flat.domains.items()}
        return self._flat.point(answers, self.rng(seed))

    def _decided(self, point: Point) -> Iterator[tuple[str, Domain, float]]:
        """Yields a point's decisions, or one value per column of the model."""
        if self._flat is None:
            yield from ((decision.name, decision.domain, decision.answer) for decision in self.space.decisions(point))
        else:
            yield from ((name, self._flat.domains[name], value) for name, value in self._flat.answers(point).items())

    def _sampler(self, seed: int) -> optuna.samplers.BaseSampler:
        import optuna

        defaults: dict[str, Any] = {"constant_liar": True} if self.sampler == "tpe" else {}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            made = getattr(optuna.samplers, _SAMPLERS[self.sampler])(**{**defaults, **self.options}, seed=seed)
        assert isinstance(made, optuna.samplers.BaseSampler)
        return made

    def _n_startup_trials(self) -> int:
        """Returns the number of the sampler's random trials, by default Optuna's."""
        sampler = type(self._sampler(0))
        default = signature_of(sampler).parameters["n_startup_trials"].default
        return int(self.options.get("n_startup_trials", default))

    def _chosen(self, lineage: Lineage) -> list[Trial]:
        """Returns the trials for the model, in the order learned."""
        if self.max_points is None or len(lineage.ranked(self.metrics[0])) <= self.max_points:
            return list(lineage)
        return [*lineage.best_and_newest(self.metrics[0], self.max_points), *lineage.pending]

    def _model_trials(self, lineage: Lineage) -> list[optuna.trial.FrozenTrial]:
        """Returns the trials of the model. Scores of gp are clipped; tpe uses only their order."""
        chosen = self._chosen(lineage)
        frozen = [self._frozen(trial) for trial in chosen]
        if self.sampler == "gp":
            metric = self.metrics[0]
            values = {n: v for n, trial in enumerate(chosen) if (v := trial.value(metric.name)) is not None}
            for n, rank in zip(values, clip_outliers([metric.rank(v) for v in values.values()]), strict=True):
                frozen[n].value = metric.rank(rank)
        return frozen

    def _frozen(self, trial: Trial) -> optuna.trial.FrozenTrial:
        """Returns the trial as one of Optuna's."""
        from optuna.trial import TrialState

        known = self._known.get(trial.number)
        if known is not None and known[0] is trial:
            return known[1]
        decisions = list(self._decided(trial.point))
        value = trial.value(self.metrics[0].name)
        state = TrialState.RUNNING
        if trial.is_finished:
            state = TrialState.FAIL if value is None else TrialState.COMPLETE
        frozen = _shared_trial()(
            number=-1,
            trial_id=-1,
            state=state,
            value=value,
            datetime_start=_ANY_TIME,
            datetime_complete=_ANY_TIME if trial.is_finished else None,
            params={name: answer for name, _, answer in decisions},
            distributions={name: _distribution(domain) for name, domain, _ in decisions},
            user_attrs={},
            system_attrs={},
            intermediate_values={},
        )
        if trial.is_finished:
            self._known[trial.number] = trial, frozen
        return frozen


@cache
def _shared_trial() -> type[optuna.trial.FrozenTrial]:
    import optuna

    class SharedTrial(optuna.trial.FrozenTrial):
        """A trial whose deep copies are shallow: Optuna makes two of each trial per ask."""

        def __deepcopy__(self, memo: dict[int, object]) -> SharedTrial:
            return copy.copy(self)

    return SharedTrial


def _distribution(domain: Domain) -> optuna.distributions.BaseDistribution:
    from optuna import distributions

    if isinstance(domain, Categorical):
        return distributions.CategoricalDistribution(tuple(range(domain.n)))
    if _is_listed(domain):
        return distributions.IntDistribution(int(domain.low), int(domain.high), log=domain.log)
    return distributions.FloatDistribution(domain.low, domain.high, log=domain.log)


def _suggest(trial: optuna.Trial, name: str, domain: Domain) -> float:
    if isinstance(domain, Categorical):
        return int(trial.suggest_categorical(name, tuple(range(domain.n))))
    if _is_listed(domain):
        return trial.suggest_int(name, int(domain.low), int(domain.high), log=domain.log)
    value = trial.suggest_float(name, domain.low, domain.high, log=domain.log)
    return round(value) if domain.is_integer else value


def _is_listed(domain: Numeric) -> bool:
    """Returns whether Optuna gets whole numbers as such.

    Its Gaussian process allocates memory for each number of a range.
    """
    return domain.is_integer and domain.high - domain.low < _MAX_LISTED
