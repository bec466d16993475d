"""Classes named in a search's record, which others may have written on a shared disk."""

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

    assert trusted_spec("problem", stored("my.Problem"), named).arguments == {"arg": "x", "width": 3}
    assert trusted_spec("problem", stored("my.Problem"), invocation(trust=True)).target == "my.Problem"
    with pytest.raises(ConfigurationError, match=r"names other\.Problem as its problem"):
        trusted_spec("problem", stored("other.Problem"), named)
