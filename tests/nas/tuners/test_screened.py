"""Screening: the candidate that the proxies rank first is proposed."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.spec import Spec
from nas.core.trial import Proposal
from nas.problems.nasbench201 import live_cell
from nas.search.definition import Search
from nas.spaces.parameters.space import Choice, ParameterSpace
from nas.spaces.supernet import SupernetSpace
from nas.training.proxy_scores import ProxyScores
from nas.tuners.base import STOP, Answer, Tuner
from nas.tuners.screened import ScreenedTuner
from tests.support.problems import ScoreProblem, SizeProblem

METRICS = (Metric("accuracy"),)
SPACE = ParameterSpace({"a": Choice(*range(1, 100))})
PROXIES = {
    "flops": float,
    "small": lambda a: -float(a),
    "peak": lambda a: -abs(a - 6.0),
    "nan": lambda a: math.nan if a == 3 else 0.0,
}


class FourTuner(Tuner):
    """Has four points that it may propose in each ask."""

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        left = [a for a in (3, 9, 1, 6) if not lineage.refuses({"a": a})]
        return Proposal(point={"a": left[0]}) if left else STOP


class FourProblem(SizeProblem):
    """Has four points."""

    def __init__(self) -> None:
        super().__init__(space=ParameterSpace({"a": Choice(3, 9, 1, 7), "b": 1, "d": 0.5}))


def tuner(**arguments: Any) -> ScreenedTuner:
    built = ScreenedTuner(SPACE, METRICS, **arguments)
    built.use_static_metrics(lambda point: {name: proxy(point["a"]) for name, proxy in PROXIES.items()})
    return built


def asked(tuner: ScreenedTuner, number: int = 0) -> Any:
    answer = tuner.ask(Lineage.of([]), number, 0)
    return answer.point["a"] if isinstance(answer, Proposal) else answer


@pytest.mark.parametrize(
    ("proxies", "expected"),
    [(["flops"], 9), (["small"], 1), (["peak"], 6), (["flops", "small"], 3), (["nan", "flops"], 9)],
)
def test_the_first_by_rank_is_proposed(proxies: list[str], expected: int) -> None:
    """Of the inner tuner's points, the one with the largest sum of ranks; of equal sums, the first. NaN ranks last."""
    inner = {"_target_": f"{__name__}.FourTuner"}

    assert asked(tuner(inner=inner, n_candidates=5, proxies=proxies)) == expected


def test_supernet_epochs_are_not_screened() -> None:
    """An epoch of a one-shot tuner inside has no proxies, which are those of one network."""
    inner = {"_target_": "nas.tuners.supernet.SupernetTuner"}
    scores = ProxyScores(["naswot"])
    screened = ScreenedTuner(SupernetSpace(SPACE), METRICS, inner=inner, proxies=["naswot"])
    screened.use_proxies(scores)
    screened.use_static_metrics(lambda point: {})
    answer = screened.ask(Lineage.of([]), 0, 0)

    assert isinstance(answer, Proposal)
    assert answer.point == {"supernet_epoch": 0}
    assert scores.take_request(0) is None


def test_random_candidates_get_better_with_their_number() -> None:
    """Each ask draws other candidates, and more of them have a larger best."""
    few = [asked(tuner(n_candidates=2), number) for number in range(50)]
    many = [asked(tuner(n_candidates=32), number) for number in range(50)]

    assert len(set(few)) > 10
    assert sum(few) / 50 < 75
    assert sum(many) / 50 > 90


def test_a_small_space_is_used_up() -> None:
    """With as many candidates as points, the points come in the order of the proxy."""
    search = Search(
        problem=Spec(f"{__name__}.FourProblem"), tuner=Spec.of(ScreenedTuner, proxies=["size"], n_candidates=50)
    )
    found = run_search(search, root="memory://screened", budget=Budget(trials=4), finalists=1)

    assert [trial.point["a"] for trial in found.lineage if trial.stage == "search"] == [9, 7, 3, 1]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"inner": "evolution"}, "tuner.inner='evolution': must be"),
        ({"inner": {"_target_": "nas.tuners.grid.GridTuner"}}, "GridTuner: must be .* no list of points"),
        ({"inner": {"_target_": "nas.tuners.pbt.PbtTuner"}}, "PbtTuner: must be .* other than pbt"),
        ({"inner": {"_target_": "nas.core.metric.Metric"}}, "nas.core.metric.Metric"),
        ({"n_candidates": 0}, "n_candidates=0: must be a whole number of at least 1"),
        ({"proxies": "flops"}, "tuner.proxies='flops': must be a list"),
        ({"proxies": []}, "must be a list of names"),
    ],
)
def test_invalid_arguments(arguments: dict[str, Any], error: str) -> None:
    """Each is refused by name."""
    with pytest.raises(ConfigurationError, match=error):
        tuner(**arguments)


def test_an_unknown_proxy_is_refused_before_the_search() -> None:
    """The error names the metrics that the problem knows."""
    with pytest.raises(
        ConfigurationError, match=r"tuner.proxies=naswot: must be .* Choose one of size, or define .* in the problem$"
    ):
        Search(problem=Spec.of(SizeProblem), tuner=Spec.of(ScreenedTuner, proxies=["naswot"])).build()
    with pytest.raises(ConfigurationError, match="Define `static_metrics`"):
        Search(problem=Spec.of(ScoreProblem), tuner=Spec.of(ScreenedTuner)).build()


@pytest.mark.parametrize(
    ("cell", "live"),
    [
        ("333333", "333333"),
        ("000000", "000000"),
        ("300000", "000000"),
        ("000300", "000300"),
        ("030303", "030303"),
        ("003300", "000300"),
    ],
)
def test_live_edges(cell: str, live: str) -> None:
    """An edge that no path from the first to the last node crosses becomes none."""
    names = ["op_0_1", "op_0_2", "op_1_2", "op_0_3", "op_1_3", "op_2_3"]
    found = live_cell({name: "none" if op == "0" else op for name, op in zip(names, cell, strict=True)})

    assert "".join("0" if found[name] == "none" else found[name] for name in names) == live
