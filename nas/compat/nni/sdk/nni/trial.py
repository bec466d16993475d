"""What a trial calls: its next configuration, and its reports."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any

from .platform import standalone, test

SILENCE_S = 60.0
"""The job says every few seconds that it lives; beyond this it is gone."""
MAX_METRIC = 1_000_000
"""Characters of a result as JSON, as in NNI."""

_EXPERIMENT_ID = os.environ.get("NNI_EXP_ID", "STANDALONE")
_TRIAL_ID = os.environ.get("NNI_TRIAL_JOB_ID", "STANDALONE")
_SEQUENCE_ID = int(os.environ.get("NNI_TRIAL_SEQ_ID", "0"))


class _Line:
    """The connection to the job; made at the first question, and anew in a forked process."""

    def __init__(self) -> None:
        self._pid = 0
        self._file: Any = None

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Returns the job's answer.

        Raises:
            ConnectionError: the job is gone.
            RuntimeError: it refuses.
        """
        try:
            if self._pid != os.getpid():
                self._connect()
            self._file.write(json.dumps(question).encode() + b"\n")
            self._file.flush()
            while not (line := self._file.readline()).strip():
                if not line:
                    raise ConnectionError("it has ended")
        except OSError as error:  # a timeout is one
            raise ConnectionError(f"the job that started this trial does not answer: {error}") from error
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RuntimeError(answer["error"])
        return answer

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(SILENCE_S)
        connection.connect(os.environ["HEIRLOOM_NNI_SOCKET"])
        self._file = connection.makefile("rwb")
        self._pid = os.getpid()


def _choose() -> Callable[[dict[str, Any]], dict[str, Any]]:
    if "HEIRLOOM_NNI_SOCKET" in os.environ:
        return _Line().ask
    return test.ask if os.environ.get("NNI_PLATFORM") == "unittest" else standalone.ask


_ask = _choose()
_parameters: Any = None
_is_fetched = False


def get_next_parameter() -> Any:
    """Returns the configuration to try; with multiPhase the next one, and None when there are no more.

    Without multiPhase it is the same whenever it is asked for.
    """
    global _parameters, _is_fetched
    _parameters = _ask({"ask": "next"})["parameters"]
    _is_fetched = True
    return _parameters


def get_current_parameter(tag: str | None = None) -> Any:
    """Returns the configuration that was fetched last, or the value of this name in it; None before the first."""
    return _parameters if tag is None or _parameters is None else _parameters[tag]


def get_experiment_id() -> str:
    """Returns the experiment's id."""
    return _EXPERIMENT_ID


def get_trial_id() -> str:
    """Returns the id of the job."""
    return _TRIAL_ID


def get_sequence_id() -> int:
    """How many jobs were begun before this one."""
    return _SEQUENCE_ID


def report_intermediate_result(metric: Any) -> None:
    """Tells what the trial has reached up to now."""
    _report("intermediate", metric)


def report_final_result(metric: Any) -> None:
    """Tells the result of the current configuration; it is durable when this returns."""
    _report("final", metric)


def _report(kind: str, metric: Any) -> None:
    if not _is_fetched:
        raise AssertionError("nni.get_next_parameter() needs to be called before a result is reported")
    text = json.dumps(metric, default=_plain)
    if len(text) >= MAX_METRIC:
        raise AssertionError(f"Metric too long: {len(text)} characters as JSON, {MAX_METRIC} are the bound")
    _ask({"report": kind, "value": text})


def _plain(value: Any) -> Any:
    """Scalars and arrays of numpy and torch as JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result must be JSON, not {value!r:.200} ({type(value).__name__})")
