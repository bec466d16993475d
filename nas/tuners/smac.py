"""SMAC (Hutter et al. 2011; Lindauer et al. 2022, JMLR 23): random forests, with SMAC3.

Differs from SMAC3's own runs: nothing is stored. Each ask builds a run from the lineage, seeded by the search's seed
and the number. Initial points are random, no point is proposed twice, and running trials count with the median score.
"""

from __future__ import annotations

import itertools
import logging
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, ClassVar

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.outliers import clip_outliers, median
from nas.core.point import Point
from nas.core.trial import Proposal
from nas.core.validation import check_int, check_number
from nas.spaces.domain import Domain, Numeric
from nas.spaces.space import Space
from nas.tuners.base import Answer, StartupTrials
from nas.tuners.shared.donor_tuner import DonorTuner
from nas.tuners.shared.flat import FlatSpace

if TYPE_CHECKING:
    from ConfigSpace import Configuration, ConfigurationSpace
    from smac import HyperparameterOptimizationFacade

_TRIES = 8


class SmacTuner(DonorTuner):
    """Proposes the suggestions of SMAC3's facade for hyper-parameters, in half a second per ask.

    Args:
        space: Any space; choices become categories.
        metrics: The first one counts.
        seed: Seeds every ask, together with its number.
        n_initial_points: The number of scored trials before the first forest.
        options: Further arguments of the forest (``HyperparameterOptimizationFacade.get_model``): ``{n_trees: 30}``.
        random_share: The probability of a random point instead.
        donor: The donor of a trial; see ``DonorChooser``.

    Raises:
        ConfigurationError: SMAC3 is not installed, or refuses the options.
    """

    foreign_arguments: ClassVar[frozenset[str]] = frozenset({"options"})

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        n_initial_points: int = 10,
        options: Mapping[str, Any] | None = None,
        random_share: float = 0.2,
        donor: str = "none",
    ) -> None:
        super().__init__(space, metrics, seed=seed, donor=donor)
        check_int("tuner.n_initial_points", n_initial_points, 1)
        check_number("tuner.random_share", random_share, 0, 1, excluded=1)
        self.n_initial_points = n_initial_points
        self.startup_trials = StartupTrials(n_initial_points, "n_initial_points")
        self.options = dict(options or {})
        self.random_share = random_share
        self._flat = FlatSpace(space)
        try:
            import smac  # noqa: F401
        except ImportError as error:
            raise ConfigurationError('tuner smac needs SMAC3: pip install "heirloom-nas[smac]"') from error
        logging.getLogger("smac").setLevel(logging.ERROR)  # each ask's run warns about initial points
        if self._flat.domains:
            with tempfile.TemporaryDirectory() as folder:
                try:
                    self._facade(folder, 0, n_trials=0)
                except (TypeError, ValueError) as error:
                    raise ConfigurationError(f"tuner.options={self.options}: {error}") from error

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns an initial point while few trials have scores, else SMAC's suggestion if it is new."""
        rng = self.rng(number)
        point, reason = None, "initial point"
        if self._flat.domains and len(lineage.ranked(self.metrics[0])) >= self.n_initial_points:
            reason = "random"
            if rng.random() >= self.random_share and (point := self._suggested(lineage, rng.getrandbits(31))):
                reason = "smac"
        if point is None:
            return self.propose_new(lineage, rng, reason)
        return self.propose(lineage, point, reason)

    def _suggested(self, lineage: Lineage, seed: int) -> Point | None:
        """Returns SMAC's first suggestion that no trial has, or None."""
        import joblib
        from smac.main.exceptions import ConfigurationSpaceExhaustedException

        metric = self.metrics[0]
        ranked = lineage.ranked(metric)
        clipped = clip_outliers([metric.rank(trial.metrics[metric.name]) for trial in ranked])
        span = clipped[0] / 2 - clipped[-1] / 2 or 0.5  # SMAC adds 1e-10 to costs, which large ones would swallow
        costs = {t.number: (clipped[0] / 2 - rank / 2) / span for t, rank in zip(ranked, clipped, strict=True)}
        median_cost = median(sorted(costs.values()))
        with tempfile.TemporaryDirectory() as folder, joblib.parallel_config(backend="sequential"):
            facade = self._facade(folder, seed, n_trials=len(lineage))
            for trial in lineage:
                configuration = _configuration(facade.scenario.configspace, self._flat, trial.point)
                if (cost := costs.get(trial.number)) is not None:
                    _tell(facade, configuration, cost)
                elif trial.is_finished:
                    _tell(facade, configuration, max(costs.values()), has_failed=True)
                else:
                    _tell(facade, configuration, median_cost)
            # Not by the intensifier: it would look for repetitions, in time quadratic in the trials.
            with suppress(ConfigurationSpaceExhaustedException):
                for asked in itertools.islice(facade.intensifier.config_generator, _TRIES):
                    point = self._flat.point(_answers(asked, self._flat), self.rng(seed))
                    if not lineage.has_point(point):
                        return point
                    _tell(facade, asked, median_cost)
        return None

    def _facade(self, folder: str, seed: int, *, n_trials: int) -> HyperparameterOptimizationFacade:
        from smac import HyperparameterOptimizationFacade, Scenario

        facade = HyperparameterOptimizationFacade
        scenario = Scenario(
            _configuration_space(self._flat, seed),
            deterministic=True,
            n_trials=2**31,
            output_directory=folder,  # type: ignore[arg-type]  # it becomes a Path
            seed=seed,
        )
        model = facade.get_model(scenario, **self.options)
        # A tree has at most one leaf per trial; SMAC's bound of a million would allocate memory each time.
        model._rf_opts["max_leaf_nodes"] = n_trials + _TRIES + 1
        maximizer = facade.get_acquisition_maximizer(scenario)
        maximizer._local_search = _local_search(scenario)
        return facade(
            scenario,
            _never_called,
            model=model,
            acquisition_maximizer=maximizer,
            random_design=facade.get_random_design(scenario, probability=1e-9),  # 0 is not allowed
            initial_design=facade.get_initial_design(scenario, n_configs=0),
            logging_level=False,
            overwrite=True,
        )


def _tell(
    facade: HyperparameterOptimizationFacade, configuration: Configuration, cost: float, *, has_failed: bool = False
) -> None:
    """Tells SMAC the cost of a configuration, and whether it failed."""
    from smac.runhistory import StatusType
    from smac.runhistory.dataclasses import TrialInfo, TrialValue

    status = StatusType.CRASHED if has_failed else StatusType.SUCCESS
    facade.tell(TrialInfo(configuration, seed=0), TrialValue(cost=cost, status=status), save=False)


def _never_called(config: Configuration, seed: int = 0) -> float:
    raise NotImplementedError("SMAC must not run trials itself")


def _local_search(scenario: Any) -> Any:
    """Returns SMAC's local search with sorted start points: SMAC's order differs between processes."""
    from smac.acquisition.maximizer.local_search import LocalSearch

    class OrderedLocalSearch(LocalSearch):
        def _get_init_points_from_previous_configs(self, *args: Any, **kwargs: Any) -> list[Configuration]:
            found = super()._get_init_points_from_previous_configs(*args, **kwargs)
            return sorted(found, key=lambda configuration: tuple(configuration.get_array()))

    return OrderedLocalSearch(configspace=scenario.configspace, n_steps_plateau_walk=10, seed=scenario.seed)


def _name(index: int) -> str:
    """Returns a name that ConfigSpace accepts and sorts in order."""
    return f"p{index:06d}"


def _configuration_space(flat: FlatSpace, seed: int) -> ConfigurationSpace:
    from ConfigSpace import ConfigurationSpace

    space = ConfigurationSpace(seed=seed)
    space.add(*[_hyperparameter(_name(i), domain) for i, domain in enumerate(flat.domains.values())])
    return space


def _hyperparameter(name: str, domain: Domain) -> Any:
    from ConfigSpace import CategoricalHyperparameter, UniformFloatHyperparameter, UniformIntegerHyperparameter

    if not isinstance(domain, Numeric):
        return CategoricalHyperparameter(name, list(range(domain.n)))
    if domain.is_integer:
        return UniformIntegerHyperparameter(name, int(domain.low), int(domain.high), log=domain.log)
    return UniformFloatHyperparameter(name, domain.low, domain.high, log=domain.log)


def _configuration(space: ConfigurationSpace, flat: FlatSpace, point: Point) -> Configuration:
    from ConfigSpace import Configuration

    answers = flat.answers(point).values()
    return Configuration(space, values={_name(index): answer for index, answer in enumerate(answers)})


def _answers(configuration: Configuration, flat: FlatSpace) -> dict[str, float]:
    """Returns the values of a configuration as plain numbers."""
    found: dict[str, float] = {}
    for index, (name, domain) in enumerate(flat.domains.items()):
        value = configuration[_name(index)]
        is_whole = not isinstance(domain, Numeric) or domain.is_integer
        found[name] = int(value) if is_whole else float(value)
    return found
