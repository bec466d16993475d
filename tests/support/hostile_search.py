"""A whole search on a disk, of which one record is replaced by something hostile, and all that reads it then."""

from __future__ import annotations

import io
import itertools
import json
import shutil
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from flows.views.terminal import open_console, print_search, print_trial
from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.checkpoint import Checkpoint
from nas.core.errors import HeirloomError
from nas.core.spec import Spec
from nas.core.trial import Proposal, Trial
from nas.executors.in_process_pool import InProcessPool
from nas.executors.local_executor import LocalExecutor
from nas.search.controller import ControllerSettings, SearchController
from nas.search.definition import Search
from nas.search.identity import claim_identity
from nas.search.lease import check_free
from nas.search.pipeline import SearchPipeline
from nas.storage.checkpoints import fetch_folder
from nas.storage.lazy_weights import StoredWeights
from nas.storage.maintenance.damage import Damage
from nas.storage.maintenance.verification import verify_search
from nas.storage.open import open_root
from nas.storage.record_format import decode_record, seal
from nas.storage.records import Records
from nas.storage.verified import digest_of
from nas.training.messages import RuntimeSpec
from nas.training.trial_run import TrialRun
from nas.views.page.document import lineage_page
from nas.views.snapshot import read_snapshot
from nas.views.table import lineage_table, to_csv, to_json
from tests.support.problems import InOrderTuner, ScoreProblem

ROOT = Path(__file__).parents[2]
KINDS: Mapping[str, str] = {
    "search": "search.json",
    "session": "sessions/0001.json",
    "beat": "sessions/0001.beat",
    "proposal": "trials/000001.proposal.json",
    "start": "trials/000003.start-1.json",
    "result": "trials/000001.result.json",
    "checkpoint": "trials/000001.result.json",
    "manifest": "manifests/hostile.json",
    "test": "tests/000002.json",
    "best": "best-0001.json",
    "gc": "gc/0001.json",
}
"""The file of each part: ``checkpoint`` is a part of a result, ``manifest`` the one that it names."""


class SavingProblem(ScoreProblem):
    """Saves a network, and two files beside it."""

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """The table's score."""
        (run.save_dir / "deep").mkdir()
        (run.save_dir / "deep" / "notes.txt").write_text("notes")
        (run.save_dir / "model.onnx").write_bytes(b"onnx")
        run.report(1, score=0.5)
        return super().train(run)


class HostileSearch:
    """Two trials, a final, its test and its export, and a trial that was running when its driver was killed.

    Args:
        folder: Where it is made, below a folder of its own.
    """

    def __init__(self, folder: Path) -> None:
        self.outside = folder
        self.damages: list[Damage] = []
        self.place = folder / "root" / "search"
        self._n_fetched = itertools.count()
        self.search = Search(problem=Spec.of(SavingProblem), tuner=Spec.of(InOrderTuner, xs=[5, 7]), seed=3)
        run_search(self.search, root=str(folder / "root"), name="search", budget=Budget(trials=2), finalists=1)
        self.files = open_root(str(self.place), retry_s=0)
        records = Records(self.files)
        waiting = Trial(number=3, index=2, proposal=Proposal(point={"x": 9}, parents=(1,)))
        records.propose(waiting)
        where = {"session": 1, "host": "far", "pid": 7, "time": 1.5}
        records.start(Trial(number=3, index=2, proposal=waiting.proposal, attempt=1, slot=0), where)
        records.publish("gc/0001.json", {"gc": 1, "trials": {"0": "keep=best:1"}, "time": 1.5})
        self.whole = {path: path.read_bytes() for path in sorted(self.place.rglob("*")) if path.is_file()}

    def original(self, kind: str) -> Any:
        """Returns the content of the record of this kind."""
        result = decode_record(self.whole[self.place / KINDS["result"]])
        if kind == "checkpoint":
            return result["checkpoint"]
        path = result["checkpoint"]["manifest"]["path"] if kind == "manifest" else KINDS[kind]
        return decode_record(self.whole[self.place / path])

    @contextmanager
    def having(self, kind: str, data: bytes, *, is_sealed: bool = False) -> Iterator[str]:
        """Puts this text, with the right digest if it has none yet, in place of a record; gives the name in errors."""
        place = self.place / KINDS[kind]
        if not is_sealed and kind != "checkpoint":
            data = seal(data)
        if kind in ("checkpoint", "manifest"):
            result = self.original("result")
            new = {"path": KINDS["manifest"], "bytes": len(data), "digest": digest_of(data)}
            result["checkpoint"] = "REPLACED" if kind == "checkpoint" else {**result["checkpoint"], "manifest": new}
            text = json.dumps(result).encode().replace(b'"REPLACED"', data)
            (self.place / KINDS["result"]).write_bytes(seal(text))
        if kind != "checkpoint":
            place.write_bytes(data)
        try:
            yield KINDS[kind]
        finally:
            for path in {place, self.place / KINDS["result"]}:
                if path in self.whole:
                    path.write_bytes(self.whole[path])
                else:
                    path.unlink()

    def refusals(self, kind: str = "", *, fully: bool = True) -> list[HeirloomError]:
        """Returns the errors of whatever reads a search, or this kind; raises all but HeirloomErrors.

        Args:
            kind: What was replaced.
            fully: Whether all read it; else verify does, and the others until the first that refuses it.
        """
        refused: list[HeirloomError] = []

        def attempt(call: Callable[[], object]) -> None:
            try:
                call()
            except HeirloomError as error:
                refused.append(error)

        attempt(self.verify)
        for read in (self.read_weights, self.hold, self.report, self.resume):
            if (kind != "manifest" or read == self.read_weights) and (fully or not refused):
                attempt(read)
        return refused

    def verify(self) -> None:
        self.damages = verify_search(self.files, pause_s=0).damages

    def report(self) -> None:
        Records(self.files).load()  # it makes a snapshot try again, in case that records are just being written
        snapshot = read_snapshot(self.files, time.time())
        lineage_page(snapshot)
        to_csv(table := lineage_table(snapshot.lineage, snapshot.tests))
        to_json(table)
        with redirect_stdout(io.StringIO()):
            print_search(open_console(), snapshot)
            for trial in snapshot.lineage:
                records = Records(self.files)
                print_trial(snapshot, trial, {"": records.log(trial.number), **records.other_logs(trial)})

    def resume(self) -> None:
        built, records = self.search.build(), Records(self.files)
        claim_identity(records, built)
        program = SearchPipeline(built, records, Budget(trials=2), finalists=1)
        program.ended_by()
        program.summary()
        trials, starts = records.load()
        finished = [trial for trial in trials if trial.is_finished]
        runtime = RuntimeSpec(problem=self.search.problem, url=self.files.url, options={})
        executor = LocalExecutor(InProcessPool(runtime, self.files, built.problem))
        controller = SearchController(
            records, executor, ControllerSettings(), trials=finished, starts=starts, tuner=built.tuner
        )
        controller.search(built.plan.search)
        for trial in trials:
            records.finished_trial(trial.number)

    def hold(self) -> None:
        check_free(Records(self.files), timeout_s=0)

    def read_weights(self) -> None:
        for trial in Records(self.files).load()[0]:
            if trial.checkpoint is not None:
                self._read_checkpoint(trial.checkpoint)

    def _read_checkpoint(self, checkpoint: Checkpoint) -> None:
        target = self.outside / "fetched" / str(next(self._n_fetched))
        try:
            fetch_folder(self.files, checkpoint, target)
        finally:
            shutil.rmtree(target, ignore_errors=True)
        weights = StoredWeights(self.files, checkpoint)
        weights.read_all()
        for _ in weights.read(weights.shapes):
            pass
