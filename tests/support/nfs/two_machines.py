"""What two machines on one NFS share see of each other, and of its faults: run by tests/faults/test_nfs.py in a guest.

Prints one line of JSON.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3]))

from tests.support.nfs.collector import collect_while_reading
from tests.support.nfs.donor_index import ask_after_each_commit
from tests.support.nfs.faults import suffer
from tests.support.nfs.resume_points import go_on_elsewhere
from tests.support.nfs.two_hosts import hand_over_all


def main() -> None:
    """Runs everything, each in a folder of its own."""
    found = {
        "files": hand_over_all(),
        "collection": collect_while_reading(),
        "donors": ask_after_each_commit(),
        "resume points": go_on_elsewhere(),
        "faults": suffer(sys.argv[1]),
    }
    print(json.dumps(found))


if __name__ == "__main__":
    main()
