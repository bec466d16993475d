"""Whether an index of donors sees what another machine commits: for two_machines.py.

Writes through mount $NFS_A and asks through mount $NFS_B, after each commit and each deletion. Changes come more
than a tick of the server's clock apart: within one, NFSv3 sees no change of a folder.
"""

from __future__ import annotations

import os
import time
from typing import Any

from nas.inheritance.donors.index import DonorIndex
from nas.storage.open import open_root
from nas.storage.signature import Signature
from tests.support.donor_networks import begin, chain, offer

N = 40


def ask_after_each_commit() -> dict[str, Any]:
    """Returns how many changes the asking machine sees."""
    records = begin(open_root(f"{os.environ['NFS_A']}/donors"), "search")
    index = DonorIndex(open_root(f"{os.environ['NFS_B']}/donors"), "search")
    wanted, seen = Signature.of(chain(4, 8)), {"commits_seen": 0, "deletions_seen": 0}
    for number in range(N):
        trial = offer(number, chain(4, 8), score=number / N)
        for change in (lambda t=trial: records.propose(t), lambda t=trial: records.commit(t)):
            change()
            time.sleep(0.03)
            found = index.best_donor(wanted)
        seen["commits_seen"] += found is not None and found.donor == number
    for number in reversed(range(N)):
        records.publish_collection({"trials": {str(number): "for the test"}})
        time.sleep(0.03)
        found = index.best_donor(wanted)
        seen["deletions_seen"] += (-1 if found is None else found.donor) == number - 1
    return seen
