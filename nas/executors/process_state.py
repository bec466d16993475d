"""The state of a worker process that a trial may change, restored after each trial."""

from __future__ import annotations

import asyncio.events
import builtins
import concurrent.futures.thread
import decimal
import faulthandler
import fcntl
import gc
import locale
import logging
import multiprocessing.context
import os
import resource
import signal
import socket
import sys
import tempfile
import threading
import time
import tracemalloc
import warnings
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_modules
from torch.optim import optimizer as torch_optimizer
from torch.utils import _python_dispatch
from torch.utils._device import DeviceContext

from nas.storage.posix import umask
from nas.training.torch_settings import SavedSettings, Setting, attributes, torch_settings

LASTING_THREADS = ("tqdm", "fsspec", "torch._inductor", "joblib", "loky")
"""Modules and names of threads that libraries keep for the life of a process."""
THREADS_TIMEOUT_S = 0.2
TIMERS = (signal.ITIMER_REAL, signal.ITIMER_VIRTUAL, signal.ITIMER_PROF)
IMPORT_HOOKS = ("meta_path", "path_hooks")


class ProcessState:
    """A snapshot of the process, taken when its problem is built.

    Left alone: modules that a trial imports and their import hooks, monkey patches, and settings of other libraries.
    Handlers of ``atexit`` and of forks stay, too, and so do leaked descriptors.

    Args:
        pipe: The descriptor of the pipe to the driver.

    Attributes:
        unfit: Why this process must be replaced, because something can't be restored; None: it need not be.
    """

    def __init__(self, pipe: int) -> None:
        self.unfit: str | None = None
        self._pipe = pipe, _identity(pipe)
        self._folder = os.open(".", os.O_RDONLY)  # usable even if the folder is removed
        self._streams = [(fd, _identity(fd), os.dup(fd)) for fd in (0, 1, 2)]
        self._texts = [_text_stream(name) for name in ("stdout", "stderr")]
        self._settings = SavedSettings(_settings())
        self._containers = [
            (owner, name, getattr(owner, name), getattr(owner, name).copy()) for owner, name in _containers()
        ]
        self._modes = _take_modes()
        _put_modes(self._modes)
        self._settings.restore()  # the default device is a mode
        self._traces = sys.gettrace(), sys.getprofile()
        self._timers = [(timer, signal.getitimer(timer)) for timer in TIMERS]
        self._import_hooks = [(name, getattr(sys, name), getattr(sys, name).copy()) for name in IMPORT_HOOKS]
        self._names = _names()
        self._wakeup_fd = signal.set_wakeup_fd(-1)
        signal.set_wakeup_fd(self._wakeup_fd)
        self._lasting = _lasting_state()
        self._threads = set(threading.enumerate())

    @property
    def has_pipe(self) -> bool:
        """Whether the pipe to the driver is still open."""
        return _identity(self._pipe[0]) == self._pipe[1]

    def restore(self) -> None:
        """Restores everything that can be restored. Sets ``unfit`` if that fails."""
        self._attempt(self._restore)

    def check(self) -> None:
        """Sets ``unfit`` if something is left that ``restore`` does not fix.

        Called when the trial's objects are gone, since they keep threads alive.
        """
        self._attempt(self._restore)
        self._attempt(self._find_damage)
        self._names = _names()

    def _attempt(self, step: Callable[[], str | None]) -> None:
        """Sets ``unfit`` if the step fails or returns a reason."""
        try:
            sys.setrecursionlimit(max(1000, sys.getrecursionlimit()))  # first, since the rest needs a few frames
            sys.settrace(self._traces[0])
            sys.setprofile(self._traces[1])
            for names, content in self._names:  # added ones stay: libraries that a trial imported need them
                names.update(content)
            found = step()
            self.unfit = self.unfit or found
        except Exception as error:
            self.unfit = self.unfit or f"its state can't be restored ({type(error).__name__}: {error})"

    def _restore(self) -> None:
        changed = [  # a periodic timer that still runs isn't begun again
            (timer, saved) for timer, saved in self._timers if not saved[1] or signal.getitimer(timer)[1] != saved[1]
        ]
        for timer, _ in changed:
            signal.setitimer(timer, 0)
        faulthandler.cancel_dump_traceback_later()
        signal.set_wakeup_fd(self._wakeup_fd)
        for fd, identity, copy in self._streams:
            if _identity(fd) != identity:
                os.dup2(copy, fd)
        self._restore_streams()
        os.fchdir(self._folder)
        for owner, name, container, content in self._containers:
            if container != content:
                container.clear()
                container.extend(content) if isinstance(container, list) else container.update(content)
            setattr(owner, name, container)
        for name, hooks, content in self._import_hooks:  # added ones stay: modules that a trial imported need them
            found = getattr(sys, name, ())
            hooks[:] = [*(hook for hook in content if hook not in found), *found]
            setattr(sys, name, hooks)
        warnings._filters_mutated()  # type: ignore[attr-defined]  # the interpreter caches decisions
        _take_modes()
        _put_modes(self._modes)
        self._settings.restore()
        for timer, saved in changed:
            signal.setitimer(timer, *saved)
        torch.clear_autocast_cache()
        while forward_ad._current_level >= 0:
            forward_ad.exit_dual_level()  # type: ignore[no-untyped-call]
        if torch._C._autograd._profiler_enabled():
            torch._C._autograd._disable_profiler()
        if "torch._dynamo" in sys.modules:
            torch._dynamo.reset()

    def _restore_streams(self) -> None:
        for (name, stream, options), fd in zip(self._texts, (1, 2), strict=True):
            try:
                stream.reconfigure(**options)
            except ValueError:
                stream = os.fdopen(fd, "w", buffering=1, errors="backslashreplace", closefd=False)
                self.unfit = self.unfit or f"sys.{name} was closed"
            setattr(sys, name, stream)

    def _find_damage(self) -> str | None:
        if not self.has_pipe:
            return "its pipe was closed"
        for what, value in _lasting_state().items():
            if value != self._lasting[what]:
                return what
        if torch.is_inference_mode_enabled() or torch._C._functorch.peek_interpreter_stack() is not None:
            return "a mode of torch was left on"
        if len(os.listdir("/dev/fd")) > resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 2:
            return "half of its descriptors are in use"
        return self._find_thread() or _cuda_error()

    def _find_thread(self) -> str | None:
        """Returns the thread of a trial that still runs after a while, or None."""
        until_s = time.monotonic() + THREADS_TIMEOUT_S
        if left := self._new_threads():
            gc.collect()  # ends the threads of loaders and executors that only a cycle of references keeps
        while left and time.monotonic() < until_s:
            time.sleep(0.01)
            left = self._new_threads()
        return f"a thread was left running ({left[0].name})" if left else None

    def _new_threads(self) -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if thread not in self._threads and not _lasts(thread)]


def _lasts(thread: threading.Thread) -> bool:
    """Returns whether a thread belongs to a library, or to a pool and waits."""
    target = getattr(thread, "_target", None)
    names = (thread.name, type(thread).__module__, getattr(target, "__module__", None) or "")
    frame = sys._current_frames().get(thread.ident or 0)
    is_waiting = frame is not None and frame.f_code is concurrent.futures.thread._worker.__code__
    return is_waiting or any(name.startswith(LASTING_THREADS) for name in names)


def _settings() -> Iterable[Setting]:
    """Yields the settings of the process and of libraries."""
    yield sys.getrecursionlimit, sys.setrecursionlimit
    yield sys.getswitchinterval, sys.setswitchinterval
    yield threading.gettrace, threading.settrace
    yield threading.getprofile, threading.setprofile
    yield gc.get_threshold, lambda value: gc.set_threshold(*value)
    yield gc.isenabled, lambda value: gc.enable() if value else gc.disable()
    yield gc.get_debug, gc.set_debug
    yield threading.stack_size, threading.stack_size
    yield tracemalloc.is_tracing, lambda value: tracemalloc.start() if value else tracemalloc.stop()
    yield sys.get_int_max_str_digits, sys.set_int_max_str_digits
    yield lambda: time.tzname, lambda _: time.tzset()  # the environment is restored by now
    yield from _event_loops()
    yield umask, os.umask
    yield partial(signal.pthread_sigmask, signal.SIG_BLOCK, ()), partial(signal.pthread_sigmask, signal.SIG_SETMASK)
    yield from (_handler(number) for number in signal.valid_signals() if signal.getsignal(number) is not None)
    yield from (_limit(name) for name in dir(resource) if name.startswith("RLIMIT_"))
    yield partial(os.getpriority, os.PRIO_PROCESS, 0), partial(os.setpriority, os.PRIO_PROCESS, 0)
    if sys.platform == "linux":
        yield partial(os.sched_getaffinity, 0), partial(os.sched_setaffinity, 0)
        yield _scheduler, lambda value: os.sched_setscheduler(0, value[0], os.sched_param(value[1]))
    yield partial(locale.setlocale, locale.LC_ALL), partial(locale.setlocale, locale.LC_ALL)
    yield socket.getdefaulttimeout, socket.setdefaulttimeout
    yield lambda: decimal.getcontext().copy(), lambda context: decimal.setcontext(context.copy())
    yield np.geterr, lambda value: np.seterr(**value)
    yield np.get_printoptions, lambda value: np.set_printoptions(**value)
    yield np.getbufsize, np.setbufsize
    yield np.random.get_bit_generator, np.random.set_bit_generator  # type: ignore[attr-defined]
    names = ("stdin", "__stdout__", "__stderr__", "excepthook", "displayhook", "unraisablehook", "breakpointhook")
    yield from attributes(sys, *names, "tracebacklimit", "dont_write_bytecode")
    yield from ((partial(fcntl.fcntl, fd, fcntl.F_GETFL), partial(fcntl.fcntl, fd, fcntl.F_SETFL)) for fd in (0, 1, 2))
    yield faulthandler.is_enabled, lambda value: faulthandler.enable() if value else faulthandler.disable()
    yield from attributes(threading, "excepthook")
    yield from attributes(warnings, "showwarning", "formatwarning", "_showwarnmsg_impl")
    yield from attributes(tempfile, "tempdir")
    yield from attributes(multiprocessing.context._default_context, "_actual_context")
    yield from attributes(logging.root.manager, "disable")
    yield from attributes(logging, "raiseExceptions", "lastResort", "_loggerClass", "_logRecordFactory")
    for handler in {handler for logger in _loggers() for handler in logger.handlers}:
        yield from attributes(handler, "level", "formatter")
        if type(handler) is logging.StreamHandler:
            yield from attributes(handler, "stream")
    for logger in _loggers():
        yield partial(getattr, logger, "level"), logger.setLevel
        yield from attributes(logger, "propagate", "disabled")
    yield lambda: sys.float_info.min / 2 == 0, torch.set_flush_denormal
    yield from torch_settings()


def _containers() -> Iterable[tuple[Any, str]]:
    """Yields the owners and names of lists and dictionaries that are restored with their content."""
    yield from ((sys, "path"), (sys, "argv"), (os, "environ"), (gc, "callbacks"), (warnings, "filters"))
    for logger in _loggers():
        yield from ((logger, "handlers"), (logger, "filters"))
    for owner in (torch_modules, torch_optimizer):
        hooks = (name for name, found in sorted(vars(owner).items()) if isinstance(found, dict))
        yield from ((owner, name) for name in hooks if name.startswith("_global_"))


def _names() -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Returns the dictionaries of builtins and modules, each with a copy."""
    return [(names, dict(names)) for names in (vars(builtins), sys.modules)]


def _loggers() -> list[logging.Logger]:
    known = logging.root.manager.loggerDict.values()
    return [logging.root, *(logger for logger in known if isinstance(logger, logging.Logger))]


def _event_loops() -> Iterable[Setting]:
    """Yields asyncio's policy, and the event loop that it has for this thread."""
    yield from attributes(asyncio.events, "_event_loop_policy")
    if (known := getattr(asyncio.events._event_loop_policy, "_local", None)) is not None:  # type: ignore[attr-defined]
        loops = vars(known)
        yield lambda: dict(loops), lambda value: (loops.clear(), loops.update(value))


def _text_stream(name: str) -> tuple[str, Any, dict[str, Any]]:
    """Returns a stream with its name and its options."""
    stream = getattr(sys, name)
    options = ("encoding", "errors", "line_buffering", "write_through")
    return name, stream, {option: getattr(stream, option) for option in options}


def _scheduler() -> tuple[int, int]:
    return os.sched_getscheduler(0), os.sched_getparam(0).sched_priority


def _handler(number: int) -> Setting:
    return partial(signal.getsignal, number), partial(signal.signal, number)


def _limit(name: str) -> Setting:
    number = getattr(resource, name)
    return partial(resource.getrlimit, number), partial(resource.setrlimit, number)


def _identity(fd: int) -> tuple[int, int] | None:
    """Returns a value that identifies the file of a descriptor. None: it is closed."""
    try:
        found = os.fstat(fd)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _lasting_state() -> dict[str, object]:
    """Returns what can't be restored, by what a change of it is called."""
    distributed = sys.modules.get("torch.distributed")
    return {
        "it runs as another user": (os.getuid(), os.geteuid(), os.getgid(), os.getegid()),
        "the number of torch's interop threads was set": torch.get_num_interop_threads(),
        "a process group of torch.distributed was left": distributed is not None
        and distributed.is_available()
        and distributed.is_initialized(),
    }


def _take_modes() -> list[list[Any]]:
    """Removes torch's function modes, dispatch modes and hooks of saved tensors, and returns them, innermost first."""
    torch.set_default_device(None)
    hooks = torch._C._autograd
    function_modes = [torch._C._pop_torch_function_stack() for _ in range(torch._C._len_torch_function_stack())]
    dispatch_modes = [_python_dispatch._pop_mode() for _ in range(torch._C._len_torch_dispatch_stack())]
    saved_hooks = []
    while found := hooks._top_saved_tensors_default_hooks(True):
        saved_hooks.append(found)
        hooks._pop_saved_tensors_default_hooks()
    return [[mode for mode in function_modes if not isinstance(mode, DeviceContext)], dispatch_modes, saved_hooks]


def _put_modes(modes: list[list[Any]]) -> None:
    """Puts back what ``_take_modes`` has removed, the default device excepted."""
    function_modes, dispatch_modes, saved_hooks = modes
    for mode in reversed(function_modes):
        torch._C._push_on_torch_function_stack(mode)
    for mode in reversed(dispatch_modes):
        _python_dispatch._push_mode(mode)
    for pack, unpack in reversed(saved_hooks):
        torch._C._autograd._push_saved_tensors_default_hooks(pack, unpack)


def _cuda_error() -> str | None:
    """Returns why the process is unfit if an earlier error has broken its CUDA context."""
    if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        return None
    try:
        torch.cuda.synchronize()
    except RuntimeError as error:
        return f"a CUDA error ({str(error).splitlines()[0]})"
    return None
