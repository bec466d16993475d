"""The keys of the commands' configurations."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows import compare, doctor, export, final, gc, report, search, verify
from flows.cli.command import Invocation, run_command
from flows.cli.options import CONF, options_of
from flows.cli.overrides import Arguments, unknown_key
from flows.engine.runner import Engine

COMMANDS: dict[str, Callable[[Invocation], int]] = {
    "compare": compare.compare,
    "doctor": doctor.doctor,
    "export": export.export,
    "final": lambda invocation: _with_engine(final.final, invocation),
    "gc": gc.gc,
    "report": report.report,
    "search": lambda invocation: _with_engine(search.search, invocation),
    "verify": verify.verify,
}
"""The bodies of all commands that have a configuration, but ``ui``, which serves until it is stopped."""
TARGET = "tests.support.problems.ScoreProblem"
OWN = ("name=s", f"problem._target_={TARGET}")
DEBUG = ("runner=debug", "finalists=1", "device=cpu", "threads=1")
RUNS = {
    "search": [("+tuner=random", *OWN, *DEBUG, "budget.trials=1")],
    "final": [(*OWN, *DEBUG)],
    "compare": [("names=s", "format=json"), ("under=heirloom", "format=json")],
    "doctor": [()],
    "export": [("name=s", "out=winner")],
    "gc": [("name=s", "keep=best:1")],
    "report": [("name=s", "format=json")],
    "verify": [("name=s",)],
}
"""Arguments that together need every key of a command."""


class Watched(Mapping[str, Any]):
    """A configuration that notes the keys that are read."""

    def __init__(self, values: Mapping[str, Any], read: set[str], prefix: str = "") -> None:
        self._values, self._read, self._prefix = values, read, prefix

    def __getitem__(self, key: str) -> Any:
        value = self._values[key]
        self._read.add(self._prefix + key)
        return Watched(value, self._read, f"{self._prefix}{key}.") if isinstance(value, dict) else value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)


def _with_engine(body: Callable[[Invocation, Engine], int], invocation: Invocation) -> int:
    with Engine() as engine:
        return body(invocation, engine)


def keys_of(command: str) -> set[str]:
    """Returns the keys that a command's page sets, those inside others too."""
    return {option.key for option in options_of(command)}


@pytest.mark.slow
def test_each_key_is_read(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each command reads the value of each key of its configuration, not only to check it."""
    monkeypatch.chdir(here)
    monkeypatch.setattr("flows.cli.settings.search.check_values", lambda invocation: None)
    unread = {}
    for command, runs in RUNS.items():
        read: set[str] = set()
        body = COMMANDS[command]
        for run in runs:
            run_command(command, lambda i: body(replace(i, values=Watched(i.values, read))), run)  # noqa: B023
        unread[command] = keys_of(command) - read

    assert unread == {command: set() for command in COMMANDS}
    assert {path.stem for path in CONF.glob("*.yaml")} == {*COMMANDS, "ui"}


@pytest.mark.parametrize("tuner", ["tuner=screened", "+tuner=supernet"])
def test_inner_tuner_is_a_name(tuner: str) -> None:
    """tuner.inner=NAME chooses the tuner inside one that wraps any other."""
    assert "tuner@tuner.inner=nsga2" in Arguments.read("search", [tuner, "tuner.inner=nsga2"]).overrides


@pytest.mark.parametrize("experiment", ["+experiment=fashion_mnist", "experiment=fashion_mnist"])
def test_the_tuner_of_a_preset_is_replaced(experiment: str) -> None:
    """tuner=NAME replaces a preset's tuner; without a preset it is added."""
    assert "tuner=random" in Arguments.read("search", [experiment, "tuner=random"]).overrides
    assert "+tuner=random" in Arguments.read("search", ["tuner=random"]).overrides


@pytest.mark.parametrize(
    ("key", "meant"), [("max_gb", "storage.max_gb"), ("adress", "runner.address"), ("trials", "budget.trials")]
)
def test_keys_inside_others_are_suggested(key: str, meant: str) -> None:
    """A key without its group is answered by its full name, also one of a storage or a runner."""
    assert unknown_key(key, "search").startswith(f"unknown key {key}; did you mean {meant}?")


@pytest.mark.parametrize("name", ["1e3", "1.50", "1_000", "true", "nan", "007", "-3", "größe"])
def test_the_name_of_a_search_is_a_text(name: str) -> None:
    """A name that looks like a number or a truth value, or that Hydra can't read, stays as it was typed."""
    assert f"name='{name}'" in Arguments.read("search", [f"name={name}", "seed=1"]).overrides
    assert "name=last" in Arguments.read("report", ["name=last"]).overrides
    assert "name=a,b" in Arguments.read("search", ["name=a,b", "-m"]).overrides
    assert f"names=[a,'{name}']" in Arguments.read("compare", [f"names=a,{name}"]).overrides


@pytest.mark.parametrize(
    ("key", "choice"),
    [
        ("runner.adapt", "runner=dask"),
        ("runner.workers", "runner=simulated"),
        ("runner/cluster", "runner=dask"),
        ("storage.mounted", "storage=nfs"),
    ],
)
def test_a_key_of_another_choice_names_it(key: str, choice: str) -> None:
    """An option that only another choice of the group has is not called unknown."""
    group = choice.partition("=")[0]
    assert unknown_key(key, "search") == f"{key}: is no key of the chosen {group}. Choose {choice}, or leave it out"


@pytest.mark.parametrize(
    ("deleted", "remedy"),
    [
        ("~seed", "seed: can't be deleted by ~. Write seed=0, the default"),
        ("~budget", "budget.trials: can't be deleted by ~. Write budget.trials=null, the default"),
        ("~budget.final_share", "budget.final_share: can't be deleted by ~. Write budget.final_share=0.4, the default"),
        ("~constraints", "constraints: can't be deleted by ~. Write constraints={}, the default"),
        ("~finalists", "finalists: can't be deleted by ~. Write finalists=2, the default"),
        ("~storage", "storage: can't be deleted by ~. Write storage=NAME, one of local, memory, nfs, s3, sftp"),
    ],
)
def test_options_cannot_be_deleted(deleted: str, remedy: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Hydra's ``~KEY`` is refused with what to write instead."""
    assert run_command("search", lambda _: pytest.fail("ran"), ["+tuner=random", deleted]) == 2
    assert capsys.readouterr().err == f"heirloom: {remedy}\n"


def test_arguments_of_a_class_can_be_deleted() -> None:
    """``~tuner.KEY`` leaves the argument to the class."""
    found: list[Invocation] = []

    assert run_command("search", lambda i: found.append(i) or 0, ["+tuner=evolution", "~tuner.replacement"]) == 0
    assert "crossover" in found[0].values["tuner"]
    assert "replacement" not in found[0].values["tuner"]
