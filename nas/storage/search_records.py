"""Checks of the records of a search, its sessions, heartbeats, garbage collections, tests and winners.

Each function raises CorruptError, without the file's name, if Heirloom does not write such a record.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

from nas.core.errors import ConfigurationError, CorruptError
from nas.core.metric import Metric
from nas.core.policy import PolicyPlan
from nas.core.reference import Reference, check_distinct
from nas.storage.record_values import Number, Numbers, Positive, Time, Whole, check_keys, checked_as
from nas.storage.verified import digest_of

MAX_HOURS = 1e6
"""Maximum of one session: a century."""

_Texts = dict[str, str]


class _Spec(Struct, forbid_unknown_fields=True):
    """A class and its arguments."""

    target: str
    arguments: dict[str, Any]


class _Stage(Struct):
    name: str
    policies: list[Any]
    warm: bool
    best: int | float | None = None


class _Init(Struct, forbid_unknown_fields=True):
    points: list[Any]
    weights: str | None


class _Identity(Struct):
    """The values of a search's identity that code reads."""

    problem: _Spec
    space: dict[str, Any]
    tuner: _Spec
    policy: Annotated[list[_Stage], Meta(min_length=1)]
    stopper: _Spec | None
    seed: int
    on_missing_weights: str
    deterministic: bool
    chosen_tuner: _Spec | None = None
    slots: Positive | None = None
    n_threads: Positive | None = None
    constraints: Numbers = {}
    init: _Init | None = None

    def __post_init__(self) -> None:
        if self.deterministic and (self.slots is None or self.n_threads is None):
            raise ValueError("slots and n_threads must be given for a deterministic search")


class _Metric(Struct):
    name: str
    direction: Literal["maximize", "minimize"]
    reference: Number | None = None

    def __post_init__(self) -> None:
        Metric(self.name, self.direction, self.reference)


class _Header(Struct):
    """``search.json``."""

    identity: _Identity
    metrics: Annotated[list[_Metric], Meta(min_length=1)]
    data: _Texts = {}
    about: _Texts = {}


class _Session(Struct):
    """``sessions/0003.json``."""

    host: str
    boot: str
    process_started: str
    machine: str
    pid: Annotated[int, Meta(ge=1, le=2**31 - 1)]
    settings: dict[str, Any]
    started: Time
    code: dict[Literal["problem", "tuner", "stopper"], _Texts] = {}
    versions: _Texts = {}
    files: _Texts = {}
    commit: str | None = None
    flow_run: Annotated[str, Meta(pattern=r"\A[A-Za-z0-9-]{1,64}\Z")] | None = None
    """It becomes part of a URL."""


class _Heartbeat(Struct):
    """``sessions/0003.beat``."""

    count: Whole
    hours: Annotated[float, Meta(ge=0, le=MAX_HOURS)]
    time: Time
    ended: bool


class _Test(Struct):
    """``tests/000024.json``."""

    trial: Whole
    metrics: Numbers | UnsetType = UNSET
    error: str | UnsetType = UNSET

    def __post_init__(self) -> None:
        if self.metrics is UNSET and self.error is UNSET:
            raise ValueError("metrics or error must be given")


class _Collection(Struct):
    """``gc/0003.json``."""

    trials: dict[Annotated[str, Meta(pattern=r"\A[0-9]{1,18}\Z")], Any]


class _Best(Struct):
    """``best-0001.json``."""

    number: int
    trial: Whole
    point: dict[str, Any]
    metrics: Numbers
    test: _Test | None
    ancestors: list[Whole]
    export: str | None
    files: tuple[Reference, ...]
    missing: _Texts
    remarks: list[str] = []
    time: Time | None = None

    def __post_init__(self) -> None:
        check_distinct(self.files)
        if self.ancestors and max(self.ancestors) >= self.trial:
            raise ValueError("ancestors must be earlier trials")


def check_header(record: Mapping[str, Any]) -> None:
    """Checks ``search.json``, apart from its format."""
    checked_as(_Header, record)
    try:
        PolicyPlan.from_stages(record["identity"]["policy"])
    except ConfigurationError as error:
        raise CorruptError(f"identity.policy: {error}") from error


def check_session(record: Mapping[str, Any]) -> None:
    """Checks ``sessions/0003.json``."""
    checked_as(_Session, record)


def code_id(files: Mapping[str, str]) -> str | None:
    """Returns the ``Trial.code`` of a problem, or None if all code is Heirloom's.

    Args:
        files: Digests of the problem's files (``nas.training.code_digests``).
    """
    if not files:
        return None
    text = json.dumps(dict(files), sort_keys=True, separators=(",", ":"))
    return digest_of(text.encode(errors="backslashreplace")).removeprefix("blake3:")[:16]


def check_heartbeat(record: Mapping[str, Any]) -> None:
    """Checks ``sessions/0003.beat``."""
    checked_as(_Heartbeat, record)


def check_test(record: Mapping[str, Any], trial: int) -> None:
    """Checks ``tests/000024.json``."""
    if checked_as(_Test, record).trial != trial:
        raise CorruptError("it is the record of another trial")


def check_collection(record: Mapping[str, Any]) -> frozenset[int]:
    """Checks ``gc/0003.json``. Returns the trials whose weights were deleted."""
    return frozenset(map(int, checked_as(_Collection, record).trials))


def check_best(record: Mapping[str, Any], number: int) -> None:
    """Checks ``best-0001.json``."""
    found = checked_as(_Best, record)
    check_keys(found.files, record["files"])
    if found.number != number:
        raise CorruptError("it is the record of another winner")
    if found.test is not None and found.test.trial != found.trial:
        raise CorruptError("test is the record of another trial")
