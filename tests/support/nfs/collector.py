"""A collection by one machine while another reads: for two_machines.py.

Weights are published through the mount $NFS_A, deleted through $NFS_B, and listed through both, which have caches of
their own. Prints what it found as one line of JSON.
"""

from __future__ import annotations

import os
import threading
from typing import Any

from nas.core.metric import Metric
from nas.core.trial import Trial
from nas.storage.maintenance.gc.collector import CollectorSettings, GarbageCollector
from nas.storage.maintenance.gc.retention import Retention
from nas.storage.open import open_root
from nas.storage.records import Records
from tests.support.stored_trials import all_files, real_checkpoint, trial

N_TRIALS = 12


def read_all(records: Records, trials: list[Trial]) -> int:
    """Reads and verifies each file that a trial with weights names, and returns their number."""
    references = [file for one in trials if one.checkpoint is not None for file in all_files(one.checkpoint)]
    for reference in references:
        records.files.read(reference)
    return len(references)


def collect_while_reading() -> dict[str, Any]:
    """Publishes on A, collects on B while A reads the needed weights, and returns counts of both."""
    one, other = (Records(open_root(f"{os.environ[mount]}/mine", retry_s=10.0)) for mount in ("NFS_A", "NFS_B"))
    assert other.files.walk() == []
    for number in range(N_TRIALS):
        made = trial(number, score=number / 100, checkpoint=real_checkpoint(one.files, number, size=300_000))
        one.propose(made)
        one.commit(made)
    trials, _ = one.load()
    needed = trials[:3]
    done, n_reads = threading.Event(), 0

    def collect() -> None:
        settings = CollectorSettings(
            metrics=(Metric("accuracy"),), finalists=lambda t: (), other_searches=lambda: (), uses_ancestors=True
        )
        collector = GarbageCollector(other, Retention("best:1"), settings)
        collector.collect(collector.plan(other.load()[0], [0, 1, 2], other.files.walk()))
        done.set()

    thread = threading.Thread(target=collect)
    thread.start()
    while not done.is_set() or not n_reads:
        n_reads += read_all(one, needed)
    thread.join()
    found = {}
    for name, records in (("writer", one), ("collector", other)):
        left, _ = records.load()
        read_all(records, left)
        weights = [s.path for s in records.files.walk() if s.path.startswith(("packs/", "files/", "manifests/"))]
        found[name] = {"weights_deleted": [t.number for t in left if t.weights_deleted], "n_weights": len(weights)}
    return {**found, "n_reads": n_reads, "folders": sorted(one.files.names("files"))}
