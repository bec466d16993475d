"""What a job's question for its next trial takes: over the channel on loopback, and over the pipe of a warm process.

    python benchmarks/channel.py            # 500 questions each: two minutes

Measured in one program, one after the other: an HTTP round trip to the channel's own server that asks nothing; then
searches with ``random`` and one job, the loop alone and the whole command with Prefect's temporary server. A question
lasts from the moment when the job asks until it has its trial: the tuner has answered, the proposal is durable, with
Prefect its task run is submitted, and the worker was told. The target is a median under 10 ms over the channel.
"""

from __future__ import annotations

import os
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import nas
from nas import Budget, Float, Job, Metric, ParameterSpace, Problem, Spec
from nas.core.policy import Stage
from nas.executors.local_executor import LocalExecutor
from nas.executors.pool import WorkerPool
from nas.executors.process_pool import ProcessPool
from nas.executors.remote.client import Connection
from nas.executors.remote.pool import Gate, RemotePool
from nas.executors.remote.server import ChannelServer
from nas.search.controller import ControllerSettings, SearchController
from nas.search.job_plan import JobPlan
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import RuntimeSpec
from nas.tuners.random import RandomTuner

N_ASKS = 500
LINE = re.compile(r"^  HEIRLOOM_CHANNEL_TOKEN=(\S+) python -m flows\.worker (.*)$", re.MULTILINE)


class AskingProblem(Problem):
    """Trains nothing, and writes down how long it waited for each trial, in seconds.

    Args:
        out: The file.
    """

    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Float(0.0, 1.0)})

    def __init__(self, *, out: str) -> None:
        self.out = out

    def train_many(self, job: Job) -> None:
        """Finishes each trial at once."""
        ask, taken = job._channel.next_trial, []

        def timed() -> object:
            began = time.perf_counter()
            answer = ask()
            taken.append(time.perf_counter() - began)
            return answer

        job._channel.next_trial = timed  # type: ignore[assignment]
        for run in job.trials():
            run.finish(score=run.point["x"])
        if len(taken) > 1:  # a finalist's job asks nothing
            Path(self.out).write_text("\n".join(map(str, taken[:-1])))


def round_trips(n: int) -> list[float]:
    """Seconds of requests to the channel's server that nobody takes in."""
    server = ChannelServer("127.0.0.1", 0, "token")

    async def nothing(body: dict[str, object]) -> dict[str, object]:
        return {}

    server.start({"/nothing": nothing})
    connection, taken = Connection(f"http://127.0.0.1:{server.port}", "token"), []
    for _ in range(n):
        began = time.perf_counter()
        connection.post("/nothing", b"{}", 10.0)
        taken.append(time.perf_counter() - began)
    connection.close()
    server.close()
    return taken


def asks_of_loop(runner: str) -> list[float]:
    """Seconds of each question of a job to a loop without Prefect."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="channel-") as folder:
        out, name, workers = f"{folder}/asks", "search", []
        files = open_root(folder).subfolder(name)
        files.publish("search.json", [b"{}"])
        problem = Spec("channel.AskingProblem", {"out": out})
        spec = RuntimeSpec(problem=problem, url=files.url, options={}, session=1, jobs_request_trials=True)
        if runner == "remote":
            pool: WorkerPool = (remote := RemotePool(spec, name, Gate(token="token", version=nas.__version__)))
            pairs = [
                f"channel=http://127.0.0.1:{remote.port}",
                f"storage.root={folder}",
                f"problem._target_={problem.target}",
            ]
            workers.append(worker(pairs, "token"))
        else:
            pool = ProcessPool(spec, 1)
        executor = LocalExecutor(pool)
        settings = ControllerSettings(budget=Budget(trials=N_ASKS + 1), jobs=JobPlan(trials_per_job=None, loops=True))
        space = AskingProblem.space
        tuner = RandomTuner(space, AskingProblem.metrics)
        SearchController(Records(files), executor, settings, tuner=tuner, space=space).search(Stage(name="search"))
        executor.close()
        for process in workers:
            process.wait()
        return [float(line) for line in Path(out).read_text().splitlines()]


def worker(pairs: Sequence[str], token: str) -> subprocess.Popen[bytes]:
    """Returns a worker's command."""
    given = [sys.executable, "-m", "flows.worker", *pairs]
    return subprocess.Popen(given, env=environment(HEIRLOOM_CHANNEL_TOKEN=token), stderr=subprocess.DEVNULL)


def environment(**more: str) -> dict[str, str]:
    """This process's, in which the problem of this module can be imported."""
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    return {**os.environ, "PYTHONPATH": path, **more}


def asks_of_command(runner: str) -> list[float]:
    """Seconds of each question of a job to the command."""
    with tempfile.TemporaryDirectory(dir=Path.cwd(), prefix="channel-") as folder:
        out, err = f"{folder}/asks", Path(folder) / "err"
        command = [
            *(sys.executable, "-m", "flows.search", "+tuner=random", "problem._target_=channel.AskingProblem"),
            *(f"problem.out={out}", f"runner={runner}", "slots=1", "threads=1", "device=cpu", "finalists=1"),
            *(f"budget.trials={N_ASKS + 1}", f"storage.root={folder}/root"),
        ]
        with err.open("wb") as stream:
            driver = subprocess.Popen(command, env=environment(), stdout=subprocess.DEVNULL, stderr=stream)
        workers: list[subprocess.Popen[bytes]] = []
        while runner == "remote" and not workers and driver.poll() is None:
            if found := LINE.search(err.read_text()):
                workers.append(worker(shlex.split(found[2]), found[1]))
            time.sleep(0.05)
        if driver.wait():
            raise SystemExit(err.read_text())
        for process in workers:
            process.wait()
        return [float(line) for line in Path(out).read_text().splitlines()]


def main() -> None:
    """Prints the table."""
    print("| | p50 | p99 |\n| --- | --- | --- |")
    for what, taken in (
        ("HTTP round trip on loopback", round_trips(2_000)[100:]),
        ("an ask over the channel, the loop alone", asks_of_loop("remote")),
        ("an ask over the pipe, the loop alone", asks_of_loop("processes")),
        ("an ask over the channel (runner=remote)", asks_of_command("remote")),
        ("an ask over the pipe (runner=processes)", asks_of_command("processes")),
    ):
        p99 = statistics.quantiles(taken, n=100)[98]
        print(f"| {what} | {statistics.median(taken) * 1000:.2f} ms | {p99 * 1000:.2f} ms |", flush=True)


if __name__ == "__main__":
    main()
