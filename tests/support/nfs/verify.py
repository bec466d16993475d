"""``flows.verify`` on good and on bad NFS mounts (tests/integration/test_nfs_verify.py).

Prints the status, output and errors of each command as one line of JSON.
"""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import shutil
import subprocess
import sys
import tempfile
from multiprocessing.context import ForkProcess as Process
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.command_forker import become

IMPORTS = (
    *("hydra._internal.hydra", "rich.table", "flows.cli.command", "flows.cli.settings.root", "flows.views.searches"),
    *("flows.views.terminal", "nas.storage.maintenance.backend_checks.one_host"),
    *("nas.storage.maintenance.backend_checks.two_hosts", "nas.storage.maintenance.verification"),
)
"""Imports take long in the guest, so the commands are forks of a process that has them."""
MODULES = Path("/usr/lib/uml/modules")


def shell(line: str) -> None:
    """Runs what an administrator would."""
    subprocess.run(["bash", "-euc", line], check=True, stdout=sys.stderr)


def started(*overrides: str) -> tuple[Process, Path]:
    """``python -m flows.verify OVERRIDES ...``, started as a fork, and the folder of its output."""
    folder = Path(tempfile.mkdtemp())
    streams = (str(folder / "out"), str(folder / "err"))
    call = ("flows.verify", [*overrides], os.environ["TMPDIR"], dict(os.environ), *streams)
    process = multiprocessing.get_context("fork").Process(target=become, args=call)
    process.start()
    return process, folder


def outcome(process: Process, folder: Path) -> dict[str, object]:
    """Returns the status and the output of a command, once it has ended."""
    process.join()
    output, error = ((folder / name).read_text() for name in ("out", "err"))
    return {"status": process.exitcode, "output": output, "error": error}


def verify(*overrides: str) -> dict[str, object]:
    """Returns the status and the output of ``python -m flows.verify OVERRIDES ...``."""
    return outcome(*started(*overrides))


def search(here: str, there: str) -> dict[str, dict[str, object]]:
    """A search written by one machine and verified by the other, which looked for it too early."""
    from tests.support.stored_search import write_stored_search

    ask = (f"storage.root={there}/searches", "name=stored")
    early = verify(*ask)
    write_stored_search(Path(f"{here}/searches/stored"), Path(tempfile.mkdtemp()))
    whole = verify(*ask)
    pack = Path(f"{here}/searches/stored/packs/000001-aa.safetensors")
    data = bytearray(pack.read_bytes())
    data[-1] ^= 1
    pack.write_bytes(data)
    Path(f"{here}/searches/stored/manifests/000003-aa.json").unlink()
    return {"early": early, "whole": whole, "broken": verify(*ask)}


def bad_mounts(kind: str) -> dict[str, dict[str, object]]:
    """Roots on mounts with a fault each; the server exports a second folder for them."""
    shell("mkdir /mnt/exp2; mount -t tmpfs tmpfs /mnt/exp2; cd /mnt/exp2; mkdir -m 777 open gone; mkdir mine")
    shell("exportfs -o rw,root_squash,fsid=2,no_subtree_check,sync,insecure 127.0.0.0/8:/mnt/exp2")
    source, how = ("/mnt/exp2", "vers=3,nolock,mountport=20048") if kind == "3" else ("/exp2", f"vers={kind}")

    def mount(name: str, folder: str, options: str) -> str:
        shell(f"mkdir /mnt/{name}; mount -t nfs -o {how}{options} 127.0.0.1:{source}/{folder} /mnt/{name}")
        return f"storage.root=/mnt/{name}"

    found = {
        "squashed": verify(mount("squashed", "mine", ",nosharecache") + "/root"),
        "nobody's": verify(mount("nobody", "open", ",nosharecache") + "/root"),
        "read-only": verify(mount("readonly", "open", ",nosharecache,ro") + "/root"),
        "soft": verify(mount("soft", "open", ",nosharecache,soft,timeo=50") + "/root"),
    }
    mount("twice", "open", "")
    found["one cache"] = verify(mount("shared", "open", "") + "/root", "second=/mnt/twice/root")
    gone = mount("gone", "gone", ",nosharecache")
    shell("ls /mnt/gone; rm -r /mnt/exp2/gone")
    found["gone"] = verify(gone)
    shell("umount -l /mnt/squashed /mnt/nobody /mnt/readonly /mnt/soft /mnt/twice /mnt/shared /mnt/gone")
    return found


def fat() -> dict[str, object]:
    """A file system without hard links, which folds capitals."""
    [kernel] = [release / "kernel" for release in MODULES.iterdir()]
    for module in ("drivers/block/loop", "fs/fat/fat", "fs/fat/vfat", "fs/nls/nls_cp437", "fs/nls/nls_iso8859-1"):
        if (path := kernel / f"{module}.ko").exists():
            shell(f"insmod {path}")
    shell("truncate -s 64M /run/fat; mkfs.vfat /run/fat; mknod /run/loop b 7 0; losetup /run/loop /run/fat")
    shell("mkdir /mnt/fat; mount -t vfat -o iocharset=iso8859-1,utf8 /run/loop /mnt/fat")
    found = verify("storage.root=/mnt/fat/root")
    shell("umount /mnt/fat")
    return found


def main() -> None:
    for name in IMPORTS:
        importlib.import_module(name)
    kind, a, b = sys.argv[1], os.environ["NFS_A"], os.environ["NFS_B"]
    found = {"second": verify(f"storage.root={a}/root", f"second={b}/root")}
    # at once on the mount that has just seen the root vanish: it must be made anew there
    pair = [started(f"storage.root={mount}/root", "machines=2") for mount in (b, a)]
    found |= {f"machine {place}": outcome(*command) for place, command in zip("ba", pair, strict=True)}
    found |= search(a, b) | bad_mounts(kind)
    if kind != "3" and shutil.which("mkfs.vfat"):
        found["fat"] = fat()
    found["left"] = {"output": sorted(os.listdir(a))}
    print(json.dumps(found))


if __name__ == "__main__":
    main()
