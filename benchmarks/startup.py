"""Time until a command prints its help, compared with the imports that it needs.

    $ python benchmarks/startup.py

``python -m flows.search --help`` should take under a second more than ``python -c "import hydra"``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time

N = 7


def seconds(*arguments: str) -> float:
    """Returns the median of seven runs, in seconds."""
    found = []
    for _ in range(N):
        began = time.perf_counter()
        subprocess.run([sys.executable, *arguments], check=True, capture_output=True)
        found.append(time.perf_counter() - began)
    return statistics.median(found)


def main() -> None:
    """Prints the table."""
    hydra, help_, nas = (
        seconds("-c", "import hydra"),
        seconds("-m", "flows.search", "--help"),
        seconds("-c", "import nas"),
    )
    print("| command | seconds |\n| --- | --- |")
    print(f'| python -c "import hydra" | {hydra:.2f} |\n| python -m flows.search --help | {help_:.2f} |')
    print(f'| python -c "import nas" | {nas:.2f} |')
    print(f"\n--help: {help_ - hydra:.2f} s more than hydra alone (target: under 1)")


if __name__ == "__main__":
    main()
