"""Records with one flipped bit: each is refused or named by all that reads it, also if it still is a valid record."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from nas.core.errors import CorruptError
from nas.storage.maintenance.verification import verify_search
from nas.storage.record_format import decode_record
from nas.storage.records import Records
from nas.storage.resume_points import ResumePoints
from tests.support.hostile_search import HostileSearch
from tests.support.stored_search import RESUME_STATE

N_FLIPS = 3
"""Per record."""


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> HostileSearch:
    search = HostileSearch(tmp_path_factory.mktemp("flipped"))
    records, (trial,) = Records(search.files), Records(search.files).unfinished()
    records.publish_worker_exit(replace(trial, attempt=1), "preempted")
    records.publish_job_end(0, n_trials=1, error=None)
    ResumePoints(search.files, trial.number).publish(RESUME_STATE, {})
    return search


def record_paths(search: HostileSearch, *kinds: str) -> list[str]:
    """Returns the paths of the records of these kinds, or of all.

    Exported files are no records. Trial 0 has lost its weights, so nothing reads its manifest.
    """
    paths = (path.relative_to(search.place) for path in sorted(search.place.rglob("*.*")))
    records = [str(path) for path in paths if path.suffix in (".json", ".beat") and path.parts[0] != "best"]
    read = [path for path in records if not path.startswith("manifests/000000")]
    return [path for path in read if not kinds or any(kind in path for kind in kinds)]


def flips(path: Path) -> Iterator[None]:
    """Flips one bit after another in a file; it is whole again after the last."""
    whole, rng = path.read_bytes(), random.Random(path.name)
    for _ in range(N_FLIPS):
        data = bytearray(whole)
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
        path.write_bytes(data)
        try:
            yield
        finally:
            path.write_bytes(whole)


def assert_each_flip_is_refused(search: HostileSearch, path: str, read: Callable[[], object]) -> None:
    for _ in flips(search.place / path):
        with pytest.raises(CorruptError, match=path):
            read()


def one_of_each_kind(search: HostileSearch) -> dict[str, str]:
    return {re.sub("[0-9a-f-]{4,}", "N", path): path for path in record_paths(search)}


def test_every_flipped_bit_is_refused(search: HostileSearch) -> None:
    """No single flipped bit of any kind of record is read as a record."""
    for path in one_of_each_kind(search).values():
        data = bytearray((search.place / path).read_bytes())
        decode_record(bytes(data))
        for place, bit in itertools.product(range(len(data)), range(8)):
            data[place] ^= 1 << bit
            with pytest.raises(CorruptError):
                decode_record(bytes(data))
            data[place] ^= 1 << bit


def test_verify_names_the_record(search: HostileSearch) -> None:
    """``flows.verify`` names every record with a flipped bit."""
    assert len(kinds := one_of_each_kind(search)) == 13, kinds
    for path in record_paths(search):
        for _ in flips(search.place / path):
            assert path in [damage.path for damage in verify_search(search.files, pause_s=0).damages]


def test_report_refuses(search: HostileSearch) -> None:
    """``flows.report`` ends with an error that names the record."""
    read = ("search.json", "sessions/", ".proposal", ".result", "000003.start", "gc/", "best-", "tests/")
    for path in record_paths(search, *read):
        assert_each_flip_is_refused(search, path, search.report)


@pytest.mark.slow
def test_resume_refuses(search: HostileSearch) -> None:
    """A resumed search ends with an error that names the record, before it runs a trial."""
    for path in record_paths(search, "search.json", ".proposal", ".result", "000003.start", "gc/", "best-", "tests/"):
        assert_each_flip_is_refused(search, path, search.resume)
    for path in record_paths(search, "sessions/"):
        assert_each_flip_is_refused(search, path, search.hold)


def test_weights_are_refused(search: HostileSearch) -> None:
    """A manifest with a flipped bit gives no weights to a child."""
    for path in record_paths(search, "manifests/"):
        assert_each_flip_is_refused(search, path, search.read_weights)


def test_the_resume_point_is_passed_over(search: HostileSearch) -> None:
    """A resume point whose record has a flipped bit is not used."""
    resume_points = ResumePoints(search.files, 3)
    assert resume_points.newest() is not None
    for path in record_paths(search, "resume/"):
        for _ in flips(search.place / path):
            assert resume_points.newest() is None
