"""Runs a command, and ends everything that it started, whichever process ends first.

A program on the standard library alone: ``python -I -S supervisor.py DRIVER CONTROL FDS COMMAND...``. DRIVER is the
parent's process id, CONTROL the descriptor of a socket to it, FDS are descriptors for the command alone.

There are two processes between driver and command. The guard is the driver's child; the keeper is forked from it and
is the command's parent. Both are child subreapers: a process of any session becomes a child of one of them when its
own parent ends. If any one of driver, guard, keeper and command ends, the others end the rest.

The driver sends orders of one word, and gets one line back for each:

* pid: the process id of the command.
* mark: later sweeps keep what runs now.
* sweep: ends all else that the command started. ``restless`` means that new processes kept appearing.

The end of CONTROL ends everything. The exit status is the command's own, a signal included.

macOS has no subreapers: processes are found in a snapshot of ``ps`` and in the command's process group. A process
that has left both, by a double fork and ``setsid``, is not ended there.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple

IS_LINUX = sys.platform == "linux"
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36
SWEEP_S = 1.0
"""Seconds until a sweep that still finds new processes gives up."""
END_S = 10.0
"""Seconds to wait for processes that outlive SIGKILL.

They hang in the kernel and run no more code of their own.
"""
CLEANUP_S = 0.5
"""Seconds for resource trackers to unlink shared memory whose users have ended."""
TRACKERS = ("multiprocessing.resource_tracker", "torch_shm_manager")
SERVICES = (*TRACKERS, "torch/_inductor/compile_worker")
"""Processes that a library starts once, and whose end it does not notice."""
POLL_MS = 500
"""Interval of checks for the parent's end if the system has no process descriptors."""
IGNORED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGPIPE)
"""Signals that guard and keeper ignore: the driver decides when a command ends."""


class Row(NamedTuple):
    """A process: its parent, its start time, and whether it is a zombie."""

    parent: int
    start: str
    is_zombie: bool


def read_stat(pid: int) -> Row:
    """Returns the row of a process from ``/proc``."""
    file = os.open(f"/proc/{pid}/stat", os.O_RDONLY)
    try:
        text = os.read(file, 1024)
    finally:
        os.close(file)
    fields = text[text.rindex(b")") + 2 :].split(None, 20)
    return Row(int(fields[1]), fields[19].decode(), fields[0] in b"ZX")


def rows_of_proc() -> dict[int, Row]:
    """Returns all processes by id, from ``/proc``."""
    found = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        with contextlib.suppress(OSError, ValueError):  # it has ended meanwhile
            found[int(name)] = read_stat(int(name))
    return found


def run_ps(columns: str, *selection: str) -> tuple[int, str]:
    """Returns the process id and the output of ``ps``."""
    import subprocess  # not on Linux, where it would double the memory of this program

    with subprocess.Popen(["ps", *selection, "-o", columns], stdout=subprocess.PIPE, text=True) as process:
        output, _ = process.communicate()
    return process.pid, output


def rows_of_ps() -> dict[int, Row]:
    """Returns all processes by id, from ``ps``, which is itself left out. For systems without ``/proc``."""
    own_pid, output = run_ps("pid=,ppid=,stat=,lstart=", "-ax")
    rows = (line.split(None, 3) for line in output.splitlines())
    found = {int(pid): Row(int(parent), start, state.startswith("Z")) for pid, parent, state, start in rows}
    found.pop(own_pid, None)
    return found


def descendants(root: int) -> dict[int, Row]:
    """Returns all processes below ``root`` by id."""
    rows = rows_of_proc() if IS_LINUX else rows_of_ps()
    below: dict[int, Row] = {}
    parents = {root}
    while parents:
        parents = {pid for pid, row in rows.items() if row.parent in parents and pid not in below}
        below.update((pid, rows[pid]) for pid in parents)
    return below


def kill(pid: int, start: str) -> None:
    """Kills a process, but never a later one with the same id."""
    if not IS_LINUX:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
        return
    with contextlib.suppress(OSError, ValueError):
        handle = open_handle(pid)
        try:
            if read_stat(pid).start == start:
                os.kill(pid, signal.SIGKILL) if handle is None else signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            if handle is not None:
                os.close(handle)


def open_handle(pid: int) -> int | None:
    """Returns a descriptor that becomes readable when the process ends.

    None: before Linux 5.3, and on other systems.
    """
    with contextlib.suppress(OSError, AttributeError):
        return os.pidfd_open(pid)
    return None


def is_one_of(names: Iterable[str], pid: int) -> bool:
    """Returns whether the command line of a process includes one of the names."""
    if not IS_LINUX:
        _, line = run_ps("args=", "-p", str(pid))
        return any(name in line for name in names)
    with contextlib.suppress(OSError), open(f"/proc/{pid}/cmdline", errors="replace") as file:
        line = file.read()
        return any(name in line for name in names)
    return False


class Supervisor:
    """Waits for an end, then ends the rest: common to guard and keeper.

    Args:
        child: The direct child: the keeper, or the command.
    """

    def __init__(self, child: int) -> None:
        self.child = child
        self.status: int | None = None
        """The wait status of the child, once it has ended."""
        self._marked: set[tuple[int, str]] = set()

    def reap(self) -> int:
        """Waits for all children that have ended, adopted ones included. Returns how many."""
        count = 0
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                count += 1
                if ended[0] == self.child:
                    self.status = ended[1]
        return count

    def wait_for_end(self, control: socket.socket, handles: Iterable[int | None], *, answers_orders: bool) -> None:
        """Returns when the child, the driver, the parent or another watched process has ended.

        Args:
            control: The socket to the driver.
            handles: Descriptors of watched processes. None: only the parent's end is noticed, a little later.
            answers_orders: Whether to answer orders of the driver.
        """
        parent = os.getppid()
        awake, wake = os.pipe()
        os.set_blocking(wake, False)
        signal.set_wakeup_fd(wake, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        poll = select.poll()
        known = [handle for handle in handles if handle is not None]
        for fd in (awake, *known):
            poll.register(fd, select.POLLIN)
        poll.register(control, select.POLLIN if answers_orders else 0)  # its end is reported in any case
        timeout_ms = None if known else POLL_MS
        self.reap()
        while self.status is None and os.getppid() == parent:
            for fd, event in poll.poll(timeout_ms):
                if fd == awake:
                    os.read(awake, 4096)
                elif fd != control.fileno() or not event & select.POLLIN or not self._answer_orders(control):
                    return
            self.reap()

    def end(self, limit_s: float = END_S) -> None:
        """Kills everything below this process."""
        self._end_below(limit_s, spare=lambda below: set())
        self.reap()

    def _answer_orders(self, control: socket.socket) -> bool:
        """Answers orders. Returns False if the driver has closed the socket."""
        answers = {"pid": lambda: str(self.child), "mark": self._mark, "sweep": self._sweep}
        try:
            orders = control.recv(4096).decode().split()
            for order in orders:
                control.sendall(f"{answers[order]()}\n".encode())
        except OSError:
            return False
        return bool(orders)

    def _mark(self) -> str:
        self._marked = {(pid, row.start) for pid, row in descendants(os.getpid()).items() if not row.is_zombie}
        return "marked"

    def _sweep(self) -> str:
        return "swept" if self._end_below(SWEEP_S, spare=self._kept) else "restless"

    def _kept(self, below: Mapping[int, Row]) -> set[int]:
        """Returns what a sweep spares: the command, what was marked, and the command's service processes."""
        kept = {self.child, *(pid for pid, row in below.items() if (pid, row.start) in self._marked)}
        services = {pid for pid, row in below.items() if row.parent == self.child and is_one_of(SERVICES, pid)}
        while services - kept:
            kept |= services
            services = {pid for pid, row in below.items() if row.parent in services}
        return kept

    def _end_below(self, limit_s: float, spare: Callable[[Mapping[int, Row]], set[int]]) -> bool:
        """Kills what is below this process, except what is spared. Returns whether nothing else is left.

        A process that forks and ends on and on is in no snapshot, but its ancestors become zombies of this process.
        So nothing is left only if a look finds nothing and nothing was reaped during it.
        """
        began_s, pause_s = time.monotonic(), 0.001
        while True:
            below = descendants(os.getpid())
            spared = spare(below)
            if not IS_LINUX and self.child not in spared:  # the orphans of the command, as there is no subreaper
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.killpg(self.child, signal.SIGKILL)
            left = {pid: row for pid, row in below.items() if pid not in spared and not row.is_zombie}
            users = {pid for pid in left if not is_one_of(TRACKERS, pid)}
            seconds = time.monotonic() - began_s
            for pid, row in left.items():
                if pid in users or (not users and seconds > CLEANUP_S):
                    kill(pid, row.start)
            is_calm = not self.reap() and not left
            if is_calm or seconds > limit_s:
                return is_calm
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, 0.02)


def close_all(fds: Iterable[int]) -> None:
    """Closes descriptors, those that are closed already included."""
    for fd in fds:
        with contextlib.suppress(OSError):
            os.close(fd)


def adopt_orphans() -> None:
    """Makes orphaned descendants children of this process. A forked child does not inherit this."""
    if IS_LINUX:
        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end_like(status: int | None) -> None:
    """Ends this process as its child ended."""
    code = 1 if status is None else os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # the child has written its own dump
        with contextlib.suppress(OSError, ValueError):  # SIGKILL
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    os._exit(abs(code))


def run_command(keeper: int, fds: Iterable[int], command: list[str]) -> None:
    """Becomes the command, in a session of its own, with the default handlers of all signals."""
    if IS_LINUX:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != keeper:
        os._exit(1)
    os.setsid()  # a trial's os.killpg(0, ...) does not reach its keeper
    for number in signal.valid_signals() - {signal.SIGKILL, signal.SIGSTOP}:
        with contextlib.suppress(OSError, ValueError):  # those that the C library keeps for itself
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    for fd in fds:
        os.set_inheritable(fd, True)
    os.execvp(command[0], command)


def keep(guard: int, driver: int | None, control: socket.socket, fds: list[int], command: list[str]) -> None:
    """Runs the keeper: starts the command, follows orders, and ends everything."""
    handle = open_handle(guard)
    if os.getppid() != guard:
        os._exit(1)
    os.setsid()
    adopt_orphans()
    me = os.getpid()
    child = os.fork()
    if child == 0:
        run_command(me, fds, command)
    close_all(fds)
    supervisor = Supervisor(child)
    supervisor.wait_for_end(control, (driver, handle), answers_orders=True)
    supervisor.end()
    end_like(supervisor.status)


def main(arguments: list[str]) -> None:
    """Runs the guard."""
    for number in IGNORED:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    driver, control = int(arguments[0]), socket.socket(fileno=int(arguments[1]))
    fds, command = [int(fd) for fd in arguments[2].split(",") if fd], arguments[3:]
    for fd in (control.fileno(), *fds):
        os.set_inheritable(fd, False)
    adopt_orphans()
    handle = open_handle(driver)
    if os.getppid() != driver:
        os._exit(1)
    guard = os.getpid()
    keeper = os.fork()
    if keeper == 0:
        keep(guard, handle, control, fds, command)
    close_all(fds)
    supervisor = Supervisor(keeper)
    supervisor.wait_for_end(control, (handle,), answers_orders=False)
    until_s = time.monotonic() + 2 * CLEANUP_S
    while supervisor.status is None and time.monotonic() < until_s:  # the keeper ends everything, unless it was stopped
        time.sleep(0.005)
        supervisor.reap()
    supervisor.end()
    end_like(supervisor.status)


if __name__ == "__main__":
    main(sys.argv[1:])
