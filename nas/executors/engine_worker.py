"""The worker's end of an engine (Dask, Ray): one warm worker process and its checks.

No credentials travel through an engine. A worker opens the driver's root by the driver's URL without its password.
That is right for a shared mount at the same place, and for credentials in the worker's environment. Otherwise set
``HEIRLOOM_WORKER_ROOT`` on the worker to the root, and ``HEIRLOOM_WORKER_OPTIONS`` to its options as a JSON object.
"""

from __future__ import annotations

import json
import math
import os
import pickle
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from nas.core.errors import ConfigurationError, StorageError
from nas.core.gpus import gpus_of_slot
from nas.core.redaction import remove_passwords
from nas.core.trial import Trial
from nas.executors.events import (
    Action,
    Event,
    ExecutorFailed,
    Reported,
    StopKind,
    TrialLost,
)
from nas.executors.number_claim import NumberClaim
from nas.executors.pool import resume_job, run_attempt
from nas.executors.process_pool import ProcessPool
from nas.executors.worker_process import END_TIMEOUT_S
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.messages import Assignment, JobStart, ProxyRequest, RuntimeSpec

ROOT_VARIABLE = "HEIRLOOM_WORKER_ROOT"
OPTIONS_VARIABLE = "HEIRLOOM_WORKER_OPTIONS"
LEAVE_TIMEOUT_S = 4.0
"""Seconds that a trial gets to end when its worker leaves."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """The settings of an engine's workers for one search; they hold no credentials.

    Attributes:
        runtime: Its storage options and the password in its URL are left out. ``device="auto"``: by the worker.
        trial_timeout_s: A trial that runs longer is killed and FAILED.
        gpus: The driver's GPUs, if all workers are on its machine. Empty: each uses the first that it sees.
        claims: A folder in which the processes of these workers claim GPUs. Empty: all use the first ones.
        folder: The driver's working folder, whose modules workers find if they have it.
    """

    runtime: RuntimeSpec
    trial_timeout_s: float | None = None
    gpus: tuple[int, ...] = ()
    claims: str = ""
    folder: str = field(default_factory=os.getcwd)

    def __post_init__(self) -> None:
        bare = replace(self.runtime, url=remove_passwords(self.runtime.url), options={})
        object.__setattr__(self, "runtime", bare)


@dataclass(frozen=True, slots=True)
class WorkerUnfit:
    """A worker can't run the search's trials, whichever they are.

    Attributes:
        error: One line for the user.
        is_mistake: Whether the user can correct it: another version, root or code.
        is_storage: Whether the storage failed.
    """

    error: str
    is_mistake: bool
    is_storage: bool = False

    @classmethod
    def of(cls, error: BaseException) -> WorkerUnfit:
        """Returns the event for an error outside the problem's code."""
        is_mistake, is_storage = (isinstance(error, kind) for kind in (ConfigurationError, StorageError))
        return cls(str(error) or type(error).__name__, is_mistake, is_storage)

    @classmethod
    def without_heirloom(cls, why: str) -> WorkerUnfit:
        """Returns the event for a worker that can't import Heirloom."""
        wanted = ", ".join(f"{name} {version}" for name, version in versions().items())
        return cls(f"it can't import Heirloom: {why}. Install the driver's packages there: {wanted}", is_mistake=True)


@dataclass(frozen=True, slots=True)
class PackedOrder:
    """An order for an engine's worker, which only one of the driver's versions unpickles."""

    versions: Mapping[str, str]
    content: bytes

    @classmethod
    def of(cls, spec: EngineSpec, order: object) -> PackedOrder:
        """Returns the packed order. Its time counts from when it is unpacked: machines' clocks may differ."""
        return cls(versions(), packed((spec, _with_end(order, -time.time()))))

    def unpack(self) -> tuple[EngineSpec, Any]:
        """Returns the spec and the order.

        Raises:
            ConfigurationError: this worker has other versions than the driver.
        """
        for name, here in versions().items():
            if (there := self.versions.get(name)) != here:
                raise ConfigurationError(
                    f"the driver has {name} {there}, this worker {here}. Install the same on all machines"
                )
        spec, order = unpacked(self.content)
        return spec, _with_end(order, time.time())


def _with_end(order: object, offset_s: float) -> object:
    """Returns the order with ``train_until``, if it has one, moved by an offset."""
    if not isinstance(order, Assignment) or order.train_until is None:
        return order
    return replace(order, train_until=order.train_until + offset_s)


def packed(message: object) -> bytes:
    """Returns a message between a driver and its engine's workers."""
    return pickle.dumps(message)


def unpacked(data: bytes) -> Any:
    """Returns the message of ``packed``.

    Both sides trust each other: an engine runs any code that it is sent.
    """
    return pickle.loads(data)


def versions() -> dict[str, str]:
    """Returns the versions that the driver and its workers must share."""
    heirloom: str = sys.modules["nas"].__version__  # this module's package; its public names are layers above
    return {"Heirloom": heirloom, "Python": f"{sys.version_info.major}.{sys.version_info.minor}"}


def local_runtime(runtime: RuntimeSpec, environment: Mapping[str, str]) -> RuntimeSpec:
    """Returns the runtime with the root, the credentials and the device of this worker.

    Raises:
        ConfigurationError: ``HEIRLOOM_WORKER_OPTIONS`` is not a JSON object.
    """
    url, options = runtime.url, _read_options(environment.get(OPTIONS_VARIABLE) or "{}")
    if root := environment.get(ROOT_VARIABLE):
        url = f"{root.rstrip('/')}/{url.rstrip('/').rpartition('/')[2]}"
    return replace(runtime, url=url, options=options, device=_device(runtime.device))


def worker_environment(url: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Returns the variables by which workers of this machine get the driver's credentials.

    Empty if it has none. They are for processes that inherit the driver's environment, never for another machine.
    """
    if not options and remove_passwords(url) == url:
        return {}
    return {ROOT_VARIABLE: url.rstrip("/").rpartition("/")[0], OPTIONS_VARIABLE: json.dumps(dict(options))}


def _read_options(text: str) -> dict[str, Any]:
    try:
        options = json.loads(text)
    except ValueError:
        options = None
    if not isinstance(options, dict):  # the value is not shown: it may hold a password
        raise ConfigurationError(f"{OPTIONS_VARIABLE}: must be a JSON object such as {{}} on each worker")
    return options


def _device(wanted: str) -> str:
    if wanted != "auto":
        return wanted
    import torch

    return "cuda" if torch.cuda.is_available() else "cpu"


def _own_gpus(runtime: RuntimeSpec, gpus: tuple[int, ...], number: int) -> tuple[int, ...]:
    """Returns the GPUs of the process with this number, of those that the worker sees."""
    if runtime.device != "cuda":
        return ()
    shown = gpus or range(math.ceil(runtime.gpus_per_trial))
    return tuple(gpus_of_slot(shown, number, runtime.gpus_per_trial))


class EngineWorker:
    """One warm worker process; it runs one trial, or one job, at a time.

    Args:
        spec: The settings.

    Raises:
        ConfigurationError: this worker's environment does not open the search.
    """

    def __init__(self, spec: EngineSpec) -> None:
        if os.path.isdir(spec.folder) and spec.folder not in sys.path:
            sys.path.append(spec.folder)
        self._runtime = local_runtime(spec.runtime, os.environ)
        self._records = Records(open_root(self._runtime.url, self._runtime.options))
        self._claim = NumberClaim(Path(spec.claims)) if spec.claims else None
        gpus = _own_gpus(self._runtime, spec.gpus, self._claim.number if self._claim else 0)
        self._pool = ProcessPool(self._runtime, 1, gpus=gpus, trial_timeout_s=spec.trial_timeout_s)
        self._lock = threading.Lock()
        """Held while a thread uses the process; a job may leave before its last trial returns."""
        self._close_lock = threading.Lock()
        self._has_checked = False
        self._running: Trial | None = None
        self._decision: tuple[int, int, Callable[[bool], None]] | None = None
        self.left: str | None = None
        """Why ``leave`` was called: it can run nothing more."""

    def run(self, assignment: Assignment, post: Callable[[Event | WorkerUnfit], None]) -> Event | WorkerUnfit:
        """Runs an attempt and returns what ends it.

        An attempt that this session started before is lost: engines run a task again after its worker was lost. It
        trains nothing.
        """
        trial = assignment.trial
        assignment = replace(assignment, n_slots=1)  # other slots may be on other machines
        try:
            self._check_records(trial.number)
            if self._has_started(trial):
                return TrialLost(trial.job, trial.number, "its worker was lost, and the engine ran its task again")
        except Exception as error:
            return WorkerUnfit.of(error)
        with self._lock:
            self._running = trial
            try:
                event = run_attempt(self._pool, assignment, self._posting(post))
            finally:
                self._running = None
        if isinstance(event, TrialLost) and self.left is not None:
            return TrialLost(trial.job, trial.number, self.left, counts=False)
        return _portable(event)

    def resume(self, job_start: JobStart, post: Callable[[Event | WorkerUnfit], None]) -> None:
        """Starts a job without a trial; see ``WorkerPool.resume``."""
        with self._lock:
            resume_job(self._pool, job_start, self._posting(post))

    def call(self, action: Action, subject: Trial | ProxyRequest) -> Mapping[str, Any]:
        """Tests, exports or computes proxies; see ``WorkerPool.call``."""
        with self._lock:
            return self._pool.call(action, subject)

    def stop(self, subject: Trial | ProxyRequest, kind: StopKind) -> None:
        """Asks the attempt to end; see ``Executor.stop``."""
        self._pool.stop(subject, kind)

    def decide(self, trial: int, step: int, stop: bool) -> None:
        """Answers a report that waits for the stopper."""
        if self._decision is not None and self._decision[:2] == (trial, step):
            self._decision[2](stop)

    def dismiss(self, job: int) -> None:
        """Tells the job that there are no more trials."""
        self._pool.dismiss(job)

    def leave(self, why: str) -> None:
        """Interrupts the running trial, which does not count as an attempt, and ends the process."""
        self.left = why
        until_s = time.monotonic() + LEAVE_TIMEOUT_S
        if (running := self._running) is not None:
            self._pool.stop(running, "interrupt")
            while self._running is not None and time.monotonic() < until_s:
                time.sleep(0.02)
        self.close()

    def close(self) -> None:
        """Ends the process. Any thread may call it, repeatedly."""
        with self._close_lock:
            self._pool.close(END_TIMEOUT_S)  # one after another, and a batch system waits for them
            if self._claim is not None:
                self._claim.release()

    def _check_records(self, number: int) -> None:
        """Raises if this worker does not see what the driver wrote before it ordered the trial."""
        if not self._has_checked and self._records.proposed(number) is None:
            raise ConfigurationError(
                f"{self._runtime.url} on this worker: does not hold the driver's trial {number}. "
                f"Mount the driver's storage there, or set {ROOT_VARIABLE} to its root as this worker sees it"
            )
        self._has_checked = True

    def _has_started(self, trial: Trial) -> bool:
        """Returns whether this session started the attempt; a killed driver's order may have its number."""
        attempt = trial.attempt
        while (start := self._records.read_start(trial.number, attempt)) is not None:
            if start["session"] == self._runtime.session:
                return True
            attempt += 1  # as ``Attempt.begin`` does
        return False

    def _posting(self, post: Callable[[Event | WorkerUnfit], None]) -> Callable[[Event], None]:
        """Returns a ``post`` whose events can be pickled; a report keeps its ``answer`` here, for ``decide``."""

        def send(event: Event) -> None:
            if isinstance(event, Reported) and event.answer is not None:
                self._decision = event.trial, event.step, event.answer
                event = replace(event, answer=waits_for_decision)
            post(_portable(event))

        return send


def waits_for_decision(stop: bool) -> None:
    """Stands for ``Reported.answer`` on its way to the driver, which replaces it."""
    raise AssertionError("the driver answers by EngineWorker.decide")


def _portable(event: Event) -> Event | WorkerUnfit:
    """Returns an event without an exception in it, which might not unpickle."""
    return WorkerUnfit.of(event.error) if isinstance(event, ExecutorFailed) else event
