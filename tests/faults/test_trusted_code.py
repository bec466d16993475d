"""A search's record names classes: on a shared disk anybody may have written them there."""

from __future__ import annotations

from typing import Any

import pytest

from flows.cli.command import Invocation
from flows.cli.trusted_code import trusted_spec
from nas.core.errors import ConfigurationError


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
def test_a_record_s_class_that_is_no_problem_of_ours_is_refused(target: str) -> None:
    """Whatever a record names outside Heirloom, and within it what is no problem, is refused before it is called."""
    with pytest.raises(ConfigurationError):
        trusted_spec("problem", stored(target), invocation())


def test_a_record_s_class_of_ours_is_taken() -> None:
    """Heirloom's own problems and tuners need no word from the user."""
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
def test_a_record_s_command_is_not_run(values: dict[str, Any], lacking: str) -> None:
    """What one of Heirloom's own classes would run is code as well: the command line must name it."""
    with pytest.raises(ConfigurationError, match="names code that its problem runs, but a shared disk") as caught:
        trusted_spec("problem", NNI, invocation(**values))
    named = {"command": "ls", "code_dir": "."}

    assert lacking in str(caught.value)
    assert trusted_spec("problem", NNI, invocation(problem=named)).arguments == named
    assert trusted_spec("problem", NNI, invocation(trust=True)).arguments == NNI["arguments"]


def test_a_record_s_file_with_code_is_refused() -> None:
    """The file of a model template is the user's to name, whatever a record or a driver says."""
    found = {"target": "nas.compat.rafiki.problem.RafikiProblem", "arguments": {"file": "/shared/evil.py", "knobs": {}}}
    mine = invocation(problem={"file": "mine.py"})

    with pytest.raises(
        ConfigurationError, match=r"names code that its problem runs, .*: add problem.file=/shared/evil.py or"
    ):
        trusted_spec("problem", found, invocation())
    assert trusted_spec("problem", found, mine).arguments == {"file": "mine.py", "knobs": {}}
    assert trusted_spec("problem", found, invocation(trust=True)).arguments["file"] == "/shared/evil.py"


def test_a_class_that_the_command_line_names_is_taken() -> None:
    """The user's own class is taken where the command line names the same one, or says trust=true."""
    named = invocation(problem={"_target_": "my.Problem", "width": 3})

    assert trusted_spec("problem", stored("my.Problem"), named).arguments == {"arg": "x", "width": 3}
    assert trusted_spec("problem", stored("my.Problem"), invocation(trust=True)).target == "my.Problem"
    with pytest.raises(ConfigurationError, match=r"names other\.Problem as its problem"):
        trusted_spec("problem", stored("other.Problem"), named)
