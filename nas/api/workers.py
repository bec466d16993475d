"""Checks that worker processes can get a problem, before they are started."""

from __future__ import annotations

import sys
from multiprocessing import spawn

from nas.core.errors import ConfigurationError
from nas.core.spec import Spec
from nas.core.tracebacks import error_line
from nas.executors.worker_process import pickled
from nas.storage.blobs import BlobStore

_REMEDY = 'or pass runner="threads", which trains in this process'


def check_sent(spec: Spec, slots: int, files: BlobStore) -> None:
    """Checks that worker processes can import and unpickle a problem, and see its files.

    Raises:
        ConfigurationError: they can't.
    """
    name = spec.target.rpartition(".")[2]
    if spec.target.startswith("__main__.") and not _has_script():
        raise ConfigurationError(
            f"slots={slots}: needs a problem that worker processes can import, but {name} is defined in a notebook or "
            f"a shell. Move it to a file such as my_problem.py, {_REMEDY}"
        )
    if files.in_process:
        raise ConfigurationError(
            f"root={files.url}: exists in this process only, but slots={slots} start others. Choose a folder, {_REMEDY}"
        )
    try:
        pickled(spec)
    except Exception as error:
        raise ConfigurationError(
            f"slots={slots}: needs a problem that can be pickled, but {name} can't: {error_line(error)}. Pass a class "
            f"of a module, without lambdas, locks and open files in its arguments, {_REMEDY}"
        ) from error


def check_not_imported(slots: int) -> None:
    """Checks that no worker process makes the call while it imports the script.

    Raises:
        ConfigurationError: it is. The worker sends the message to the driver.
    """
    if _is_import_of_worker():
        raise ConfigurationError(
            f"slots={slots}: worker processes import this script, so it must call run_search below "
            '`if __name__ == "__main__":`. Add that line'
        )


def _is_import_of_worker() -> bool:
    frame = sys._getframe()
    while (outer := frame.f_back) is not None:
        if outer.f_code.co_name == "<module>" and outer.f_globals.get("__name__") == "__mp_main__":
            return True
        frame = outer
    return False


def _has_script() -> bool:
    """Returns whether the main module is one that a worker can run again."""
    return any(key.startswith("init_main") for key in spawn.get_preparation_data("heirloom-worker"))
