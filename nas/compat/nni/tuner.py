"""An experiment's own tuner, which lives in a process of its own (NNI's ``tuner.className``)."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, ClassVar

from nas.compat.nni.calls import LATE_CHARS, Call, History, LateResult, Notice, derivation, numbers_of, parsed, value_of
from nas.compat.nni.conversation import Conversation
from nas.compat.nni.names import experiment_id, job_id
from nas.compat.nni.parameters import parameters_of, point_of
from nas.compat.nni.parents import ParentRule
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.trial import Proposal, Trial
from nas.spaces.space import Space
from nas.tuners.base import STOP, WAIT, Answer
from nas.tuners.shared.stateful import StatefulTuner

STAGGER_S = 0.05
"""The next call begins when the one before has answered, or has waited so long: old tuners race at their first call."""
GRACE_S = 0.25
"""It begins when results are taken in, or when that takes so long."""
RETRY_S = 60.0


class NniTuner(StatefulTuner):
    """Calls the methods of a class that derives from ``nni.tuner.Tuner``.

    Configurations are asked for as in NNI: as many at once as jobs may begin, in the order of ids, from 0. Each result
    is told when it is there, and that the trial has ended, after it. A later session asks and tells the same in the
    same order; where an answer differs from the record, the record stands.

    Args:
        space: Of no concern.
        metrics: Of no concern.
        seed: Of no concern.
        class_file: The module's file in ``code_dir``, which is relative to the experiment's ``folder``.
        class_name: The class.
        class_args: What it is built with.
        search_space: What ``update_search_space`` is given; None: an empty text, as in NNI.
        multi_thread: Each call has a thread of its own, and may wait for results.
        multi_phase: The tuner is told which job asks.
        with_stopped: The last report of a trial that a stopper ended counts as its result.
        parents: See ``ParentRule.of``.
        folder: Where the experiment lies.
        output_dir: In ``log`` there it runs.
        search: The name from which the ids of jobs are made.
        slots: Jobs at a time.
        most_jobs: More than these are never asked for.
        patience_s: How long the tuner may wait, and do nothing, while nothing runs that it could wait for.
    """

    data_arguments: ClassVar[frozenset[str]] = frozenset(
        {"folder", "output_dir", "search", "slots", "most_jobs", "patience_s"}
    )
    code_arguments: ClassVar[frozenset[str]] = frozenset({"class_file", "code_dir"})

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
        with_stopped: bool = False,
        parents: str | None = None,
        folder: str = ".",
        output_dir: str = "",
        search: str = "",
        slots: int = 1,
        most_jobs: int | None = None,
        patience_s: float = RETRY_S,
    ) -> None:
        super().__init__(space, metrics, seed=seed)
        self.class_file = class_file
        self.class_name = class_name
        self.code_dir = code_dir
        self.class_args = dict(class_args or {})
        self.search_space = search_space
        self.multi_thread = multi_thread
        self.multi_phase = multi_phase
        self.with_stopped = with_stopped
        self.parents = ParentRule.of(parents)
        self.folder = folder
        self.output_dir = output_dir
        self.search = search
        self.slots = slots
        self.most_jobs = most_jobs
        self.patience_s = patience_s
        self._conversation: Conversation | None = None
        self._unlisted: list[Call] = []
        """Calls that no proposal's record lists."""
        self._names: dict[int, str] = {}
        """What the tuner calls each job."""
        self._known: dict[int, tuple[Any, Any]] = {}
        """Parameters and result of each configuration, by parameter_id."""
        self._trial_of: dict[int, int] = {}
        self._n_ids = 0
        self._n_told = 0
        self._late: list[LateResult] = []
        """Late results that no call's record lists."""
        self._early: dict[int, list[str]] = {}
        """Late results of trials whose result is still to come."""
        self._nothing_at = -1
        """How many results it had been told when it had nothing to offer."""

    # ---- from begin to end

    def begin(self, lineage: Lineage, wake: Callable[[], None], fail: Callable[[BaseException], None]) -> None:
        """Starts the process, and repeats what it was asked and told."""
        folder = Path(self.output_dir) / "log"
        environment = {
            "NNI_MODE": "start",
            "NNI_EXP_ID": experiment_id(self.search),
            "NNI_LOG_DIRECTORY": str(folder),
            "NNI_CHECKPOINT_DIRECTORY": str(folder),
            "NNI_LOG_LEVEL": "INFO",
            "NNI_INCLUDE_INTERMEDIATE_RESULTS": str(self.with_stopped).lower(),
        }
        self._conversation = Conversation(
            self.class_name,
            folder,
            environment,
            patience_s=self.patience_s,
            remedy="" if self.multi_thread else "; a tuner that waits for results needs multiThread: true",
            wake=wake,
            fail=fail,
        )
        self._talk.tell(
            "begin",
            f"{self.class_name}.__init__ or update_search_space",
            code_dir=os.path.abspath(os.path.join(self.folder, self.code_dir)),
            class_file=self.class_file,
            class_name=self.class_name,
            arguments=self.class_args,
            space=self.search_space,
            multi_thread=self.multi_thread,
        )
        self._talk.settle()
        self._names = {t.job: Notice.of(t).job for t in lineage}
        self._repeat(History.of(lineage))

    @property
    def _talk(self) -> Conversation:
        if self._conversation is None:
            raise AssertionError("the tuner has not begun, or has ended")
        return self._conversation

    def notice(self, trial: Trial) -> None:
        """Tells the tuner a result, and that the trial has ended."""
        self._talk.n_out -= 1
        self._tell_result(trial)
        for result in self._early.pop(trial.number, ()):
            self.notice_late(trial, result)

    def notice_late(self, trial: Trial, result: str) -> None:
        """Tells the tuner what a trial has reported after its result, as NNI did."""
        if not trial.is_finished:
            self._early.setdefault(trial.number, []).append(result)
            return
        late = LateResult(Notice.of(trial).id, self._n_told, result)
        if sum(len(other.text) for other in (*self._late, late)) <= LATE_CHARS:
            self._late.append(late)
        self._tell_late(late, Notice.of(trial).job)

    @property
    def is_thinking(self) -> bool:
        """Whether a call has no answer yet."""
        return self._talk.is_thinking

    def settle(self) -> None:
        """Waits until all results are taken in, and tells the tuner that it was all."""
        self._talk.settle()
        self._talk.tell("exit", "_on_exit")
        self._talk.settle()

    def end(self) -> None:
        """Ends the process."""
        if self._conversation is not None:
            self._conversation.end()
            self._conversation = None

    # ---- asking

    def ask(self, lineage: Lineage, number: int, job: int) -> Proposal | Answer:
        """Returns a configuration that the tuner has answered; WAIT where it has none now, STOP where it has no more.

        NoMoreTrialError means STOP for a job that goes on; for a new one it means WAIT while there are results to come.
        """
        if self._conversation is None:  # before `begin`
            return WAIT
        self._talk.check()
        name = self._names.get(job)
        call = self._ask_for_new(lineage) if name is None else self._ask_for(name)
        if call is not None and not call.has_nothing:
            self._names[job] = call.job
            return self._propose(call, len(lineage))
        if call is not None:
            del self._talk.calls[call.id]
            if name is not None:
                return STOP
            self._nothing_at = self._n_told
        has_more = self._nothing_at != self._n_told or lineage.pending or self.is_thinking
        return WAIT if name is not None or has_more else STOP

    def _n_wanted(self, lineage: Lineage) -> int:
        """For how many jobs configurations may be asked for at once."""
        n_free = self.slots - len(lineage.pending)
        if self.most_jobs is not None:
            n_free = min(n_free, self.most_jobs - len(self._names))
        return max(n_free, 1) if self.multi_thread else 1

    def _ask_for_new(self, lineage: Lineage) -> Call | None:
        """Begins calls until as many go on as are wanted; the first that has answered, or None.

        None are begun where the tuner had nothing to offer, until it is told another result.
        """
        self._talk.settle(GRACE_S)
        if (found := self._first_answered()) is not None:
            return found
        n_open = sum(call.is_first for call in list(self._talk.calls.values()))
        n_new = 0 if self._nothing_at == self._n_told else self._n_wanted(lineage) - n_open
        for _ in range(n_new):
            number = self._next_id()
            call = self._generate(Call(number, job_id(self.search, number), True, self._n_told))
            self._talk.wait_for([call], STAGGER_S)
            if call.has_answer:
                return call
        return self._first_answered()

    def _first_answered(self) -> Call | None:
        answered = [call for call in list(self._talk.calls.values()) if call.is_first and call.has_answer]
        return min(answered, key=lambda call: (call.has_nothing, call.id), default=None)

    def _ask_for(self, name: str) -> Call | None:
        """Returns the next configuration of a job that goes on."""
        call = next((call for call in list(self._talk.calls.values()) if not call.is_first and call.job == name), None)
        if call is None:
            self._talk.settle(GRACE_S)
            call = self._generate(Call(self._next_id(), name, False, self._n_told))
            self._talk.wait_for([call], STAGGER_S)
        return call if call.has_answer else None

    def _next_id(self) -> int:
        self._n_ids += 1
        return self._n_ids - 1

    def _generate(self, call: Call, **recorded: Any) -> Call:
        self._unlisted.append(call)
        if call.trial is None:
            call.late, self._late = tuple(self._late), []
        return self._talk.ask(call, call.job if self.multi_phase else None, **recorded)

    def _propose(self, call: Call, number: int) -> Proposal:
        del self._talk.calls[call.id]
        self._talk.n_out += 1
        parents = tuple(self._trial_of[i] for i in self.parents.find(call.parameters, call.id, self._known))
        call.trial, self._trial_of[call.id], self._known[call.id] = number, number, (call.parameters, None)
        begun, self._unlisted = self._unlisted, []
        return Proposal(
            point=point_of(call.parameters),
            parents=parents,
            derivation=derivation(call, begun),
            reason=f"parameter_id {call.id}",
        )

    # ---- telling

    def _tell_result(self, trial: Trial) -> None:
        noted = Notice.of(trial)
        number, job = noted.id, noted.job
        value = value_of(trial, with_stopped=self.with_stopped)
        self._known[number] = (parameters_of(trial.point), None if value is None else parsed(value, trial.number))
        if value is None:
            self._talk.last_failure = f"trial {trial.number} (parameter_id {number}) is {trial.state}: {trial.reason}"
        self._n_told += 1
        told = {} if value is None else {"value": value}
        what = f"receive_trial_result or trial_end of parameter_id {number}"
        self._talk.tell("finished", what, id=number, job=job, success=trial.state == "COMPLETE", **told)

    def _tell_late(self, late: LateResult, job: str) -> None:
        self._talk.settle(GRACE_S)  # the result before it
        what = f"receive_trial_result of parameter_id {late.id}, again"
        self._talk.tell("late", what, id=late.id, job=job, value=late.text)

    # ---- after an interruption

    def _repeat(self, history: History) -> None:
        """Asks and tells what was asked and told before, in the same order."""
        self._talk.n_out = 1  # whatever waits now waits for what will be repeated
        jobs = {call.id: call.job for call in history.calls}
        for call in history.calls:
            for late in call.late:
                self._tell_until(history, late.n_told)
                self._tell_late(late, jobs[late.id])
            self._tell_until(history, call.n_told)
            recorded = {} if call.trial is None else {"recorded": call.parameters}
            if call.trial is not None:
                self._trial_of[call.id], self._known[call.id] = call.trial, (call.parameters, None)
            self._generate(call, **recorded)
            self._talk.wait_for([call], STAGGER_S)
            self._n_ids = call.id + 1
        self._tell_until(history, len(history.results))
        n_running = sum(call.trial is not None for call in history.calls) - len(history.results)
        self._talk.n_out = n_running
        self._unlisted.clear()
        if self._talk.differing:
            self._say_that_it_differs(history)

    def _tell_until(self, history: History, n_told: int) -> None:
        """Tells results until there are so many, each when the answers are there that came before it."""
        while self._n_told < n_told:
            self._wait_for_due(history)
            self._tell_result(history.results[self._n_told])
            self._talk.settle(self.patience_s)
        self._wait_for_due(history)

    def _wait_for_due(self, history: History) -> None:
        """Waits for what was answered before the next result; not for ever, as another answer may wait for another."""
        due = [call for call in history.due.get(self._n_told, []) if call.id < self._n_ids]
        self._talk.wait_for(due, self.patience_s)

    def _say_that_it_differs(self, history: History) -> None:
        data = []
        for trial in history.results:
            if (value := value_of(trial, with_stopped=self.with_stopped)) is not None:
                found = parsed(value, trial.number)
                data.append({"parameter": parameters_of(trial.point), "value": found, "id": Notice.of(trial).job})
        print(
            f"the tuner {self.class_name} is not reproducible: asked again, it gives another configuration "
            f"{numbers_of(self._talk.differing)}; the records stand, and it is told them by import_data",
            file=sys.stderr,
            flush=True,
        )
        self._talk.tell("import", "import_data", data=data)
        self._talk.settle()
