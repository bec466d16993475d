"""What one session of a search runs."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, dataclass

from flows.cli.settings import Limits
from flows.engine.workplace import Workplace
from flows.views.progress import Progress
from nas.core.errors import StoreError
from nas.executors.events import Event, Executor, StopAsked
from nas.executors.executor import LocalExecutor
from nas.executors.pool import InProcessPlace, Place
from nas.executors.simulated import SimulatedExecutor
from nas.search.controller import LoopSettings
from nas.search.lease import Session
from nas.search.runner import Program
from nas.training.messages import BenchSpec


@dataclass(frozen=True, slots=True)
class _Task:
    """A program, and where and how to run it."""

    program: Program
    workplace: Workplace
    limits: Limits
    session: int
    """The number that the session will get."""
    progress: Progress
    only_finals: bool

    def bench(self) -> BenchSpec:
        built, machine = self.program.built, self.workplace.machine
        return BenchSpec(
            problem=built.search.problem,
            url=self.workplace.url,
            options=self.workplace.options,
            session=self.session,
            device=machine.device,
            n_threads=machine.n_threads,
            asks_stopper=built.stopper is not None,
            jobs_ask=built.jobs.asks,
            checkpoint_every_s=self.limits.checkpoint_every_s,
        )

    def executor(self) -> LocalExecutor | SimulatedExecutor:
        """What runs trials without Prefect."""
        machine, built = self.workplace.machine, self.program.built
        if machine.runner == "debug":
            return LocalExecutor(self.place())
        return SimulatedExecutor(
            built.problem,
            self.workplace.records,
            slots=machine.slots,
            workers=machine.workers,
            place=self.place(),
            session=self.session,
            asks_stopper=built.stopper is not None,
            jobs_ask=built.jobs.asks,
        )

    def place(self) -> Place:
        machine = self.workplace.machine
        if machine.gate is not None:
            from flows.engine.remote_workers import open_place

            return open_place(self.workplace, self.bench(), machine.gate, self.progress)
        if machine.runner != "processes":
            return InProcessPlace(self.bench(), self.workplace.records.files, self.program.built.problem)
        from nas.executors.process_pool import ProcessPlace

        return ProcessPlace(self.bench(), machine.slots, gpus=machine.gpus, trial_timeout_s=machine.trial_timeout_s)

    def settings(self) -> LoopSettings:
        search = self.program.built.search
        return LoopSettings(
            seed=search.seed,
            budget=self.program.budget,
            on_parent_failure=search.on_parent_failure,
            deterministic=search.deterministic,
            max_attempts=self.limits.max_attempts,
            max_failures=self.limits.max_failures,
            jobs=self.program.built.jobs,
        )

    def run(
        self,
        executor: Executor,
        flow_run: str | None,
        observe: Callable[[Event], None],
        *,
        begun: Callable[[], None] = lambda: None,
    ) -> None:
        """Opens a session, calls ``begun``, and runs the program in it."""
        machine, budget = self.workplace.machine, self.program.budget
        session = Session(
            self.workplace.records,
            settings={
                "runner": machine.runner,
                "slots": machine.slots,
                "budget": asdict(budget),
                "finalists": self.program.finalists,
                **asdict(self.program.retention),
            },
            takeover=self.limits.takeover,
            on_newer=lambda why: executor.post(StopAsked(why)),
            flow_run=flow_run,
            say=self.progress.note,
            now_s=executor.now_s,
        )
        try:
            begun()
            self.program.run(executor, session, self.settings(), only_finals=self.only_finals, observe=observe)
        finally:
            with suppress(StoreError):  # it would hide why the program ended; and that this process is gone says enough
                session.close()
