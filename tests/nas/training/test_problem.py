import torch
from torch import nn

from nas import Ability, Problem
from tests.support.problems import ExportProblem, PlainProblem, ScoreProblem


class NetworkProblem(ExportProblem):
    """A problem that can build the network of a point."""

    build = example_inputs = ExportProblem.export


class WithoutTestData(NetworkProblem):
    """A problem that defines ``test`` but has no test data."""

    @property
    def abilities(self) -> frozenset[Ability]:
        return super().abilities - {Ability.TEST}


def test_abilities_are_the_optional_methods_that_a_class_overrides():
    """A method counts if any class below ``Problem`` defines it."""

    assert Problem().abilities == frozenset()
    assert PlainProblem().abilities == {Ability.TRAIN}
    assert ScoreProblem().abilities | {Ability.EXPORT} == ExportProblem().abilities


def test_a_problem_with_a_network_has_static_metrics_and_measures():
    """``build`` and ``example_inputs`` are enough for both, by default."""

    gained = NetworkProblem().abilities - ExportProblem().abilities

    assert gained == {Ability.BUILD, Ability.EXAMPLE_INPUTS, Ability.STATIC_METRICS, Ability.MEASURE}


class LazyProblem(ExportProblem):
    """A problem whose network has lazy layers."""

    def build(self, point):
        return nn.Sequential(nn.LazyLinear(4), nn.LazyBatchNorm1d())

    def example_inputs(self):
        return (torch.zeros(1, 3),)


def test_lazy_networks_are_counted():
    """A forward pass gives lazy layers their sizes, so that parameters and FLOPs are known."""

    expected = {"parameters": 4 * 3 + 4 + 2 * 4, "flops": 2 * 3 * 4, "live_flops": 2 * 3 * 4}

    assert dict(LazyProblem().static_metrics({})) == expected


def test_a_problem_may_lack_an_ability_that_its_class_defines():
    """A problem whose test data is absent overrides ``abilities``."""

    assert Ability.TEST in NetworkProblem().abilities
    assert Ability.TEST not in WithoutTestData().abilities
