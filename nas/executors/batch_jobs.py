"""The batch jobs of a dask-jobqueue cluster, which does not tell of refused and ended ones."""

from __future__ import annotations

import re
import subprocess
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from distributed import Status

from nas.core.errors import ConfigurationError, HeirloomError, SearchFailedError

POLL_S = 5.0
FIRST_POLL_S = 1.0
QUERY_TIMEOUT_S = 20.0
PENDING_S = 10.0
"""Time after which the user is told of jobs that wait for a node."""
RETRY_S = 60.0
"""Time after which a job that was refused, or ended early like others before, is replaced."""
MAX_ENDED = 3
"""Jobs in a row that may end before their worker joins."""
N_LOG_LINES = 3
WAITING = frozenset({"PENDING", "CONFIGURING", "RUNNING", "SUSPENDED", "REQUEUED", "COMPLETING", "RESIZING"})
FAULTLESS = frozenset({"PREEMPTED", "NODE_FAIL", "BOOT_FAIL"})
"""States of jobs that did not end by their own fault."""


class BatchJobs:
    """Watches the jobs of a dask-jobqueue cluster until its workers have joined.

    Jobs that the queue refuses, or that end before their worker joins, are told with the queue's reason. An adaptive
    cluster replaces them. The search ends if no worker can come.

    Args:
        cluster: Of dask-jobqueue, before its first job. Slurm is asked for the reasons; other queues are not.
    """

    def __init__(self, cluster: Any) -> None:
        self._cluster = cluster
        self._note: Callable[[str], None] = lambda line: None
        self._fail: Callable[[HeirloomError], None] = lambda error: None
        self._is_slurm = "sbatch" in cluster.job_cls.submit_command
        self._refused: dict[str, str] = {}
        """Reasons by the job's name."""
        self._joined: set[str] = set()
        """Names of jobs whose worker has joined."""
        self._replace_at_s: dict[str, float] = {}
        self._pending_since_s: dict[str, float] = {}
        self._told_reasons: set[str] = set()
        self._n_ended = 0
        cluster.new_spec["cls"] = _recording(cluster.job_cls, self._refuse)

    def watch(self, *, note: Callable[[str], None], fail: Callable[[HeirloomError], None]) -> None:
        """Starts a thread that ends with the cluster.

        Args:
            note: Takes a line for the user.
            fail: Takes the error that ends the search.
        """
        self._note, self._fail = note, fail
        threading.Thread(target=self._watch, name="heirloom-batch-jobs", daemon=True).start()

    def _refuse(self, name: str, error: Exception) -> None:
        command = self._cluster.job_cls.submit_command.split()[0]
        self._refused[name] = f"{command} refused a job: {_refusal(error)}"

    def _watch(self) -> None:
        while self._cluster.status not in (Status.closing, Status.closed):
            self._check()
            time.sleep(POLL_S if self._joined else FIRST_POLL_S)

    def _check(self) -> None:
        """Tells of the jobs whose worker has not joined."""
        found = list(self._cluster.scheduler_info["workers"].values())  # workers join on another thread
        workers = {str(worker["name"]) for worker in found}
        missing = {}
        for name, job in list(self._cluster.workers.items()):
            if any(worker == name or worker.startswith(f"{name}-") for worker in workers):
                self._n_ended = self._n_ended if name in self._joined else 0
                self._joined.add(name)
            elif name not in self._joined and name not in self._replace_at_s:
                missing[name] = job
        queued = {str(job.job_id): name for name, job in missing.items() if job.job_id}
        states = _slurm_states(list(queued)) if self._is_slurm and queued else {}
        for job_id, (state, _) in states.items():
            if state not in WAITING:
                self._drop_ended(queued[job_id], job_id, state, has_workers=bool(workers))
        self._tell_pending({job_id: reason for job_id, (state, reason) in states.items() if state == "PENDING"})
        for name in [name for name in missing if name in self._refused]:
            self._drop_refused(name, self._refused.pop(name), has_others=bool(queued or self._joined))
        for name in [name for name, at_s in self._replace_at_s.items() if time.monotonic() > at_s]:
            self._replace(name)

    def _tell_pending(self, reasons: dict[str, str]) -> None:
        """Notes jobs that have waited for some time, once for each reason."""
        now_s = time.monotonic()
        self._pending_since_s = {job_id: self._pending_since_s.get(job_id, now_s) for job_id in reasons}
        late = [reasons[job_id] for job_id, since_s in self._pending_since_s.items() if now_s - since_s > PENDING_S]
        self._told_reasons &= set(late)
        for reason in sorted(set(late) - self._told_reasons):
            n = late.count(reason)
            self._note(f"{n} Slurm job{'s wait' if n > 1 else ' waits'}: PENDING ({reason})")
            self._told_reasons.add(reason)

    def _drop_ended(self, name: str, job_id: str, state: str, *, has_workers: bool) -> None:
        """Tells why a job ended before its worker joined, and lets the cluster submit another."""
        why = f"Slurm job {job_id} ended before its worker joined: {_slurm_details(job_id) or state}"
        self._n_ended += state not in FAULTLESS
        if self._n_ended >= MAX_ENDED and not has_workers:
            row = f"{MAX_ENDED} jobs in a row ended before their workers joined"
            self._fail(SearchFailedError(f"{row}. The last: {why}"))
            return
        self._note(why)
        self._replace_at_s[name] = time.monotonic() + (RETRY_S if self._n_ended >= MAX_ENDED else 0.0)

    def _drop_refused(self, name: str, reason: str, *, has_others: bool) -> None:
        """Tells of a refused job. The search ends if it has no other."""
        if not has_others:
            self._fail(ConfigurationError(f"runner.cluster: {reason}. Change what it requests"))
            return
        self._note(f"{reason}. The next attempt follows in {RETRY_S:g} s")
        self._replace_at_s[name] = time.monotonic() + RETRY_S

    def _replace(self, name: str) -> None:
        """Takes a job from the cluster, whose next adaptive step submits another."""
        del self._replace_at_s[name]
        self._cluster.loop.add_callback(self._cluster.workers.pop, name, None)


def _recording(job_class: Any, refuse: Callable[[str, Exception], None]) -> Any:
    """Returns a class of jobs whose refusal is recorded. dask-jobqueue only logs it."""

    class RecordedJob(job_class):  # type: ignore[misc]
        async def start(self) -> None:
            try:
                await super().start()
            except (OSError, RuntimeError, ValueError) as error:
                refuse(self.name, error)
                self.status = Status.running  # SpecCluster asserts it; the job has no id

    return RecordedJob


def _refusal(error: Exception) -> str:
    """Returns what the queue's submit command said."""
    if isinstance(error, FileNotFoundError):
        return f"{error.filename}: not found on this machine"
    said = str(error).rpartition("stderr:\n")[2]
    lines = [re.sub(r"^\w+: error: ", "", line.strip()) for line in said.splitlines() if line.strip()]
    return "; ".join(lines).rstrip(".")


def _slurm_states(job_ids: list[str]) -> Mapping[str, tuple[str, str]]:
    """Returns state and reason of jobs by id; UNKNOWN if Slurm has forgotten a job."""
    arguments = ["--noheader", "--states=all", f"--jobs={','.join(job_ids)}", "--format=%i|%T|%r"]
    said, is_known = _ask("squeue", *arguments)
    if not is_known and "Invalid job id" not in said:  # slurmctld does not answer: ask again later
        return {}
    found = {fields[0]: (fields[1], fields[2]) for line in said.splitlines() if len(fields := line.split("|")) == 3}
    return {job_id: found.get(job_id, ("UNKNOWN", "")) for job_id in job_ids}


def _slurm_details(job_id: str) -> str:
    """Returns state, reason and exit code of an ended job, with the end of its log."""
    said, is_known = _ask("scontrol", "show", "job", "--oneliner", job_id)
    fields = dict(re.findall(r"\b(JobState|Reason|ExitCode|StdErr)=(\S+)", said))
    if not is_known or "JobState" not in fields:
        return ""
    parts = [fields["JobState"], f"Reason={fields.get('Reason')}", f"ExitCode={fields.get('ExitCode')}"]
    return " ".join(parts) + _log_end(fields.get("StdErr", "").replace("%J", job_id).replace("%j", job_id))


def _log_end(path: str) -> str:
    try:
        text = Path(path).read_text(errors="replace") if path else ""
    except OSError:  # it is on another machine
        return f", log {path}"
    lines = [line.strip() for line in text.splitlines() if line.strip()][-N_LOG_LINES:]
    return f", log {path}: {' | '.join(lines)}"


def _ask(*command: str) -> tuple[str, bool]:
    """Returns what a command of Slurm printed, and whether it succeeded."""
    try:
        done = subprocess.run(command, capture_output=True, errors="replace", timeout=QUERY_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error), False
    return done.stdout + done.stderr, done.returncode == 0
