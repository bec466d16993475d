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
    found = {"3 killed": experiment(3, is_killed=True), "16": experiment(16, is_killed=False)}
    print(json.dumps(found))


def experiment(concurrency: int, *, is_killed: bool) -> dict[str, object]:
    """How an experiment ended, and what its trials are."""
    from tests.support.commands import Command, run, until

    name, temporary = f"at-{concurrency}", os.environ["TMPDIR"]
    folder = Path(temporary) / name
    shutil.copytree(HERE / "nni_sharing", folder)
    config = folder / "config.yml"
    config.write_text(config.read_text().replace("trialConcurrency: 3", f"trialConcurrency: {concurrency}"))
    root = Path(os.environ["NFS_A"]) / "heirloom"
    line = ("--config", "config.yml", "--root", str(root), f"name={name}")
    changes = {"HEIRLOOM_CACHE": f"{temporary}/cache"}
    changes |= {"SHARE_WRITE": os.environ["NFS_A"], "SHARE_READ": os.environ["NFS_B"]}
    if is_killed:
        with Command(folder, *line, module="flows.nni", **changes) as command:
            until(lambda: len(list(root.glob(f"{name}/trials/*.result.json"))) >= 4, 240)
            command.kill(to_group=False)
    done = run(folder, *line, module="flows.nni", timeout_s=400, **changes)
    return {"status": done.status, "out": done.out, "err": done.err, "trials": trials(root / name)}


def trials(folder: Path) -> list[dict[str, object]]:
    """State, parents and result of each trial."""
    from nas.storage.open import open_root
    from nas.storage.records import Records

    found = Records(open_root(str(folder))).load()[0]
    return [{"state": t.state, "parents": t.parents, "returned": t.returned, "attempt": t.attempt} for t in found]


if __name__ == "__main__":
    main()
