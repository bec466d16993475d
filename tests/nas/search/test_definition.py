"""A search's identity: its parts, and the refusal of another one."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import uuid4

import fsspec
import numpy as np
import pytest

from nas.core.errors import ConfigurationError
from nas.core.metric import Metric
from nas.core.policy import Policy, PolicyPlan, Stage
from nas.core.spec import Spec
from nas.problems.language.problem import LanguageProblem
from nas.problems.tabular import TabularProblem
from nas.search.definition import TWO_STAGE, Search
from nas.search.identity import claim_identity, differences
from nas.spaces.parameters.space import Int, ParameterSpace
from nas.spaces.space import Space
from nas.spaces.supernet import SupernetSpace
from nas.spaces.transformer import TransformerSpace
from nas.stoppers.median import MedianStopper
from nas.storage.open import open_root
from nas.storage.record_format import FORMAT
from nas.storage.records import Records
from nas.tuners.autogrow import AutoGrowTuner
from nas.tuners.evolution import EvolutionTuner
from nas.tuners.random import RandomTuner
from nas.tuners.screened import ScreenedTuner
from nas.tuners.supernet import SupernetTuner
from tests.support.problems import BodyProblem, PlainProblem, ScoreProblem

REPOSITORY = Path(__file__).parents[3]
AUTOGROW = {"_target_": "nas.tuners.autogrow.AutoGrowTuner"}
TRANSFORMERS = TransformerSpace((1, 2))
SEARCH = Search(problem=Spec.of(ScoreProblem), tuner=Spec.of(RandomTuner))


class WithoutMetrics(PlainProblem):
    metrics = ()


class ManyMetrics(PlainProblem):
    metrics = tuple(Metric(f"accuracy of class {n}") for n in range(20))


class Declaring(PlainProblem):
    """Declares what its arguments say."""

    def __init__(self, **declared: object) -> None:
        for name, value in declared.items():
            setattr(self, name, value)


class WithSet(PlainProblem):
    def __init__(self, choices: object) -> None:
        pass


def table_search(table: object) -> Search:
    columns: dict[str, Any] = {"parameters": ["a"], "metrics": {"score": {"column": "score"}}}
    return replace(SEARCH, problem=Spec.of(TabularProblem, table=table, **columns))


def language_search(text: object) -> Search:
    return replace(SEARCH, problem=Spec.of(LanguageProblem, text=text))


@pytest.fixture
def records() -> Records:
    return Records(open_root(f"memory://search/{uuid4().hex}", retry_s=0))


def identity(**changes: Any) -> dict[str, Any]:
    return dict(replace(SEARCH, **changes).build().identity)


class TestIdentity:
    def test_identity_is_plain_json(self) -> None:
        """The identity survives JSON, so a stored one compares equal."""
        search = replace(SEARCH, stopper=Spec.of(MedianStopper, min_trials=3))
        found = search.build().identity

        assert json.loads(json.dumps(found)) == found
        assert found["tuner"] == {"target": "nas.tuners.random.RandomTuner", "arguments": {}}
        assert found["stopper"]["arguments"] == {"min_trials": 3}
        assert found["seed"] == 0

    @pytest.mark.parametrize(
        "changes",
        [
            {"problem": Spec.of(ScoreProblem, direction="minimize")},
            {"problem": Spec.of(PlainProblem)},
            {"tuner": Spec.of(EvolutionTuner)},
            {"tuner": Spec.of(EvolutionTuner, population_size=5)},
            {"plan": PolicyPlan((Stage(name="search"),))},
            {"stopper": Spec.of(MedianStopper)},
            {"seed": 1},
            {"on_missing_weights": "fail"},
            {"deterministic": True},
        ],
        ids=lambda changes: "+".join(changes),
    )
    def test_identity_depends_on_its_parts(self, changes: dict[str, Any]) -> None:
        """Another problem, tuner, plan, stopper, seed or on_missing_weights makes another search."""
        assert identity(**changes) != identity()
        assert replace(SEARCH, **changes).build().digest != SEARCH.build().digest

    @pytest.mark.parametrize("changes", [{"slots": 4}, {"n_threads": 8}])
    def test_identity_does_not_depend_on_slots_and_threads(self, changes: dict[str, Any]) -> None:
        """Slots and threads may change between sessions."""
        assert identity(**changes) == identity()

    def test_deterministic_identity_depends_on_slots_and_threads(self) -> None:
        """With deterministic, slots and threads are part of the identity."""
        first = identity(deterministic=True)

        assert (first["slots"], first["n_threads"]) == (1, 1)
        assert identity(deterministic=True, slots=2) != first
        assert identity(deterministic=True, n_threads=2) != first

    def test_data_paths_are_left_out(self) -> None:
        """The path of the data is in no record."""
        there = identity(problem=Spec.of(ScoreProblem, data_root="/secret/place"))

        assert there == identity()
        assert "secret" not in json.dumps(there)

    def test_left_out_policies_do_not_matter(self) -> None:
        """A policy that the problem does not declare is not in the identity."""
        plan = PolicyPlan((replace(TWO_STAGE.search, policies=frozenset(Policy)), Stage(name="final")))

        assert identity(plan=plan) == identity()

    def test_digest_is_the_same_in_every_process(self) -> None:
        """The default name is the same in each process, whatever the hash seed."""
        pipeline = (
            "from nas.search.definition import Search; from nas.core.spec import Spec;"
            "from tests.support.problems import ScoreProblem; from nas.tuners.random import RandomTuner;"
            "print(Search(problem=Spec.of(ScoreProblem), tuner=Spec.of(RandomTuner)).build().default_name)"
        )
        command = [sys.executable, "-c", pipeline]
        name = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=True).stdout.strip()

        assert name == SEARCH.build().default_name
        assert name.startswith("score-random-")


class TestClaim:
    def test_first_session_writes_it_the_next_finds_it(self, records: Records) -> None:
        """search.json holds identity, metrics and format; the same search finds it."""
        prepared = SEARCH.build()
        claim_identity(records, prepared)
        claim_identity(records, replace(SEARCH, slots=3, problem=Spec.of(ScoreProblem, data_root="/x")).build())

        stored = records.read("search.json")
        assert stored == {
            "format": FORMAT,
            "identity": prepared.identity,
            "metrics": [{"name": "score", "direction": "maximize"}],
        }

    def test_another_search_is_refused_key_by_key(self, records: Records) -> None:
        """A difference is refused in one line with each key and both values."""
        claim_identity(records, replace(SEARCH, tuner=Spec.of(EvolutionTuner, population_size=8)).build())
        other = replace(SEARCH, tuner=Spec.of(EvolutionTuner, population_size=5, sample_size=2), seed=3)

        with pytest.raises(ConfigurationError) as caught:
            claim_identity(records, other.build())
        text = str(caught.value)
        assert "tuner.arguments.population_size: 8 there, 5 here" in text
        assert "tuner.arguments.sample_size: absent there, 2 here" in text
        assert "seed: 0 there, 3 here" in text
        assert "\n" not in text
        assert text.count(" there, ") == 3

    def test_search_of_an_earlier_version_continues(self, records: Records) -> None:
        """Digests of code that an earlier version put into the identity are no part of it."""
        prepared = SEARCH.build()
        old = {**prepared.search_json, "identity": {**prepared.identity, "content": {"file": "0123"}}}
        records.publish("search.json", old)

        claim_identity(records, prepared)
        assert (records.header() or {})["identity"] == old["identity"]

    @pytest.mark.parametrize("given", [str, Path, lambda path: f"~/{path.name}"], ids=["text", "path", "home"])
    def test_other_data_are_refused(
        self, records: Records, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, given: Callable[[Path], object]
    ) -> None:
        """A data file may move or be missing, but must have the contents of the search's start."""
        monkeypatch.setenv("HOME", str(tmp_path))
        first, moved, gone = tmp_path / "a.csv", tmp_path / "b.csv", tmp_path / "c.csv"
        first.write_text("a,score\n1,2\n2,3\n")
        prepared = table_search(given(first)).build()
        claim_identity(records, prepared)
        stored = (records.read("search.json") or {})["data"]["table"]
        shutil.copyfile(first, moved)
        first.write_text("a,score\n1,2\n2,4\n")

        claim_identity(records, table_search(moved).build())
        read = table_search(gone_after := shutil.copyfile(first, gone)).build()
        gone_after.unlink()
        claim_identity(records, read)
        with pytest.raises(ConfigurationError, match=f"other data: problem.table: {stored} there, 16 bytes, sha256"):
            claim_identity(records, table_search(given(first)).build())

    def test_a_file_instead_of_bundled_data_is_refused(self, records: Records, tmp_path: Path) -> None:
        """A search of bundled data does not continue with a file or a URL, nor the other way round."""
        text = tmp_path / "text.txt"
        text.write_text("one two three " * 500)
        remote = f"memory://{tmp_path.name}/text.txt"
        fsspec.filesystem("memory").pipe_file(remote, text.read_bytes())
        bundled, file, url = (language_search(found).build() for found in (None, text, remote))
        claim_identity(records, bundled)
        other = Records(records.files.subfolder("other"))
        claim_identity(other, file)

        claim_identity(records, bundled)
        claim_identity(other, url)
        for refused in (file, url):
            with pytest.raises(ConfigurationError, match=r"other data: problem.text: no file there"):
                claim_identity(records, refused)
        with pytest.raises(ConfigurationError, match=r"other data: problem.text: .* there, no file here"):
            claim_identity(other, bundled)
        assert len({bundled.digest, file.digest, url.digest}) == 3

    def test_newer_format_is_refused(self, records: Records) -> None:
        """A search of another format is refused with both formats."""
        records.publish("search.json", {"format": FORMAT + 1})

        with pytest.raises(ConfigurationError, match=rf"has format {FORMAT + 1}; this Heirloom reads format {FORMAT}"):
            claim_identity(records, SEARCH.build())

    def test_differences_count_types(self) -> None:
        """1, 1.0 and True differ; the order of keys does not count."""
        assert differences({"a": {"b": 1}}, {"a": {"b": 1.0}}) == ["a.b: 1 there, 1.0 here"]
        assert differences({"a": True}, {"a": 1}) == ["a: True there, 1 here"]
        assert differences({"a": [{"x": 1, "y": 2}], "b": 1}, {"b": 1, "a": [{"y": 2, "x": 1}]}) == []
        assert differences({"a": [1] * 900}, {"a": [[2]]}) == [
            f"a: {str([1] * 900)[:200]}... (900 items) there, [[2]] here"
        ]
        assert differences({"a": None}, {}) == ["a: None there, absent here"]


class TestPlan:
    def test_plan_is_fitted_to_the_problem(self) -> None:
        """The default plan keeps the policies that the problem declares, and lists the others."""
        prepared = SEARCH.build()

        assert prepared.plan.search.policies == {Policy.SHARE_PARAMS, Policy.EARLY_STOP}
        assert prepared.plan.final == Stage(name="final")
        assert prepared.left_out == {Policy.QUICK_EVAL, Policy.DOWNSCALE}

    def test_named_plan_must_fit(self) -> None:
        """A named plan that the problem can't follow fails at the start with the policies' names."""
        with pytest.raises(ConfigurationError, match="asks for DOWNSCALE, QUICK_EVAL"):
            replace(SEARCH, plan_is_named=True).build()

    def test_problem_without_policies_has_one_stage(self) -> None:
        """If full trials equal cheap ones there is no final stage."""
        assert replace(SEARCH, problem=Spec.of(PlainProblem)).build().plan.final is None


class TestRefusals:
    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"on_missing_weights": "ignore"}, r"on_missing_weights='ignore': must be ancestor, scratch or fail"),
            ({"slots": 0}, r"slots=0: must be a whole number of at least 1"),
            ({"slots": np.int64(1)}, r"slots=.*: must be a whole number of at least 1"),
            ({"n_threads": 1.0}, r"n_threads=1.0: must be a whole number of at least 1. Write 1"),
            ({"deterministic": 1}, "deterministic=1: must be true or false"),
            *(({"seed": seed}, "seed=.*: must be a whole number") for seed in (None, 3.0, "3", True, np.int64(3))),
        ],
    )
    def test_invalid_settings_are_refused(self, changes: dict[str, Any], message: str) -> None:
        """Invalid settings are refused at once."""
        with pytest.raises(ConfigurationError, match=message):
            replace(SEARCH, **changes)

    @pytest.mark.parametrize(
        ("changes", "message"),
        [
            ({"problem": Spec.of(Metric, name="accuracy")}, "Metric must be a subclass of nas.Problem"),
            ({"problem": Spec.of(WithoutMetrics)}, "WithoutMetrics must set `metrics`"),
            (
                {"problem": Spec.of(Declaring, metrics=("accuracy",))},
                r"metrics=\('accuracy',\): must be a tuple of nas",
            ),
            ({"problem": Spec.of(Declaring, metrics=Metric("accuracy"))}, r"metrics=Metric.*: must be a tuple of nas"),
            (
                {"problem": Spec.of(Declaring, metrics=(Metric("a"), Metric("a", "minimize")))},
                "metrics: must have different names, but a is there twice. Choose another name",
            ),
            (
                {"problem": Spec.of(Declaring, metrics=(Metric("step"),))},
                r"metrics: must have no name of a parameter of run.report \(step\). Choose another name",
            ),
            ({"problem": Spec.of(Declaring, space={"width": 8})}, r"space={'width': 8}: must be a nas.Space. Write"),
            ({"problem": Spec.of(Declaring, policies=["SHARE_PARAMS"])}, r"policies=\['SHARE_PARAMS'\]: must be a set"),
            ({"problem": Spec.of(Declaring, policies={"FAST"})}, r"policies={'FAST'}: must be a set of nas.Policy"),
            ({"problem": Spec.of(Declaring, label=5)}, "Declaring: label=5: must be text"),
            ({"problem": Spec.of(ManyMetrics)}, r"ManyMetrics declares 20 metrics that take \d+ bytes .* limit is 600"),
            ({"tuner": Spec("nas.core.spec.Spec", {})}, "nas.core.spec.Spec: .*seed"),
            ({"stopper": Spec("nas.core.budget.Budget", {})}, "nas.core.budget.Budget: too many positional arguments"),
            ({"stopper": Spec("builtins.list", {})}, "list must be a subclass of nas.Stopper"),
            (
                {"problem": Spec.of(WithSet, choices={1, 2})},
                r"space must consist of plain JSON data: \{1, 2\} \(set\)",
            ),
            ({"problem": Spec.of(WithSet, choices=float("nan"))}, "problem.choices=nan: must be a finite number"),
            (
                {"tuner": Spec.of(EvolutionTuner, population_size=0)},
                r"population_size=0: must be a whole number of at least 1",
            ),
        ],
        ids=lambda value: "" if isinstance(value, str) else "+".join(value),
    )
    def test_parts_that_do_not_fit(self, changes: dict[str, Any], message: str) -> None:
        """A class of another kind, without a required argument, or with arguments that are no JSON, is named."""
        with pytest.raises(ConfigurationError, match=message):
            replace(SEARCH, **changes).build()

    @pytest.mark.parametrize(
        ("tuner", "space"),
        [
            (Spec.of(AutoGrowTuner), TRANSFORMERS),
            (Spec.of(ScreenedTuner, inner=AUTOGROW), TRANSFORMERS),
            (Spec.of(SupernetTuner, inner=AUTOGROW), SupernetSpace(TRANSFORMERS)),
        ],
        ids=["autogrow", "screened", "supernet"],
    )
    def test_deterministic_search_measures_no_time(self, tuner: Spec, space: Space) -> None:
        """A tuner whose proposals depend on durations is refused, also inside another one."""
        search = replace(SEARCH, problem=Spec.of(Declaring, space=space), tuner=tuner, deterministic=True)

        with pytest.raises(ConfigurationError, match=r"deterministic=true: must be false with tuner .*Leave it out"):
            search.build()

    def test_parts_are_built_for_each_other(self) -> None:
        """The tuner gets the problem's space, metrics and the search's seed, the stopper the metrics."""
        prepared = replace(SEARCH, seed=5, stopper=Spec.of(MedianStopper)).build()

        assert prepared.tuner.space is prepared.problem.space
        assert prepared.tuner.metrics == (Metric("score"),)
        assert prepared.tuner.seed == 5
        assert prepared.stopper is not None
        assert prepared.stopper.metrics == (Metric("score"),)

    def test_function_as_an_argument_is_no_json(self) -> None:
        """An argument that another process can't receive is refused."""
        with pytest.raises(ConfigurationError, match=r"plain JSON data: .* \(function\)"):
            replace(SEARCH, problem=Spec.of(BodyProblem, body=print_nothing)).build()


def print_nothing() -> None:
    """Does nothing."""


def test_space_is_part_of_the_identity(records: Records) -> None:
    """A changed space is shown by its parameter."""
    claim_identity(records, SEARCH.build())
    before = ScoreProblem.space
    ScoreProblem.space = ParameterSpace({"x": Int(0, 50)})
    try:
        with pytest.raises(ConfigurationError, match=r"space\.parameters\.x\.\w+: 99 there, 50 here"):
            claim_identity(records, SEARCH.build())
    finally:
        ScoreProblem.space = before
