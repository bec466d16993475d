"""The proxies that a tuner asks for, by number and point."""

from __future__ import annotations

import math
from typing import Any

import pytest

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.supernet import EPOCH
from nas.core.trial import Proposal, Trial
from nas.spaces.supernet import SupernetSpace
from nas.training.messages import ProxyRequest
from nas.training.proxy_scores import ProxyScores, check_available
from nas.tuners.base import WAIT
from nas.tuners.supernet import SupernetTuner
from tests.support.proxy_problem import ProxyProblem

POINTS: list[Any] = [{"width": 3}, {"width": 7}]


def scores() -> ProxyScores:
    found = ProxyScores(["synflow"], seed=2)
    found.need(["synflow"])
    return found


def requested(found: ProxyScores, number: int, points: list[Any] = POINTS) -> ProxyRequest:
    assert found.find(points, number) is None
    request = found.take_request(4)
    assert request is not None
    return request


def answer(found: ProxyScores, request: ProxyRequest) -> None:
    found.add(request, [{"synflow": float(point["width"])} for point in request.points])


def test_only_unknown_points_are_requested_once() -> None:
    """A request names each unknown point once, and the values are found in the order asked."""
    found = scores()
    answer(found, requested(found, 0, POINTS[:1] * 2))
    request = requested(found, 0)
    answer(found, request)

    assert (request.number, request.points) == (4, ({"width": 7},))
    assert found.find(POINTS[::-1], 0) == [{"synflow": 7.0}, {"synflow": 3.0}]
    assert found.take_request(4) is None


def test_each_number_has_its_own_seed() -> None:
    """Values of two numbers are kept side by side, as nested tuners may count differently, until a proposal."""
    found = scores()
    first, second = requested(found, 0), requested(found, 1)
    answer(found, first)

    assert first.seed != second.seed
    assert found.find(POINTS, 1) is None
    assert found.find(POINTS, 0) is not None
    assert found.known(POINTS[0]) == {"synflow": 3.0}
    found.clear()
    assert found.known(POINTS[0]) == {}


def test_values_that_can_not_be_computed_are_nan() -> None:
    """A lost request is known from then on, and is not sent again."""
    found = scores()
    found.add(requested(found, 0), None)
    values = found.find(POINTS, 0)

    assert values is not None
    assert all(math.isnan(row["synflow"]) for row in values)


@pytest.mark.parametrize(
    ("name", "remedy"),
    [
        ("jacov", "or define `build` and `example_batch`"),
        ("zico", "or define `static_metrics` or `build` in the problem$"),
    ],
)
def test_what_a_problem_lacks_is_named(name: str, remedy: str) -> None:
    """The error lists what is known, and the methods that are missing."""
    with pytest.raises(ConfigurationError, match=f"tuner.proxies={name}: .* Choose one of flops, synflow, {remedy}"):
        check_available("tuner.proxies", name, ["synflow"], ["flops"])


def test_a_supernet_passes_proxies_to_its_inner_tuner() -> None:
    """Its subnets are screened: WAIT for the scores, then the best candidate as a subnet of the newest epoch."""
    problem, found = ProxyProblem(), ProxyScores(["synflow"])
    inner = {"_target_": "nas.tuners.screened.ScreenedTuner", "proxies": ["synflow"], "n_candidates": 4}
    tuner = SupernetTuner(SupernetSpace(problem.space), (Metric("score"),), inner=inner, n_epochs=1, warm_up_epochs=1)
    tuner.use_proxies(found)
    tuner.use_static_metrics(problem.static_metrics)
    tuner.use_policies(frozenset(Policy))
    epoch = Trial(number=0, index=0, proposal=Proposal(point={EPOCH: 0}), policies=frozenset({Policy.SHARE_PARAMS}))
    lineage = Lineage.of([epoch.start(attempt=1, slot=0).complete({"score": 1.0}).finish(1.0)])

    assert tuner.ask(lineage, 1, 1) is WAIT
    request = found.take_request(1)
    assert request is not None
    answer(found, request)
    proposal = tuner.ask(lineage, 1, 1)
    assert isinstance(proposal, Proposal)
    assert proposal.donors == (0,)
    assert proposal.point["width"] == max(point["width"] for point in request.points)
