"""Run by test_nni.py within with-nfs: NNI's weight sharing, written on one mount of a share, read on the other."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent


def main() -> None:
    found = {}
    for concurrency in (1, 3, 16):
        for is_killed in (False, True) if concurrency == 3 else (False,):
            found[f"{concurrency}{' killed' if is_killed else ''}"] = experiment(concurrency, is_killed)
    print(json.dumps(found))


def experiment(concurrency: int, is_killed: bool) -> dict[str, object]:
    """How an experiment ended, and what its trials are."""
    name = f"at-{concurrency}{'-killed' if is_killed else ''}"
    folder = Path(os.environ["TMPDIR"]) / name
    shutil.copytree(HERE / "nni_sharing", folder)
    config = folder / "config.yml"
    config.write_text(config.read_text().replace("trialConcurrency: 3", f"trialConcurrency: {concurrency}"))
    root = Path(os.environ["NFS_A"]) / "heirloom"
    if is_killed:
        with start(folder, name, root) as process:
            while process.poll() is None and len(list(root.glob(f"{name}/trials/*.result.json"))) < 4:
                time.sleep(0.02)
            process.send_signal(signal.SIGKILL)
    with start(folder, name, root) as process:
        out, err = process.communicate()
    return {"status": process.returncode, "out": out, "err": err, "trials": trials(root / name)}


def start(folder: Path, name: str, root: Path) -> subprocess.Popen[str]:
    kept = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}
    environment = kept | {
        "HEIRLOOM_CACHE": f"{os.environ['TMPDIR']}/cache",
        "PYTHONPATH": str(HERE.parents[2]),
        "SHARE_WRITE": os.environ["NFS_A"],
        "SHARE_READ": os.environ["NFS_B"],
    }
    line = [sys.executable, "-m", "flows.nni", "--config", "config.yml", "--root", str(root), f"name={name}"]
    return subprocess.Popen(
        line, cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def trials(folder: Path) -> list[dict[str, object]]:
    """State, parents and result of each trial."""
    from nas.storage.open import open_root
    from nas.storage.records import Records

    found = Records(open_root(str(folder))).load()[0]
    return [{"state": t.state, "parents": t.parents, "returned": t.returned, "attempt": t.attempt} for t in found]


if __name__ == "__main__":
    main()
