"""Policies, stages and plans: parsing, and fitting a plan to a problem."""

from __future__ import annotations

from typing import Any

import pytest

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy, PolicyPlan, Stage, parse_policies
from nas.search.definition import TWO_STAGE

ALL = frozenset(Policy)


def plan(*stages: tuple[str, set[Policy]]) -> PolicyPlan:
    return PolicyPlan(tuple(Stage(name=name, policies=frozenset(policies)) for name, policies in stages))


def test_names_are_read_in_any_case() -> None:
    """Policy names ignore case, and Rafiki's QUICK_TRAIN is EARLY_STOP."""
    assert parse_policies(["share_params", "QUICK_TRAIN"]) == {Policy.SHARE_PARAMS, Policy.EARLY_STOP}
    assert parse_policies([]) == frozenset()


@pytest.mark.parametrize("name", ["FAST", "", 3, None])
def test_unknown_policy_is_refused(name: object) -> None:
    """An unknown name is refused with the known ones."""
    with pytest.raises(ConfigurationError, match=r"unknown policy .*SHARE_PARAMS, EARLY_STOP"):
        parse_policies([name])  # type: ignore[list-item]


def test_plan_is_read_from_plain_data() -> None:
    """A plan is a list of stages with names, policies and warm; policies may be left out or null."""
    read = PolicyPlan.from_stages(
        [{"name": "search", "policies": ["SHARE_PARAMS"]}, {"name": "final", "policies": None, "warm": True}]
    )

    assert read.search == Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS}))
    assert read.final == Stage(name="final", warm=True)
    assert PolicyPlan.from_stages(read.to_json()) == read


@pytest.mark.parametrize(
    ("stage", "message"),
    [
        ({"policies": []}, "must have the key `name`"),
        ({"name": "a", "polices": []}, r"stage a\.polices: must be one of name, policies, warm, best, share"),
        ("search", "stage 'search' must have the key `name`"),
        ({"name": "a", "policies": "SHARE_PARAMS"}, "must be a list"),
        ({"name": "a", "policies": 3}, "must be a list"),
        ({"name": "a", "policies": ["FAST"]}, "unknown policy"),
    ],
)
def test_wrong_stage_is_refused(stage: Any, message: str) -> None:
    """A stage with an unknown key, without a name or with invalid policies is refused with what is allowed."""
    with pytest.raises(ConfigurationError, match=message):
        PolicyPlan.from_stages([stage])


def test_a_plan_is_written_in_code() -> None:
    """Stages take names of policies in any case; texts in place of stages or lists are refused."""
    written: Any = {"policies": ["share_params", Policy.QUICK_EVAL]}

    assert Stage(name="a", **written) == Stage(name="a", policies=frozenset({Policy.SHARE_PARAMS, Policy.QUICK_EVAL}))
    for stages in (("search",), Stage(name="a"), None):
        with pytest.raises(ConfigurationError, match=r"PolicyPlan: .*: must hold nas\.Stage objects"):
            PolicyPlan(stages)  # type: ignore[arg-type]
    for name in (5, ""):
        with pytest.raises(ConfigurationError, match=f"stage {name!r}: name: must be a text of at least one character"):
            Stage(name=name)  # type: ignore[arg-type]
    with pytest.raises(ConfigurationError, match=r"stage a: policies='SHARE_PARAMS': must be a list"):
        Stage(name="a", policies="SHARE_PARAMS")  # type: ignore[arg-type]


@pytest.mark.parametrize("names", [(), ("search", "search")])
def test_stages_need_distinct_names(names: tuple[str, ...]) -> None:
    """A plan has at least one stage, with distinct names."""
    with pytest.raises(ConfigurationError, match="at least one stage, and distinct names"):
        plan(*((name, set()) for name in names))


def test_plan_of_one_stage_has_no_final() -> None:
    """With one stage, the search's own trials compete for the export."""
    assert plan(("search", set())).final is None


def test_second_stage_is_final() -> None:
    """Of two stages the first searches, and the second one's trials compete."""
    two = plan(("search", set()), ("full", set()))

    assert two.search.name == "search"
    assert two.final == Stage(name="full")


def test_last_of_many_stages_is_final() -> None:
    """Of three stages the first searches, and the last one's trials compete."""
    read = PolicyPlan.from_stages([{"name": "a"}, {"name": "b", "best": 0.5, "warm": True}, {"name": "c", "best": 3}])

    assert [stage.name for stage in read.later] == ["b", "c"]
    assert read.final == Stage(name="c", best=3)
    assert PolicyPlan.from_stages(read.to_json()) == read


@pytest.mark.parametrize("best", [0, -1, 0.0, 1.5, True, "all", float("nan")])
def test_wrong_share_is_refused(best: object) -> None:
    """``best`` is a number of trials or a share of them."""
    with pytest.raises(ConfigurationError, match=r"stage b: best=.*: must be a whole number .* or a share"):
        PolicyPlan.from_stages([{"name": "a"}, {"name": "b", "best": best}])


@pytest.mark.parametrize("share", [0, 0.0, -0.1, 1.5, True, "half", float("nan")])
def test_wrong_share_of_the_hours_is_refused(share: object) -> None:
    """``share`` is a part of the hours."""
    with pytest.raises(ConfigurationError, match=r"stage a: share=.*: must be a share of the hours: above 0"):
        PolicyPlan.from_stages([{"name": "a", "share": share}])


def test_shares_of_the_hours_make_at_most_one() -> None:
    """The shares of all stages add up to at most 1."""
    with pytest.raises(ConfigurationError, match=r"stages: the sum of the shares is 1\.1: must be at most 1"):
        PolicyPlan.from_stages([{"name": "a", "share": 0.7}, {"name": "b", "share": 0.4}])


def test_share_is_part_of_the_plan() -> None:
    """A share is in the plan's description; a plan without one has the same description as before."""
    read = PolicyPlan.from_stages([{"name": "a", "share": 0.7}, {"name": "b"}])

    assert PolicyPlan.from_stages(read.to_json()) == read
    assert read.to_json()[1] == {"name": "b", "policies": [], "warm": False}


def test_warm_stage_shares_parameters() -> None:
    """A warm stage inherits without SHARE_PARAMS; if the problem can't, it starts from scratch."""
    warm = (*plan(("search", {Policy.EARLY_STOP})).stages, Stage(name="final", warm=True))

    assert warm[1].policies == {Policy.SHARE_PARAMS}
    assert not PolicyPlan(warm).fitted(frozenset({Policy.EARLY_STOP}), strict=False)[0].stages[1].warm


def test_first_stage_chooses_nothing() -> None:
    """The first stage has no previous stage whose best trials it could retrain."""
    with pytest.raises(ConfigurationError, match="stage a: best must not be set"):
        PolicyPlan.from_stages([{"name": "a", "best": 2}, {"name": "b"}])


def test_final_stage_that_was_asked_for_is_kept() -> None:
    """If no policy was left out, a final stage equal to the search stage is kept."""
    same = plan(("search", {Policy.SHARE_PARAMS}), ("final", set()))

    assert same.fitted(ALL, strict=False)[0] == same


def test_fitted_plan_leaves_out_what_is_not_declared() -> None:
    """The default plan keeps the policies that the problem declares, and lists the others."""
    declared = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})

    fitted, left_out = TWO_STAGE.fitted(declared, strict=False)

    assert fitted.search.policies == declared
    assert left_out == {Policy.QUICK_EVAL, Policy.DOWNSCALE}


def test_strict_plan_refuses_what_is_not_declared() -> None:
    """A user's plan fails at the start with the names of undeclared policies."""
    with pytest.raises(ConfigurationError, match=r"for DOWNSCALE, QUICK_EVAL, .*declares EARLY_STOP, SHARE_PARAMS"):
        TWO_STAGE.fitted(frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP}), strict=True)


def test_strict_plan_that_fits_is_kept() -> None:
    """A user's plan with only declared policies is unchanged."""
    assert TWO_STAGE.fitted(ALL, strict=True) == (TWO_STAGE, frozenset())


@pytest.mark.parametrize("declared", [frozenset(), frozenset({Policy.SHARE_PARAMS})])
def test_final_stage_that_repeats_the_search_is_dropped(declared: frozenset[Policy]) -> None:
    """If full trials would equal cheap ones, the search's best trial wins."""
    fitted, _ = TWO_STAGE.fitted(declared, strict=False)

    assert fitted.final is None
    assert fitted.search.policies == declared


def test_warmth_survives_fitting() -> None:
    """A warm stage stays warm."""
    warm = PolicyPlan(
        (
            Stage(name="search", policies=frozenset({Policy.EARLY_STOP, Policy.SHARE_PARAMS})),
            Stage(name="final", policies=frozenset({Policy.SHARE_PARAMS}), warm=True),
        )
    )

    assert warm.fitted(ALL, strict=True)[0] == warm
