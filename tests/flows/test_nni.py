"""``python -m flows.nni``: whole experiments, killed and resumed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from tests.flows.commands import Command, only_search, run, trials, until

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


@pytest.fixture
def experiment(here: Path) -> Path:
    (here / "config.yml").write_text(CONFIG.format(python=sys.executable))
    (here / "main.py").write_text(PHASES)
    (here / "search_space.json").write_text('{"x": {"_type": "uniform", "_value": [0, 1]}}')
    return here


def test_multi_phase_with_tpe_survives_kills(experiment: Path, api_url: str) -> None:
    """kill -9 twice: no process is left, jobs go on with their phases, and every finished trial stays as it is."""
    line = ("--config", "config.yml", "--root", "shared")
    seen: dict[int, str | None] = {}
    for n_finished in (2, 5):
        with Command(experiment, *line, module="flows.nni", PREFECT_API_URL=api_url) as command:
            until(lambda n=n_finished: len(list(experiment.glob("shared/*/trials/*.result.json"))) >= n)
            command.kill(to_group=False)
            until(lambda: not command.leftovers(), 5, what="the end of all processes")
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
    assert "is finished; more with a larger maxTrialNum" in again.out


def test_mistakes_are_one_line(experiment: Path) -> None:
    """What a configuration asks for and is not there ends the command with status 2, in one line."""
    config = experiment / "config.yml"
    config.write_text(config.read_text().replace("TPE", "NetworkMorphism"))
    morphism = run(experiment, "--config", "config.yml", "runner=debug", module="flows.nni")
    absent = run(experiment, "--config", "gone.yml", module="flows.nni")
    nothing = run(experiment, module="flows.nni")
    policy = run(experiment, "--config", "config.yml", "policy=full", "runner=debug", module="flows.nni")

    assert (morphism.status, absent.status, nothing.status, policy.status) == (2, 2, 2, 2)
    assert "tuner.builtinTunerName (NetworkMorphism)" in morphism.err
    assert absent.complaint == "can't read the configuration gone.yml: No such file or directory"
    assert "--config" in nothing.complaint
    assert policy.complaint == "policy comes from the experiment's configuration file; change it there"
    assert not os.path.exists(experiment / "heirloom")
