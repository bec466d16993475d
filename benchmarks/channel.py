"""Time to request a job's next trial, over the HTTP channel and over a pipe.

    $ python benchmarks/channel.py            # 500 requests each: two minutes

It measures one after the other. The first is an empty HTTP round trip to the channel's server on loopback. The others
are searches with ``random`` and one job, by the controller alone, and by the whole command with Prefect's temporary
server. A request ends when the job has its trial. By then the tuner has answered, the proposal is durable, and with
Prefect a task run is submitted. The target is a median under 10 ms over the channel.
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
    """A problem that trains nothing and writes the seconds of each request to a file.

    Args:
        out: The path of the file.
    """

    metrics = (Metric("score"),)
    space = ParameterSpace({"x": Float(0.0, 1.0)})

    def __init__(self, *, out: str) -> None:
        self.out = out

    def train_many(self, job: Job) -> None:
        """Finishes each trial at once."""
        ask, times = job._channel.next_trial, []

        def timed() -> object:
            began = time.perf_counter()
            answer = ask()
            times.append(time.perf_counter() - began)
            return answer

        job._channel.next_trial = timed  # type: ignore[assignment]
        for run in job.trials():
            run.finish(score=run.point["x"])
        if len(times) > 1:  # a finalist's job has one trial and makes no request
            Path(self.out).write_text("\n".join(map(str, times[:-1])))


def round_trips_s(n: int) -> list[float]:
    """Returns the seconds of empty requests to the channel's server."""
    server = ChannelServer("127.0.0.1", 0, "token")

    async def nothing(body: dict[str, object]) -> dict[str, object]:
        return {}

    server.start({"/nothing": nothing})
    connection, times = Connection(f"http://127.0.0.1:{server.port}", "token"), []
    for _ in range(n):
        began = time.perf_counter()
        connection.post("/nothing", b"{}", 10.0)
        times.append(time.perf_counter() - began)
    connection.close()
    server.close()
    return times


def controller_requests_s(runner: str) -> list[float]:
    """Returns the seconds of each request of a job to a controller without Prefect."""
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
    """Starts a worker."""
    given = [sys.executable, "-m", "flows.worker", *pairs]
    return subprocess.Popen(given, env=environment(HEIRLOOM_CHANNEL_TOKEN=token), stderr=subprocess.DEVNULL)


def environment(**more: str) -> dict[str, str]:
    """Returns the environment in which this module can be imported."""
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    return {**os.environ, "PYTHONPATH": path, **more}


def command_requests_s(runner: str) -> list[float]:
    """Returns the seconds of each request of a job to the command."""
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
    for name, times in (
        ("HTTP round trip on loopback", round_trips_s(2_000)[100:]),
        ("an ask over the channel, the loop alone", controller_requests_s("remote")),
        ("an ask over the pipe, the loop alone", controller_requests_s("processes")),
        ("an ask over the channel (runner=remote)", command_requests_s("remote")),
        ("an ask over the pipe (runner=processes)", command_requests_s("processes")),
    ):
        p99 = statistics.quantiles(times, n=100)[98]
        print(f"| {name} | {statistics.median(times) * 1000:.2f} ms | {p99 * 1000:.2f} ms |", flush=True)


if __name__ == "__main__":
    main()
