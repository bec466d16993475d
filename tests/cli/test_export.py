"""``python -m flows.export``: a whole copy of the winner's export, or none."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from nas.storage.records import Records
from tests.support.commands import Done, everything, run
from tests.support.sample_searches import trial, write_search

CONTENTS = {"model.safetensors": b"weights" * 10_000, "architecture.json": b"{}", "export.json": b"{}"}


@pytest.fixture
def records(here: Path) -> Records:
    """Returns the records of a search without a winner."""
    return write_search(here / "heirloom", "digits-random-1a", [trial(0, score=0.5)])


def publish_best(records: Records, number: int = 1, **changes: Any) -> dict[str, Any]:
    """Publishes an export and its record, as a search does at its end."""
    folder = f"best/000000-{number:08x}"
    references = [records.files.publish(f"{folder}/{name}", [data]) for name, data in CONTENTS.items()]
    record = {
        "number": number,
        "trial": 0,
        "point": {"width": 16},
        "metrics": {"accuracy": 0.5},
        "test": None,
        "ancestors": [],
        "export": folder,
        "files": [reference.to_json() for reference in references],
        "missing": {"model.onnx": "needs the extra onnx", "program.pt2": "no export"},
        **changes,
    }
    records.publish(f"best-{number:04d}.json", record)
    return record


def export(here: Path, *arguments: str) -> Done:
    """Runs the command as a user does."""
    return run(here, *arguments, module="flows.export")


def test_the_newest_winner_is_copied(here: Path, records: Records) -> None:
    """The files of the newest winner are copied, the folder is made, and the names are printed."""
    publish_best(records)
    publish_best(records, 2)
    done = export(here, "name=last", "out=to/winner")

    assert done.status == 0, done.err
    assert {path.name: path.read_bytes() for path in (here / "to" / "winner").iterdir()} == CONTENTS
    assert [path.name for path in (here / "to").iterdir()] == ["winner"]
    assert done.out.splitlines() == [
        f"trial 0: 3 files, 70.0 kB in {here}/to/winner",
        *(f"  {name}" for name in sorted(CONTENTS)),
        "  optional: model.onnx needs the extra onnx",
        "  without program.pt2: no export",
    ]


@pytest.mark.parametrize("is_file", [pytest.param(True, marks=pytest.mark.slow), False])
def test_nothing_is_overwritten(here: Path, records: Records, is_file: bool) -> None:
    """A folder or file of that name stays as it is; status 2."""
    publish_best(records)
    (here / "winner").touch() if is_file else (here / "winner").mkdir()
    done = export(here, "name=last", "out=winner")

    assert done.status == 2
    assert done.complaint == "out=winner: must not exist, since nothing is overwritten. Name another folder."
    assert everything(here / "winner") == []


@pytest.mark.slow
def test_a_damaged_export_is_not_copied(here: Path, records: Records) -> None:
    """A file with another digest ends the command with status 1, and no part of the copy stays."""
    record = publish_best(records)
    path = here / "heirloom" / "digits-random-1a" / record["export"] / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1] + b"x")
    done = export(here, "name=last", "out=winner")

    assert done.status == 1
    assert "model.safetensors" in done.complaint
    assert "is corrupt" in done.complaint
    assert [path.name for path in here.iterdir()] == ["heirloom"]


@pytest.mark.slow
def test_a_full_disk_leaves_nothing(here: Path, records: Records) -> None:
    """A write that fails names the new file, not the stored one; status 1, and no part of the copy stays."""
    publish_best(records)
    done = run(here, line="bash -c 'ulimit -f 40; exec python -m flows.export name=last out=winner'")

    assert done.status == 1
    assert done.complaint.startswith(f"can't write {here}/.winner-")
    assert done.complaint.endswith("/model.safetensors: File too large")
    assert [path.name for path in here.iterdir()] == ["heirloom"]


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (("name=last", "out=winner"), "search digits-random-1a has no winner yet: it is exported at the end."),
        pytest.param(("name=last", "out='~no_one/x'"), "search digits-random-1a has no win", marks=pytest.mark.slow),
        pytest.param(("out=winner",), "no name: add name=N, or name=last.", marks=pytest.mark.slow),
        pytest.param(("name=last",), "no out: add out=DIR, a folder to make", marks=pytest.mark.slow),
        pytest.param(
            ("name=last", "out=heirloom/mine"),
            "out=heirloom/mine: must be outside the storage",
            marks=pytest.mark.slow,
        ),
        pytest.param(
            ("name=digits-random", "out=winner"), "no search digits-random among 1 under", marks=pytest.mark.slow
        ),
    ],
)
def test_a_mistake_is_one_line(here: Path, records: Records, arguments: tuple[str, ...], complaint: str) -> None:
    """What is missing, or wrong, is named with its remedy; status 2."""
    done = export(here, *arguments)

    assert done.status == 2
    assert done.complaint.replace(f"{here}/", "").startswith(complaint)


@pytest.mark.slow
@pytest.mark.parametrize(("score", "has_finalist"), [(0.5, True), (None, False)])
def test_finalists_are_offered_where_they_are(here: Path, score: float | None, has_finalist: bool) -> None:
    """Without a winner the command for finalists names the root; it is offered only if a trial has a score."""
    write_search(here / "else where", "one", [trial(0, score=score)])
    done = export(here, "name=one", "out=winner", "storage.root=else where")
    offer = "flows.final name=one 'storage.root=else where'"

    assert done.complaint.startswith("search one has no winner yet")
    assert (offer in done.complaint) == ("finalists" in done.complaint) == has_finalist


@pytest.mark.slow
def test_a_winner_that_was_not_exported_says_why(here: Path, records: Records) -> None:
    """The reason in the record is repeated; status 2."""
    publish_best(records, export=None, files=[], missing={"export": "out of memory"})
    done = export(here, "name=last", "out=winner")

    assert done.status == 2
    why = "was not exported: out of memory. Run the search with retry=failed"
    assert done.complaint == f"trial 0, the winner of digits-random-1a, {why}"


def test_a_record_names_files_of_the_export_only(here: Path, records: Records) -> None:
    """A record that names another file of the storage is refused; status 1, nothing is copied."""
    other = records.files.publish("best/other/secret", [b"secret"])
    publish_best(records, files=[other.to_json()])
    done = export(here, "name=last", "out=winner")

    assert done.status == 1
    assert "names best/other/secret, which is not in best/000000-00000001/" in done.complaint
    assert [path.name for path in here.iterdir()] == ["heirloom"]
