"""Serves searches as a deployment: started, watched and cancelled in Prefect's UI, or on a schedule."""

import subprocess
import sys

from prefect import flow


@flow(name="search", log_prints=True)
def search(overrides: list[str]) -> None:
    """Runs a search, or resumes the one that the same overrides began."""
    command = [sys.executable, "-m", "flows.search", *overrides]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        last = ""
        try:
            for last in process.stdout:
                print(last, end="")
        except BaseException:  # a cancel interrupts the flow
            process.terminate()  # the search ends as by Ctrl-C: finished trials are kept
            print(process.stdout.read())
            raise
    if process.returncode != 0:
        raise RuntimeError(last.strip())


if __name__ == "__main__":
    search.serve(name="laptop", parameters={"overrides": ["+tuner=evolution"]})
