"""Runs NNI experiments in temporary folders: one thread per slot, real trial processes, no Prefect."""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from nas.compat.nni.config import read_experiment
from nas.compat.nni.search_definition import nni_budget, nni_search
from nas.core.errors import SearchInterruptedError
from nas.core.trial import Trial
from nas.executors.events import Event, StopRequested
from nas.executors.in_process_pool import InProcessPool
from nas.executors.local_executor import LocalExecutor
from nas.search.controller import ControllerSettings
from nas.search.identity import claim_identity
from nas.search.lease import SearchLease
from nas.search.pipeline import SearchPipeline
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.trial_log import log_path
from nas.training.messages import RuntimeSpec

X = {"x": {"_type": "uniform", "_value": [0, 1]}}
ONCE = """
import nni
nni.report_final_result(nni.get_next_parameter()["x"])
"""


@dataclass
class ExperimentFolder:
    """The folder of an experiment and its search.

    Args:
        folder: The folder.
        code: The content of ``main.py``, the trial code.
        tuner: The field ``tuner`` of the configuration.
        tuner_code: The content of ``tuner.py``; None: no such file.
        space: The content of ``search_space.json``; None: no such file.
        fields: Further fields of the configuration.
        gpus: The numbers of the GPUs for trials.
    """

    folder: Path
    code: str = ONCE
    tuner: Mapping[str, Any] = field(default_factory=lambda: {"builtinTunerName": "Random"})
    tuner_code: str | None = None
    space: Mapping[str, Any] | None = field(default_factory=lambda: X)
    fields: Mapping[str, Any] = field(default_factory=dict)
    parents: str | None = None
    wait_timeout_s: float = 60.0
    gpus: tuple[int, ...] = ()
    events: list[Event] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "main.py").write_text(self.code)
        if self.tuner_code is not None:
            (self.folder / "tuner.py").write_text(self.tuner_code)
        self.write()

    def write(self, **fields: Any) -> Path:
        """Writes the configuration."""
        content: dict[str, Any] = {
            "experimentName": "test",
            "trialConcurrency": 1,
            "maxTrialNum": 3,
            "trainingServicePlatform": "local",
            "useAnnotation": False,
            "tuner": dict(self.tuner),
            "trial": {"command": f"{sys.executable} main.py", "codeDir": "."},
            "logDir": "out",
        }
        if self.space is not None:
            (self.folder / "search_space.json").write_text(json.dumps(self.space))
            content["searchSpacePath"] = "search_space.json"
        path = self.folder / "config.yml"
        path.write_text(yaml.safe_dump({**content, **self.fields, **fields}))
        return path

    @property
    def records(self) -> Records:
        """The records of the search."""
        return Records(open_root(str(self.folder / "root" / "mine")))

    @property
    def trials(self) -> list[Trial]:
        """All trials in the records."""
        return self.records.load()[0]

    def log(self, trial: int) -> str:
        """Returns the output of a trial."""
        return (self.folder / "root" / "mine" / log_path(trial)).read_text()

    def run(self, *, stop_when: Callable[[], object] | None = None, **fields: Any) -> list[Trial]:
        """Runs one session and returns all trials in the records.

        Args:
            stop_when: Interrupts the session as soon as it returns true.
            fields: Further fields of the configuration.
        """
        experiment = read_experiment(self.write(**fields))
        name, search = nni_search(
            experiment, name="mine", gpus=self.gpus, parents=self.parents, wait_timeout_s=self.wait_timeout_s
        )
        files = open_root(str(self.folder / "root")).subfolder(name)
        records = Records(files)
        built = search.build()
        claim_identity(records, built)
        pipeline = SearchPipeline(built, records, nni_budget(experiment))
        if pipeline.ended_by():
            return self.trials
        lease = SearchLease(records, settings={"runner": "threads"})
        stops = built.stopper is not None
        spec = RuntimeSpec(
            problem=search.problem, url=files.url, options={}, has_stopper=stops, jobs_request_trials=True
        )
        executor = LocalExecutor(InProcessPool(spec, files, built.problem), experiment.concurrency)
        settings = ControllerSettings(budget=pipeline.budget, jobs=built.jobs)
        done, lock = threading.Event(), threading.Lock()

        def stop_if_due() -> None:
            with lock:
                if stop_when is not None and not done.is_set() and stop_when():
                    done.set()
                    executor.post(StopRequested("stopped by the test"))

        def watch() -> None:
            while not done.wait(0.01):
                stop_if_due()

        def observe(event: Event) -> None:
            self.events.append(event)
            stop_if_due()  # at once: the next trials take no longer than a watcher may be late

        threading.Thread(target=watch, daemon=True).start()
        try:
            pipeline.run(executor, lease, settings, observe=observe)
        except SearchInterruptedError:
            assert stop_when is not None
        finally:
            done.set()
            executor.close()
            lease.close()
        return self.trials
