"""NNI experiments with their own tuner class, which waits, keeps state, fails or is killed."""

from __future__ import annotations

import json
import os
import queue
import signal
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from nas.compat.nni import tuner_client
from nas.compat.nni.tuner import NniTuner
from nas.compat.nni.tuner_process import TunerProcess
from nas.compat.nni.unrestricted_space import UnrestrictedSpace
from nas.core.errors import CorruptError, SearchFailedError
from nas.core.lineage import Lineage
from nas.core.trial import Proposal, Reason, State
from nas.executors.events import Finished
from nas.views.snapshot import read_snapshot
from tests.support.commands import until
from tests.support.nni_experiments import ExperimentFolder

OWN = {"codeDir": ".", "classFileName": "tuner.py", "className": "MyTuner"}
ONE = "import nni\nnni.report_final_result(nni.get_next_parameter()['x'])\n"
COUNTING = """
from nni.tuner import Tuner

class MyTuner(Tuner):
    def __init__(self):
        self.told = []
    def update_search_space(self, space):
        assert space == ""
    def generate_parameters(self, parameter_id):
        return {"x": parameter_id, "told": list(self.told)}
    def receive_trial_result(self, parameter_id, parameters, reward):
        assert parameters["x"] == parameter_id
        self.told.append(reward)
"""
SHARING_TUNER = """
import threading
from nni.tuner import Tuner

class MyTuner(Tuner):
    def __init__(self):
        super().__init__()
        self.father, self.path, self.checksum = None, None, None
        self.is_there, self.lock = threading.Event(), threading.Lock()
    def update_search_space(self, search_space):
        pass
    def generate_parameters(self, parameter_id, **kwargs):
        if self.father is None:
            self.father = parameter_id
            return {"prev_id": parameter_id, "id": parameter_id}
        self.is_there.wait()
        with self.lock:
            return {"prev_id": self.father, "id": parameter_id, "prev_path": self.path}
    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        with self.lock:
            if parameter_id == self.father:
                self.path, self.checksum = value["path"], value["checksum"]
                self.is_there.set()
            elif value["checksum"] != self.checksum:
                raise ValueError("Inconsistency in weight sharing: " + repr(value))
"""
SHARING = """
import hashlib, os, nni
p = nni.get_next_parameter()
path = p.get("prev_path") or os.path.abspath("model.dat")
if "prev_path" not in p:
    with open(path, "wb") as file:
        file.write(os.urandom(20000))
with open(path, "rb") as file:
    digest = hashlib.md5(file.read()).hexdigest()
nni.report_final_result({"checksum": digest + str(p["prev_id"]), "path": path})
"""


def make_experiment(folder: Path, code: str, tuner: str, **fields: object) -> ExperimentFolder:
    return ExperimentFolder(folder, code, OWN, tuner, None, {"maxTrialNum": 4, **fields})


def own_tuner(folder: Path, code: str, **more: Any) -> NniTuner:
    """Returns a tuner of this code, without an experiment."""
    (folder / "tuner.py").write_text(code)
    given = {"class_file": "tuner.py", "class_name": "MyTuner", "folder": str(folder), "search": "mine"}
    return NniTuner(UnrestrictedSpace(), (), output_dir=str(folder / "out"), **given, **more)


@pytest.mark.slow
def test_a_tuner_of_v05(tmp_path: Path) -> None:
    """Ids count from 0; parameters and results arrive unchanged, in order, each result once."""
    trials = make_experiment(tmp_path, ONE.replace("(nni", "([nni").replace(")\n", ", None])\n"), COUNTING).run()

    assert [t.point["x"] for t in trials] == [0, 1, 2, 3]
    assert [t.state for t in trials] == [State.COMPLETE] * 4
    assert [json.loads(t.returned or "") for t in trials] == [[n, None] for n in range(4)]
    assert trials[3].point["told"] == [[0, None], [1, None], [2, None]]
    assert all(not t.metrics for t in trials)


@pytest.mark.parametrize("concurrency", [*(pytest.param(n, marks=pytest.mark.slow) for n in (1, 3)), 16])
def test_weight_sharing_at_any_concurrency(tmp_path: Path, concurrency: int) -> None:
    """Nine children wait in the tuner for the parent's result; NNI's thread pool deadlocked if they filled it."""
    fields = {"multiThread": True, "trialConcurrency": concurrency, "maxTrialNum": 10}
    trials = make_experiment(tmp_path, SHARING, SHARING_TUNER, **fields).run()

    assert [t.state for t in trials] == [State.COMPLETE] * 10
    assert [t.parents for t in trials] == [(), *[(0,)] * 9]
    assert len({t.returned for t in trials}) == 1
    assert sorted(t.proposal.derivation["parameter_id"] for t in trials) == list(range(10))


@pytest.mark.slow
def test_a_tuner_that_raises_ends_the_experiment(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The experiment ends at once with the traceback, although trials run and calls wait; NNI hung."""
    code = SHARING + "\nif 'prev_path' in p and p['id'] > 1: import time; time.sleep(600)\n"
    code = code.replace('digest + str(p["prev_id"])', 'digest + str(p["id"])')
    fields = {"multiThread": True, "trialConcurrency": 3, "maxTrialNum": 10}
    with pytest.raises(
        SearchFailedError, match=r"MyTuner.receive_trial_result raised ValueError: Inconsistency in weight sharing"
    ):
        make_experiment(tmp_path, code, SHARING_TUNER, **fields).run()

    assert "Traceback (most recent call last)" in capsys.readouterr().err


@pytest.mark.slow
def test_the_last_result_is_told(tmp_path: Path) -> None:
    """A tuner that raises at the last result ends the experiment with an error, too."""
    code = SHARING.replace('digest + str(p["prev_id"])', '("bad" if p["id"] == 3 else digest) + str(p["prev_id"])')
    with pytest.raises(SearchFailedError, match="Inconsistency"):
        make_experiment(tmp_path, code, SHARING_TUNER, multiThread=True).run()


@pytest.mark.slow
def test_a_father_that_dies_releases_its_children(tmp_path: Path) -> None:
    """A wait for a result that can't arrive ends with the reason; NNI waited forever."""
    code = "import nni\nnni.get_next_parameter()\nraise SystemExit('no disk')\n"
    sharing = make_experiment(tmp_path, code, SHARING_TUNER, multiThread=True, trialConcurrency=3)
    sharing.wait_timeout_s = 0.6
    with pytest.raises(SearchFailedError, match=r"waits in generate_parameters\(1, 2, 3\).*parameter_id 0\) is FAILED"):
        sharing.run()


@pytest.mark.slow
def test_a_tuner_that_is_told_of_the_death_goes_on(tmp_path: Path) -> None:
    """The tuner gets trial_end with False for a failed parent and can choose another one."""
    tuner = (
        SHARING_TUNER
        + """
    def trial_end(self, parameter_id, success, **kwargs):
        if parameter_id == self.father and not success:
            self.path, self.checksum = "none", "none"
            self.is_there.set()
"""
    )
    code = "import nni\np = nni.get_next_parameter()\nif 'prev_path' not in p: raise SystemExit(1)\n"
    code += "nni.report_final_result({'checksum': 'none'})\n"
    trials = make_experiment(tmp_path, code, tuner, multiThread=True, trialConcurrency=3).run()

    assert [t.state for t in trials] == [State.FAILED, *[State.COMPLETE] * 3]
    assert trials[0].reason == Reason.EXCEPTION


@pytest.mark.slow
def test_a_waiting_tuner_needs_multi_thread(tmp_path: Path) -> None:
    """Without multiThread a call that waits for a result is an error that names multiThread."""
    sharing = make_experiment(
        tmp_path, SHARING, SHARING_TUNER.replace("self.is_there.wait()", "threading.Event().wait()")
    )
    sharing.wait_timeout_s = 0.6
    with pytest.raises(SearchFailedError, match="needs multiThread: true"):
        sharing.run()


@pytest.mark.slow
def test_a_tuner_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    """The wait for ``_on_exit`` is limited, also if a proposed trial had no time to run."""
    hanging = COUNTING + "    def _on_exit(self):\n        import time; time.sleep(600)\n"
    tuner = own_tuner(tmp_path, hanging, wait_timeout_s=0.6)
    try:
        tuner.start(Lineage.of([]), lambda: None, lambda error: None)
        until(lambda: isinstance(tuner.ask(Lineage.of([]), 0, 0), Proposal), 60)
        with pytest.raises(SearchFailedError, match="waits in _on_exit"):
            tuner.drain()
    finally:
        tuner.close()


def test_a_stopped_command_is_no_waiting_tuner(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After Ctrl-Z and fg a tuner that computes may go on, however long the command was stopped."""
    stopped_s = [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + stopped_s[0], sleep=time.sleep)
    monkeypatch.setattr(tuner_client, "time", clock)
    slow = COUNTING.replace('return {"x"', 'import time; time.sleep(1.5); return {"x"')
    tuner = own_tuner(tmp_path, slow)
    try:
        tuner.start(Lineage.of([]), lambda: None, lambda error: None)
        tuner.ask(Lineage.of([]), 0, 0)
        stopped_s[0] = 1000.0
        until(lambda: isinstance(tuner.ask(Lineage.of([]), 0, 0), Proposal))
    finally:
        tuner.close()


@pytest.mark.slow
def test_a_slow_tuner_does_not_time_out(tmp_path: Path) -> None:
    """A tuner may compute for longer than the wait timeout while no trial runs."""
    thinking = COUNTING.replace(
        '        return {"x"',
        """        import time
        until = time.process_time() + 0.7
        while time.process_time() < until: pass
        return {"x\"""",
    )
    thinker = make_experiment(tmp_path, ONE, thinking)
    thinker.wait_timeout_s = 0.4
    assert len(thinker.run(maxTrialNum=1)) == 1


JOBS_TUNER = """
from nni.multi_phase.multi_phase_tuner import MultiPhaseTuner

class MyTuner(MultiPhaseTuner):
    def __init__(self, most):
        self.most, self.jobs, self.results = most, {}, {}
    def update_search_space(self, space):
        assert space == {"x": {"_type": "uniform", "_value": [0, 1]}}
    def generate_parameters(self, parameter_id, trial_job_id=None):
        import nni
        known = self.jobs.setdefault(trial_job_id, [])
        if len(known) == self.most:
            raise nni.NoMoreTrialError("enough")
        known.append(parameter_id)
        return {"job": trial_job_id, "phase": len(known), "before": self.results.get(trial_job_id, 0)}
    def receive_trial_result(self, parameter_id, parameters, value, trial_job_id):
        assert parameters["job"] == trial_job_id and parameter_id in self.jobs[trial_job_id]
        self.results[trial_job_id] = value
"""
JOBS = """
import time, nni
while (p := nni.get_next_parameter()) is not None:
    assert p["job"] == nni.get_trial_id(), p
    time.sleep(PAUSE)
    nni.report_final_result(p["before"] + 1)
    if p["phase"] == 3: break
"""


def phases(folder: Path, pause: float = 0.0, most: int = 3, code: str = JOBS) -> ExperimentFolder:
    fields = {"multiPhase": True, "trialConcurrency": 2, "maxTrialNum": 4, "searchSpacePath": "search_space.json"}
    made = ExperimentFolder(
        folder, code.replace("PAUSE", str(pause)), {**OWN, "classArgs": {"most": most}}, JOBS_TUNER, fields=fields
    )
    return made


def test_multi_phase(tmp_path: Path) -> None:
    """The tuner gets the job id with the first configuration, too; NNI did not send it."""
    trials = phases(tmp_path).run()

    assert len(trials) == 12
    by_job = {job: [t for t in trials if t.job == job] for job in {t.job for t in trials}}
    assert len(by_job) == 4
    for members in by_job.values():
        assert [t.point["phase"] for t in members] == [1, 2, 3]
        assert [t.metrics["default"] for t in members] == [1, 2, 3]
        assert len({t.point["job"] for t in members}) == 1


def test_the_end_of_a_jobs_configurations(tmp_path: Path) -> None:
    """After NoMoreTrialError for a job that continues, get_next_parameter returns None and the experiment ends."""
    trials = phases(tmp_path, most=2, code=JOBS + "assert p is None\n").run(maxTrialNum=2)

    assert sorted((t.point["phase"], t.state) for t in trials) == [(1, "COMPLETE")] * 2 + [(2, "COMPLETE")] * 2


@pytest.mark.slow
def test_resumption_asks_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """An interrupted multi-phase experiment continues with the same calls, without a message about its tuner."""
    interrupted = phases(tmp_path, 0.1)
    done = lambda n: len(list(tmp_path.glob("root/mine/trials/*.result.json"))) >= n  # noqa: E731
    first = interrupted.run(stop_when=lambda: done(3))
    interrupted.run(stop_when=lambda: done(7))
    trials = interrupted.run()

    finished = [t for t in first if t.is_finished]
    assert [t for t in trials if t.number in {f.number for f in finished}] == finished
    assert len(trials) == 12
    assert all(t.metrics["default"] == t.point["phase"] for t in trials)
    assert len({t.proposal.derivation["parameter_id"] for t in trials}) == 12
    assert "not reproducible" not in capsys.readouterr().err


def test_a_tuner_that_is_not_reproducible(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """If answers differ when asked again, the records are used, import_data gets them, and a line says so."""
    tuner = (
        COUNTING.replace('{"x": parameter_id,', '{"r": __import__("os").urandom(8).hex(), "x": parameter_id,')
        + """
    def import_data(self, data):
        print("imported", [(d["parameter"]["r"], d["value"]) for d in data])
"""
    )
    code = ONE
    made = make_experiment(tmp_path, code, tuner)
    before = made.run(maxTrialNum=2)
    after = made.run(maxTrialNum=3)
    [log] = tmp_path.glob("out/*/log/tuner.log")

    assert after[:2] == before
    assert after[2].point["told"] == [0, 1]
    assert "returned another configuration for parameter_id 0, 1. The records are used" in capsys.readouterr().err
    assert f"imported {[(t.point['r'], t.metrics['default']) for t in before]}" in log.read_text()


@pytest.mark.parametrize(
    "multi_thread", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["in_turn", "threads"]
)
def test_a_second_result_arrives(tmp_path: Path, capsys: pytest.CaptureFixture[str], multi_thread: bool) -> None:
    """A later result is passed to the tuner, as in NNI, and again after an interruption; the first one counts."""
    code = "import nni, time\np = nni.get_next_parameter()\nfor n in (0, 1): nni.report_final_result([p['x'], n])\n"
    if multi_thread:
        code += "time.sleep(0.3)\n"
    made = make_experiment(tmp_path, code, COUNTING, maxTrialNum=2, multiThread=multi_thread)
    before = made.run()
    trials = made.run(maxTrialNum=4)

    assert [json.loads(t.returned or "") for t in trials] == [[n, 0] for n in range(4)]
    assert trials[:2] == before
    assert trials[1].point["told"] == [[0, 0], [0, 1]]
    assert trials[2].point["told"][:3] == [[0, 0], [0, 1], [1, 0]]
    assert trials[3].point["told"][-1] == [2, 1]
    assert "not reproducible" not in capsys.readouterr().err


@pytest.mark.parametrize(("include", "told"), [(True, [1, {"default": 0.5, "path": "/p"}]), (False, [1])])
def test_the_last_report_of_a_stopped_trial(tmp_path: Path, include: bool, told: list[object]) -> None:
    """With includeIntermediateResults the tuner gets it unchanged, as in NNI. Failed trials have no result."""
    code = """
import time, nni
x = nni.get_next_parameter()["x"]
nni.report_intermediate_result({"default": 0.5 if x == 1 else 1, "path": "/p"})
if x == 1: time.sleep(600)
if x == 0: nni.report_final_result(1)
"""
    made = make_experiment(tmp_path, code, COUNTING, assessor={"builtinAssessorName": "Medianstop"})
    trials = made.run(tuner={**OWN, "includeIntermediateResults": include})

    assert [t.state for t in trials] == [State.COMPLETE, State.STOPPED, State.FAILED, State.FAILED]
    assert trials[3].point["told"] == told


def test_nothing_now_is_not_the_end(tmp_path: Path) -> None:
    """An empty list means later while trials run, and the end when none runs."""
    tuner = """
import nni
from nni.tuner import Tuner

class MyTuner(Tuner):
    left, out = 3, 0
    def update_search_space(self, space): pass
    def generate_multiple_parameters(self, ids, **kwargs):
        assert len(ids) == 1 and set(kwargs) == {'st_callback'}
        if not self.left or self.out == 2:
            return []
        self.left, self.out = self.left - 1, self.out + 1
        return [{"x": self.left}]
    def receive_trial_result(self, parameter_id, parameters, value): pass
    def trial_end(self, parameter_id, success): self.out -= 1
"""
    trials = make_experiment(tmp_path, ONE, tuner, trialConcurrency=3, maxTrialNum=9).run()

    assert [t.point["x"] for t in trials] == [2, 1, 0]
    assert [t.state for t in trials] == [State.COMPLETE] * 3


def test_results_come_when_they_are_reported(tmp_path: Path) -> None:
    """A child starts when its parent has reported, although the parent's process still runs."""
    code = (
        SHARING
        + """
import time
if "prev_path" in p:
    open("done", "w")
while not os.path.exists("done"):
    time.sleep(0.05)
"""
    )
    trials = make_experiment(tmp_path, code, SHARING_TUNER, multiThread=True, trialConcurrency=2, maxTrialNum=2).run()

    assert [t.state for t in trials] == [State.COMPLETE] * 2


OF_NO_CLASS = COUNTING.replace("(Tuner)", "").replace("from nni.tuner import Tuner", "")


def test_a_tuner_that_is_derived_from_no_class(tmp_path: Path) -> None:
    """A class with only the required methods is a tuner, also if its answers change."""
    tuner = OF_NO_CLASS.replace('{"x": parameter_id,', '{"r": __import__("os").urandom(8).hex(), "x": parameter_id,')
    made = make_experiment(tmp_path, ONE, tuner)
    made.run(maxTrialNum=1)

    assert [t.state for t in made.run(maxTrialNum=2)] == [State.COMPLETE] * 2


@pytest.mark.parametrize("more", ["", "    def _on_error(self): raise KeyError('cleanup')\n"])
def test_the_process_of_a_tuner_that_raises_ends(tmp_path: Path, more: str) -> None:
    """It ends without a signal if ``_on_error`` is missing or raises, too."""
    (tmp_path / "tuner.py").write_text(f"{OF_NO_CLASS}    def _on_exit(self): raise ValueError('wrong')\n{more}")
    replies: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()
    process = TunerProcess(tmp_path / "log", {}, replies.put)
    try:
        given = {"class_file": "tuner.py", "class_name": "MyTuner", "arguments": {}, "multi_thread": False}
        process.call("start", code_dir=str(tmp_path), space=None, **given)
        process.call("exit")
        started, error, ended = (replies.get(timeout=120) for _ in range(3))
    finally:
        process.close()

    assert (started, ended) == ({"call": 0}, None)
    assert error is not None
    assert error["last"] == "MyTuner._on_exit raised ValueError: wrong"
    assert process.log.read_text().endswith("KeyError: 'cleanup'\n" if more else "")


@pytest.mark.parametrize(
    ("tuner", "text"),
    [
        ("def broken(:\n", "SyntaxError"),
        ("class Other: pass\n", "MyTuner"),
        (COUNTING.replace("def __init__(self)", "def __init__(self, size)"), "size"),
        (COUNTING.replace('assert space == ""', "raise KeyError('space')"), "KeyError: 'space'"),
    ],
)
def test_tuners_that_cant_begin(tmp_path: Path, tuner: str, text: str) -> None:
    """An exception in the tuner's module or constructor ends the experiment with its last line."""
    with pytest.raises(SearchFailedError, match=r"failed in MyTuner\.__init__") as caught:
        make_experiment(tmp_path, SHARING, tuner).run()

    assert text in str(caught.value)


def test_results_without_a_number_finish_the_experiment(tmp_path: Path) -> None:
    """An experiment whose results are no numbers is finished at its end, and unfinished while a trial is to come."""
    code = "import nni\nnni.report_final_result({'word': [nni.get_next_parameter()['x']]})\n"
    experiment = make_experiment(tmp_path, code, COUNTING)
    experiment.run(stop_when=lambda: any(isinstance(event, Finished) for event in experiment.events))
    interrupted = read_snapshot(experiment.records.files, time.time())
    trials = experiment.run()
    ended = read_snapshot(experiment.records.files, time.time())

    assert all(trial.state == State.COMPLETE and trial.metrics == {} for trial in trials)
    assert (interrupted.standing, len(trials), ended.standing) == ("not finished", 4, "finished")


# Runs one trial at a time: an id that is asked for too early gets its configuration by st_callback.
LATE = """
import threading
from nni.tuner import Tuner
from nni import NoMoreTrialError

class MyTuner(Tuner):
    def __init__(self, answer):
        self.answer, self.made, self.running, self.early = answer, 0, set(), []
    def update_search_space(self, space):
        pass
    def next(self, number):
        self.running.add(number)
        self.made += 1
        return {"x": self.made}
    def METHOD
    def receive_trial_result(self, parameter_id, parameters, value, **kwargs):
        assert parameters == {"x": value}
    def trial_end(self, parameter_id, success, **kwargs):
        self.running.discard(parameter_id)
        if self.early and not self.running:
            number = self.early.pop(0)
            if self.answer == "thread":
                thread = threading.Thread(target=self.callback, args=(number, self.next(number)))
                thread.start()
                thread.join()
            else:
                self.callback(number + (99 if self.answer == "wrong id" else 0), self.next(number))
"""
MULTIPLE = """generate_multiple_parameters(self, parameter_id_list, **kwargs):
        self.callback = kwargs["st_callback"]
        if self.running:
            self.early += parameter_id_list
            return []
        return [self.next(number) for number in parameter_id_list]
"""
SINGLE = """generate_parameters(self, parameter_id, st_callback=None):
        self.callback = st_callback
        if self.running:
            self.early.append(parameter_id)
            raise NoMoreTrialError("later")
        if self.answer == "at once":
            st_callback(parameter_id, self.next(parameter_id))
            raise NoMoreTrialError("answered already")
        return self.next(parameter_id)
"""


def late_experiment(folder: Path, method: str, answer: str, **fields: object) -> ExperimentFolder:
    own = {**OWN, "classArgs": {"answer": answer}}
    fields = {"trialConcurrency": 3, "maxTrialNum": 5, **fields}
    return ExperimentFolder(folder, ONE, own, LATE.replace("METHOD", method), None, fields)


@pytest.mark.parametrize(
    ("method", "answer", "multi_thread"),
    [
        pytest.param(MULTIPLE, "end", False, id="multiple", marks=pytest.mark.slow),  # fast when interrupted, below
        pytest.param(MULTIPLE, "thread", True, id="thread"),
        pytest.param(SINGLE, "end", False, id="single", marks=pytest.mark.slow),
        pytest.param(SINGLE, "at once", False, id="at_once"),
    ],
)
def test_configurations_that_come_later(tmp_path: Path, method: str, answer: str, multi_thread: bool) -> None:
    """An id without a configuration gets it by st_callback, and a trial of its own runs it."""
    trials = late_experiment(tmp_path, method, answer, multiThread=multi_thread).run()

    assert [(t.state, t.point["x"]) for t in trials] == [(State.COMPLETE, x) for x in range(1, 6)]
    assert len({t.job for t in trials}) == 5


def test_later_configurations_are_repeated_on_resumption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After an interruption a tuner that uses st_callback gets the same calls, and counts as reproducible."""
    experiment = late_experiment(tmp_path, MULTIPLE, "end", maxTrialNum=6)
    experiment.run(stop_when=lambda: sum(isinstance(event, Finished) for event in experiment.events) >= 3)
    n_before = sum(t.is_finished for t in experiment.trials)
    trials = experiment.run()

    assert 3 <= n_before < 6
    assert [(t.state, t.point["x"]) for t in trials] == [(State.COMPLETE, x) for x in range(1, 7)]
    assert "not reproducible" not in capsys.readouterr().err


def test_a_later_configuration_of_an_unknown_id(tmp_path: Path) -> None:
    """A call of st_callback with an id that waits for nothing ends the experiment with that id."""
    with pytest.raises(
        SearchFailedError, match=r"st_callback\(1\d\d, \.\.\.\): this parameter_id has its configuration"
    ):
        late_experiment(tmp_path, MULTIPLE, "wrong id").run()


def test_a_killed_tuner(tmp_path: Path) -> None:
    """If the tuner's process is killed, the experiment ends; the same command continues."""
    code = """
import nni, os, time
p = nni.get_next_parameter()
while p["x"] and not os.path.exists("go"):
    time.sleep(0.05)
"""
    tuner = COUNTING.replace("self.told = []", "self.told = []; import os; open('pid', 'w').write(str(os.getpid()))")
    made = make_experiment(tmp_path, code + "nni.report_final_result(p['x'])\n", tuner)

    killed: list[int] = []

    def kill() -> bool:
        if not killed and len(list(tmp_path.glob("root/mine/trials/*.start-1.json"))) >= 2:
            [pid] = tmp_path.glob("out/*/log/pid")
            killed.append(int(pid.read_text()))
            os.kill(killed[0], signal.SIGKILL)
        return False

    with pytest.raises(SearchFailedError, match="the tuner's process has ended"):
        made.run(stop_when=kill)
    (tmp_path / "go").touch()
    trials = made.run()

    assert killed
    assert [t.point["x"] for t in trials] == [0, 1, 2, 3]
    assert trials[3].point["told"] == [0, 1, 2]


@pytest.mark.parametrize(
    ("parents", "edges"),
    [(None, [(), (0,), (1,)]), ("none", [(), (), ()]), ("mother", [(), (), (0,)])],
)
def test_parents(tmp_path: Path, parents: str | None, edges: list[tuple[int, ...]]) -> None:
    """Ids and folders in the parameters name the parent; --parents chooses the parameters."""
    tuner = COUNTING.replace(
        '{"x": parameter_id,',
        '{"save_dir": f"/s/{parameter_id}", "restore_dir": f"/s/{parameter_id - 1}" if parameter_id else None, '
        '"mother": parameter_id - 2, "x": parameter_id,',
    )
    made = make_experiment(tmp_path, ONE, tuner, maxTrialNum=3)
    made.parents = parents

    assert [t.parents for t in made.run()] == edges


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("proposal", "derivation", "trial_job_id"), "../.."),
        (("proposal", "derivation", "parameter_id"), 7),
        (("proposal", "derivation", "calls"), [[0, 1]]),
        (("proposal", "derivation"), None),
    ],
)
def test_changed_records_are_refused(tmp_path: Path, path: tuple[str, ...], value: object) -> None:
    """A record that was edited is refused by name before the tuner or a trial reads it."""
    made = make_experiment(tmp_path, ONE, COUNTING, maxTrialNum=1)
    made.run()
    file = tmp_path / "root/mine/trials/000000.proposal.json"
    record = json.loads(file.read_text())
    inner = record
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = value
    file.write_text(json.dumps(record))

    with pytest.raises(CorruptError, match=r"trials/000000\.proposal\.json"):
        made.run(maxTrialNum=2)


def test_computing_time_by_ps() -> None:
    """On systems without /proc, CPU seconds are read from ps."""
    import os
    import time

    from nas.compat.nni.tuner_process import _ps_seconds

    while time.process_time() < 1.0:
        pass
    told, known = _ps_seconds(os.getpid()), time.process_time()

    assert 0 < told <= known + 1
    assert _ps_seconds(2**22 + 1) == 0.0


def test_large_parameters_and_results_arrive_whole(tmp_path: Path) -> None:
    """Parameters and results of a megabyte arrive whole; NNI's trials could read a half-written file."""
    tuner = COUNTING.replace('{"x": parameter_id,', '{"big": "ä" * 1_000_000, "x": parameter_id,')
    tuner = tuner.replace("self.told.append(reward)", "self.told.append(len(reward))")
    code = "import nni\np = nni.get_next_parameter()\nassert p['big'] == 'ä' * 1_000_000\n"
    trials = make_experiment(tmp_path, code + "nni.report_final_result('x' * 999_000)\n", tuner, maxTrialNum=2).run()

    assert [t.state for t in trials] == [State.COMPLETE] * 2, trials[0].error
    assert trials[1].point["told"] == [999_000]
