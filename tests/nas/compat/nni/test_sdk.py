"""The module ``nni`` alone: names that code of NNI v0.5 to v1.9 imports, and errors for other names."""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time

import pytest

from nas.compat.nni.sdk import SDK

NAMES = """
from nni import NoMoreTrialError, get_current_parameter, get_experiment_id, get_next_parameter, get_sequence_id
from nni import get_trial_id, report_final_result, report_intermediate_result
from nni.tuner import Tuner
from nni.assessor import Assessor, AssessResult
from nni.recoverable import Recoverable
from nni.multi_phase.multi_phase_tuner import MultiPhaseTuner
from nni.utils import ClassArgsValidator, NodeType, OptimizeMode, extract_scalar_reward, json2parameter, json2space
from nni.utils import merge_parameter, split_index
from nni.platform.test import get_last_metric, init_params
import nni.parameter_expressions
"""
NESTED = """
import numpy as np
from nni.utils import json2parameter, json2space, split_index

size = {"_type": "quniform", "_value": [2, 8, 2]}
conv = {"_type": "choice", "_value": [{"_name": "none"}, {"_name": "wide", "size": size}]}
space = {"layer": conv, "rate": {"_type": "uniform", "_value": [0, 1]}}
names = json2space(space)
assert names == ["root[layer]-choice[1][size]-quniform", "root[layer]-choice", "root[rate]-uniform"], names
random = np.random.RandomState(1)
while True:
    first = json2parameter(space, dict.fromkeys(names, True), random)
    if first["layer"]["_index"] == 1:
        break
assert json2space(space, first) == names
assert split_index(first)["layer"] == {"_name": "wide", "size": first["layer"]["_value"]["size"]}
second = json2parameter(space, {**dict.fromkeys(names, False), "root[rate]-uniform": True}, random, first)
assert second["layer"] == first["layer"] and second["rate"] != first["rate"]
try:
    json2space({"x": {"_type": "choice", "_value": [{"size": 1}]}})
except RuntimeError as error:
    assert "_name" in str(error)
else:
    raise AssertionError
"""
TESTED = """
import nni
from nni.platform.test import get_last_metric, init_params

assert (nni.get_experiment_id(), nni.get_trial_id(), nni.get_sequence_id()) == ("fakeidex", "fakeidtr", 0)
assert get_last_metric() is None
ids = {"parameter_id": 3, "trial_job_id": "test"}
init_params({"parameter_id": 3, "parameters": {"x": 0.5}})
assert nni.get_next_parameter() == {"x": 0.5} == nni.get_current_parameter()
nni.report_intermediate_result(0.1)
nni.report_intermediate_result(0.2)
assert get_last_metric() == {**ids, "type": "PERIODICAL", "sequence": 1, "value": 0.2}
nni.report_final_result({"default": 1})
assert get_last_metric() == {**ids, "type": "FINAL", "sequence": 0, "value": {"default": 1}}
nni.report_final_result(2)
assert get_last_metric()["sequence"] == 0
init_params({"x": 7})
assert nni.get_next_parameter() == {"x": 7}
nni.report_intermediate_result(0.3)
assert get_last_metric()["sequence"] == 2
"""
MERGED = """
import argparse
from nni.utils import merge_parameter

given = argparse.Namespace(lr=0.1, name=None)
assert merge_parameter(given, {"lr": 0.2, "name": "a"}) is given and vars(given) == {"lr": 0.2, "name": "a"}
assert merge_parameter({"lr": 0.1}, None) == {"lr": 0.1}
for wrong, kind in (({"rate": 1.0}, ValueError), ({"lr": "high"}, TypeError)):
    try:
        merge_parameter({"lr": 0.1}, wrong)
    except kind as error:
        assert next(iter(wrong)) in str(error)
    else:
        raise AssertionError
"""
WAITING = """
import socket

class HastySocket(socket.socket):  # a minute is 0.06 s
    def settimeout(self, seconds):
        super().settimeout(None if seconds is None else seconds / 1000)

socket.socket = HastySocket
import nni
print(nni.get_next_parameter())
nni.get_next_parameter()
"""


def execute(code: str, *flags: str, **changes: str) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": "", "PYTHONPATH": str(SDK), **changes}
    return subprocess.run([sys.executable, *flags, "-c", code], env=environment, capture_output=True, text=True)


def test_the_names_need_the_standard_library_alone() -> None:
    """All names in the guide can be imported without any installed package."""
    done = execute(NAMES, "-S")

    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("code", [NESTED, TESTED, MERGED], ids=["nested", "tested", "merged"])
def test_what_the_names_do(code: str) -> None:
    """The helpers for nested spaces, unit tests and arguments work as in NNI."""
    done = execute(code, NNI_PLATFORM="unittest", NNI_TRIAL_JOB_ID="test", NNI_EXP_ID="other", NNI_TRIAL_SEQ_ID="7")

    assert done.returncode == 0, done.stderr


def test_a_trial_without_an_experiment() -> None:
    """Without an experiment the configuration is empty, with a message, and results are printed."""
    done = execute("import nni\nprint(nni.get_next_parameter(), nni.get_trial_id())\nnni.report_final_result(1)")

    assert done.stdout == "{} STANDALONE\nnni: final result: 1\n"
    assert "no experiment runs this trial" in done.stderr


def test_a_trial_waits_for_its_job() -> None:
    """A trial waits for a job that stands still, as after Ctrl-Z, and fails when it ends."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder, socket.socket(socket.AF_UNIX) as listener:
        listener.bind(f"{folder}/job")
        listener.listen()
        listener.settimeout(60)
        environment = {"PATH": "", "PYTHONPATH": str(SDK), "HEIRLOOM_NNI_SOCKET": f"{folder}/job"}
        process = subprocess.Popen(
            [sys.executable, "-c", WAITING], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        connection, _ = listener.accept()
        with connection:
            connection.recv(1000)
            time.sleep(0.5)
            connection.sendall(b'{"parameters": {"x": 1}}\n')
            connection.recv(1000)
        out, err = process.communicate(timeout=60)

    assert out == "{'x': 1}\n"
    assert err.splitlines()[-1].startswith("ConnectionError: the job that started this trial has ended: ")


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (
            "from nni.networkmorphism_tuner.graph import json_to_graph",
            "nni.networkmorphism_tuner is not available: NNI itself",
        ),
        ("from nni.hyperopt_tuner.hyperopt_tuner import HyperoptTuner", "is not available: set builtinTunerName"),
        ("from nni import retiarii", "nni.retiarii is not available: this is the module of NNI v0.5 to v1.9"),
        (
            "import nni\nnni.get_next_parameters()",
            "nni.get_next_parameters is not available: use nni.get_next_parameter",
        ),
        ("import nni.whatever", "nni.whatever is not available: docs/reference/nni.md lists all"),
    ],
)
def test_unsupported_names_are_refused(code: str, error: str) -> None:
    """Each way to import an unsupported name gives one line with the reason or the replacement."""
    done = execute(code)

    assert done.returncode == 1
    assert error in done.stderr.splitlines()[-1]
