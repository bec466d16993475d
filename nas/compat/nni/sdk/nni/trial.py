"""Functions for trial code: the next configuration, ids and reports."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Callable
from typing import Any

from .platform import standalone, test

MAX_METRIC = 1_000_000
"""Most characters of a result as JSON, as in NNI."""

_IS_TEST = os.environ.get("NNI_PLATFORM") == "unittest"
_EXPERIMENT_ID = test.EXPERIMENT_ID if _IS_TEST else os.environ.get("NNI_EXP_ID", "STANDALONE")
_TRIAL_ID = test.TRIAL_ID if _IS_TEST else os.environ.get("NNI_TRIAL_JOB_ID", "STANDALONE")
_SEQUENCE_ID = 0 if _IS_TEST else int(os.environ.get("NNI_TRIAL_SEQ_ID", "0"))


class _Connection:
    """The connection to the job, opened at the first request and again in a forked process."""

    def __init__(self) -> None:
        self._pid = 0
        self._file: Any = None

    def send(self, request: dict[str, Any]) -> dict[str, Any]:
        """Returns the job's reply.

        Raises:
            ConnectionError: the job has ended.
            RuntimeError: the job refuses the request.
        """
        try:
            if self._pid != os.getpid():
                self._connect()
            self._file.write(json.dumps(request).encode() + b"\n")
            self._file.flush()
            if not (line := self._file.readline()):
                raise ConnectionError("connection closed")
        except OSError as error:
            raise ConnectionError(f"the job that started this trial has ended: {error}") from error
        reply: dict[str, Any] = json.loads(line)
        if "error" in reply:
            raise RuntimeError(reply["error"])
        return reply

    def _connect(self) -> None:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.connect(os.environ["HEIRLOOM_NNI_SOCKET"])
        self._file = connection.makefile("rwb")
        self._pid = os.getpid()


def _choose() -> Callable[[dict[str, Any]], dict[str, Any]]:
    if "HEIRLOOM_NNI_SOCKET" in os.environ:
        return _Connection().send
    return test.send if _IS_TEST else standalone.send


_send = _choose()
_parameters: Any = None
_is_fetched = False


def get_next_parameter() -> Any:
    """Returns the configuration of the trial.

    With multiPhase each call returns the next configuration, or None if there are no more. Without it all calls
    return the same one.
    """
    global _parameters, _is_fetched
    _parameters = _send({"ask": "next"})["parameters"]
    _is_fetched = True
    return _parameters


def get_current_parameter(tag: str | None = None) -> Any:
    """Returns the last configuration, or its entry ``tag``; None before the first."""
    return _parameters if tag is None or _parameters is None else _parameters[tag]


def get_experiment_id() -> str:
    """Returns the experiment's id."""
    return _EXPERIMENT_ID


def get_trial_id() -> str:
    """Returns the id of the job."""
    return _TRIAL_ID


def get_sequence_id() -> int:
    """Returns the number of jobs that started before this one."""
    return _SEQUENCE_ID


def report_intermediate_result(metric: Any) -> None:
    """Reports an intermediate result, such as the accuracy of an epoch."""
    _report("intermediate", metric)


def report_final_result(metric: Any) -> None:
    """Reports the result of the current configuration; it is durable when the call returns."""
    _report("final", metric)


def _report(kind: str, metric: Any) -> None:
    if not _is_fetched:
        raise AssertionError("call nni.get_next_parameter() before you report a result")
    text = json.dumps(metric, default=_plain)
    if len(text) >= MAX_METRIC:
        raise AssertionError(f"metric too long: {len(text)} characters as JSON. It must have fewer than {MAX_METRIC}")
    _send({"report": kind, "value": text})


def _plain(value: Any) -> Any:
    """Returns a scalar or array of numpy or torch as JSON."""
    if hasattr(value, "tolist"):
        return value.tolist()
    raise TypeError(f"a result must be JSON, not {value!r:.200} ({type(value).__name__})")
