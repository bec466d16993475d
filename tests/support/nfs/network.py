"""Machines as namespaces, each with a name, an address, processes and mounts of its own."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from multiprocessing.context import ForkProcess as Process
from pathlib import Path

SERVER = "10.77.0.1"
SHARE = "/mnt/a" if "NFS_A" in os.environ else "/mnt/exp"
"""The folder that machines share, as the script sees it."""
OWN = Path(os.environ["TMPDIR"], "own")
"""A folder that each machine has for itself."""
CLONE_NEWUTS = 0x04000000
CLONE_NEWNET = 0x40000000
NAMESPACES = {"mnt": 0x00020000, "pid_for_children": 0x20000000}
PR_SET_PDEATHSIG = 1
_FORKED = multiprocessing.get_context("fork")


def shell(line: str) -> str:
    """Runs what an administrator would."""
    done = subprocess.run(["bash", "-euc", line], check=True, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    return done.stdout


def command_line(pid: int) -> bytes:
    """Returns the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except FileNotFoundError:
        return b""


class Machine:
    """A namespace with a link to the bridge, and the shared folder at ``/mnt/<name>``.

    Args:
        name: Of the namespace.
        number: The last byte of its address.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.77.0.{number}"
        self.mount = f"/mnt/{name}"
        share = f"-t nfs -o vers=4.2,nosharecache {SERVER}:/exp" if "NFS_A" in os.environ else f"--bind {SHARE}"
        shell(
            f"ip netns add {name}; ip link add to-{name} type veth peer name eth0 netns {name};"
            f"ip link set to-{name} master bridge up; ip -n {name} addr add {self.address}/24 dev eth0;"
            f"ip -n {name} link set eth0 up; ip -n {name} link set lo up; mkdir {self.mount};"
            f"nsenter --net=/run/netns/{name} mount {share} {self.mount}; mkdir -p {OWN}"
        )
        command = f"mount -t tmpfs none {OWN}; mount -t proc none /proc; echo; exec sleep infinity"
        namespaces = ["unshare", "--mount", "--pid", "--fork", "--kill-child"]
        self._first = subprocess.Popen([*namespaces, "bash", "-euc", command], stdout=subprocess.PIPE)
        assert self._first.stdout is not None
        assert self._first.stdout.readline()

    def start(self, body: Callable[[], None], log: Path) -> Process:
        """Runs a function in a forked process there, which has the imports of this one; its output goes to a file."""
        process = _FORKED.Process(target=self._run, args=(body, log))
        process.start()
        return process

    def _run(self, body: Callable[[], None], log: Path) -> None:
        """Runs the function in a child: a process can't enter a namespace of processes itself."""
        libc = ctypes.CDLL(None, use_errno=True)
        kinds = {f"/run/netns/{self.name}": CLONE_NEWNET}
        kinds |= {f"/proc/{self._first.pid}/ns/{name}": kind for name, kind in NAMESPACES.items()}
        for namespace, kind in [(os.open(path, os.O_RDONLY), kind) for path, kind in kinds.items()]:
            assert libc.setns(namespace, kind) == 0, ctypes.get_errno()
        assert libc.unshare(CLONE_NEWUTS) == 0, ctypes.get_errno()
        socket.sethostname(self.name)
        if child := os.fork():
            os._exit(abs(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])))
        libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        output = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        for stream in (1, 2):
            os.dup2(output, stream)
        body()

    def pids(self) -> list[int]:
        """Returns its processes."""
        return [int(pid) for pid in shell(f"ip netns pids {self.name}").split()]

    def cut(self) -> None:
        """Takes the link down: nothing comes or goes, and no socket closes."""
        shell(f"ip link set to-{self.name} down")

    def restore(self) -> None:
        """Takes the link up."""
        shell(f"ip link set to-{self.name} up")

    def vanish(self) -> None:
        """Ends the machine as a power cut does."""
        self.cut()
        self._first.kill()
        self._first.wait()


def connect(*names: str) -> list[Machine]:
    """Returns machines on one bridge, in the NFS guest or in ``guest.run_in_namespaces``."""
    shell(f"ip link add bridge type bridge; ip addr add {SERVER}/24 dev bridge; ip link set bridge up")
    if "NFS_A" in os.environ:
        shell(
            "exportfs -o rw,no_root_squash,fsid=1,no_subtree_check,sync,insecure 10.77.0.0/24:/mnt/exp;"
            "exportfs -o ro,fsid=0,no_subtree_check,insecure,crossmnt 10.77.0.0/24:/mnt"
        )
    return [Machine(name, number) for number, name in enumerate(names, 10)]
