"""The headline benchmark: what it keeps and refuses, and a run of it on random images."""

from __future__ import annotations

import csv
import importlib
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.commands import ROOT, run
from tests.support.image_files import write_fashion_mnist


@pytest.fixture
def headline(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Returns the benchmark's module."""
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    return importlib.import_module("headline")


def row(**changes: str) -> dict[str, str]:
    """Returns the row of a run by today's version, with changes."""
    given = {"problem": "fashion_mnist", "arm": "random", "minutes": "20.0", "seed": "0", "options": ""}
    found = {"epochs": "96", "hours": "0.330", "trials": "9", "validation": "0.9400", "test": "0.9300", "line": "8 < 1"}
    return {**given, "precision": "bfloat16", "epoch_s": "17.0", **found, **changes}


@pytest.mark.parametrize(("hours", "counts"), [("0.250", True), ("0.333", True), ("0.400", False)])
def test_a_run_counts_unless_it_took_longer(headline: Any, hours: str, counts: bool) -> None:
    """A run that ended early, without time for another trial, is not done again by each command."""
    assert bool(headline.comparable([row(hours=hours)], 20.0, 0, ["random"])) == counts


def test_results_of_versions_are_apart(headline: Any, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs with other epochs are of other versions, so they have means of their own."""
    headline.show([row(epochs="8", test="0.9000"), row(), row(seed="1", test="0.9400")], "fashion_mnist")
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("20 min, random, ")]

    assert [line.partition(" (")[0] for line in lines] == [
        "20 min, random, bfloat16, 8 epochs: test 90.00 %",
        "20 min, random, bfloat16, 96 epochs: test 93.50 %",
    ]


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--minutes", "0"], "argument --minutes: 0: must be a number greater than 0"),
        (["--seeds", "0,x"], "argument --seeds: invalid seeds value: '0,x'"),
        (["--arms", "hand,no"], "--arms=no: must be one of network_morphism, random, screened, spos, tpe, hand, start"),
        (["--problem", "cifar10", "--arms", "tpe"], "--arms=tpe: must be one of network_morphism, random, screened"),
        (["--data", "nowhere"], "--data=nowhere: must be the folder of the four files, or the npz"),
        (["--results", "nowhere/runs.csv"], "--results=nowhere/runs.csv: must be in a folder that exists"),
    ],
)
def test_wrong_arguments_are_refused(
    headline: Any, arguments: list[str], told: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are refused before anything runs, with status 2."""
    monkeypatch.setattr(sys, "argv", ["headline.py", *arguments])
    with pytest.raises(SystemExit) as ended:
        headline.main()

    assert ended.value.code == 2
    assert told in capsys.readouterr().err


def test_a_file_without_rows_gets_its_header(headline: Any, tmp_path: Path) -> None:
    """A benchmark that was killed before its first row leaves an empty file, which the next command completes."""
    results = headline.Results(path=tmp_path / "runs.csv", fields=("seed",))
    results.path.touch()

    assert list(results.run(list, [[{"seed": 0}]], 1)) == [1]
    assert results.kept() == [{"seed": "0"}]


@pytest.mark.parametrize("n_processes", [1, 2])
def test_rows_are_in_the_order_of_the_tasks(headline: Any, tmp_path: Path, n_processes: int) -> None:
    """Each task runs once, also if there are more than are submitted at first."""
    results = headline.Results(path=tmp_path / "runs.csv", fields=("seed",))

    assert list(results.run(eval, [f"[{{'seed': {seed}}}]" for seed in range(5)], n_processes)) == [1, 2, 3, 4, 5]
    assert [one["seed"] for one in results.kept()] == ["0", "1", "2", "3", "4"]


def test_no_run_follows_one_that_failed(headline: Any, tmp_path: Path) -> None:
    """The rows so far are kept, and later tasks do not begin."""
    results, later = headline.Results(path=tmp_path / "runs.csv", fields=("seed",)), tmp_path / "later"
    tasks = ["[{'seed': 0}]", "{}['no']", f"__import__('os').mkdir({str(later)!r}) or []"]
    with pytest.raises(KeyError):
        list(results.run(eval, tasks, 1))

    assert results.kept() == [{"seed": "0"}]
    assert not later.exists()


@pytest.mark.slow
def test_a_run_is_done_once(here: Path, api_url: str) -> None:
    """The same command again runs nothing, and prints the same result.

    On a slow machine test and export may take so long that the run would not count.
    """
    images = here / "images"
    images.mkdir()
    write_fashion_mnist(images)
    arguments = "--data images --results runs.csv --minutes 0.9 --seeds 0 --arms hand"
    setup = f"import sys; sys.path.insert(0, '{ROOT}/benchmarks'); import headline; headline.MOST_TIME = 9"
    line = f"{sys.executable} -c {shlex.quote(f'{setup}; headline.main()')} {arguments}"
    done, again = (run(here, line=line, timeout_s=280.0, PREFECT_API_URL=api_url) for _ in range(2))
    with (here / "runs.csv").open() as file:
        rows = list(csv.DictReader(file))

    assert (done.status, again.status) == (0, 0), done.err + again.err
    assert "1 of 1 runs" in done.err
    assert done.out.endswith(again.out)
    assert again.out.startswith("0.9 min, hand, ")
    assert [(one["arm"], one["epochs"], 0 < float(one["test"]) < 1) for one in rows] == [("hand", "100000", True)]


def test_a_failed_search_ends_the_benchmark(headline: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The error of the command is shown, and no traceback follows."""
    task = headline.Task(problem="fashion_mnist", arm="hand", data=tmp_path, minutes=1.0, seed=0, machine={})
    with pytest.raises(SystemExit, match=r"^hand, seed 0: the search ended with status 2$"):
        headline.run(task, str(tmp_path / "root"), "+tuner=nosuch")

    assert "heirloom: unknown tuner nosuch" in capfd.readouterr().err
