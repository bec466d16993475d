"""Machines as network namespaces of the NFS guest, each with an address and a mount of its own."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from multiprocessing.context import ForkProcess as Process
from pathlib import Path

SERVER = "10.77.0.1"
CLONE_NEWNET = 0x40000000
_FORKED = multiprocessing.get_context("fork")


def shell(line: str) -> str:
    """Runs what an administrator would."""
    done = subprocess.run(["bash", "-euc", line], check=True, stdout=subprocess.PIPE, stderr=sys.stderr, text=True)
    return done.stdout


class Machine:
    """A namespace with a link to the bridge, and the share at ``/mnt/<name>``.

    Args:
        name: Of the namespace.
        number: The last byte of its address.
    """

    def __init__(self, name: str, number: int) -> None:
        self.name = name
        self.address = f"10.77.0.{number}"
        self.mount = f"/mnt/{name}"
        shell(
            f"ip netns add {name}; ip link add to-{name} type veth peer name eth0 netns {name};"
            f"ip link set to-{name} master bridge up; ip -n {name} addr add {self.address}/24 dev eth0;"
            f"ip -n {name} link set eth0 up; ip -n {name} link set lo up; mkdir {self.mount};"
            f"nsenter --net=/run/netns/{name} mount -t nfs -o vers=4.2,nosharecache {SERVER}:/exp {self.mount}"
        )

    def start(self, body: Callable[[], None], log: Path) -> Process:
        """Runs a function in a forked process there, which has the imports of this one; its output goes to a file."""
        process = _FORKED.Process(target=self._run, args=(body, log))
        process.start()
        return process

    def _run(self, body: Callable[[], None], log: Path) -> None:
        with open(f"/run/netns/{self.name}") as namespace:
            assert ctypes.CDLL(None, use_errno=True).setns(namespace.fileno(), CLONE_NEWNET) == 0, ctypes.get_errno()
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
        for pid in self.pids():
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)


def connect(*names: str) -> list[Machine]:
    """Returns machines on one bridge with the NFS server."""
    shell(
        f"ip link add bridge type bridge; ip addr add {SERVER}/24 dev bridge; ip link set bridge up;"
        "exportfs -o rw,no_root_squash,fsid=1,no_subtree_check,sync,insecure 10.77.0.0/24:/mnt/exp;"
        "exportfs -o ro,fsid=0,no_subtree_check,insecure,crossmnt 10.77.0.0/24:/mnt"
    )
    return [Machine(name, number) for number, name in enumerate(names, 10)]
