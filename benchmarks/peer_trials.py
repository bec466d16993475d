"""Trials of one peer of ``benchmarks/peers.py``, which starts this program in the peers' environment.

    $ python benchmarks/peer_trials.py SIDE N SECONDS SLOTS

Each trial draws a number, sleeps for ``SECONDS`` and scores the number. It appends the times of its start and its end
to the file ``times`` in the current folder.
"""

from __future__ import annotations

import importlib
import os
import sys
import time
from pathlib import Path
from typing import Any

TIMES = Path("times")


def train(x: float, seconds: float, times: str) -> float:
    """Trains nothing and returns the score."""
    started = time.time()
    time.sleep(seconds)
    file = os.open(times, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    os.write(file, f"{started} {time.time()}\n".encode())  # one write: lines of other trials stay whole
    os.close(file)
    return x


def run_ray(n: int, seconds: float, slots: int, *, reuse: bool) -> None:
    """Runs trials with Ray Tune: class trainables without checkpoints, random search, and other defaults."""
    os.environ |= {"RAY_AIR_NEW_OUTPUT": "0", "TUNE_DISABLE_AUTO_CALLBACK_LOGGERS": "1"}
    ray: Any = importlib.import_module("ray")
    tune: Any = importlib.import_module("ray.tune")
    times = str(TIMES.absolute())

    def setup(self: Any, config: dict[str, float]) -> None:
        self.x = config["x"]

    def step(self: Any) -> dict[str, Any]:
        return {"score": train(self.x, seconds, times), "done": True}

    def reset_config(self: Any, config: dict[str, float]) -> bool:
        self.x = config["x"]
        return True

    methods = {"setup": setup, "step": step, "reset_config": reset_config}
    ray.init(num_cpus=slots, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    tune.Tuner(
        type("Nothing", (tune.Trainable,), methods),
        param_space={"x": tune.uniform(0.0, 1.0)},
        tune_config=tune.TuneConfig(num_samples=n, reuse_actors=reuse, max_concurrent_trials=slots),
        run_config=tune.RunConfig(
            storage_path=str(Path("results").absolute()),
            checkpoint_config=tune.CheckpointConfig(checkpoint_at_end=False),
            verbose=0,
        ),
    ).fit()


def run_optuna(n: int, seconds: float, slots: int, *, storage: str, sampler: str) -> None:
    """Runs trials with Optuna, in threads of one process."""
    optuna: Any = importlib.import_module("optuna")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    where: Any = {"memory": None, "sqlite": "sqlite:///optuna.db"}.get(storage)
    if storage == "journal":
        journal = optuna.storages.journal
        where = optuna.storages.JournalStorage(journal.JournalFileBackend("optuna.journal"))
    samplers = {"random": optuna.samplers.RandomSampler, "tpe": optuna.samplers.TPESampler}
    study = optuna.create_study(storage=where, sampler=samplers[sampler](seed=0), direction="maximize")
    times = str(TIMES.absolute())
    study.optimize(lambda trial: train(trial.suggest_float("x", 0, 1), seconds, times), n_trials=n, n_jobs=slots)


def run_syne_tune(n: int, seconds: float, slots: int) -> None:
    """Runs trials with Syne Tune's local backend: a process each, polled every 0.1 s."""
    os.environ["SYNETUNE_FOLDER"] = str(Path("syne-tune").absolute())
    syne_tune: Any = importlib.import_module("syne_tune")
    backend: Any = importlib.import_module("syne_tune.backend")
    baselines: Any = importlib.import_module("syne_tune.optimizer.baselines")
    space: Any = importlib.import_module("syne_tune.config_space")
    config = {"x": space.uniform(0.0, 1.0), "seconds": seconds, "times": str(TIMES.absolute())}
    syne_tune.Tuner(
        trial_backend=backend.LocalBackend(entry_point=__file__),
        scheduler=baselines.RandomSearch(config, metrics=["score"], do_minimize=False, random_seed=0),
        stop_criterion=syne_tune.StoppingCriterion(max_num_trials_completed=n),
        n_workers=slots,
        sleep_time=0.1,
    ).run()


def report_to_syne_tune(arguments: list[str]) -> None:
    """Runs the one trial of a process that Syne Tune starts, with arguments ``--name value``."""
    syne_tune: Any = importlib.import_module("syne_tune")
    given = dict(zip(arguments[::2], arguments[1::2], strict=False))
    score = train(float(given["--x"]), float(given["--seconds"]), given["--times"])
    syne_tune.Reporter()(score=score)


def main() -> None:
    """Runs one side's trials."""
    if "--x" in sys.argv:
        report_to_syne_tune(sys.argv[sys.argv.index("--x") :])
        return
    side, n, seconds, slots = sys.argv[1], int(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4])
    peer, _, rest = side.partition(" ")
    if peer == "ray":
        run_ray(n, seconds, slots, reuse=rest == "reused")
    elif peer == "optuna":
        storage, _, sampler = rest.partition(" ")
        run_optuna(n, seconds, slots, storage=storage, sampler=sampler)
    else:
        run_syne_tune(n, seconds, slots)


if __name__ == "__main__":
    main()
