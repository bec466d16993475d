"""Classes named in a search's record, which others may have written on a shared disk."""

from __future__ import annotations

import shlex
from typing import Any

import pytest
from hydra.core.override_parser.overrides_parser import OverridesParser

from flows.cli.command import Invocation
from flows.cli.trusted_code import repeated_words, trusted_spec
from nas.core.errors import ConfigurationError
from nas.core.spec import Spec
from nas.problems.fashion_mnist import HOME


def invocation(**values: Any) -> Invocation:
    return Invocation({"trust": False, **values})


def stored(target: str) -> dict[str, Any]:
    return {"target": target, "arguments": {"arg": "x"}}


@pytest.mark.parametrize(
    "target",
    [
        "subprocess.Popen",
        "nas.search.lease.Path",
        "nas.executors.process_pool.ProcessPool",
        "nas.storage.backends.local.LocalBlobStore",
        "nas.tuners.random.RandomTuner",
        "nas.os.system",
        "nas..os.system",
        "nas.\0.x",
        "nas.",
        "nasty.Problem",
    ],
)
def test_a_foreign_class_in_a_record_is_refused(target: str) -> None:
    """A recorded class outside Heirloom, or one that is no problem, is refused before it is called."""
    with pytest.raises(ConfigurationError):
        trusted_spec("problem", stored(target), invocation())


def test_heirlooms_classes_in_a_record_are_accepted() -> None:
    """Heirloom's own problems and tuners need no confirmation."""
    spec = trusted_spec("problem", stored("nas.problems.digits.DigitsProblem"), invocation())

    assert spec.target == "nas.problems.digits.DigitsProblem"
    assert trusted_spec("tuner", stored("nas.tuners.random.RandomTuner"), invocation()).name == "random"


NNI = {"target": "nas.compat.nni.problem.NniProblem", "arguments": {"command": "rm -r ~; ls", "code_dir": "/x"}}


@pytest.mark.parametrize(
    ("values", "lacking"),
    [
        ({}, "problem.code_dir=/x 'problem.command='\"'\"'rm -r ~; ls'\"'\"''"),
        ({"problem": {"command": "ls"}}, "problem.code_dir=/x"),
        ({"problem": {"_target_": NNI["target"], "code_dir": "."}}, "problem.command="),
    ],
    ids=["nothing", "command", "target"],
)
def test_a_command_in_a_record_is_refused(values: dict[str, Any], lacking: str) -> None:
    """A command that one of Heirloom's classes would run must be on the command line."""
    with pytest.raises(ConfigurationError, match="names code that its problem runs, but a shared disk") as caught:
        trusted_spec("problem", NNI, invocation(**values))
    named = {"command": "ls", "code_dir": "."}

    assert lacking in str(caught.value)
    assert trusted_spec("problem", NNI, invocation(problem=named)).arguments == named
    assert trusted_spec("problem", NNI, invocation(trust=True)).arguments == NNI["arguments"]


def test_a_code_file_in_a_record_is_refused() -> None:
    """The user must name the file of a model template, whatever a record or a driver says."""
    found = {"target": "nas.compat.rafiki.problem.RafikiProblem", "arguments": {"file": "/shared/evil.py", "knobs": {}}}
    mine = invocation(problem={"file": "mine.py"})

    with pytest.raises(
        ConfigurationError, match=r"names code that its problem runs, .*: add problem.file=/shared/evil.py or"
    ):
        trusted_spec("problem", found, invocation())
    assert trusted_spec("problem", found, mine).arguments == {"file": "mine.py", "knobs": {}}
    assert trusted_spec("problem", found, invocation(trust=True)).arguments["file"] == "/shared/evil.py"


def test_a_class_on_the_command_line_is_accepted() -> None:
    """A user's class is accepted if the command line names it, or says trust=true."""
    named = invocation(problem={"_target_": "my.Problem", "width": 3})
    numbers = {"target": "my.Problem", "arguments": {"depth": 2, "sizes": [1, 2.5], "flip": None}}

    assert trusted_spec("problem", numbers, named).arguments == {**numbers["arguments"], "width": 3}
    assert trusted_spec("problem", stored("my.Problem"), invocation(trust=True)).target == "my.Problem"
    with pytest.raises(ConfigurationError, match=r"problem\._target_=my\.Problem: must be other\.Problem, the problem"):
        trusted_spec("problem", stored("other.Problem"), named)
    with pytest.raises(ConfigurationError, match=r"must be nas\.problems\.digits\.DigitsProblem, the problem of this"):
        trusted_spec("problem", stored("nas.problems.digits.DigitsProblem"), named)


@pytest.mark.parametrize(
    ("value", "word"),
    [
        ("fast", "problem.arg=fast"),
        ("a b", "'problem.arg=a b'"),
        ("it's", """'problem.arg='"'"'it\\'"'"'s'"'"''"""),
        ("5", """'problem.arg='"'"'5'"'"''"""),
        (["a", {"b": True}], "'problem.arg=[a,{b:true}]'"),
        ({"a": None}, "'problem.arg={a:null}'"),
        ("x" * 300, "problem.arg=..."),
    ],
)
def test_text_for_a_users_class_is_named_again(value: Any, word: str) -> None:
    """A record gives no text to a class outside Heirloom; the error is what the command line needs."""
    described = {"target": "my.Problem", "arguments": {"arg": value}}
    given = invocation(problem={"_target_": "my.Problem", "arg": value})

    with pytest.raises(ConfigurationError) as caught:
        trusted_spec("problem", described, invocation(problem={"_target_": "my.Problem"}))
    assert str(caught.value).endswith(
        f"names text that its problem gets, but a shared disk is not trusted with text: add {word} or trust=true"
    )
    assert trusted_spec("problem", described, given).arguments == {"arg": value}
    assert trusted_spec("problem", described, invocation(trust=True)).arguments == {"arg": value}
    if word != "problem.arg=...":
        assert repeated_words("problem", Spec("my.Problem", {"arg": value})) == ["problem._target_=my.Problem", word]
        (override,) = shlex.split(word)
        assert OverridesParser.create().parse_override(override).value() == value


def test_data_is_named_again() -> None:
    """Paths and options of Heirloom's own problems come from the command line; options are not shown."""
    target = "nas.problems.fashion_mnist.FashionMnistProblem"
    found = {"target": target, "arguments": {"data_root": "/data", "data_options": {"key": "secret"}, "n_epochs": 3}}
    named = {"data_root": "/mine", "data_options": None}

    with pytest.raises(ConfigurationError, match=r"data: add problem.data_options=\.\.\. problem.data_root=/data or"):
        trusted_spec("problem", found, invocation())
    assert trusted_spec("problem", found, invocation(problem=named)).arguments == {**named, "n_epochs": 3}
    assert repeated_words("problem", Spec(target, {"data_root": HOME, "data_options": None})) == []
    own = Spec("my.Problem", {"table_options": {"key": "secret"}})
    assert repeated_words("problem", own) == ["problem._target_=my.Problem", "problem.table_options=..."]
    assert trusted_spec("problem", {"target": target, "arguments": {"data_root": HOME}}, invocation()).arguments


@pytest.mark.parametrize("outer", ["nas.tuners.screened.ScreenedTuner", "nas.tuners.supernet.SupernetTuner"])
def test_inner_tuner_of_heirloom_is_not_named_again(outer: str) -> None:
    """tuner.inner=evolution is accepted from a record; an inner tuner that may run other code is named again."""
    evolution = {"_target_": "nas.tuners.evolution.EvolutionTuner", "population_size": 8, "donor": "nearest"}
    nested = {"_target_": "nas.tuners.screened.ScreenedTuner", "inner": evolution}
    for inner in (evolution, nested):
        spec = Spec(outer, {"inner": inner})
        assert repeated_words("tuner", spec) == []
        assert trusted_spec("tuner", {"target": outer, "arguments": {"inner": inner}}, invocation()) == spec

    nni = {"_target_": "nas.compat.nni.tuner.NniTuner", "class_name": "my.Tuner"}
    for inner in (
        {"_target_": "my.Tuner"},
        {"_target_": "subprocess.Popen"},
        nni,
        {**nested, "inner": nni},
        "evolution",
    ):
        assert repeated_words("tuner", Spec(outer, {"inner": inner})) != []
        with pytest.raises(ConfigurationError, match="names code that its tuner runs"):
            trusted_spec("tuner", {"target": outer, "arguments": {"inner": inner}}, invocation())
