"""Runs an experiment's own tuner class (NNI's ``tuner.className``) in a separate process."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from nas.compat.nni.ids import experiment_id, job_id
from nas.compat.nni.parameters import to_parameters, to_point
from nas.compat.nni.parent_rule import ParentRule
from nas.compat.nni.tuner_calls import (
    MAX_LATE_CHARS,
    CallHistory,
    CallRecord,
    LateResult,
    TunerCall,
    derivation_of,
    ids_text,
    parse_result,
    result_text,
)
from nas.compat.nni.tuner_client import TunerClient
from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal, Trial
from nas.core.validation import check_bool
from nas.spaces.space import Space
from nas.training.code_digests import imported_files
from nas.tuners.base import STOP, WAIT, Answer
from nas.tuners.shared.stateful import StatefulTuner

STAGGER_S = 0.05
"""Most seconds between unanswered calls: old tuners have race conditions in their first calls."""
FLUSH_S = 0.25
"""Most seconds to wait before a call until the tuner has processed the results so far."""
WAIT_TIMEOUT_S = 60.0


class NniTuner(StatefulTuner):
    """Calls the methods of a class that extends ``nni.tuner.Tuner``.

    As in NNI, the tuner is asked for as many configurations at once as jobs may start. Their parameter_ids count from
    0, in the order of the calls. The tuner receives each result as soon as it is reported, and then the end of the
    trial. A later session repeats all calls in the same order. If an answer differs from the record, the record is
    used.

    Args:
        space: Not used.
        metrics: Not used.
        seed: Not used.
        class_file: The module's file in ``code_dir``.
        class_name: The class.
        code_dir: Relative to ``folder``.
        class_args: Arguments of the constructor.
        search_space: Argument of ``update_search_space``; None: an empty string, as in NNI.
        multi_thread: Whether each call has its own thread and may wait for results.
        multi_phase: Whether the tuner is given the id of the job that asks.
        include_intermediate: Whether the last report of a stopped trial is its result.
        parents: See ``ParentRule.parse``.
        folder: The experiment's folder.
        output_dir: The process runs in its subfolder ``log``.
        search: The name of the search, from which job ids are derived.
        slots: Number of jobs at a time.
        max_jobs: Most jobs that may start; None: any number.
        wait_timeout_s: Seconds that an idle tuner may wait while no trial runs.
    """

    data_arguments: ClassVar[frozenset[str]] = frozenset(
        {"folder", "output_dir", "search", "slots", "max_jobs", "wait_timeout_s"}
    )
    code_arguments: ClassVar[frozenset[str]] = frozenset({"class_file", "class_name", "code_dir"})
    foreign_arguments: ClassVar[frozenset[str]] = frozenset({"class_args"})

    def __init__(
        self,
        space: Space,
        metrics: tuple[Metric, ...],
        *,
        seed: int = 0,
        class_file: str,
        class_name: str,
        code_dir: str = ".",
        class_args: Mapping[str, Any] | None = None,
        search_space: Mapping[str, Any] | None = None,
        multi_thread: bool = False,
        multi_phase: bool = False,
        include_intermediate: bool = False,
        parents: str | None = None,
        folder: str = ".",
        output_dir: str = "",
        search: str = "",
        slots: int = 1,
        max_jobs: int | None = None,
        wait_timeout_s: float = WAIT_TIMEOUT_S,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        for name, value in (
            ("multi_thread", multi_thread),
            ("multi_phase", multi_phase),
            ("include_intermediate", include_intermediate),
        ):
            check_bool(f"tuner.{name}", value)
        if not all(isinstance(value, Mapping | None) for value in (class_args, search_space)):
            raise ConfigurationError("tuner.class_args and tuner.search_space: must be objects, or null")
        self.class_file = class_file
        self.class_name = class_name
        self.code_dir = code_dir
        self.class_args = dict(class_args or {})
        self.search_space = search_space
        self.multi_thread = multi_thread
        self.multi_phase = multi_phase
        self.include_intermediate = include_intermediate
        self.parents = ParentRule.parse(parents)
        self.folder = folder
        self.output_dir = output_dir
        self.search = search
        self.slots = slots
        self.max_jobs = max_jobs
        self.wait_timeout_s = wait_timeout_s
        self._connected: TunerClient | None = None
        self._unrecorded: list[TunerCall] = []
        """Calls that are in no proposal's record yet."""
        self._job_ids: dict[int, str] = {}
        """The tuner's id of each job, by its number."""
        self._configurations: dict[int, tuple[Any, Any]] = {}
        """Parameters and result of each configuration, by parameter_id."""
        self._trial_numbers: dict[int, int] = {}
        """Trial numbers by parameter_id."""
        self._n_ids = 0
        self._n_results = 0
        self._unrecorded_late: list[LateResult] = []
        """Late results that are in no call's record yet."""
        self._waiting_late: dict[int, list[str]] = {}
        """Late results by trial, to be sent after the trial's first result."""
        self._exhausted_at = -1
        """Number of results received when the tuner last had no configuration."""

    @property
    def code_files(self) -> Mapping[str, Path]:
        """The file of the class, and the files that it imports."""
        path = Path(self.folder, self.code_dir, self.class_file)
        return {**imported_files(path), self.class_file: path}

    # ---- start and end

    def start(self, lineage: Lineage, on_ready: Callable[[], None], on_error: Callable[[BaseException], None]) -> None:
        """Starts the process and repeats the calls and results of earlier sessions."""
        folder = Path(self.output_dir) / "log"
        environment = {
            "NNI_MODE": "start",
            "NNI_EXP_ID": experiment_id(self.search),
            "NNI_LOG_DIRECTORY": str(folder),
            "NNI_CHECKPOINT_DIRECTORY": str(folder),
            "NNI_LOG_LEVEL": "INFO",
            "NNI_INCLUDE_INTERMEDIATE_RESULTS": str(self.include_intermediate).lower(),
        }
        self._connected = TunerClient(
            self.class_name,
            folder,
            environment,
            wait_timeout_s=self.wait_timeout_s,
            remedy="" if self.multi_thread else ". A tuner that waits for results needs multiThread: true",
            wake=on_ready,
            fail=on_error,
        )
        self._client.tell(
            "start",
            f"{self.class_name}.__init__ or update_search_space",
            code_dir=os.path.abspath(os.path.join(self.folder, self.code_dir)),
            class_file=self.class_file,
            class_name=self.class_name,
            arguments=self.class_args,
            space=self.search_space,
            multi_thread=self.multi_thread,
        )
        self._client.flush()
        self._job_ids = {t.job: CallRecord.of(t).job for t in lineage}
        self._replay(CallHistory.of(lineage))

    @property
    def _client(self) -> TunerClient:
        if self._connected is None:
            raise AssertionError("the tuner has not been started, or has ended")
        return self._connected

    def add_result(self, trial: Trial) -> None:
        """Sends the tuner a result and the end of its trial."""
        self._client.n_pending -= 1
        self._tell_result(trial)
        for result in self._waiting_late.pop(trial.number, ()):
            self.add_extra_result(trial, result)

    def add_extra_result(self, trial: Trial, result: str) -> None:
        """Sends the tuner a final result that came after the trial's first one, as in NNI."""
        if not trial.is_finished:
            self._waiting_late.setdefault(trial.number, []).append(result)
            return
        record = CallRecord.of(trial)
        late = LateResult(record.id, self._n_results, result)
        if sum(len(other.text) for other in (*self._unrecorded_late, late)) <= MAX_LATE_CHARS:
            self._unrecorded_late.append(late)
        self._tell_late(late, record.job)

    @property
    def is_busy(self) -> bool:
        """Whether a call has no answer yet."""
        return self._client.is_thinking

    def drain(self) -> None:
        """Waits until the tuner has processed all results, and calls its ``_on_exit``."""
        self._client.n_pending = 0  # those of waiting trials come in a later session
        self._client.flush()
        self._client.tell("exit", "_on_exit")
        self._client.flush()

    def close(self) -> None:
        """Ends the process."""
        if self._connected is not None:
            self._connected.end()
            self._connected = None

    # ---- configurations

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns a configuration; WAIT if there is none now, STOP if there will be none.

        NoMoreTrialError means STOP for a job that continues. For a new job it means WAIT while results can arrive.
        """
        if self._connected is None:  # before `start`
            return WAIT
        self._client.check()
        job_name = self._job_ids.get(job)
        call = self._ask_for_new_job(lineage) if job_name is None else self._ask_for_next(job_name)
        if call is not None and not (call.is_empty and self._client.put_aside(call)):
            self._job_ids[job] = call.job
            return self._propose(call, len(lineage))
        if call is not None:
            if job_name is not None:
                return STOP
            self._exhausted_at = self._n_results
        has_more = self._exhausted_at != self._n_results or lineage.pending or self.is_busy
        return WAIT if job_name is not None or has_more else STOP

    def _max_open_calls(self, lineage: Lineage) -> int:
        """Returns the number of jobs that may ask for a configuration at once."""
        n_free = self.slots - len(lineage.pending)
        if self.max_jobs is not None:
            n_free = min(n_free, self.max_jobs - len(self._job_ids))
        return max(n_free, 1) if self.multi_thread else 1

    def _ask_for_new_job(self, lineage: Lineage) -> TunerCall | None:
        """Starts calls up to the allowed number and returns the first that is answered, or None.

        If the tuner had no configuration, no call starts before it has received another result.
        """
        self._client.flush(FLUSH_S)
        if (found := self._first_answered()) is not None:
            return found
        n_open = sum(call.is_first for call in list(self._client.calls.values()))
        n_new = 0 if self._exhausted_at == self._n_results else self._max_open_calls(lineage) - n_open
        for _ in range(n_new):
            number = self._next_id()
            call = self._start_call(TunerCall(number, job_id(self.search, number), True, self._n_results))
            self._client.wait_for([call], STAGGER_S)
            if call.has_answer:
                return call
        return self._first_answered()

    def _first_answered(self) -> TunerCall | None:
        answered = [call for call in list(self._client.calls.values()) if call.is_first and call.has_answer]
        return min(answered, key=lambda call: (call.is_empty, call.id), default=None)

    def _ask_for_next(self, job: str) -> TunerCall | None:
        """Returns the answered call of a job that continues, or None."""
        open_calls = list(self._client.calls.values())
        call = next((call for call in open_calls if not call.is_first and call.job == job), None)
        if call is None:
            self._client.flush(FLUSH_S)
            call = self._start_call(TunerCall(self._next_id(), job, False, self._n_results))
            self._client.wait_for([call], STAGGER_S)
        return call if call.has_answer else None

    def _next_id(self) -> int:
        self._n_ids += 1
        return self._n_ids - 1

    def _start_call(self, call: TunerCall, **recorded: Any) -> TunerCall:
        self._unrecorded.append(call)
        if call.trial is None:
            call.late, self._unrecorded_late = tuple(self._unrecorded_late), []
        return self._client.ask(call, call.job if self.multi_phase else None, **recorded)

    def _propose(self, call: TunerCall, number: int) -> Proposal:
        del self._client.calls[call.id]
        self._client.n_pending += 1
        parents = self.parents.find(call.parameters, call.id, self._configurations)
        call.trial = self._trial_numbers[call.id] = number
        self._configurations[call.id] = (call.parameters, None)
        started, self._unrecorded = self._unrecorded, []
        return Proposal(
            point=to_point(call.parameters),
            parents=tuple(self._trial_numbers[parent] for parent in parents),
            derivation=derivation_of(call, started),
            reason=f"parameter_id {call.id}",
        )

    # ---- results

    def _tell_result(self, trial: Trial) -> None:
        record = CallRecord.of(trial)
        text = result_text(trial, include_intermediate=self.include_intermediate)
        result = None if text is None else parse_result(text, trial.number)
        self._configurations[record.id] = (to_parameters(trial.point), result)
        if text is None:
            self._client.last_failure = (
                f"trial {trial.number} (parameter_id {record.id}) is {trial.state}: {trial.reason}"
            )
        self._n_results += 1
        value = {} if text is None else {"value": text}
        name = f"receive_trial_result or trial_end of parameter_id {record.id}"
        success = trial.state == "COMPLETE"
        self._client.tell("finished", name, id=record.id, job=record.job, success=success, **value)

    def _tell_late(self, late: LateResult, job: str) -> None:
        self._client.flush(FLUSH_S)  # the first result
        name = f"receive_trial_result of parameter_id {late.id}, again"
        self._client.tell("late", name, id=late.id, job=job, value=late.text)

    # ---- after an interruption

    def _replay(self, history: CallHistory) -> None:
        """Repeats the calls and results of earlier sessions in the same order."""
        self._client.n_pending = 1  # a call that waits now waits for a result that will be replayed
        jobs = {call.id: call.job for call in history.calls}
        for call in history.calls:
            for late in call.late:
                self._replay_results(history, late.n_results)
                self._tell_late(late, jobs[late.id])
            self._replay_results(history, call.n_results)
            recorded = {} if call.trial is None else {"recorded": call.parameters}
            if call.trial is not None:
                self._trial_numbers[call.id], self._configurations[call.id] = call.trial, (call.parameters, None)
            self._start_call(call, **recorded)
            self._client.wait_for([call], STAGGER_S)
            self._n_ids = call.id + 1
        self._replay_results(history, len(history.results))
        self._client.end_replay()
        n_running = sum(call.trial is not None for call in history.calls) - len(history.results)
        self._client.n_pending = n_running
        self._unrecorded.clear()
        if self._client.differing:
            self._import_records(history)

    def _replay_results(self, history: CallHistory, n_results: int) -> None:
        """Sends results until the tuner has ``n_results``, each after the answers that came before it."""
        while self._n_results < n_results:
            self._wait_for_answers(history)
            self._tell_result(history.results[self._n_results])
            self._client.flush(self.wait_timeout_s)
        self._wait_for_answers(history)

    def _wait_for_answers(self, history: CallHistory) -> None:
        """Waits for the answers that came before the next result.

        The wait has a timeout, because an answer may depend on another call.
        """
        answered = [call for call in history.answered.get(self._n_results, []) if call.id < self._n_ids]
        self._client.wait_for(answered, self.wait_timeout_s)

    def _import_records(self, history: CallHistory) -> None:
        """Reports a tuner that is not reproducible and sends it the recorded results."""
        data = []
        for trial in history.results:
            if (text := result_text(trial, include_intermediate=self.include_intermediate)) is not None:
                result = parse_result(text, trial.number)
                data.append({"parameter": to_parameters(trial.point), "value": result, "id": CallRecord.of(trial).job})
        print(
            f"the tuner {self.class_name} is not reproducible: when asked again, it returned another configuration "
            f"for parameter_id {ids_text(self._client.differing)}. The records are used; import_data, if it has one, "
            "receives them",
            file=sys.stderr,
            flush=True,
        )
        self._client.tell("import", "import_data", data=data)
        self._client.flush()
