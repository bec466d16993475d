"""Run by test_nni.py within with-nfs: NNI's weight sharing, written on one mount of a share, read on the other."""

from __future__ import annotations

import json
import os
import shutil
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parents[2]))


def main() -> None:
    """Runs an experiment whose driver is killed, and prints how it ended and what its trials are."""
    from flows.engine.server import TemporaryServer
    from tests.support.commands import SERVER_AUTH, Command, run, until

    temporary = os.environ["TMPDIR"]
    folder = Path(temporary) / "experiment"
    shutil.copytree(HERE / "nni_sharing", folder)
    search = Path(os.environ["NFS_A"], "heirloom", "sharing")
    line = ("--config", "config.yml", "--root", str(search.parent), f"name={search.name}")
    os.environ["HEIRLOOM_CACHE"] = f"{temporary}/cache"
    changes = {"SHARE_WRITE": os.environ["NFS_A"], "SHARE_READ": os.environ["NFS_B"]}
    with TemporaryServer() as server:
        os.environ[SERVER_AUTH] = server.auth_string
        changes["PREFECT_API_URL"] = server.wait_until_healthy()
        with Command(folder, *line, module="flows.nni", **changes) as command:
            until(lambda: len(list(search.glob("trials/*.result.json"))) >= 2, 240)
            command.kill(to_group=False)
        done = run(folder, *line, module="flows.nni", forked=False, timeout_s=400, **changes)
    print(json.dumps({"status": done.status, "err": done.err, "trials": trials(search)}))


def trials(folder: Path) -> list[dict[str, object]]:
    """State, parents and result of each trial."""
    from nas.storage.open import open_root
    from nas.storage.records import Records

    found = Records(open_root(str(folder))).load()[0]
    return [{"state": t.state, "parents": t.parents, "returned": t.returned, "attempt": t.attempt} for t in found]


if __name__ == "__main__":
    main()
