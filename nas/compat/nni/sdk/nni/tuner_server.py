"""The program of an experiment's own tuner: ``python -m nni.tuner_server``, connected by ``HEIRLOOM_TUNER_FD``.

It reads one call per line and writes one reply per line. With multiThread each call runs in its own thread,
so results arrive however many calls wait. Without it, calls run one after another.
The first exception of the tuner ends the process after its traceback is sent. So does the end of the connection.
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
from types import TracebackType
from typing import Any

from .tuner import Tuner
from .utils import NoMoreTrialError

Message = dict[str, Any]


class _EmptyListError(Exception):
    """The tuner returned an empty list: it has no configuration now."""


class TunerServer:
    """Runs the calls that arrive over a socket."""

    def __init__(self, connection: socket.socket) -> None:
        self._file = connection.makefile("rwb")
        self._lock = threading.Lock()
        self._generated: dict[int, Any] = {}
        self._recorded: dict[int, Any] = {}
        self._asked: set[int] = set()
        """Ids without a configuration, which ``st_callback`` may give later."""
        self._queue: queue.SimpleQueue[Message] = queue.SimpleQueue()
        self._tuner: Any = None
        self._is_threaded = False

    def run(self) -> None:
        """Serves until the connection ends."""
        first = json.loads(self._file.readline())
        self._respond(first, self._start)
        if not self._is_threaded:
            threading.Thread(target=self._work, daemon=True).start()
        for line in self._file:
            message = json.loads(line)
            if message["method"] == "generate" and "recorded" in message:
                self._recorded[message["id"]] = message["recorded"]
            if self._is_threaded:
                threading.Thread(target=self._respond, args=(message, self._call), daemon=True).start()
            else:
                self._queue.put(message)

    def _work(self) -> None:
        while True:
            self._respond(self._queue.get(), self._call)

    def _respond(self, message: Message, call: Callable[[Message], Message]) -> None:
        """Runs a call and sends its reply. An exception ends the process."""
        try:
            reply = call(message)
        except BaseException as error:
            try:
                self._send({"call": message["call"], "error": _users_traceback(error), "last": _in_one_line(error)})
                self._notify("_on_error")
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(1)  # with "python -u" no output is lost
        self._send({"call": message["call"], **reply})

    def _send(self, reply: Message) -> None:
        text = json.dumps(reply)
        with self._lock:
            self._file.write(text.encode() + b"\n")
            self._file.flush()

    def _start(self, message: Message) -> Message:
        sys.path.append(message["code_dir"])
        module, _ = os.path.splitext(message["class_file"])
        found = importlib.import_module(module.replace("/", "."))
        self._is_threaded = message["multi_thread"]
        self._tuner = getattr(found, message["class_name"])(**message["arguments"])
        self._tuner.update_search_space("" if message["space"] is None else message["space"])
        return {}

    def _call(self, message: Message) -> Message:
        if message["method"] == "generate":
            return self._generate(message)
        if message["method"] == "finished":
            self._finish(message)
        elif message["method"] == "late":
            self._receive(message)
        elif message["method"] == "import":
            self._notify("import_data", message["data"])
        elif message["method"] == "exit":
            self._notify("_on_exit")
        return {}

    def _notify(self, method: str, *arguments: Any) -> None:
        """Calls a method that a tuner need not have, since it may be no ``Tuner``."""
        if hasattr(self._tuner, method):
            getattr(self._tuner, method)(*arguments)

    def _generate(self, message: Message) -> Message:
        number = message["id"]
        self._asked.add(number)
        try:
            parameters = self._ask_tuner(number, message["job"], message["is_first"])
        except (NoMoreTrialError, _EmptyListError):
            return {"none": True}
        return self._answer(number, parameters)

    def _answer(self, number: int, parameters: Any) -> Message:
        """Returns the reply with a configuration."""
        self._asked.discard(number)
        plain = json.loads(json.dumps(parameters, default=_plain))
        if number in self._recorded:
            if plain != self._recorded[number]:
                return {"parameters": plain, "differs": True}
            del self._recorded[number]
        self._generated[number] = parameters
        return {"parameters": plain}

    def _answer_later(self, parameter_id: int, parameters: Any) -> None:
        """Sends the configuration of an id that had none: ``st_callback``, which any thread may call."""
        if parameter_id not in self._asked:
            raise ValueError(
                f"st_callback({parameter_id}, ...): this parameter_id has its configuration, or is unknown"
            )
        self._send({"later": parameter_id, **self._answer(parameter_id, parameters)})

    def _ask_tuner(self, number: int, job: str | None, is_first: bool) -> Any:
        keywords: dict[str, Any] = {"st_callback": self._answer_later} if is_first else {}
        keywords |= {} if job is None else {"trial_job_id": job}
        method = getattr(type(self._tuner), "generate_multiple_parameters", None)
        if not is_first or method in (None, Tuner.generate_multiple_parameters):
            generate = self._tuner.generate_parameters
            return generate(number, **_accepted(generate, keywords))
        generate = self._tuner.generate_multiple_parameters
        found = generate([number], **_accepted(generate, keywords))
        if not found:
            raise _EmptyListError
        return found[0]

    def _finish(self, message: Message) -> None:
        if "value" in message:
            self._receive(message)
        self._notify("trial_end", message["id"], message["success"])

    def _receive(self, message: Message) -> None:
        number = message["id"]
        parameters = self._recorded.get(number, self._generated.get(number))
        receive = self._tuner.receive_trial_result
        keywords = {"customized": False, "trial_job_id": message["job"]}
        receive(number, parameters, json.loads(message["value"]), **_accepted(receive, keywords))


def _accepted(function: Callable[..., Any], keywords: dict[str, Any]) -> dict[str, Any]:
    """Returns the keywords that a function accepts."""
    parameters = inspect.signature(function).parameters
    if any(parameter.kind is parameter.VAR_KEYWORD for parameter in parameters.values()):
        return keywords
    return {name: value for name, value in keywords.items() if name in parameters}


def _plain(value: Any) -> Any:
    """Returns a numpy scalar as a number, and a numpy array in NNI's JSON form."""
    if getattr(value, "shape", None) == ():
        return value.item()
    if hasattr(value, "tolist"):
        return {"__ndarray__": value.tolist(), "dtype": str(value.dtype), "shape": list(value.shape)}
    raise TypeError(f"parameters must be JSON, not {value!r:.200} ({type(value).__name__})")


def _users_traceback(error: BaseException) -> str:
    """Returns the traceback without this file's frames above the tuner's."""
    return "".join(traceback.format_exception(type(error), error, _below(error) or error.__traceback__))


def _in_one_line(error: BaseException) -> str:
    """Returns ``Class.method raised Type: first line ... last line``; without the method if this file raised."""
    below = _below(error)
    lines = f"{type(error).__name__}: {error}".strip().splitlines()
    line = " ... ".join([lines[0], *lines[1:][-1:]])
    method = "" if below is None else below.tb_frame.f_code.co_qualname
    return f"{method} raised {line}" if "." in method else line


def _below(error: BaseException) -> TracebackType | None:
    below = error.__traceback__
    while below is not None and below.tb_frame.f_code.co_filename == __file__:
        below = below.tb_next
    return below


def main() -> None:
    """Serves the driver that started this process."""
    connection = socket.socket(fileno=int(os.environ.pop("HEIRLOOM_TUNER_FD")))
    TunerServer(connection).run()
    os._exit(0)


if __name__ == "__main__":
    main()
