"""A problem whose trials change the state of their process in all sorts of ways."""

from __future__ import annotations

import asyncio
import builtins
import colorsys
import contextlib
import decimal
import faulthandler
import gc
import importlib.util
import locale
import logging
import multiprocessing
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
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from typing import Any

import numpy as np
import torch
from torch.autograd import forward_ad
from torch.nn.modules import module as torch_modules
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.overrides import BaseTorchFunctionMode, TorchFunctionMode, _get_current_function_mode_stack
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode_stack

from nas import Choice, Metric, ParameterSpace, Problem, TrialRun
from nas.storage.records import Records
from nas.training.torch_settings import torch_settings


class RaisingMode(TorchDispatchMode):
    """A mode in which no operation works."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("the dispatch mode is on")


class RaisingFunctionMode(TorchFunctionMode):
    """A mode in which no function works."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        raise RuntimeError("the function mode is on")


class QuietMode(TorchDispatchMode):
    """A mode that changes nothing."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return function(*args, **(kwargs or {}))


def set_up() -> None:
    """Changes what a problem's constructor may change for all of its trials."""
    decimal.getcontext().prec = 7
    torch.set_flush_denormal(True)
    torch.backends.cudnn.conv.fp32_precision = "ieee"  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    sys.settrace(ignore)
    sys.setprofile(ignore)
    signal.signal(signal.SIGALRM, ignore)
    signal.setitimer(signal.ITIMER_REAL, 1000, 1000)
    torch.set_default_device("cpu:0")
    BaseTorchFunctionMode().__enter__()
    QuietMode().__enter__()
    torch.autograd.graph.saved_tensors_hooks(torch.clone, torch.clone).__enter__()


def undo() -> None:
    """Undoes what ``set_up`` does."""
    decimal.setcontext(decimal.Context())
    torch.set_flush_denormal(False)
    torch.backends.cudnn.conv.fp32_precision = "tf32"  # type: ignore[attr-defined]
    torch.backends.cuda.matmul.fp32_precision = "none"
    sys.settrace(None)
    sys.setprofile(None)
    signal.setitimer(signal.ITIMER_REAL, 0)
    torch._C._pop_torch_function_stack()
    torch._C._pop_torch_dispatch_stack(None)
    torch._C._autograd._pop_saved_tensors_default_hooks()


def ignore(*arguments: object) -> None:
    """Does nothing: a handler, and a trace function."""


def leave_folder() -> None:
    """Changes to a folder that is removed then."""
    folder = tempfile.mkdtemp()
    os.chdir(folder)
    os.rmdir(folder)


def fail(error: Exception) -> None:
    """Raises the error."""
    raise error


def lower_soft_limit() -> None:
    """Lowers the number of open files."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (64, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))


def use_up_descriptors() -> None:
    """Opens files until no more can be opened."""
    with contextlib.suppress(OSError):
        while True:
            os.dup(0)


def cancel_autocast() -> None:
    """Leaves a context of mixed precision without leaving it."""
    torch.autocast("cpu").__enter__()


def rebind() -> None:
    """Gives names of the process other objects."""
    sys.argv, sys.path, sys.meta_path, sys.path_hooks = ["trial"], ["/more", *sys.path], [], []
    vars(os)["environ"] = {}
    logging.root.handlers, logging.root.filters = [], [fail]  # type: ignore[list-item]


class LibraryFinder(MetaPathFinder):
    """The import hook of a library: it finds one module."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> ModuleSpec | None:
        """Finds a module under another name."""
        return importlib.util.spec_from_file_location(name, colorsys.__file__) if name == "library_part" else None


FINDER = LibraryFinder()


def use_library() -> None:
    """Uses a library: at first it is imported, later a part of it that only its own import hook finds."""
    if "library" in sys.modules:
        importlib.import_module("library_part")
    else:
        sys.modules["library"] = colorsys
        sys.meta_path.append(FINDER)


def change_interpreter() -> None:
    """Changes settings of the interpreter, and orders its end."""
    faulthandler.dump_traceback_later(0.5, exit=True)
    faulthandler.disable()
    threading.stack_size(65536)
    gc.set_debug(gc.DEBUG_SAVEALL)
    tracemalloc.start()
    sys.set_int_max_str_digits(640)
    sys.tracebacklimit = 0


def remove_names() -> None:
    """Removes a builtin and modules, and replaces another builtin."""
    del builtins.sorted
    builtins.print = lambda *values, **options: None  # type: ignore[assignment]
    sys.modules["json"] = None  # type: ignore[assignment]
    del sys.modules["nas.training.attempt"]


def change_torch() -> None:
    """Changes what is no setting of torch's backends."""
    forward_ad.enter_dual_level()  # type: ignore[no-untyped-call]
    torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]).start()
    register_optimizer_step_pre_hook(lambda *_: fail(RuntimeError("hook")))
    torch.jit._state.disable()  # type: ignore[no-untyped-call]


def leave_group() -> None:
    """Leaves a process group."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)


POOL = ThreadPoolExecutor(1)
RESTORED: dict[str, Callable[[], object]] = {
    "recursion limit": lambda: (sys.setrecursionlimit(60), torch.set_default_dtype(torch.float64)),
    "closed output": lambda: [os.close(fd) for fd in (0, 1, 2)],
    "no output": lambda: (delattr(sys, "stdout"), setattr(sys, "stderr", None)),
    "form of output": lambda: (sys.stdout.reconfigure(encoding="ascii", errors="strict"), os.set_blocking(1, False)),  # type: ignore[union-attr]
    "interpreter": change_interpreter,
    "builtins and modules": remove_names,
    "time zone": lambda: (os.environ.update(TZ="Asia/Tokyo"), time.tzset()),
    "event loop": lambda: (asyncio.set_event_loop(loop := asyncio.new_event_loop()), loop.close()),
    "modules' path": sys.path.clear,
    "environment": os.environ.clear,
    "arguments": lambda: sys.argv.append("--more"),
    "names": rebind,
    "folder": leave_folder,
    "mask of files": lambda: os.umask(0),
    "signals": lambda: (signal.signal(signal.SIGTERM, signal.SIG_IGN), signal.signal(signal.SIGUSR1, signal.SIG_IGN)),
    "blocked signals": lambda: signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals()),
    "alarm": lambda: (signal.signal(signal.SIGALRM, signal.SIG_DFL), signal.setitimer(signal.ITIMER_REAL, 30)),
    "soft limit": lower_soft_limit,
    "cores": lambda: os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]),
    "locale": lambda: locale.setlocale(locale.LC_ALL, "C.UTF-8"),
    "time limit of sockets": lambda: socket.setdefaulttimeout(0.001),
    "temporary folder": lambda: setattr(tempfile, "tempdir", "/nowhere"),
    "warnings": lambda: warnings.simplefilter("error"),
    "caught warnings": lambda: (warnings.catch_warnings(record=True).__enter__(), warnings.simplefilter("error")),
    "logging": lambda: (logging.disable(50), logging.root.handlers.clear(), logging.root.setLevel(50)),
    "loggers": lambda: (logging.setLogRecordFactory(fail), logging.root.handlers[0].setLevel(50)),  # type: ignore[arg-type]
    "garbage collector": lambda: (gc.disable(), gc.set_threshold(1)),
    "numpy's errors": lambda: np.seterr(all="raise"),
    "numpy's generator": lambda: np.random.set_bit_generator(np.random.PCG64()),  # type: ignore[attr-defined]
    "torch's modes": change_torch,
    "decimal": lambda: setattr(decimal.getcontext(), "prec", 1),
    "start method": lambda: multiprocessing.set_start_method("spawn", force=True),
    "type": lambda: torch.set_default_dtype(torch.float64),
    "precision": lambda: (
        setattr(torch.backends.cudnn.conv, "fp32_precision", "ieee"),  # type: ignore[attr-defined]
        setattr(torch.backends.cuda.matmul, "fp32_precision", "tf32"),
    ),
    "old precision": lambda: torch.set_float32_matmul_precision("medium"),
    "device": lambda: torch.set_default_device("meta"),
    "gradients": lambda: torch.set_grad_enabled(False),
    "autocast": cancel_autocast,
    "anomalies": lambda: torch.autograd.set_detect_anomaly(True),
    "tiny numbers": lambda: torch.set_flush_denormal(True),
    "dispatch mode": lambda: RaisingMode().__enter__(),
    "function mode": lambda: RaisingFunctionMode().__enter__(),
    "saved tensors": lambda: torch.autograd.graph.saved_tensors_hooks(fail, fail).__enter__(),  # type: ignore[arg-type]
    "pool of threads": lambda: POOL.submit(print).result(),
    "modules' hooks": lambda: torch_modules.register_module_forward_hook(lambda *_: fail(RuntimeError("hook"))),
}
"""Changes that are restored."""
KEPT: dict[str, Callable[[], object]] = {"library": use_library}
"""Changes that stay."""
REPLACED: dict[str, Callable[[], object]] = {
    "thread": lambda: threading.Thread(target=threading.Event().wait, daemon=True).start(),
    "hard limit": lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64)),
    "stream object": lambda: (sys.stdout.close(), sys.stderr.close()),
    "stream without a file": lambda: sys.stdout.detach(),  # type: ignore[union-attr]
    "interop threads": lambda: torch.set_num_interop_threads(7),
    "process group": leave_group,
    "our own code": lambda: setattr(Records, "commit", None),
    "pipe": lambda: os.closerange(3, 200),
    "descriptors": use_up_descriptors,
    "CUDA": lambda: fail(RuntimeError("CUDA error: device-side assert triggered")),
}
"""Changes after which the worker is replaced."""


class BreakingProblem(Problem):
    """Tells the state of its process, trains a step, and breaks what its point names.

    Args:
        sets_up: Whether the constructor changes the state of the process.
    """

    metrics = (Metric("state"), Metric("pid"))
    space = ParameterSpace({"change": Choice("nothing", "undo", *RESTORED, *KEPT, *REPLACED)})

    def __init__(self, sets_up: bool = False) -> None:
        if sets_up:
            set_up()

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Returns a number for the state that was found."""
        print("in order ✓", flush=True)
        found = state()
        network = torch.nn.Linear(4, 4)
        network(torch.randn(2, 4)).sum().backward()
        torch.optim.Adam(network.parameters()).step()
        {**RESTORED, **KEPT, **REPLACED, "nothing": lambda: None, "undo": undo}[run.point["change"]]()
        return {"state": hash(found) % 2**31, "pid": os.getpid()}

    def test(self, run: TrialRun) -> Mapping[str, float]:
        """Does the same."""
        return self.train(run)


def state() -> str:
    """Describes the state of the process."""
    found = [
        *(sys.getrecursionlimit(), sys.path, sys.argv, sorted(os.environ.items()), os.getcwd()),
        *([finder for finder in sys.meta_path if finder is not FINDER], sys.path_hooks),
        *(logging.root.filters, warnings._showwarnmsg_impl),  # type: ignore[attr-defined]
        *(signal.getsignal(signal.SIGTERM), signal.getsignal(signal.SIGUSR1)),
        *(signal.getsignal(signal.SIGALRM), signal.getitimer(signal.ITIMER_REAL)[0] > 0),
        signal.getitimer(signal.ITIMER_REAL)[1],
        *(sys.gettrace(), sys.getprofile(), _get_current_dispatch_mode_stack()),
        [type(mode).__name__ for mode in _get_current_function_mode_stack()],
        torch._C._autograd._top_saved_tensors_default_hooks(True),
        *(signal.pthread_sigmask(signal.SIG_BLOCK, []), resource.getrlimit(resource.RLIMIT_NOFILE)),
        *(os.sched_getaffinity(0), locale.setlocale(locale.LC_ALL), socket.getdefaulttimeout(), tempfile.tempdir),
        *(len(warnings.filters), logging.root.manager.disable, logging.root.level, len(logging.root.handlers)),
        *(gc.isenabled(), gc.get_threshold(), np.geterr(), decimal.getcontext().prec, os.umask(0o22)),
        *(multiprocessing.get_start_method(), torch.get_default_dtype(), torch.get_default_device()),
        [read() for read, _ in torch_settings()],
        *(faulthandler.is_enabled(), threading.stack_size(), gc.get_debug(), tracemalloc.is_tracing()),
        *(sys.get_int_max_str_digits(), getattr(sys, "tracebacklimit", None), os.get_blocking(1), time.tzname),
        *(print.__module__, importlib.import_module("json").__name__, len(sorted(vars(builtins)))),
        *(logging.getLogRecordFactory(), logging.root.handlers[0].level, asyncio.events._event_loop_policy),  # type: ignore[attr-defined]
        *(forward_ad._current_level, torch._C._autograd._profiler_enabled(), type(np.random.get_bit_generator())),  # type: ignore[attr-defined]
        *(torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch.is_anomaly_enabled()),
        *((torch.tensor(1e-310, dtype=torch.float64) * 1).item() == 0, [os.fstat(fd).st_ino for fd in (0, 1, 2)]),
    ]
    return repr(found)
