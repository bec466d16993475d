"""The live page of a search whose storage fails."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from flows.views import live_page
from nas.core.errors import CorruptError
from nas.search.lease import SearchLease
from nas.storage.records import Records
from nas.views.page.document import lineage_page
from nas.views.snapshot import Snapshot, read_snapshot
from tests.support.sample_searches import evolved, trial, write_search


@pytest.fixture
def records(tmp_path: Path) -> Records:
    """The records of a search with twelve trials."""
    return write_search(tmp_path / "root", "s", evolved(12))


@pytest.fixture
def lease(records: Records) -> Iterator[SearchLease]:
    """The lease of a running search."""
    held = SearchLease(records)
    yield held
    held.close()


def follow(records: Records, page: Path, before: Callable[[int], None]) -> None:
    """Keeps the page fresh; ``before`` receives the number of each read, from 1 on."""
    n_reads = 0

    def read() -> Snapshot:
        nonlocal n_reads
        n_reads += 1
        before(n_reads)
        return read_snapshot(records.files, time.time())

    first = read_snapshot(records.files, time.time())
    assert first.standing == "running"
    page.write_text(lineage_page(first, live_s=live_page.PERIOD_S))
    live_page.keep_fresh(page, read, first)


def test_page_after_a_failed_read(
    records: Records,
    lease: SearchLease,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A record that can't be read for two rounds is one line; the page then shows new trials until the end."""
    monkeypatch.setattr(live_page, "PERIOD_S", 0.01)
    result = next((tmp_path / "root" / "s" / "trials").glob("000000*"))
    content, page = result.read_bytes(), tmp_path / "s.html"

    def before(n_reads: int) -> None:
        result.write_bytes(b"{" if n_reads < 3 else content)
        if n_reads == 4:
            late = trial(12, score=0.99, index=10)
            records.propose(late)
            records.commit(late)
            lease.close()

    follow(records, page, before)
    assert capsys.readouterr().err.count("the page was not written: ") == 1
    assert 'id="trial-12"' in page.read_text()
    assert '"live_s":null' in page.read_text()


def test_page_if_no_read_succeeds(
    records: Records, lease: SearchLease, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the records stay unreadable, the error ends the command, and the page does not load again."""
    monkeypatch.setattr(live_page, "PERIOD_S", 0.01)
    result = next((tmp_path / "root" / "s" / "trials").glob("000000*"))
    page = tmp_path / "s.html"

    with pytest.raises(CorruptError):
        follow(records, page, lambda n_reads: result.write_bytes(b"{"))
    assert '"live_s":null' in page.read_text()
    assert 'id="trial-11"' in page.read_text()
