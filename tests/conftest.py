"""Fixtures of all tests, and shared servers."""

from __future__ import annotations

import gc
import logging
import os
import sys

os.environ.setdefault("OMP_NUM_THREADS", "1")  # another process of tests has the other core

from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
from fsspec.implementations.memory import MemoryFileSystem
from hypothesis import settings

from flows.engine.server import TemporaryServer
from tests.support.commands import SERVER_AUTH
from tests.support.servers import S3, s3_server, sftp_server

# No deadlines: other processes take their share of a small machine. .ci/lowest and .ci/newest take more examples, by
# pytest --hypothesis-profile=thorough.
settings.register_profile("shared", deadline=None, max_examples=25)
settings.register_profile("thorough", deadline=None, max_examples=100)
settings.load_profile("shared")


LONGEST = (
    "integration/test_guides.py", "faults/test_kill.py", "integration/test_two_machines.py",
    "integration/test_examples.py", "nas/executors/test_process_pool.py", "integration/test_prefect_graph.py",
    "faults/test_interrupt.py", "test_contracts.py", "faults/test_storage.py", "faults/test_long_trials.py",
    "cli/test_mistakes.py", "nas/executors/test_ray_pool.py", "integration/test_prefect_server.py",
    "integration/test_nfs_search.py", "integration/test_networks_that_grow.py", "cli/test_nni.py",
)  # fmt: skip
"""Files of slow tests that take minutes, longest first: .ci/run begins with them, so none is left for the end."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts the files that take longest first, for ``--no-loadscope-reorder``."""
    ranks = {f"tests/{name}": rank for rank, name in enumerate(LONGEST)}
    items.sort(key=lambda item: ranks.get(item.nodeid.partition("::")[0], len(ranks)))


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keeps the bytecode of Heirloom's modules, which the processes of tests would compile again.

    Garbage collections skip what was imported and collected: two million objects, which each would visit.
    """
    kept, sys.dont_write_bytecode = sys.dont_write_bytecode, False
    gc.disable()
    try:
        return (yield)
    finally:
        sys.dont_write_bytecode = kept
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def configuration_is_composed_once() -> Iterator[None]:
    """Lets commands in this process compose once: Hydra does so twice, the first time to find no ``hydra.mode``.

    None is its answer here. Forked commands compose once, too; only new processes do as a user's.
    """
    from hydra._internal.hydra import Hydra

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Hydra, "get_mode", lambda *_, **__: None)
        yield


@pytest.fixture(scope="session", autouse=True)
def workers_share_no_database(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Gives each worker of pytest-xdist a home for Prefect's servers, unless ``HEIRLOOM_CACHE`` is set.

    Its first server migrates the database there, in about 5 s. A run without workers keeps the user's home.
    """
    with pytest.MonkeyPatch.context() as patch:
        if "PYTEST_XDIST_WORKER" in os.environ and "HEIRLOOM_CACHE" not in os.environ:
            patch.setenv("HEIRLOOM_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))
        yield


@pytest.fixture(autouse=True)
def nothing_stays_in_memory() -> Iterator[None]:
    """Deletes a test's files under ``memory://``, since each listing there walks all files of the process."""
    before = set(MemoryFileSystem.store)
    yield
    for path in MemoryFileSystem.store.keys() - before:
        del MemoryFileSystem.store[path]


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """Returns an empty folder to start commands in."""
    folder = tmp_path / "here"
    folder.mkdir()
    return folder


@pytest.fixture(scope="session")
def api_url() -> Iterator[str]:
    """Yields a URL for PREFECT_API_URL, so that commands start no server of their own."""
    with TemporaryServer() as server:
        os.environ[SERVER_AUTH] = server.auth_string
        yield server.wait_until_healthy()
        del os.environ[SERVER_AUTH]


@pytest.fixture(scope="session")
def s3() -> Iterator[S3]:
    """Yields an S3 server with a bucket."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def sftp_port() -> Iterator[int]:
    """Yields the port of an sftp server."""
    with sftp_server() as port:
        yield port


@pytest.fixture(scope="module")
def silence() -> Iterator[None]:
    """Checks that asyncio logs no error after lost connections."""
    complaints: list[str] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            complaints.append(self.format(record))

    listener = Listener(logging.ERROR)
    logging.getLogger("asyncio").addHandler(listener)
    yield
    gc.collect()
    logging.getLogger("asyncio").removeHandler(listener)
    assert complaints == []


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Escapes surrogates in captured output, which pytest's processes can't exchange."""
    report = yield
    report.sections = [(name, text.encode(errors="backslashreplace").decode()) for name, text in report.sections]
    return report
