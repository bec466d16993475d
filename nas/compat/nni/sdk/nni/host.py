"""The process of an experiment's own tuner: ``python -m nni.host`` with a socket as descriptor ``NNI_HOST_FD``.

It reads calls, one a line, and writes their answers. With multiThread each call has a thread of its own, begun in the
order in which the calls came: however many of them wait, results come through. Else one thread makes one call after
another. The first exception of a tuner's ends the process, after its traceback was told; so does the end of the line.
"""

from __future__ import annotations

import importlib
import inspect
import json
import os
import queue
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from typing import Any

from .tuner import Tuner
from .utils import NoMoreTrialError

Message = dict[str, Any]


class _NothingError(Exception):
    """The tuner has nothing to offer now."""


class Host:
    """Makes the calls that come over the line."""

    def __init__(self, line: socket.socket) -> None:
        self._file = line.makefile("rwb")
        self._lock = threading.Lock()
        self._generated: dict[int, Any] = {}
        self._recorded: dict[int, Any] = {}
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._tuner: Any = None
        self._is_threaded = False

    def run(self) -> None:
        """Serves until the line ends."""
        begin = json.loads(self._file.readline())
        self._guarded(begin, self._begin)
        if not self._is_threaded:
            threading.Thread(target=self._one_after_another, daemon=True).start()
        for line in self._file:
            message = json.loads(line)
            if message["do"] == "generate" and "recorded" in message:
                self._recorded[message["id"]] = message["recorded"]
            if self._is_threaded:
                threading.Thread(target=self._guarded, args=(message, self._make), daemon=True).start()
            else:
                self._queue.put(message)

    def _one_after_another(self) -> None:
        while True:
            self._guarded(self._queue.get(), self._make)

    def _guarded(self, message: Message, make: Callable[[Message], Message]) -> None:
        """Makes a call, and tells its answer; an exception ends the process."""
        try:
            answer = make(message)
        except BaseException as error:
            self._tell({"call": message["call"], "error": traceback.format_exc(), "last": _last(error)})
            if self._tuner is not None:
                self._tuner._on_error()
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(1)
        self._tell({"call": message["call"], **answer})

    def _tell(self, answer: Message) -> None:
        text = json.dumps(answer)
        with self._lock:
            self._file.write(text.encode() + b"\n")
            self._file.flush()

    def _begin(self, message: Message) -> Message:
        sys.path.append(message["code_dir"])
        module, _ = os.path.splitext(message["class_file"])
        found = importlib.import_module(module.replace("/", "."))
        self._is_threaded = message["multi_thread"]
        self._tuner = getattr(found, message["class_name"])(**message["arguments"])
        self._tuner.update_search_space("" if message["space"] is None else message["space"])
        return {}

    def _make(self, message: Message) -> Message:
        if message["do"] == "generate":
            return self._generate(message)
        if message["do"] == "finished":
            self._finished(message)
        elif message["do"] == "late":
            self._receive(message)
        elif message["do"] == "import":
            self._tuner.import_data(message["data"])
        elif message["do"] == "exit":
            self._tuner._on_exit()
        return {}

    def _generate(self, message: Message) -> Message:
        number = message["id"]
        try:
            parameters = self._ask(number, message["job"], message["is_first"])
        except (NoMoreTrialError, _NothingError):
            return {"none": True}
        plain = json.loads(json.dumps(parameters, default=_plain))
        if "recorded" in message:
            if plain != message["recorded"]:
                return {"parameters": plain, "differs": True}
            del self._recorded[number]
        self._generated[number] = parameters
        return {"parameters": plain}

    def _ask(self, number: int, job: str | None, is_first: bool) -> Any:
        told = {} if job is None else {"trial_job_id": job}
        many = getattr(type(self._tuner), "generate_multiple_parameters", None)
        if not is_first or many in (None, Tuner.generate_multiple_parameters):
            generate = self._tuner.generate_parameters
            return generate(number, **_accepted(generate, told))
        generate = self._tuner.generate_multiple_parameters
        found = generate([number], **_accepted(generate, told))
        if not found:
            raise _NothingError
        return found[0]

    def _finished(self, message: Message) -> None:
        if "value" in message:
            self._receive(message)
        if hasattr(self._tuner, "trial_end"):
            self._tuner.trial_end(message["id"], message["success"])

    def _receive(self, message: Message) -> None:
        number = message["id"]
        parameters = self._recorded.get(number, self._generated.get(number))
        receive = self._tuner.receive_trial_result
        told = {"customized": False, "trial_job_id": message["job"]}
        receive(number, parameters, json.loads(message["value"]), **_accepted(receive, told))


def _accepted(function: Callable[..., Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Those of the keywords that a function takes."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return keywords
    return {name: value for name, value in keywords.items() if name in parameters}


def _plain(value: Any) -> Any:
    """Numpy's scalars as numbers, its arrays as NNI's trials saw them."""
    if getattr(value, "shape", None) == ():
        return value.item()
    if hasattr(value, "tolist"):
        return {"__ndarray__": value.tolist(), "dtype": str(value.dtype), "shape": list(value.shape)}
    raise TypeError(f"parameters must be JSON, not {value!r:.200} ({type(value).__name__})")


def _last(error: BaseException) -> str:
    return traceback.format_exception_only(type(error), error)[-1].strip()


def main() -> None:
    """Serves the driver that has started this process."""
    line = socket.socket(fileno=int(os.environ.pop("NNI_HOST_FD")))
    Host(line).run()
    os._exit(0)


if __name__ == "__main__":
    main()
