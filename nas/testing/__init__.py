"""Contract suites for tuners, stoppers, problems and storage: Heirloom's own and yours.

Each function returns if the contract holds, and raises an AssertionError of one line if not. No test framework is
needed: ``check_tuner(Spec.of(MyTuner), space, metrics)`` is a test by itself.

Some checks start another process. In a script, call them under ``if __name__ == "__main__":``.
"""

from nas.testing.blob_stores import check_blob_store
from nas.testing.problems import check_problem
from nas.testing.stoppers import check_stopper
from nas.testing.tuners import check_tuner

__all__ = ["check_blob_store", "check_problem", "check_stopper", "check_tuner"]
