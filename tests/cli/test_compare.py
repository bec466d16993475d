"""``python -m flows.compare``: rows, groups over seeds, the paired test, and mistakes."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from safetensors.torch import save_file
from scipy.stats import t, ttest_rel

from flows.cli.command import run_command
from flows.compare import compare
from nas.core.metric import Metric
from nas.core.policy import Policy
from nas.core.trial import Trial
from nas.search.imported_weights import import_weights
from nas.search.search_init import SearchInit
from nas.storage.open import open_root
from nas.storage.records import Records
from tests.support.chromium import chromium
from tests.support.commands import Done, run
from tests.support.sample_searches import IDENTITY, trial, write_search

TUNERS = {"random": [0.90, 0.94, 0.92], "evolution": [0.95, 0.96, 0.97]}
RANDOM = {"target": "nas.tuners.random.RandomTuner", "arguments": {}}


def add(root: Path, name: str, best: float, **more: Any) -> None:
    """Writes a finished search of two trials and a final, whose test score is 0.01 lower."""
    final = trial(2, parents=(1,), donors=(), score=best, stage="final", index=0, generation=1)
    child = trial(1, parents=(0,), score=best - 0.1, donor=0, resolved_donor=0, inherited=0.5, generation=1)
    tests = {2: {"metrics": {"accuracy": best - 0.01}}}
    trials = [trial(0, score=best - 0.2), child, final]
    finish(write_search(root, name, trials, tests=tests, **more), final)


def finish(records: Records, winner: Trial) -> None:
    """Writes the record of the winner's export."""
    record = {"number": 1, "trial": winner.number, "point": {}, "metrics": dict(winner.metrics), "test": None}
    records.publish("best-0001.json", {**record, "ancestors": [], "export": None, "files": [], "missing": {}})


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a root with two tuners of three seeds each."""
    folder = tmp_path_factory.mktemp("compared")
    for tuner, scores in TUNERS.items():
        for seed, score in enumerate(scores):
            described = RANDOM if tuner == "random" else IDENTITY["tuner"]
            add(folder, f"{tuner}-{seed}", score, identity={"seed": seed, "tuner": described})
    return folder


def asked(root: Path, *arguments: str) -> int:
    """Returns the status of the command within this process."""
    return run_command("compare", compare, [f"storage.root={root}", *arguments])


def mistake(capsys: pytest.CaptureFixture[str], root: Path, *arguments: str) -> str:
    """Returns the only line of a command that ends with status 2."""
    assert asked(root, *arguments) == 2
    shown = capsys.readouterr()
    assert shown.out == ""
    assert shown.err.count("\n") == 1
    return shown.err


def as_user(root: Path, *arguments: str) -> Done:
    return run(root.parent, *arguments, module="flows.compare")


def test_table(root: Path) -> None:
    """The table has a row per search, then one per group, the better first, then the tests."""
    done = as_user(root, f"under={root}")

    assert (done.status, done.err) == (0, "")
    searches, groups, tests = done.out.split("\n\n")
    assert [line.split()[0][:8] for line in searches.splitlines()[1:]] == ["evolutio"] * 3 + [
        "random-0",
        "random-1",
        "random-2",
    ]
    assert searches.splitlines()[1].split(" ", 1)[1].split() == [
        *("0", "0.9500", "0.9400", "3", "6", "min", "00", "s", "50", "%", "finished", "evolution")
    ]
    assert groups.splitlines()[1].split()[:5] == ["evolution", "3", "0.9600", "±", "0.025"]
    assert "validation: evolution minus random: 0.0400 ±" in tests


def test_statistics_are_those_of_scipy(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Means, Student's intervals and the paired t test over common seeds agree with ``scipy.stats``."""
    names = ",".join(f"{tuner}-{seed}" for tuner in TUNERS for seed in range(3))
    assert asked(root, f"names={names}", "format=json") == 0

    content = json.loads(capsys.readouterr().out)
    best, other = content["groups"]
    assert (best["group"], best["seeds"], other["group"]) == ("evolution", [0, 1, 2], "random")
    scores = pd.Series(TUNERS["random"])
    interval = t.interval(0.95, 2, loc=scores.mean(), scale=scores.sem())
    assert other["validation"]["interval_95"] == pytest.approx(list(interval))
    expected = ttest_rel(TUNERS["evolution"], TUNERS["random"])
    for test in content["tests"]:
        assert test["p"] == pytest.approx(expected.pvalue)
        assert test["interval_95"] == pytest.approx(list(expected.confidence_interval(0.95)))
    assert [test["score"] for test in content["tests"]] == ["validation", "test"]


def test_equal_differences(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Differences that are equal but for rounding, as 0.9 - 0.8 and 0.8 - 0.7, have no p."""
    for seed, (score, other) in enumerate(((0.9, 0.8), (0.8, 0.7))):
        add(tmp_path, f"evolution-{seed}", score, identity={"seed": seed})
        add(tmp_path, f"random-{seed}", other, identity={"seed": seed, "tuner": RANDOM})
    assert asked(tmp_path, f"under={tmp_path}") == 0

    line = "validation: evolution minus random: 0.1000 ± 0 (2 seeds, all differences are equal)"
    assert line in capsys.readouterr().out


@pytest.mark.parametrize(
    ("scores", "difference"),
    [
        ([(0.1 + 0.2, 0.3), (0.7, 0.7)], "0.0000 ±"),
        ([(3e-13, 1e-13)] * 2, "2e-13 ± 0 (2 seeds, all differences are equal)"),
    ],
)
def test_tiny_differences(
    scores: list[tuple[float, float]], difference: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A mean difference that only rounding separates from 0 is 0; one of tiny scores is not."""
    for seed, (score, other) in enumerate(scores):
        add(tmp_path, f"evolution-{seed}", score, identity={"seed": seed})
        add(tmp_path, f"random-{seed}", other, identity={"seed": seed, "tuner": RANDOM})
    assert asked(tmp_path, f"under={tmp_path}") == 0

    assert f"validation: evolution minus random: {difference}" in capsys.readouterr().out


def test_csv(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """csv has a row per search with tuner, seed, scores, trials, hours and the inherited share."""
    assert asked(root, "names=random-0,evolution-2", "format=csv") == 0

    table = pd.read_csv(io.StringIO(capsys.readouterr().out)).set_index("name")
    assert table.loc["random-0", ["tuner", "seed", "validation", "test", "trials"]].tolist() == [
        "random",
        0,
        0.9,
        0.89,
        3,
    ]
    assert table.loc["evolution-2", ["hours", "inherited", "best_trial", "best_stage"]].tolist() == [
        0.1,
        0.5,
        2,
        "final",
    ]


def test_settings_and_budgets_make_groups(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A tuner with other arguments is another group, named by the argument; an unfinished search is in no mean."""
    for size in (4, 8):
        tuner = {**IDENTITY["tuner"], "arguments": {"population_size": size}}
        for seed in (1, 2):
            add(tmp_path, f"s{size}-{seed}", 0.9 + size / 100 + seed / 1000, identity={"seed": seed, "tuner": tuner})
    write_search(tmp_path, "begun", [trial(0, score=0.5), trial(1)], identity={"seed": 3})
    assert asked(tmp_path, f"under={tmp_path}") == 0

    shown = capsys.readouterr().out
    line = "validation: evolution, population_size=8 minus evolution, population_size=4: 0.0400 ±"
    assert line in shown
    assert "not finished, so not in means and tests: begun" in shown


@pytest.mark.parametrize("limit", ["trials", "hours", "gpu_hours", "jobs"])
def test_budgets_split_a_seed(limit: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Two searches of one seed that differ in a limit of their budgets are two groups, named by it."""
    for n in (4, 8):
        add(tmp_path, f"s{n}", 0.9 + n / 1000, budget={limit: n})
    assert asked(tmp_path, f"under={tmp_path}", "format=json") == 0

    labels = {group["group"] for group in json.loads(capsys.readouterr().out)["groups"]}
    assert labels == {f"evolution, budget.{limit}=4", f"evolution, budget.{limit}=8"}


def test_mistakes(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An unknown name, an empty list, a repeated name and different metrics are one line each."""
    assert "no search evolution-9 among 6 under" in mistake(capsys, root, "names=evolution-9")
    assert "names=: must list searches" in mistake(capsys, root, "names=")
    assert "no searches: add names=A,B, or under=ROOT" in mistake(capsys, root)
    assert "must name each search once" in mistake(capsys, root, "names=random-0,random-0")
    assert "Leave names out" in mistake(capsys, root, "names=random-0", f"under={root}")
    add(tmp_path, "a", 0.9)
    write_search(tmp_path, "b", [trial(0, score=0.5)], metrics=[Metric("accuracy", "minimize")])
    assert "accuracy (maximize) in a; accuracy (minimize) in b" in mistake(capsys, tmp_path, "names=a,b")


def test_one_seed(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With one seed a group there is no interval and no test, which one line says."""
    assert asked(root, "names=random-0,evolution-0") == 0

    shown = capsys.readouterr().out
    assert "±" not in shown
    assert shown.count("no interval and no test: each group has one seed only.") == 1


def test_seeds_that_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If a group has seeds that are not finished, the line does not ask for more seeds."""
    add(tmp_path, "done", 0.9)
    write_search(tmp_path, "begun", [trial(0, score=0.5), trial(1)], identity={"seed": 3})
    assert asked(tmp_path, f"under={tmp_path}") == 0

    shown = capsys.readouterr().out
    assert "no interval and no test: no group has two finished seeds with a full score of their own weights\n" in shown
    assert "Add seeds" not in shown


def test_partial_scores_do_not_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A winner of the search stage under QUICK_EVAL is in no mean and no test, and one line names its search."""
    for seed in (0, 1):
        add(tmp_path, f"whole-{seed}", 0.8 + seed / 100, identity={"seed": seed})
    for seed, name, policy in ((2, "quick", Policy.QUICK_EVAL), (3, "early", Policy.EARLY_STOP)):
        winner = trial(0, score=0.6, policies=frozenset({policy}))
        finish(write_search(tmp_path, name, [winner], identity={"seed": seed}), winner)
    write_search(tmp_path, "begun", [trial(0, score=0.5, policies=frozenset({Policy.QUICK_EVAL}))])
    assert asked(tmp_path, f"under={tmp_path}", "format=json") == 0
    [group] = json.loads(capsys.readouterr().out)["groups"]
    assert asked(tmp_path, f"under={tmp_path}") == 0
    lines = capsys.readouterr().out.splitlines()

    assert group["seeds"] == [0, 1, 3]
    assert group["validation"]["mean"] == pytest.approx((0.8 + 0.81 + 0.6) / 3)
    [line] = [line for line in lines if "no final has a score" in line]
    assert line == "not in means and tests, as no final has a score to compare: quick"


def test_labels_have_no_defaults(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A setting that a group does not have, or leaves null, is not in its label."""
    problem = IDENTITY["problem"]
    for name, more in (("a", {}), ("b", {"mode": "quick"}), ("c", {"mode": None, "size": 3})):
        described = {**problem, "arguments": {**problem["arguments"], **more}}
        add(tmp_path, name, 0.9, identity={"problem": described})
    assert asked(tmp_path, f"under={tmp_path}", "format=json") == 0

    labels = {group["group"] for group in json.loads(capsys.readouterr().out)["groups"]}
    assert labels == {"evolution", "evolution, problem.mode=quick", "evolution, problem.size=3"}


def test_best_group_with_one_seed(root: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If the best group has one seed, the others are tested against the next one, and a line says so."""
    for size, seeds in ((8, [0]), (4, [0, 1]), (2, [0, 1])):
        tuner = {**IDENTITY["tuner"], "arguments": {"population_size": size}}
        for seed in seeds:
            add(
                tmp_path,
                f"s{size}-{seed}",
                0.8 + size / 100 + seed / 70 / size,
                identity={"seed": seed, "tuner": tuner},
            )
    assert asked(tmp_path, f"under={tmp_path}") == 0
    shown = capsys.readouterr().out

    base = "evolution, population_size=4"
    assert f"validation: {base} minus evolution, population_size=2: 0.0" in shown
    assert shown.count(" minus ") == 2
    assert f"too few seeds for a test: evolution, population_size=8. Tests are against {base}\n" in shown
    assert asked(root, "names=evolution-2,random-0,random-1") == 0
    reason = "no paired test: no other group on its problem has two seeds in common with random"
    assert reason in capsys.readouterr().out


def test_root_with_other_searches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Under a root, imported weights are no search to compare, and an unreadable search is left out with a line."""
    root, file = tmp_path / "root", tmp_path / "weights.safetensors"
    save_file({"layer.weight": torch.ones(2, 2)}, file)
    import_weights(Records(open_root(f"{root}/a")), SearchInit.read(None, str(file)))
    add(root, "a", 0.9)
    add(root, "b", 0.8, identity={"seed": 1})
    add(root, "broken", 0.7, identity={"seed": 2})
    next((root / "broken").rglob("000001*.json")).write_text("{")
    assert asked(root, f"under={root}") == 0

    shown = capsys.readouterr()
    assert {line.split()[0] for line in shown.out.split("\n\n")[0].splitlines()[1:]} == {"a", "b"}
    assert shown.err.count("\n") == 1
    assert "broken is left out: " in shown.err


def test_links_of_the_page(tmp_path: Path) -> None:
    """Only names of searches are links, also if a search has the name of a group."""
    add(tmp_path / "root", "evolution", 0.9)
    assert asked(tmp_path / "root", "names=evolution", "format=html", f"out={tmp_path}") == 0

    groups, searches = (tmp_path / "comparison.html").read_text().split('id="table"')
    link = 'href="comparison_files/evolution.html"'
    assert (groups.count(link), searches.count(link)) == (0, 1)


def test_html_is_not_written_into_the_storage(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A page inside the storage is refused, and no folder is made there."""
    assert "outside the storage" in mistake(capsys, root, "names=random-0", "format=html", f"out={root}/page.html")
    assert not (root / "page_files").exists()


@pytest.mark.slow
def test_page_in_a_browser(root: Path, tmp_path: Path) -> None:
    """The page shows curves with bands and ranks, opens without an error at a phone's width, and links to each tree."""
    done = run(tmp_path, f"under={root}", "format=html", "out=mine.html", module="flows.compare")
    assert (done.status, done.out.strip(), done.err) == (0, str(tmp_path / "mine.html"), "")

    with chromium(tmp_path / "profile") as browser:
        browser.set_window_size(500, 900)
        browser.get((tmp_path / "mine.html").as_uri())
        kinds = "['.mean', '.band', '.single', 'svg']"
        counted = f"return {kinds}.map((kind) => document.querySelectorAll(`.charts ${{kind}}`).length)"
        assert browser.execute_script(counted) == [8, 4, 12, 4]
        inside = "const b = document.documentElement; return b.scrollWidth <= b.clientWidth"
        assert browser.execute_script(inside)
        assert browser.get_log("browser") == []
        links = "return [...document.querySelectorAll('#table a')].map((a) => [a.textContent, a.href])"
        trees = dict(browser.execute_script(links))
        assert sorted(trees) == [f"{tuner}-{seed}" for tuner in sorted(TUNERS) for seed in range(3)]
        browser.get(trees["evolution-1"])
        assert browser.execute_script("return document.querySelector('h1').textContent") == "evolution-1"
        assert browser.execute_script("return document.querySelectorAll('.tree .node').length") == 3
