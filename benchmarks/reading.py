"""SQuAD: a fixed network, children with and without inheritance, and an hour of evolution.

How to run it from the root of the repository; ``DIR`` holds ``squad`` and ``glove``::

    $ python benchmarks/reading.py fixed --data DIR --seeds 5 --seconds 200   # and again with 600
    $ python benchmarks/reading.py pairs --data DIR --pairs 20
    $ python benchmarks/reading.py hour --data DIR                            # two hours, two cores

All train on one thread in float32 and score by the official program's rules, in percent. The articles of validation
are never trained on.

* fixed: the graph ``nas.spaces.reading.space.BIDAF``, trained for so many CPU seconds. Loading and scoring do not
  count. It is scored on all validation questions.
* pairs: a search by ``evolution``, an epoch a trial. Each child is trained once more from scratch, with the same seed
  and the same order of questions. Both are scored on all validation questions. ``ancestors`` counts the epochs of the
  parent and its ancestors, which the child stands on. The interval is Student's (95 %).
* hour: a search by ``evolution``, one trial after another, for 7,200 CPU seconds with scoring and export. Beside it the
  fixed network trains for as many, scoring not counted. For each that is the work of an hour on two cores. Half of the
  validation articles choose: the winner of the search, and the best epoch of the fixed network. The other half scores
  both.
"""

from __future__ import annotations

import argparse
import json
import random
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from search_quality import interval

from nas import Budget, Policy, PolicyPlan, Search, Spec, Stage, Trial, TrialRun, run_search
from nas.core.lineage import Lineage
from nas.inheritance.rules import Rules
from nas.problems.squad.articles import read_articles
from nas.problems.squad.fit import BATCH_SIZE, Fit, answers_of
from nas.problems.squad.official import scores
from nas.problems.squad.problem import SquadProblem
from nas.problems.squad.questions import Question, epoch_batches, questions_of
from nas.spaces.reading.space import BIDAF
from nas.storage.open import open_root
from nas.training.seeds import seed_everything
from nas.tuners.evolution import EvolutionTuner

TWO_HOURS_S = 7200.0


def files(data: Path) -> dict[str, Any]:
    """Returns the arguments of the problem that name its files."""
    return {
        "data_file": str(data / "squad" / "dev-v1.1.rebuilt.json.gz"),
        "split_file": str(data / "squad" / "article_split.json"),
        "vectors_file": str(data / "glove" / "glove_twitter_25d_subset.npz"),
    }


def scored(problem: SquadProblem, network: torch.nn.Module, questions: list[Question]) -> dict[str, float]:
    """Returns the official scores of a network."""
    return scores(answers_of(network, questions) or {}, {one.id: one.answers for one in questions})


def train_fixed(problem: SquadProblem, seed: int, seconds: float) -> Iterator[tuple[float, float, torch.nn.Module]]:
    """Trains the fixed network for so many CPU seconds.

    Yields the epochs and the seconds so far, and the network, after each epoch and at the end.
    """
    seed_everything(seed)
    network = problem.build(BIDAF)
    optimizer = torch.optim.Adam(network.parameters(), problem.learning_rate)
    training = Fit(
        network=network, optimizer=optimizer, learning_rate=problem.learning_rate, rules=Rules(), report=None
    )
    known = [one for one in problem.data.train if one.span is not None]
    lengths, order = [len(one.read.words) for one in known], torch.Generator().manual_seed(seed)
    used_s, step = 0.0, 0
    while used_s < seconds:
        network.train()
        began_s = time.process_time()
        for batch in epoch_batches(lengths, BATCH_SIZE, order):
            done = (used_s + time.process_time() - began_s) / seconds
            if done >= 1:
                break
            training.set_rate(step, done)
            training.step([known[index] for index in batch], "cpu")
            step += 1
        used_s += time.process_time() - began_s
        yield step * BATCH_SIZE / len(known), used_s, network


def show_fixed(given: argparse.Namespace) -> None:
    """Trains the fixed network with several seeds and prints a row for each."""
    problem = SquadProblem(**files(given.data))
    rows = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        *_, (n_epochs, used_s, network) = train_fixed(problem, seed, given.seconds)
        rows.append(scored(problem, network, problem.data.validation))
        found = " ".join(f"{name} {value:.2f}" for name, value in rows[-1].items())
        print(f"seed {seed}: {found} after {used_s:.0f} CPU s, {n_epochs:.1f} epochs", flush=True)
    for name in rows[0]:
        print(f"mean {name} {fmean(row[name] for row in rows):.2f}")


def retrain(problem: SquadProblem, trial: Trial) -> dict[str, float]:
    """Trains a trial's point again with its seed and policies, without a donor."""
    run = TrialRun(trial, open_root(f"memory://reading-{trial.number}"), resume_every_s=float("inf"))
    try:
        seed_everything(trial.seed)
        return problem.train(run)
    finally:
        run.close()


def n_ancestor_epochs(lineage: Lineage, trial: Trial) -> int:
    """Returns the epochs of the trials that a trial's weights come from."""
    n = 0
    while trial.donor is not None:
        trial, n = lineage[int(trial.donor)], n + 1
    return n


def show_pairs(given: argparse.Namespace) -> None:
    """Runs a search until it has enough children, and prints a row for each pair."""
    problem = SquadProblem(**files(given.data))
    plan = PolicyPlan((Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})),))
    tuner = Spec.of(EvolutionTuner, population_size=given.population, sample_size=2)
    search = Search(problem=Spec.of(SquadProblem, **files(given.data)), tuner=tuner, plan=plan, seed=given.first_seed)
    name, pairs, n_trials = f"reading-{given.first_seed}", list[tuple[float, float]](), given.population
    while len(pairs) < given.pairs:
        n_trials += 1
        lineage = run_search(search, root=given.root, name=name, budget=Budget(trials=n_trials)).lineage
        trial = lineage[n_trials - 1]
        if not trial.is_finished or trial.donor is None:
            continue
        without = retrain(problem, trial)["f1"]
        pairs.append((trial.metrics["f1"], without))
        about = f"inherited {trial.inherited:.2f}; ancestors {n_ancestor_epochs(lineage, trial)} epochs"
        print(f"trial {trial.number}: f1 {pairs[-1][0]:.2f} with, {without:.2f} without; {about}", flush=True)
    gains = [with_ - without for with_, without in pairs]
    print(f"{len(gains)} pairs: {fmean(gains):+.2f} +- {interval(gains):.2f} f1")


def halved(given: argparse.Namespace) -> tuple[dict[str, Any], list[str]]:
    """Returns the files with half of the validation articles, and the titles of the other half."""
    named = files(given.data)
    split = json.loads(Path(named["split_file"]).read_text())
    titles = sorted(split["eval_articles"])
    random.Random(0).shuffle(titles)
    half = len(titles) // 2
    path = Path(given.root) / "half_split.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({**split, "eval_articles": titles[:half]}))
    return {**named, "split_file": str(path)}, titles[half:]


def show_hour(given: argparse.Namespace) -> None:
    """Searches, trains the fixed network for as long in another process, and prints both scores."""
    named, titles = halved(given)
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as beside:
        fixed = beside.submit(fixed_score, named, titles, given.first_seed, given.seconds)
        print(f"search: {searched_score(named, titles, given)}", flush=True)
        print(f"fixed: {fixed.result()}", flush=True)


def unseen_questions(problem: SquadProblem, file: str, titles: list[str]) -> list[Question]:
    """Returns the questions about articles that choose nothing."""
    articles = read_articles("--data", file, {})
    return questions_of([one for title in titles for one in articles[title]], problem.data.vocabulary)


def searched_score(named: dict[str, Any], titles: list[str], given: argparse.Namespace) -> str:
    """Returns the scores of the winner of a search."""
    plan = PolicyPlan((Stage(name="search", policies=frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})),))
    tuner = Spec.of(EvolutionTuner, population_size=given.population, sample_size=2)
    search = Search(problem=Spec.of(SquadProblem, **named), tuner=tuner, plan=plan, seed=given.first_seed)
    name, hours, began_s = f"hour-{given.first_seed}", 0.0, time.process_time()
    while (left_s := given.seconds - (time.process_time() - began_s)) > 0:  # more hours while other work has the cores
        found = run_search(search, root=given.root, name=name, budget=Budget(hours=hours + left_s / 3600))
        hours = found.snapshot.hours
    winner = found.winner
    assert winner is not None
    problem = SquadProblem(**named)
    run = TrialRun(winner, open_root(given.root).subfolder(name))
    unseen = unseen_questions(problem, named["data_file"], titles)
    winning = scored(problem, run.restore(problem.build(winner.point)), unseen)
    run.close()
    epochs = n_ancestor_epochs(found.lineage, winner) + 1
    return f"{winning}, {len(found.lineage)} trials, winner {winner.number} of {epochs} epochs"


def fixed_score(named: dict[str, Any], titles: list[str], seed: int, seconds: float) -> str:
    """Returns the scores of the fixed network's best epoch."""
    torch.set_num_threads(1)
    problem = SquadProblem(**named)
    unseen = unseen_questions(problem, named["data_file"], titles)
    best: tuple[float, float, dict[str, float]] = (-1.0, 0.0, {})
    for n_epochs, _, network in train_fixed(problem, seed, seconds):
        chosen = scored(problem, network, problem.data.validation)["f1"]
        if chosen > best[0]:
            best = chosen, n_epochs, scored(problem, network, unseen)
    return f"{best[2]} after {best[1]:.1f} of {n_epochs:.1f} epochs"


def main() -> None:
    """Runs one of the three benchmarks."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=("fixed", "pairs", "hour"))
    parser.add_argument("--data", type=Path, required=True, help="the folder that holds squad/ and glove/")
    parser.add_argument("--root", default="heirloom", help="the folder of the searches")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--seconds", type=float, help="of training; by default 200 for fixed, 7200 for hour")
    parser.add_argument("--pairs", type=int, default=20)
    parser.add_argument("--population", type=int, default=8)
    given = parser.parse_args()
    if given.seconds is None:
        given.seconds = TWO_HOURS_S if given.what == "hour" else 200.0
    torch.set_num_threads(1)
    {"fixed": show_fixed, "pairs": show_pairs, "hour": show_hour}[given.what](given)


if __name__ == "__main__":
    main()
