"""Contract suites: what every tuner, stopper, problem and storage must keep; for Heirloom's own and for yours.

Each function returns where the contract holds, and raises AssertionError, in one line, where it does not. They need no
test framework: ``check_tuner(Spec.of(MyTuner), space, metrics)`` is a test by itself.

Some checks start another process: in a script, call them under ``if __name__ == "__main__":``.
"""

from nas.testing.blob_stores import check_blob_store
from nas.testing.problems import check_problem
from nas.testing.stoppers import check_stopper
from nas.testing.tuners import check_tuner

__all__ = ["check_blob_store", "check_problem", "check_stopper", "check_tuner"]
