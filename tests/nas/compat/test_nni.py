"""NNI experiments with builtin tuners: calls of trials, results, failures and the configuration."""

from __future__ import annotations

import json
import math
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path

import pytest

from nas.core.errors import ConfigurationError
from nas.core.lineage import Lineage
from nas.core.trial import Proposal, Reason, State, Trial
from nas.executors.events import ExtraResult
from nas.tuners.base import STOP
from tests.support.commands import until
from tests.support.nni_experiments import ONCE, ExperimentFolder, X

PHASES = """
import nni
while (p := nni.get_next_parameter()) is not None:
    print("tries", p["x"], nni.get_trial_id(), nni.get_sequence_id())
    nni.report_final_result(p["x"])
print("no more")
"""


def test_what_a_trial_is_told(tmp_path: Path) -> None:
    """Configuration, ids and folder are as in NNI; the record keeps the result's text unchanged."""
    code = """
import nni, os, json
p = nni.get_next_parameter()
assert nni.get_next_parameter() == p == nni.get_current_parameter()
assert nni.get_current_parameter("x") == p["x"]
assert nni.get_experiment_id() == os.environ["NNI_EXP_ID"] and len(nni.get_experiment_id()) == 8
assert nni.get_trial_id() == os.environ["NNI_TRIAL_JOB_ID"] and len(nni.get_trial_id()) == 5
assert os.environ["NNI_PLATFORM"] == "local" and os.environ["MULTI_PHASE"] == "false"
open(os.path.join(os.environ["NNI_OUTPUT_DIR"], "id"), "w").write(str(nni.get_sequence_id()))
nni.report_intermediate_result({"default": 0, "loss": 0.5})
nni.report_final_result({"default": 0.0, "list": [1, None, "ä"], "nan": float("nan")})
"""
    experiment = ExperimentFolder(tmp_path, code)
    trials = experiment.run()

    assert [t.state for t in trials] == [State.COMPLETE] * 3, trials[0].error
    assert trials[0].metrics == {"default": 0.0}
    assert trials[0].curve == ((1, {"default": 0, "loss": 0.5}),)
    assert json.loads(trials[0].returned or "")["list"] == [1, None, "ä"]
    assert "NaN" in (trials[0].returned or "")
    assert sorted(path.read_text() for path in tmp_path.glob("out/*/trials/*/id")) == ["0", "1", "2"]


@pytest.mark.parametrize(
    ("trial", "local", "seen"),
    [
        ({"gpuNum": 2}, {}, 78),
        ({"gpuNum": 2}, {"gpuIndices": "1,3"}, 79),
        ({}, {"gpuIndices": "1,3"}, 79),
        ({}, {}, 4789),
    ],
)
def test_a_trial_sees_its_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, trial: dict[str, int], local: dict[str, str], seen: int
) -> None:
    """A trial gets the chosen GPUs of those that this process sees, by the names that the variable has for them."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "4,7,8,9")
    code = """
import nni, os
nni.get_next_parameter()
nni.report_final_result(int(os.environ["CUDA_VISIBLE_DEVICES"].replace(",", "")))
"""
    fields = {"trial": {"command": f"{sys.executable} main.py", "codeDir": ".", **trial}, "localConfig": local}
    experiment = ExperimentFolder(tmp_path, code, fields=fields, gpus=(1, 2, 3))
    [ran] = experiment.run(maxTrialNum=1)

    assert ran.metrics == {"default": seen}, ran.error


def test_phases(tmp_path: Path) -> None:
    """With multiPhase each configuration is a trial, and its result is kept if the job fails later."""
    code = PHASES.replace("while (p", "n = 0\nwhile (p") + "raise SystemExit('fails in the end')"
    code = code.replace('    print("tries"', '    n += 1\n    if n > 3: break\n    print("tries"')
    trials = ExperimentFolder(
        tmp_path, code, fields={"multiPhase": True, "maxTrialNum": 2, "trialConcurrency": 2}
    ).run()

    jobs = {t.job for t in trials}
    assert len(jobs) == 2
    scored = [t for t in trials if t.state == State.COMPLETE]
    assert len(scored) == 6
    assert all(t.metrics["default"] == t.point["x"] for t in scored)
    assert [t.reason for t in trials if t.state == State.FAILED] == [Reason.EXCEPTION] * 2


def test_the_end_of_configurations_ends_a_wait(tmp_path: Path) -> None:
    """Without further configurations get_next_parameter returns None, and the process ends by itself."""
    space = {"x": {"_type": "choice", "_value": [1, 2, 3]}}
    experiment = ExperimentFolder(
        tmp_path, PHASES, {"builtinTunerName": "GridSearch"}, space=space, fields={"multiPhase": True}
    )
    trials = experiment.run()

    assert [t.metrics["default"] for t in trials] == [1, 2, 3]
    assert (tmp_path / "root/mine/logs/000000.job.log").read_text().endswith("no more\n")


def test_a_result_without_a_configuration_is_ignored(tmp_path: Path) -> None:
    """Reports after the last configuration have no effect, as in NNI 1.1 and later; the log has a warning."""
    code = PHASES + "\nnni.report_intermediate_result(2)\nnni.report_final_result(1)\nprint('ended well')\n"
    space = {"x": {"_type": "choice", "_value": [1]}}
    experiment = ExperimentFolder(
        tmp_path, code, {"builtinTunerName": "GridSearch"}, space=space, fields={"multiPhase": True}
    )
    trials = experiment.run()
    log = (tmp_path / "root/mine/logs/000000.job.log").read_text()

    assert [(t.state, t.metrics["default"]) for t in trials] == [(State.COMPLETE, 1)]
    assert "intermediate result ignored: get_next_parameter has returned None: 2" in log
    assert "final result ignored: get_next_parameter has returned None: 1" in log
    assert log.endswith("ended well\n")


def test_zero_is_a_result_on_resume(tmp_path: Path) -> None:
    """Results of 0 are kept when an experiment is resumed; NNI dropped them."""
    experiment = ExperimentFolder(tmp_path, "import nni\nnni.get_next_parameter()\nnni.report_final_result(0)\n")
    experiment.run(maxTrialNum=2)
    trials = experiment.run(maxTrialNum=4)

    assert [t.metrics for t in trials] == [{"default": 0}] * 4
    assert trials[2].learned[:1] == (1,)


def test_output_of_any_script_is_logged(tmp_path: Path) -> None:
    """A character whose bytes arrive in two pieces is one character of the log."""
    code = f"import os\nos.write(1, '数'.encode() * 30_000)\n{ONCE}"
    ExperimentFolder(tmp_path, code, fields={"maxTrialNum": 1}).run()
    logged = "".join(path.read_text() for path in tmp_path.glob("root/mine/logs/*.log"))

    assert logged == "数" * 30_000


@pytest.mark.parametrize(
    ("code", "reason", "text"),
    [
        (
            "import nni\nnni.get_next_parameter()\n",
            Reason.NO_METRIC,
            "the trial command ended with status 0 without nni.report_final_result(...)",
        ),
        (
            "import nni\nnni.get_next_parameter()\nnni.report_final_result('0.9')\n",
            Reason.NO_METRIC,
            "nni.report_final_result('0.9'): must be a finite number, or a dict with one as `default`",
        ),
        ("import nni\nnni.get_next_parameter()\nraise ValueError('boom')\n", Reason.EXCEPTION, "ValueError: boom"),
        (
            "import nni\nnni.get_next_parameter()\nraise ValueError('no such layer\\n  a list\\nsee the manual')\n",
            Reason.EXCEPTION,
            "exit status 1: ValueError: no such layer ... see the manual",
        ),
        ("print('a hint'); raise SystemExit('use --lr')\n", Reason.EXCEPTION, "exit status 1: use --lr"),
        ("import os\nos.kill(os.getpid(), 9)\n", Reason.EXCEPTION, "SIGKILL"),
        ("import nni\nnni.report_final_result(1)\n", Reason.EXCEPTION, "get_next_parameter"),
        (
            "import nni\nnni.get_next_parameter()\nnni.report_final_result([1])\n",
            Reason.NO_METRIC,
            "final_result([1]): must",
        ),
        (
            "import nni\nnni.get_next_parameter()\nnni.report_final_result(float('nan'))\n",
            Reason.NOT_FINITE,
            "nni.report_final_result(nan): must be a finite number",
        ),
        (
            "import nni\nnni.get_next_parameter()\nhuge = 10**400\n"
            "nni.report_intermediate_result(huge)\nnni.report_final_result(huge)\n",
            Reason.NOT_FINITE,
            "nni.report_final_result(1000",
        ),
    ],
)
def test_failures(tmp_path: Path, code: str, reason: Reason, text: str) -> None:
    """A process that fails, or ends without a numeric result, makes its trial FAILED with the reason."""
    [trial] = ExperimentFolder(tmp_path, code, fields={"maxTrialNum": 1}).run()

    assert (trial.state, trial.reason) == (State.FAILED, reason)
    assert text in (trial.error or "")


@pytest.fixture
def long_folder() -> Iterator[Path]:
    """An empty folder with the longest path in which a trial's socket fits."""
    most = (103 if sys.platform == "darwin" else 107) - len("/heirloom-nni-12345678/job")
    with tempfile.TemporaryDirectory(dir="/tmp") as parent:
        folder = Path(parent, "x" * (most - len(parent) - 1))
        folder.mkdir()
        yield folder


def test_the_longest_path_of_temporary_files(
    tmp_path: Path, long_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial connects to its job if TMPDIR has the longest allowed path."""
    monkeypatch.setattr(tempfile, "tempdir", str(long_folder))
    [trial] = ExperimentFolder(tmp_path, fields={"maxTrialNum": 1}).run()

    assert (trial.state, trial.error) == (State.COMPLETE, None)
    assert list(long_folder.iterdir()) == []


def test_too_long_a_path_of_temporary_files(tmp_path: Path, long_folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If the path is one byte longer, the error names the limit and TMPDIR, and no file is left."""
    longer = long_folder.with_name(f"{long_folder.name}x")
    longer.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(longer))
    [trial] = ExperimentFolder(tmp_path, fields={"maxTrialNum": 1}).run()

    n_bytes = len(str(longer))
    message = f"({longer}) has {n_bytes} bytes and must have at most {n_bytes - 1}, so that a trial's socket fits"
    assert (trial.state, trial.reason) == (State.FAILED, Reason.EXCEPTION)
    assert message in (trial.error or "")
    assert "Set TMPDIR" in (trial.error or "")
    assert list(longer.iterdir()) == []


def test_results_after_the_result(tmp_path: Path) -> None:
    """A second final result does not change the trial; the log has a warning."""
    code = "import nni\nnni.get_next_parameter()\nnni.report_final_result(1)\nnni.report_final_result(2)\n"
    experiment = ExperimentFolder(tmp_path, code, fields={"maxTrialNum": 1})
    [trial] = experiment.run()

    assert trial.metrics == {"default": 1}
    assert "another one is ignored: 2" in (tmp_path / "root/mine/logs/000000.job.log").read_text()
    assert experiment.records.other_logs(trial)["extra_results"] == "2\n"
    assert ExtraResult(0, "2") in experiment.events


def test_a_phase_without_a_result_is_abandoned(tmp_path: Path) -> None:
    """A trial without a report before the next configuration is abandoned; the next one gets its own result."""
    code = """
import nni
first, second = nni.get_next_parameter(), nni.get_next_parameter()
nni.report_final_result(second["x"])
"""
    trials = ExperimentFolder(tmp_path, code, fields={"multiPhase": True, "maxTrialNum": 1}).run()

    assert [(t.state, t.reason) for t in trials] == [(State.FAILED, Reason.ABANDONED), (State.COMPLETE, None)]
    assert trials[1].metrics["default"] == trials[1].point["x"]


def test_interruption_ends_the_process_and_resumption_tries_again(tmp_path: Path) -> None:
    """An interruption ends the trial's process and its children; the same trial runs again."""
    code = """
import nni, os, subprocess, time
p = nni.get_next_parameter()
if not os.path.exists("again"):
    child = subprocess.Popen(["sleep", "600"])
    open("pids", "w").write(f"{os.getpid()} {child.pid}")
    os.rename("pids", "started")
    time.sleep(600)
nni.report_final_result(p["x"])
"""
    experiment = ExperimentFolder(tmp_path, code, fields={"maxTrialNum": 1})
    experiment.run(stop_when=(tmp_path / "started").exists)
    pids = (tmp_path / "started").read_text().split()
    until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids), 60)
    (tmp_path / "again").touch()
    [trial] = experiment.run()

    assert (trial.state, trial.attempt) == (State.COMPLETE, 2)


def test_a_stopper_ends_a_process(tmp_path: Path) -> None:
    """Medianstop stops a bad trial and its process."""
    code = """
import nni, time
p = nni.get_next_parameter()
for step in range(3):
    nni.report_intermediate_result(10 - nni.get_sequence_id())
    if nni.get_sequence_id() == 2 and step: time.sleep(600)
nni.report_final_result(10 - nni.get_sequence_id())
"""
    assessor = {"builtinAssessorName": "Medianstop", "classArgs": {"start_step": 0}}
    trials = ExperimentFolder(tmp_path, code, fields={"assessor": assessor}).run()

    assert [t.state for t in trials] == [State.COMPLETE, State.STOPPED, State.STOPPED]


def test_a_trial_past_its_time(tmp_path: Path) -> None:
    """A process that exceeds maxTrialDuration is ended, and its trial is FAILED."""
    code = "import nni, time\nnni.get_next_parameter()\ntime.sleep(600)\n"
    [trial] = ExperimentFolder(tmp_path, code, fields={"maxTrialNum": 1, "maxTrialDuration": "1s"}).run()

    assert trial.state == State.FAILED
    assert "ran longer than 1 s" in (trial.error or "")


@pytest.mark.parametrize(
    ("name", "arguments", "taken"),
    [
        ("TPE", {"parallel_optimize": True, "constant_liar_type": "min"}, {"sampler": "tpe"}),
        ("Random", {}, {}),
        ("Anneal", {}, {}),
        ("Evolution", {"population_size": 9}, {"population_size": 9, "sample_size": 2, "replacement": "loser"}),
        ("RegularizedEvolutionTuner", {"sample_size": 5}, {"population_size": 100, "sample_size": 5}),
        ("SMAC", {"config_dedup": True}, {}),
        ("GridSearch", {}, {}),
        ("BatchTuner", {}, {"points": [{"parameters": 1}, {"parameters": 2}]}),
        ("MetisTuner", {"no_resampling": False, "cold_start_num": 4}, {"n_initial_points": 4}),
        ("GPTuner", {"utility": "ei", "cold_start_num": 10}, {"sampler": "gp"}),
    ],
)
def test_builtin_tuners(tmp_path: Path, name: str, arguments: dict[str, object], taken: dict[str, object]) -> None:
    """Each builtin tuner with NNI's arguments has a replacement that can be built."""
    from nas.compat.nni.config import read_experiment
    from nas.compat.nni.search_definition import nni_search

    space = {"x": {"_type": "choice", "_value": [1, 2]}}
    experiment = ExperimentFolder(
        tmp_path,
        tuner={"builtinTunerName": name, "classArgs": {"optimize_mode": "minimize", **arguments}},
        space=space,
    )
    _, search = nni_search(read_experiment(experiment.write()))

    repeats = name not in ("GridSearch", "BatchTuner") and not arguments.get("config_dedup")
    assert search.tuner.arguments == ({"builtin": name, "arguments": taken} if repeats else taken)
    assert search.build().problem.metrics[0].direction == "minimize"


@pytest.mark.parametrize("own", [False, True])
def test_the_mode_of_an_assessor(tmp_path: Path, own: bool) -> None:
    """If the tuner gives no optimize_mode, the assessor's is the direction of the result."""
    from nas.compat.nni.config import read_experiment
    from nas.compat.nni.search_definition import nni_search

    tuner = {"classFileName": "tuner.py", "className": "T"} if own else {"builtinTunerName": "Random"}
    assessor = {"builtinAssessorName": "Medianstop", "classArgs": {"optimize_mode": "minimize"}}
    experiment = ExperimentFolder(tmp_path, tuner=tuner, tuner_code="class T: pass\n", fields={"assessor": assessor})
    _, search = nni_search(read_experiment(experiment.write()))

    assert search.build().problem.metrics[0].direction == "minimize"


@pytest.mark.parametrize("values", [[1, 2], [7]])
@pytest.mark.parametrize(
    "name", ["TPE", "Random", "Anneal", "Evolution", "RegularizedEvolutionTuner", "MetisTuner", "GPTuner", "GridSearch"]
)
def test_a_finite_space_that_is_used_up(tmp_path: Path, name: str, values: list[int]) -> None:
    """Builtin tuners propose points again once a finite space is used up; GridSearch ends, as in NNI."""
    from nas.compat.nni.config import read_experiment
    from nas.compat.nni.search_definition import nni_search

    space = {"x": {"_type": "choice", "_value": values}}
    experiment = ExperimentFolder(tmp_path, tuner={"builtinTunerName": name}, space=space)
    tuner = nni_search(read_experiment(experiment.write()))[1].build().tuner
    trials: list[Trial] = []
    for number in range(8):
        answer = tuner.ask(Lineage.of(trials), number, number)
        if answer is STOP:
            break
        assert isinstance(answer, Proposal)
        done = {"state": State.COMPLETE, "metrics": {"default": answer.point["x"] + number % 3}}
        trials.append(Trial(number=number, index=number, proposal=answer, stage="search", **done))

    assert {t.point["x"] for t in trials} == set(values)
    assert len(trials) == (len(values) if name == "GridSearch" else 8)


@pytest.mark.parametrize(
    ("kind", "value", "tried"),
    [
        ("randint", [1, 11], list(range(1, 11))),
        ("quniform", [0, 3, 0.5], [0, 0.5, 1, 1.5, 2, 2.5, 3]),
        ("qloguniform", [1, 8, 1], list(range(1, 9))),
        ("uniform", [0, 1], [0, 0.25, 0.5, 0.75, 1]),
    ],
)
def test_grid_search_tries_all_values(tmp_path: Path, kind: str, value: list[float], tried: list[float]) -> None:
    """GridSearch tries all values of integers and q types, also of nested ones, as in NNI; of a float, five."""
    from nas.compat.nni.config import read_experiment
    from nas.compat.nni.search_definition import nni_search

    options = [{"_name": "a", "n": {"_type": kind, "_value": value}}, {"_name": "b"}]
    space = {"x": {"_type": "choice", "_value": options}}
    experiment = ExperimentFolder(tmp_path, tuner={"builtinTunerName": "GridSearch"}, space=space)
    tuner = nni_search(read_experiment(experiment.write()))[1].build().tuner
    answers = [tuner.ask(Lineage.of([]), place, place) for place in range(len(tried) + 2)]

    assert [answer.point["x"] for answer in answers[:-1]] == [*({"_name": "a", "n": n} for n in tried), {"_name": "b"}]
    assert answers[-1] is STOP


def test_too_many_values_for_grid_search(tmp_path: Path) -> None:
    """Of more than 10,000 values of a parameter GridSearch tries that many, and a line says so."""
    from nas.compat.nni.builtins import notes_on_builtins, tuner_spec
    from nas.compat.nni.config import read_experiment

    space = {"n": {"_type": "randint", "_value": [0, 2_000_000]}}
    made = ExperimentFolder(tmp_path, tuner={"builtinTunerName": "GridSearch"}, space=space)
    experiment = read_experiment(made.write())

    assert tuner_spec(experiment).arguments == {"resolution": 10_000}
    assert notes_on_builtins(experiment) == ["GridSearch tries 10,000 values of a parameter that has more"]


@pytest.mark.slow
def test_an_experiment_repeats_points(tmp_path: Path) -> None:
    """All trials of maxTrialNum run in a space of fewer points, three at a time."""
    space = {"x": {"_type": "choice", "_value": [1, 2]}}
    trials = ExperimentFolder(tmp_path, tuner={"builtinTunerName": "Anneal"}, space=space).run(
        maxTrialNum=6, trialConcurrency=3
    )

    assert [t.state for t in trials] == [State.COMPLETE] * 6
    assert {t.point["x"] for t in trials} == {1, 2}


@pytest.mark.parametrize("options", [[{"x": 1}, {"x": 100}, {"x": 1}], [1, "a", [2, {"b": None}]]])
def test_batch_tuner_gives_each_option_itself(tmp_path: Path, options: list[object]) -> None:
    """The trials of BatchTuner get its options in order, whatever their form, without the key."""
    code = """
import json, nni
with open("seen", "a") as file:
    print(json.dumps(nni.get_next_parameter()), file=file)
nni.report_final_result(0.5)
"""
    space = {"all": {"_type": "choice", "_value": options}}
    trials = ExperimentFolder(tmp_path, code, {"builtinTunerName": "BatchTuner"}, space=space).run()

    assert [json.loads(line) for line in (tmp_path / "seen").read_text().splitlines()] == options
    assert {t.state for t in trials} == {State.COMPLETE}


def test_files_of_an_editor_that_marks_utf_8(tmp_path: Path) -> None:
    """The mark is no part of the configuration and of the search space."""
    from nas.compat.nni.config import read_experiment

    path = ExperimentFolder(tmp_path).write()
    for file in (path, tmp_path / "search_space.json"):
        file.write_text(file.read_text(), encoding="utf-8-sig")

    assert read_experiment(path).space == X


def test_scalars_of_the_configuration(tmp_path: Path) -> None:
    """Scalars have the types of YAML 1.2, as ruamel.yaml gave them to NNI 1.x."""
    from nas.compat.nni.config import read_experiment

    scalars = {
        "1e-3": 0.001, "1e6": 1e6, "-1.5e+3": -1500.0, ".5": 0.5, "1.": 1.0, "-.inf": -math.inf, "1.2.3": "1.2.3",
        "on": "on", "off": "off", "yes": "yes", "no": "no", "y": "y", "True": True, "false": False, "~": None,
        "010": 10, "08": 8, "0o10": 8, "0x1F": 31, "-0b11": -3, "+12": 12, "1_000": 1000, "0": 0, "e5": "e5",
        "1:30": "1:30", "1:30:00": "1:30:00", "-1:30": "-1:30", "'1'": "1",
    }  # fmt: skip
    (tmp_path / "space.json").write_text("{}")
    path = ExperimentFolder(tmp_path, tuner_code="").write()
    listed = "".join(f"    - {text}\n" for text in scalars)
    path.write_text(
        "trialConcurrency: 010\nuseAnnotation: false\ntrial: {command: x, codeDir: .}\n"
        f"tuner:\n  classFileName: tuner.py\n  className: T\n  classArgs:\n   all:\n{listed}"
    )
    experiment = read_experiment(path)
    read = experiment.tuner.arguments["all"]

    assert read == list(scalars.values())
    assert [type(value) for value in read] == [type(value) for value in scalars.values()]
    assert experiment.concurrency == 10
    for wrong in ("useAnnotation: no", "multiPhase: on", "tuner: {name: TPE, includeIntermediateResults: no}"):
        tuner = "" if "tuner" in wrong else "tuner: {name: TPE}\n"
        path.write_text(f"trialConcurrency: 1\ntrial: {{command: x}}\n{tuner}{wrong}\n")
        with pytest.raises(ConfigurationError, match=r"='(no|on)': must be true or false"):
            read_experiment(path)


@pytest.mark.parametrize(
    ("more", "text"),
    [
        ("maxTrialNum: 5\nmaxTrialNum: 2\n", "maxTrialNum is there twice, the second time in line 5"),
        ('assessor: {name: Medianstop, classArgs: {1: a, "1": b, 1: c}}\n', "1 is there twice"),
        ("assessor: &a {<<: {name: x}, <<: {classArgs: {}}, name: Medianstop}\n", None),
    ],
)
def test_a_key_given_twice(tmp_path: Path, more: str, text: str | None) -> None:
    """A field that is there twice is refused by its name and line. Merged keys may be given again."""
    from nas.compat.nni.config import TunerChoice, read_experiment

    path = tmp_path / "config.yml"
    path.write_text(f"trialConcurrency: 1\ntrial: {{command: x}}\ntuner: {{name: Random}}\n{more}")
    with nullcontext() if text is None else pytest.raises(ConfigurationError, match=text):
        assert read_experiment(path).assessor == TunerChoice(builtin="Medianstop")


def test_v2_names(tmp_path: Path) -> None:
    """Fields with their v2 names give the same experiment."""
    ExperimentFolder(tmp_path)
    content = {
        "trialConcurrency": 1,
        "maxTrialNumber": 2,
        "searchSpace": {"x": {"_type": "choice", "_value": [0.5]}},
        "tuner": {"name": "Random"},
        "trialCommand": "python main.py",
        "trialCodeDirectory": ".",
        "experimentWorkingDirectory": "out",
        "trainingService": {"platform": "local"},
    }
    from nas.compat.nni.config import read_experiment

    path = tmp_path / "v2.yml"
    path.write_text(json.dumps(content))
    experiment = read_experiment(path)

    assert experiment.folder == tmp_path
    assert (experiment.max_jobs, experiment.command, experiment.tuner.builtin) == (2, "python main.py", "Random")
    assert experiment.notes == ()


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ({"trialConcurency": 2}, "trialConcurency: not a known field of NNI's"),
        ({"useAnnotation": True}, "useAnnotation: annotated code is not supported"),
        ({"advisor": {"builtinAdvisorName": "BOHB"}}, "advisor: advisors"),
        *(
            ({"tuner": {"builtinTunerName": name}, "searchSpacePath": None, **more}, f"{name}: not supported. {text}")
            for name, text in (
                ("NetworkMorphism", "NNI itself builds its networks. Use the command `search +tuner=network_morph"),
                ("PPOTuner", "use the command `search"),
            )
            for more in ({}, {"trial": {"command": "python main.py", "codeDir": ".", "gpuNum": 4}})
        ),
        ({"searchSpacePath": None}, "searchSpacePath is missing: a builtin tuner"),
        (
            {
                "trainingServicePlatform": "kubeflow",
                "trial": {
                    "codeDir": ".",
                    "worker": {"replicas": 1, "command": "python main.py"},
                    "ps": {"command": "x"},
                },
            },
            "trial.command is missing: trial.ps.command and trial.worker.command of kubeflow would",
        ),
        (
            {
                "trainingServicePlatform": "frameworkcontroller",
                "trial": {"codeDir": ".", "taskRoles": [{"name": "worker", "command": "python main.py"}]},
            },
            "trial.taskRoles[0].command of frameworkcontroller would",
        ),
        (
            {
                "trial": None,
                "trainingServicePlatform": None,
                "trainingService": {"platform": "kubeflow", "worker": {"command": "python main.py"}},
            },
            "trainingService.worker.command of kubeflow would",
        ),
        ({"tuner": {"builtinTunerName": "Tpe"}}, "must be one of TPE"),
        ({"tuner": {"builtinTunerName": "TPE", "classArgs": {"optimise_mode": "maximize"}}}, "classArgs.optimise_mode"),
        (
            {"tuner": {"builtinTunerName": "TPE", "classArgs": {"optimize_mode": "best"}}},
            "must be maximize or minimize",
        ),
        (
            {"assessor": {"builtinAssessorName": "Medianstop", "classArgs": {"optimize_mode": "best"}}},
            "assessor.classArgs.optimize_mode='best': must be maximize or minimize",
        ),
        (
            {
                "tuner": {"builtinTunerName": "TPE", "classArgs": {"optimize_mode": "maximize"}},
                "assessor": {"builtinAssessorName": "Medianstop", "classArgs": {"optimize_mode": "minimize"}},
            },
            "assessor.classArgs.optimize_mode=minimize: must be maximize, as in tuner",
        ),
        ({"assessor": {"className": "A", "classFileName": "main.py"}}, "assessor=its own class: "),
        ({"maxExecDuration": "1 hour"}, "maxExecDuration='1 hour': "),
        ({"maxTrialNum": 0}, "maxTrialNum=0: "),
        ({"trial": {"command": "python main.py", "codeDir": "gone"}}, "trial.codeDir=gone: "),
        ({"trial": {"codeDir": "."}}, "trial.command is missing"),
        ({"trial": {"command": "x", "codeDir": ".", "gpuNum": 4}}, "trial.gpuNum=4: "),
        ({"searchSpacePath": "gone.json"}, "searchSpacePath=gone.json: "),
        ({"localConfig": {"gpuIndicies": "1"}}, "localConfig.gpuIndicies: the fields of this machine are gpuIndices, "),
        ({"trainingService": {"platform": "local", "gpuIndex": 1}}, "trainingService.gpuIndex: the fields of this"),
        ({"trainingService": [{"platform": "remote"}, "local"]}, "trainingService='local': must be a mapping of"),
        ({"searchSpace": "space.json"}, "searchSpace='space.json': must be a mapping of fields"),
        ({"searchSpace": ["x"]}, "searchSpace=['x']: must be a mapping of fields"),
        ({"trainingServicePlatform": "cloud"}, "trainingServicePlatform='cloud': "),
        ({"multiPhase": "yes"}, "multiPhase='yes': "),
        *(
            (
                {"tuner": {"builtinTunerName": name, "classArgs": given}},
                f"tuner.classArgs.{text}",
            )
            for name, given, text in (
                ("Evolution", {"population_size": 1}, "population_size=1: must be a whole number of at least 2"),
                ("RegularizedEvolutionTuner", {"population_size": "9"}, "population_size='9': must be a whole number"),
                ("RegularizedEvolutionTuner", {"sample_size": 0}, "sample_size=0: must be a whole number of at"),
                (
                    "RegularizedEvolutionTuner",
                    {"population_size": 9},
                    "sample_size=25: must be at most population_size (9)",
                ),
                ("MetisTuner", {"cold_start_num": 251}, "cold_start_num=251: must be a whole number from 2 to 250"),
            )
        ),
        *(
            (
                {"assessor": {"builtinAssessorName": name, "classArgs": given}},
                f"assessor.classArgs.{text}",
            )
            for name, given, text in (
                ("Medianstop", {"start_step": -1}, "start_step=-1: must be a whole number of at least 0"),
                ("Curvefitting", {"start_step": 1.5}, "start_step=1.5: must be a whole number of at least 0"),
                ("Curvefitting", {"epoch_num": "x"}, "epoch_num='x': must be a whole number of at least 1"),
                ("Curvefitting", {"epoch_num": 6}, "epoch_num=6: must be greater than start_step (6)"),
            )
        ),
        ({"trial": {"command": "x", 5: "x", "gpus": 1}}, "trial.5: "),
        ({"tuner": {"builtinTunerName": "TPE", 5: "x", "seed": 1}}, "tuner.5: "),
        ({"tuner": {"builtinTunerName": "TPE", "classArgs": {5: "x", "seed": 1}}}, "tuner.classArgs.5: "),
        ({"assessor": {"builtinAssessorName": "Medianstop", "classArgs": {5: 1, "x": 1}}}, "assessor.classArgs.5: "),
    ],
)
def test_mistakes(tmp_path: Path, fields: dict[str, object], text: str) -> None:
    """Invalid and unsupported fields are refused by name before anything runs."""
    with pytest.raises(ConfigurationError) as caught:
        ExperimentFolder(tmp_path).run(**fields)

    assert text in str(caught.value)
    assert not (tmp_path / "root").exists()


def test_fields_without_effect_are_reported(tmp_path: Path) -> None:
    """Fields of unsupported platforms are reported at the start with their replacement."""
    from nas.compat.nni.config import read_experiment

    path = ExperimentFolder(tmp_path).write(
        trainingServicePlatform="pai", paiConfig={"host": "x"}, machineList=[{"ip": "1.2.3.4"}], logLevel="debug"
    )
    notes = "\n".join(read_experiment(path).notes)

    assert "OpenPAI no longer exists; trials run as processes of this machine" in notes
    assert all(f"{name} has no effect" in notes for name in ("paiConfig", "machineList", "logLevel"))


def test_arguments_without_effect_are_reported(tmp_path: Path) -> None:
    """Each given argument that the replacement does not take is reported; others and optimize_mode are not."""
    from nas.compat.nni.builtins import notes_on_builtins
    from nas.compat.nni.config import read_experiment

    made = ExperimentFolder(tmp_path)

    def reported(name: str, **fields: object) -> list[str]:
        experiment = read_experiment(made.write(tuner={"builtinTunerName": name, "classArgs": fields}, assessor=curve))
        return [note.partition(" has no effect: ")[0] for note in notes_on_builtins(experiment)]

    curve = {"builtinAssessorName": "Curvefitting", "classArgs": {"epoch_num": 9, "threshold": 0.9}}
    threshold = "assessor.classArgs.threshold"

    assert reported("GPTuner", optimize_mode="maximize", kappa=5) == ["tuner.classArgs.kappa", threshold]
    assert reported("MetisTuner", cold_start_num=4, no_resampling=False) == ["tuner.classArgs.no_resampling", threshold]
    assert reported("TPE", constant_liar_type="min") == ["tuner.classArgs.constant_liar_type", threshold]
    assert reported("SMAC", config_dedup=True) == [threshold]


def test_a_list_of_platforms(tmp_path: Path) -> None:
    """Of several platforms the local one is read; the others are reported once each."""
    from nas.compat.nni.config import read_experiment

    remote, local = {"platform": "remote", "machineList": []}, {"platform": "local", "gpuIndices": [1]}
    services = [remote, {**local, "maxTrialNumberPerGpu": 2, "useActiveGpu": True}, remote]
    path = ExperimentFolder(tmp_path).write(trainingServicePlatform=None, trainingService=services)
    experiment = read_experiment(path)

    assert (experiment.gpus, experiment.jobs_per_gpu) == ((1,), 2)
    assert [note.partition(" has no effect: ")[0] for note in experiment.notes] == [
        "trainingServicePlatform remote",
        "trainingService.useActiveGpu",
    ]


def test_no_other_process_finds_nni() -> None:
    """Heirloom's own processes cannot import nni."""
    import importlib.util

    assert importlib.util.find_spec("nni") is None


def test_mapped_paths(tmp_path: Path) -> None:
    """--map creates a link once, replaces a dangling one, and refuses to replace an existing file."""
    from nas.compat.nni.path_links import link_path

    source, target = tmp_path / "mnt" / "nfs", tmp_path / "data"
    message = link_path(f"{source}={target}")
    (source / "x").write_text("y")

    assert message == f"created the link {source} to {target}"
    assert (target / "x").read_text() == "y"
    assert link_path(f"{source}={target}") is None
    other = tmp_path / "other"
    shutil.move(target, tmp_path / "moved")  # the link is dangling
    assert link_path(f"{source}={other}") == f"created the link {source} to {other}"
    other.rmdir()
    assert link_path(f"{source}={other}") == f"created the link {source} to {other}"
    assert other.is_dir()
    for text in (f"{source}={tmp_path}", "nfs=data", str(source)):
        with pytest.raises(ConfigurationError, match="--map"):
            link_path(text)


def test_paths_below_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` is the user's home in the paths of code and of the search space, as in ``logDir``."""
    from nas.compat.nni.config import read_experiment

    home = ExperimentFolder(tmp_path / "home", tuner_code="class T: pass\n").folder
    monkeypatch.setenv("HOME", str(home))
    experiment = read_experiment(
        ExperimentFolder(tmp_path / "experiment").write(
            searchSpacePath="~/search_space.json",
            tuner={"codeDir": "~", "classFileName": "tuner.py", "className": "T"},
            trial={"command": "python main.py", "codeDir": "~"},
            logDir="~/logs",
        )
    )

    assert (experiment.space, experiment.tuner.code_dir) == (X, str(home))
    assert (experiment.code_dir, experiment.output_dir) == (home.resolve(), home.resolve() / "logs")


def test_a_home_of_an_unknown_user_is_a_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``~`` before what no user is called is a part of the path, as in a shell."""
    from nas.compat.nni.config import read_experiment
    from nas.compat.nni.path_links import link_path

    monkeypatch.chdir(tmp_path)
    path = ExperimentFolder(tmp_path).write(logDir="~nobody_here/logs")
    link_path(f"{tmp_path}/mnt=~nobody_here/data")

    assert read_experiment(path).output_dir == tmp_path / "~nobody_here" / "logs"
    assert (tmp_path / "mnt").resolve() == tmp_path / "~nobody_here" / "data"


@pytest.mark.parametrize("other", ["data", "elsewhere"])
def test_a_path_that_two_commands_map_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: str) -> None:
    """A link that another command creates in the same moment is taken if it leads to the same folder."""
    from nas.compat.nni.path_links import link_path

    source, target, symlink_to = tmp_path / "nfs", tmp_path / "data", Path.symlink_to
    (tmp_path / other).mkdir()

    def just_after_another(link: Path, folder: Path, **more: bool) -> None:
        os.symlink(tmp_path / other, link)
        symlink_to(link, folder, **more)

    monkeypatch.setattr(Path, "symlink_to", just_after_another)
    with nullcontext() if other == "data" else pytest.raises(ConfigurationError, match="exists and is not"):
        assert link_path(f"{source}={target}") is None
    assert source.resolve() == tmp_path / other
