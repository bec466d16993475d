"""Overhead of a trial, as a ratio to the parts that it cannot avoid.

    $ python benchmarks/overhead.py            # 1,000 trials three times, 10,000 once: about 4 minutes on two cores

It measures three things one after the other, each in a fresh process after Prefect's temporary server is drained:

* a bare Prefect task run (thread runner, as many in flight as slots);
* the durable small writes of a trial (proposal, start, result): a temporary file, fsync, rename, fsync of the folder;
* a trial of Heirloom with ``runner=threads`` on local storage.

The target of the third is at most 1.5 times the sum of the others. The driver's memory is compared between 1,000 and
10,000 trials, so that its start is not counted. A trial may keep 12 kB.
"""

from __future__ import annotations

import json
import os
import queue
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SLOTS = 2


def bare_ms(n: int) -> dict[str, float]:
    """Returns the milliseconds of a bare Prefect task run, with ``SLOTS`` in flight."""
    from flows.engine.prefect_output import silence_prefect
    from flows.engine.server import TemporaryServer, quiet_environment, wait_for_backlog

    with TemporaryServer() as server, tempfile.TemporaryDirectory() as folder:
        os.environ.update(quiet_environment() | {"PREFECT_API_URL": server.api_url})
        silence_prefect(Path(folder) / "prefect.log", server.auth_string)
        from prefect import flow, task
        from prefect.cache_policies import NO_CACHE
        from prefect.runtime import flow_run
        from prefect.task_runners import ThreadPoolTaskRunner

        from flows.engine.artifacts import api_client

        @task(cache_policy=NO_CACHE, persist_result=False)
        def nothing(number: int) -> None:
            return None

        found: dict[str, float] = {}
        ids = []

        runner: Any = ThreadPoolTaskRunner(max_workers=SLOTS + 2)

        @flow(validate_parameters=False, task_runner=runner)
        def bare() -> None:
            ids.append(str(flow_run.get_id()))
            done: queue.SimpleQueue[object] = queue.SimpleQueue()
            began = time.perf_counter()
            for number in range(n):
                if number >= SLOTS:
                    done.get()
                options = nothing.with_options(task_run_name=f"trial-{number:04d}")
                options.submit(number).add_done_callback(done.put)
            for _ in range(SLOTS):
                done.get()
            found["ms"] = (time.perf_counter() - began) / n * 1000

        server.wait_until_healthy()
        bare()
        found["recorded"] = wait_for_backlog(api_client(server.api_url), ids[0], n, 60 + 0.05 * n)
        return found


def writes_ms(n: int) -> dict[str, float]:
    """Returns the milliseconds to write the three small files of a trial durably."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        handle = os.open(folder, os.O_RDONLY)
        began = time.perf_counter()
        for number in range(n):
            for kind, size in (("proposal", 350), ("start", 150), ("result", 400)):
                path = f"{folder}/{number:06d}.{kind}"
                file = os.open(path + ".tmp", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                os.write(file, b"x" * size)
                os.fsync(file)
                os.close(file)
                os.rename(path + ".tmp", path)
                os.fsync(handle)
        return {"ms": (time.perf_counter() - began) / n * 1000}


def run_search(
    folder: str, n: int, runner: str, slots: int, seconds: float = 0.0, problem: Sequence[str] = ()
) -> float:
    """Runs a search of trials that train nothing and returns the driver's memory in MB.

    Args:
        folder: The root.
        n: The number of trials.
        runner: The runner's name.
        slots: The number of slots.
        seconds: Seconds that each trial sleeps.
        problem: Options of another problem; empty: ``NothingProblem``.
    """
    nothing = ("problem._target_=nothing.NothingProblem", f"problem.seconds={seconds}")
    command = [
        *(sys.executable, "-m", "flows.search", "+tuner=random", *(problem or nothing)),
        *(f"runner={runner}", f"slots={slots}", f"budget.trials={n}", f"storage.root={folder}", "name=it"),
    ]
    quiet = subprocess.DEVNULL
    driver = subprocess.Popen(command, cwd=Path(__file__).parent, stdout=quiet, stderr=quiet)
    _, status, usage = os.wait4(driver.pid, 0)
    driver.returncode = os.waitstatus_to_exitcode(status)
    assert driver.returncode == 0, driver.returncode
    return usage.ru_maxrss / 1024


def results(folder: str) -> list[dict[str, Any]]:
    """Returns the result records of the search."""
    return [json.loads(path.read_bytes()) for path in Path(folder, "it/trials").glob("*.result.json")]


def trial_times(n: int, runner: str, slots: int, seconds: float) -> list[tuple[float, float]]:
    """Returns the start and the end of each trial of a search."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        run_search(folder, n, runner, slots, seconds)
        return [(result["started"], result["finished"]) for result in results(folder)]


def heirloom_ms(n: int) -> dict[str, float]:
    """Returns the milliseconds of a trial that trains nothing, and the driver's memory."""
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as folder:
        driver_mb = run_search(folder, n, "threads", SLOTS, 0.0)
        created = json.loads(Path(folder, "it/trials/000000.proposal.json").read_bytes())["created"]
        finished = [result["finished"] for result in results(folder)]
        assert len(finished) == n, len(finished)
        return {"ms": (max(finished) - created) / n * 1000, "driver_mb": driver_mb}


def measured(what: str, n: int) -> dict[str, float]:
    """Returns the result of one measurement in a fresh process."""
    command = [sys.executable, __file__, what, str(n)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return dict(json.loads(done.stderr.strip().splitlines()[-1]))


def main() -> None:
    """Prints the times and ratios."""
    rows: dict[str, list[dict[str, float]]] = {"bare": [], "writes": [], "heirloom": []}
    for _ in range(3):
        for what, found in rows.items():
            found.append(measured(what, 1000))
    bare, writes, heirloom = (statistics.median(one["ms"] for one in found) for found in rows.values())
    large = measured("heirloom", 10_000)
    added_mb = large["driver_mb"] - statistics.median(one["driver_mb"] for one in rows["heirloom"])
    print("| what | ms a trial |\n| --- | --- |")
    print(f"| bare Prefect task run | {bare:.2f} |\n| durable small writes | {writes:.2f} |")
    print(f"| Heirloom, 1,000 trials | {heirloom:.2f} |\n| Heirloom, 10,000 trials | {large['ms']:.2f} |")
    print(f"\n1,000 trials: {heirloom / (bare + writes):.2f} times the sum (target: at most 1.5)")
    print(f"10,000 trials: {large['ms'] / heirloom:.2f} times the cost of 1,000 (target: at most 1.2)")
    print(f"driver with 10,000 trials: {large['driver_mb']:.0f} MB (target: under 600)")
    print(f"the driver keeps {added_mb * 1024 / 9000:.1f} kB a trial (target: at most 12)")


if __name__ == "__main__":
    if len(sys.argv) == 1:
        main()
    else:
        measure = {"bare": bare_ms, "writes": writes_ms, "heirloom": heirloom_ms}[sys.argv[1]]
        print(json.dumps(measure(int(sys.argv[2]))), file=sys.stderr)
