"""``python -m flows.nni``: whole experiments, killed and resumed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.support.commands import Command, only_search, records, run, trials, until
from tests.support.nfs.guest import run_in_guest
from tests.support.processes import parent_of

pytestmark = pytest.mark.slow


PHASES = """
import os, time, nni
p = nni.get_next_parameter()
for phase in range(3):
    if p is None: break
    print("tries", p)
    time.sleep(0.3)
    nni.report_final_result((p["x"] - 0.3) ** 2)
    p = nni.get_next_parameter() if phase < 2 else None
"""
CONFIG = """
authorName: somebody
experimentName: phases
trialConcurrency: 2
maxTrialNum: 4
maxExecDuration: 1h
trainingServicePlatform: local
searchSpacePath: search_space.json
multiPhase: true
useAnnotation: false
logDir: out
tuner:
  builtinTunerName: TPE
  classArgs: {{optimize_mode: minimize}}
trial:
  command: {python} main.py
  codeDir: .
  gpuNum: 0
"""


def is_amid(experiment: Path, n_finished: int) -> bool:
    """Returns whether so many trials have a result, and another runs."""
    began, ended = (
        {path.name.partition(".")[0] for path in experiment.glob(f"shared/*/trials/*.{kind}.json")}
        for kind in ("start-*", "result")
    )
    return len(ended) >= n_finished and not began <= ended


@pytest.fixture
def experiment(here: Path) -> Path:
    (here / "config.yml").write_text(CONFIG.format(python=sys.executable))
    (here / "main.py").write_text(PHASES)
    (here / "search_space.json").write_text('{"x": {"_type": "uniform", "_value": [0, 1]}}')
    return here


def test_multi_phase_with_tpe_survives_kills(experiment: Path, api_url: str) -> None:
    """After two kills -9 no process is left, jobs continue their phases, and finished trials stay."""
    line = ("--config", "config.yml", "--root", "shared")
    seen: dict[int, str | None] = {}
    for n_finished in (2, 5):
        with Command(experiment, *line, module="flows.nni", forked=True, PREFECT_API_URL=api_url) as command:
            until(lambda n=n_finished: is_amid(experiment, n), what="a trial after the finished ones")
            command.kill(to_group=False)
            until(lambda: not command.leftovers(), 20, what="the end of all processes")
        found = trials(only_search(experiment, "shared"))
        assert seen.items() <= {t.number: t.returned for t in found}.items()
        seen = {t.number: t.returned for t in found if t.is_finished}
    last = run(experiment, *line, module="flows.nni", PREFECT_API_URL=api_url)
    again = run(experiment, *line, module="flows.nni", PREFECT_API_URL=api_url)

    found = trials(only_search(experiment, "shared"))
    assert last.status == again.status == 0, last.err
    assert seen.items() <= {t.number: t.returned for t in found}.items()
    assert len({t.job for t in found}) == 4
    assert {t.state for t in found} == {"COMPLETE"}
    assert any(t.attempt > 1 for t in found)
    assert "is finished: raise maxTrialNum" in again.out


def test_mistakes_are_one_line(experiment: Path) -> None:
    """A configuration with missing parts ends the command with status 2 and one line."""
    config = experiment / "config.yml"
    config.write_text(config.read_text().replace("TPE", "NetworkMorphism"))
    morphism = run(experiment, "--config", "config.yml", "runner=debug", module="flows.nni")
    absent = run(experiment, "--config", "gone.yml", module="flows.nni")
    nothing = run(experiment, module="flows.nni")
    policy = run(experiment, "--config", "config.yml", "policy=full", "runner=debug", module="flows.nni")

    assert (morphism.status, absent.status, nothing.status, policy.status) == (2, 2, 2, 2)
    assert "tuner.builtinTunerName=NetworkMorphism: not supported" in morphism.err
    assert absent.complaint == "can't read the configuration gone.yml: No such file or directory"
    assert "--config" in nothing.complaint
    assert policy.complaint == "policy is set by the experiment's configuration file: change it there"
    assert not os.path.exists(experiment / "heirloom")


def test_too_long_a_temporary_path_is_one_line(experiment: Path) -> None:
    """A TMPDIR too long for a socket is refused before anything starts."""
    folder = experiment / ("x" * 100)
    folder.mkdir()
    done = run(experiment, "--config", "config.yml", "runner=debug", module="flows.nni", TMPDIR=str(folder))

    assert done.status == 2
    assert done.complaint.startswith(f"the path of the temporary folder ({folder}) has ")
    assert done.complaint.endswith("Set TMPDIR to a shorter path, such as /tmp")
    assert not os.path.exists(experiment / "heirloom")


OWN = """
tuner:
  codeDir: .
  classFileName: tuner.py
  className: JobsTuner
trial:
"""
JOBS_TUNER = """
from nni.multi_phase.multi_phase_tuner import MultiPhaseTuner

class JobsTuner(MultiPhaseTuner):
    def __init__(self):
        self.best = {}
    def update_search_space(self, space):
        self.space = space
    def generate_parameters(self, parameter_id, trial_job_id=None):
        return {"x": round(0.1 + 0.1 * len(self.best.get(trial_job_id, [])), 3), "job": trial_job_id}
    def receive_trial_result(self, parameter_id, parameters, value, trial_job_id):
        assert parameters["job"] == trial_job_id
        self.best.setdefault(trial_job_id, []).append(value)
"""


def use_own_tuner(experiment: Path) -> None:
    config = experiment / "config.yml"
    head, _, rest = config.read_text().partition("tuner:")
    config.write_text(head + OWN.lstrip() + rest.partition("trial:\n")[2])
    (experiment / "tuner.py").write_text(JOBS_TUNER)


def test_multi_phase_with_an_own_tuner_survives_a_kill(experiment: Path, api_url: str) -> None:
    """After kill -9 the tuner's process is gone too; each job continues from its phase."""
    use_own_tuner(experiment)
    line = ("--config", "config.yml", "--root", "shared")
    with Command(experiment, *line, module="flows.nni", forked=True, PREFECT_API_URL=api_url) as command:
        until(lambda: len(list(experiment.glob("shared/*/trials/*.result.json"))) >= 5)
        command.kill(to_group=False)
        until(lambda: not command.leftovers(), 20, what="the end of all processes")
    last = run(experiment, *line, module="flows.nni", PREFECT_API_URL=api_url)

    found = trials(only_search(experiment, "shared"))
    assert last.status == 0, last.err
    assert "not reproducible" not in last.err
    assert {t.state for t in found} == {"COMPLETE"}
    for job in {t.job for t in found}:
        assert [t.point["x"] for t in found if t.job == job][:3] == [0.1, 0.2, 0.3]


def spawned_ancestor(pid: int) -> int:
    """Returns a process or its nearest ancestor that multiprocessing has spawned, as Dask's workers are."""
    while b"spawn_main" not in Path(f"/proc/{pid}/cmdline").read_bytes():
        pid = parent_of(pid)
    return pid


def test_an_experiment_on_a_cluster(experiment: Path, api_url: str) -> None:
    """Workers of Dask run the jobs; after the kill of one, its job continues with its phase, and no other ends."""
    use_own_tuner(experiment)
    line = ("--config", "config.yml", "--root", "shared", "runner=dask", "slots=2", "threads=1")
    hold = experiment / "hold"
    hold.touch()
    held = f"while os.path.exists({str(hold)!r}): time.sleep(0.05)"
    (experiment / "main.py").write_text(PHASES.replace("time.sleep(0.3)", held))
    with Command(experiment, *line, module="flows.nni", forked=True, PREFECT_API_URL=api_url) as command:
        until(lambda: len(list(experiment.glob("shared/*/trials/*.start-1.json"))) == 2)
        start = records(only_search(experiment, "shared")).read_start(1, 1)
        assert start is not None
        os.kill(spawned_ancestor(start["pid"]), 9)
        until(lambda: not Path(f"/proc/{start['pid']}").exists(), 20, what="the end of the killed worker's trial")
        hold.unlink()
        done = command.wait()

    found = trials(only_search(experiment, "shared"))
    assert done.status == 0, done.err
    assert "its worker was closed" not in done.err
    assert {t.state for t in found} == {"COMPLETE"}
    assert sorted(t.attempt for t in found)[-2:] == [1, 2]
    for job in {t.job for t in found}:
        assert [t.point["x"] for t in found if t.job == job][:3] == [0.1, 0.2, 0.3]


def test_interruption_of_worker_processes(experiment: Path, api_url: str) -> None:
    """With runner=processes, Ctrl-C also ends a silent trial and all its processes."""
    (experiment / "main.py").write_text(
        "import nni, subprocess\nnni.get_next_parameter()\nsubprocess.run(['sleep', '600'])\n"
    )
    line = ("--config", "config.yml", "--root", "shared", "runner=processes")
    with Command(experiment, *line, module="flows.nni", forked=True, PREFECT_API_URL=api_url) as command:
        until(lambda: len(list(experiment.glob("shared/*/trials/*.start-1.json"))) == 2)
        command.send(2, to_group=False)
        done = command.wait()
        until(lambda: not command.leftovers(), 20, what="the end of all processes")

    assert done.status == 130
    assert {t.state for t in trials(only_search(experiment, "shared"))} == {"WAITING"}


@pytest.mark.timeout(600)
def test_weight_sharing_over_nfs() -> None:
    """One parent writes on one mount, and five children read it on the other, also after the driver's kill -9."""
    found = run_in_guest("nni_weights.py", timeout_s=560)

    assert found["status"] == 0, found["err"]
    assert [t["state"] for t in found["trials"]] == ["COMPLETE"] * 6
    assert [t["parents"] for t in found["trials"]] == [[], *[[0]] * 5]
    assert len({t["returned"] for t in found["trials"]}) == 1
    assert "machineList has no effect" in found["err"]
