"""Hostile records and manifests are refused by name, in little memory, with a HeirloomError."""

from __future__ import annotations

import copy
import gc
import itertools
import json
import time
import tracemalloc
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from nas.api.search import run_search
from nas.core.budget import Budget
from nas.core.errors import CorruptError
from nas.core.spec import Spec
from nas.core.trial import Proposal, Trial
from nas.search.definition import Search
from nas.storage.open import open_root
from nas.storage.record_format import decode_record, encode_record
from nas.storage.record_size import RECORD_BYTES, json_size, shorten
from nas.storage.records import Records
from nas.training.trial_run import TrialRun
from tests.support.hostile_search import KINDS, HostileSearch
from tests.support.problems import InOrderTuner, ScoreProblem

CORPUS = Path(__file__).parent / "corpus"
"""Lies that were tried or found, replayed always: ``[what, where in the record, instead]``, and whole texts."""
DROP = "$drop"
RECORDS = sorted(KINDS)
MUCH = 32_000_000
"""Bytes of Python's memory that nothing small may take."""


@pytest.fixture(scope="module")
def search(tmp_path_factory: pytest.TempPathFactory) -> Iterator[HostileSearch]:
    folder = tmp_path_factory.mktemp("hostile")
    search = HostileSearch(folder)
    assert search.refusals() == []
    outside = everything(folder)
    yield search
    assert everything(folder) == outside


def everything(folder: Path) -> dict[Path, bytes]:
    """Returns every file in the folder; readers must not change them."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def lies(kind: str) -> list[tuple[str, list[str | int], Any]]:
    return [tuple(row) for row in json.loads((CORPUS / f"{kind}.json").read_text())]


def changed(record: Any, where: list[str | int], value: Any) -> Any:
    """Returns the record with one value replaced or dropped."""
    record = inner = copy.deepcopy(record)
    for key in where[:-1]:
        inner = inner[key]
    if value == DROP:
        del inner[where[-1]]
    else:
        inner[where[-1]] = value
    return record


def assert_refused(
    search: HostileSearch, kind: str, what: str, data: bytes, *, is_sealed: bool = False, fully: bool = False
) -> None:
    with search.having(kind, data, is_sealed=is_sealed) as name:
        found = search.refusals(kind, fully=fully)
    other = {"checkpoint": ("manifests/", "files/"), "manifest": ("files/",)}
    names = (name, "packs/", *other.get(kind, ()))
    is_named = [isinstance(error, CorruptError) and any(n in str(error) for n in names) for error in found]
    assert any(is_named), f"{kind}, {what}: {found}"
    assert search.damages, f"{kind}, {what}: verify does not see it: {found}"
    assert all(len(str(error)) < 2000 and "\n" not in str(error) for error in found), f"{kind}, {what}: {found}"


OF_READERS = (
    *("half an object", "no UTF-8", "a list", "null", "a text", "a number", "an empty object", "not a number"),
    *("infinity", "beyond every float", "a key twice", "a key twice, deep inside", "UTF-16", "a byte order mark"),
)
"""Texts that ``json.loads`` takes, and two that it refuses; the others are like these two."""
FULLY = pytest.mark.parametrize("fully", [False, pytest.param(True, marks=pytest.mark.slow)], ids=["first", "all"])
"""The first reader that refuses a record, or all of them."""


@FULLY
@pytest.mark.parametrize("kind", RECORDS)
def test_every_invalid_value_is_refused(search: HostileSearch, kind: str, fully: bool) -> None:
    """A record with one invalid value is a CorruptError in one line that names the file."""
    original = search.original(kind)
    for what, where, value in lies(kind):
        assert_refused(search, kind, what, json.dumps(changed(original, where, value)).encode(), fully=fully)


@FULLY
@pytest.mark.parametrize("kind", RECORDS)
def test_every_invalid_text_is_refused(search: HostileSearch, kind: str, fully: bool) -> None:
    """Text that is no JSON object, repeats a key or has NaN is a CorruptError that names the file."""
    for what, text in json.loads((CORPUS / "texts.json").read_text()):
        data = text.encode("latin-1")
        if (not fully or what in OF_READERS) and (kind, what) != ("checkpoint", "null"):  # a trial without weights
            assert_refused(search, kind, what, data, fully=fully)
            if kind != "checkpoint" and (fully or kind == "result"):  # the digest is asked for in one place
                assert_refused(search, kind, f"{what}, without a digest", data, is_sealed=True, fully=fully)


def peak_of_refusals(search: HostileSearch, kind: str, texts: dict[str, str]) -> int:
    """Returns the most bytes of Python's memory that this process had while the texts were refused."""
    gc.collect()
    tracemalloc.start()
    for what, text in texts.items():
        assert_refused(search, kind, what, text.encode())
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


@pytest.mark.parametrize(
    "kind", [kind if kind in ("manifest", "result") else pytest.param(kind, marks=pytest.mark.slow) for kind in RECORDS]
)
def test_bombs_are_refused_in_little_memory(search: HostileSearch, kind: str) -> None:
    """Endless brackets, deep nesting, and very long numbers and keys are CorruptErrors in little memory."""
    deep = "[" * 300 + "]" * 300
    texts = {
        "brackets without end": "[" * 1_000_000,
        "objects without end": '{"a":' * 200_000,
        "deep": f'{{"trial": {deep}}}',
        "digits": f'{{"trial": {"9" * 100_000}}}',
        "digits behind a point": f'{{"trial": 1{"0" * 400}.5}}',
        "a key of a megabyte": f'{{"{"k" * 1_000_000}": 1}}',
    }
    peak = peak_of_refusals(search, kind, texts)
    if peak >= MUCH:  # once in a process a library's thread may import something meanwhile: readers need it each time
        peak = peak_of_refusals(search, kind, texts)

    assert peak < MUCH


LARGE: dict[str, tuple[str, list[str | int], Callable[[], str]]] = {
    "lists": ("result", ["inheritance", "x"], lambda: "[" + "[]," * 8_000_000 + "[]]"),
    "curve": (
        "result",
        ["curve"],
        lambda: "[" + '[1,{"score":0.5,"a name of forty characters":1}],' * 900_000 + "[2,{}]]",
    ),
    "metrics": ("result", ["metrics"], lambda: "{" + ",".join(f'"m{n}":1' for n in range(390_000)) + "}"),
    "error": ("result", ["error"], lambda: '"' + "x" * 59_000_000 + '"'),
    "point": ("proposal", ["proposal", "point"], lambda: "{" + ",".join(f'"p{n}":1' for n in range(390_000)) + "}"),
    "learned": ("proposal", ["learned"], lambda: "[0" + ",0" * 1_000_000 + "]"),
}
"""Record, place and text; a text is built when its test runs, since every process of tests imports this file."""


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow) if name in ("metrics", "point") else name for name in LARGE]
)
def test_large_records_are_refused_at_once(search: HostileSearch, name: str) -> None:
    """A well-formed record of up to 59 MB is refused after seconds of computing and in bounded memory."""
    kind, where, make_text = LARGE[name]
    text = make_text()
    data = json.dumps(changed(search.original(kind), where, "LARGE")).encode().replace(b'"LARGE"', text.encode())
    computed_s = time.process_time()  # a busy machine does not change it much
    tracemalloc.start()
    with search.having(kind, data), pytest.raises(CorruptError, match=r"(bytes; a record|values; a record|has|length)"):
        Records(search.files).load()
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 300_000_000
    assert time.process_time() - computed_s < 6


def test_long_curves_are_thinned() -> None:
    """A trial of 200,000 reports keeps equally spaced ones and the last, in a record that can be read."""
    curve = tuple((step, {"score": 0.5}) for step in range(200_000))
    kept = shorten(Trial(number=0, index=0, proposal=Proposal(point={}), curve=curve)).curve

    assert 50_000 < len(kept) < 100_000
    assert kept[-1] == curve[-1]
    assert {after[0] - before[0] for before, after in itertools.pairwise(kept)} == {3}
    assert decode_record(encode_record({"curve": [*kept]}))


@pytest.mark.parametrize(("letter", "n_kept"), [("w", 392), ("語", 165)])
def test_many_warnings_leave_room_for_the_error(letter: str, n_kept: int) -> None:
    """The first warning is kept, cut to its bytes, beside the whole end of an error."""
    warnings = [f"{number} " + letter * 390 for number in range(500)]
    inheritance = {"warnings": warnings, "not_copied": {f"layer{n}": "no donor has this name" for n in range(100)}}
    trial = Trial(number=0, index=0, proposal=Proposal(point={}), inheritance=inheritance, error="the true reason")
    kept = shorten(trial)

    assert kept.error == "the true reason"
    assert kept.inheritance["warnings"] == [warnings[0][:n_kept]]
    assert json_size(kept.result_record()) <= RECORD_BYTES


def test_absurd_attempt_numbers_take_little_memory(search: HostileSearch) -> None:
    """A trial with an absurd number of attempts is read in little memory; existing records are counted."""
    attempt = changed(search.original("result"), ["attempt"], 2**53 - 1)
    tracemalloc.start()
    with search.having("result", json.dumps(attempt).encode()):
        search.refusals("result")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < MUCH


@pytest.mark.parametrize(
    ("kind", "where"),
    [
        ("proposal", ["proposal", "point", "deep"]),
        ("proposal", ["proposal", "derivation"]),
        ("result", ["inheritance", "deep"]),
        ("search", ["identity", "space", "deep"]),
        ("search", ["identity", "tuner", "arguments", "deep"]),
        ("session", ["settings"]),
        ("best", ["point", "deep"]),
    ],
)
def test_nesting_depth_is_bounded(search: HostileSearch, kind: str, where: list[str | int]) -> None:
    """Deeper nesting than proposals may have is a CorruptError in any JSON field."""
    for depth in (90, 900):
        nested: Any = []
        for _ in range(depth):
            nested = [nested]
        assert_refused(
            search, kind, f"{depth} deep", json.dumps(changed(search.original(kind), where, nested)).encode()
        )


# ---- what nobody has thought of yet

ODD = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.sampled_from([-1, 2**31, 2**63, 2**64, 10**400, 1e308, -0.0, 5e-324]),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=20),
    st.sampled_from(["..", "/etc/passwd", "../../x", "\x00", "\ud800", "a:1", "packs/a", "9" * 50, "__class__"]),
    st.lists(st.integers(-3, 3), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(-3, 3), max_size=3),
    st.just(DROP),
)


def places(record: Any, where: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """Returns every path within a record."""
    if where:
        yield where
    for key, inner in record.items() if isinstance(record, dict) else enumerate(record):
        if isinstance(inner, dict | list):
            yield from places(inner, (*where, key))
        else:
            yield (*where, key)


def fuzz(search: HostileSearch, data: st.DataObject) -> None:
    """Checks that readers of a search with any record end well or with a one-line HeirloomError."""
    kind = data.draw(st.sampled_from(sorted(KINDS)))
    original = search.original(kind)
    for _ in range(data.draw(st.integers(1, 3))):
        if there := list(places(original)):
            original = changed(original, list(data.draw(st.sampled_from(there))), data.draw(ODD))
    text = bytearray(json.dumps(original).encode())
    for _ in range(data.draw(st.sampled_from([0, 0, 0, 1, 2]))):
        at = data.draw(st.integers(0, len(text)))
        text[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with search.having(kind, bytes(text)):
        found = search.refusals(kind)
    assert all("\n" not in str(error) and len(str(error)) < 2000 for error in found)
    assert search.damages or not any(isinstance(error, CorruptError) for error in found), found


@given(data=st.data())
@settings(max_examples=10, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_anything_is_read_or_refused(search: HostileSearch, data: st.DataObject) -> None:
    """Records with random values, cut or with wrong bytes, raise no other errors than HeirloomError."""
    fuzz(search, data)


@pytest.mark.slow
@pytest.mark.timeout(900)
@given(data=st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=list(HealthCheck))
def test_anything_is_read_or_refused_at_length(search: HostileSearch, data: st.DataObject) -> None:
    """The same with thirty times as many examples."""
    fuzz(search, data)


class Recorder(ScoreProblem):
    """Notes the points with which it is called. Training fails for x = 3."""

    called: ClassVar[list[Any]] = []

    def train(self, run: TrialRun) -> Mapping[str, float]:
        self.called.append(run.point["x"])
        if run.point["x"] == 3:
            raise OSError("no data")
        return super().train(run)

    def test(self, run: TrialRun) -> Mapping[str, float]:
        self.called.append(run.point["x"])
        return {}


@pytest.mark.parametrize(
    ("role", "x"),
    [("unfinished", 10**6), ("finalist", "$(reboot)" * 10**4), ("failed", 10**6), ("winner", "$(reboot)" * 10**4)],
    ids=["unfinished", "finalist", "failed", "winner"],
)
def test_a_point_outside_the_space_never_runs(tmp_path: Path, role: str, x: Any) -> None:
    """The point of an unfinished, retrained, repeated or exported trial is refused before the problem's code runs."""
    search = Search(problem=Spec.of(Recorder), tuner=Spec.of(InOrderTuner, xs=[7, 5, 3]))
    options: dict[str, Any] = {"root": str(tmp_path), "name": "s", "budget": Budget(trials=3)}
    run_search(search, finalists=1, **options)
    records = Records(open_root(str(tmp_path), retry_s=0).subfolder("s"))
    number = {"unfinished": 1, "finalist": 1, "failed": 2, "winner": 3}[role]
    if role == "unfinished":
        records.files.delete("trials/000001.result.json")
    if role == "winner":
        records.files.delete("best-0001.json")
    path = f"trials/{number:06d}.proposal.json"
    record = changed(records.read(path), ["proposal", "point"], {"x": x})
    records.files.replace(path, encode_record(record))
    Recorder.called.clear()

    with pytest.raises(CorruptError, match=rf"{path} can't be read: the point is not in the space: .x=") as caught:
        run_search(search, finalists=1 + (role == "finalist"), retry="failed" if role == "failed" else None, **options)
    assert len(str(caught.value)) < 2000
    assert Recorder.called == []
    assert len(records.load()[0]) == 4
