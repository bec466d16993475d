"""Searches on two mounts of an NFS share: read and continued by the other (tests/integration/test_nfs_search.py)."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

NAME = "shared"


def command(module: str, *overrides: str) -> dict[str, object]:
    """How ``python -m MODULE OVERRIDES ...`` ended."""
    from tests.support.commands import run

    folder = os.environ["TMPDIR"]
    done = run(Path(folder), *overrides, module=module, timeout_s=400, HEIRLOOM_CACHE=f"{folder}/cache")
    return {"status": done.status, "output": done.out, "error": done.err}


def search_here_and_report_there() -> dict[str, object]:
    """Returns how a search on one mount ended, and what the other one shows of it."""
    here, there = (f"{os.environ[mount]}/heirloom" for mount in ("NFS_A", "NFS_B"))
    search = (
        "problem._target_=outcome_problem.OutcomeProblem",
        "tuner._target_=outcome_problem.ChainTuner",
        "tuner.outcomes=complete",
        "runner=processes",
        "slots=2",
        "budget.trials=4",
        "device=cpu",
        f"name={NAME}",
    )
    report = ("flows.report", f"name={NAME}", f"storage.root={there}")
    return {
        "too early": command(*report),  # the other machine now believes that there is no such folder
        "search": command("flows.search", *search, f"storage.root={here}"),
        "table": command(*report, "format=json"),
        "page": command(*report, "format=html", "out=page.html"),
        "again": command("flows.search", *search, f"storage.root={there}"),
        "weights": weights(there),
    }


def main() -> None:
    """Prints what both kinds of search show."""
    sys.path.insert(0, str(Path(__file__).parents[3]))
    from tests.support.nfs.supernet_search import continue_elsewhere

    found: dict[str, object] = {}
    supernet = continue_elsewhere(meanwhile=lambda: found.update(search_here_and_report_there()))
    print(json.dumps({"search": found, "supernet": supernet}))


def weights(root: str) -> dict[str, object]:
    """What the trials and the winner published, read and verified."""
    from nas.core.reference import Reference
    from nas.storage.lazy_weights import StoredWeights
    from nas.storage.open import open_root
    from nas.storage.record_values import checked_exactly
    from nas.storage.records import Records

    files = open_root(f"{root}/{NAME}")
    records = Records(files)
    trials = [trial for trial in records.load()[0] if trial.checkpoint is not None]
    tensors = {trial.number: sorted(StoredWeights(files, trial.checkpoint).read_all()) for trial in trials}
    best = records.read("best-0001.json") or {}
    exported = [len(files.read(checked_exactly(Reference, file))) for file in best["files"]]
    return {"tensors": tensors, "winner": best["trial"], "exported": exported}


if __name__ == "__main__":
    main()
