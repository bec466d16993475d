"""Snapshot of a search's records, also of a running search. Only reads."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

from nas.core.errors import SearchNotFoundError
from nas.core.lineage import Lineage
from nas.core.metric import Metric
from nas.core.policy import PolicyPlan, Stage
from nas.core.ranking import competitors
from nas.core.shared_scores import shared_scores
from nas.core.trial import Trial
from nas.storage.records import Records

if TYPE_CHECKING:
    from nas.storage.blobs import BlobStore


@dataclass(frozen=True, slots=True, kw_only=True)
class LastSession:
    """The newest start of the command on a search.

    Attributes:
        heartbeat: Time of its last heartbeat, or of its start if there is none.
        is_alive: Whether it runs the search now, judged from this host.
        is_complete: Whether the newest session that searched ended because no work was left, or none that fits. None:
            unknown, its end is not recorded.
        budget: The limits of that session's budget, by name.
    """

    number: int
    host: str
    pid: int
    heartbeat: float
    is_alive: bool
    is_complete: bool | None
    budget: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Snapshot:
    """State of a search according to its records.

    Attributes:
        about: Texts about the problem, by name.
        metrics: Metrics; the first ranks trials.
        stages: Names of the stages. Trials of the last stage compete to be the winner.
        tests: Test records by finalist.
        best: The newest ``best-NNNN.json``, or None.
        winner: The trial that the last session's ``export`` selects: the best finalist by validation, or None. Without
            finalists, the best trial.
        final: The last stage, or None if there is only the search stage.
        taken: Time of the snapshot.
        hours: Hours of all sessions.
        data: Digests of the problem's data files, by argument.
    """

    name: str
    url: str
    identity: Mapping[str, Any]
    about: Mapping[str, str]
    metrics: tuple[Metric, ...]
    stages: tuple[str, ...]
    lineage: Lineage
    tests: Mapping[int, Mapping[str, Any]]
    best: Mapping[str, Any] | None
    winner: Trial | None
    final: Stage | None
    session: LastSession | None
    taken: float
    hours: float = 0.0
    data: Mapping[str, str] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"<Snapshot of {self.name}: {self.standing}, {len(self.lineage)} trials>"

    @property
    def metric(self) -> Metric:
        """The metric that ranks."""
        return self.metrics[0]

    @cached_property
    def shared_scores(self) -> frozenset[int]:
        """The trials whose scores are those of shared weights (`nas.core.shared_scores`)."""
        return shared_scores(self.lineage)

    @property
    def standing(self) -> str:
        """``running``, ``finished`` or ``not finished``."""
        if self.session is not None and self.session.is_alive:
            return "running"
        is_complete = None if self.session is None else self.session.is_complete
        if self.best is not None and is_complete is None:
            is_complete = not self.lineage.pending
        elif self.best is None and self.winner is not None:  # not exported yet
            is_complete = False
        return "finished" if is_complete else "not finished"

    @property
    def last_activity(self) -> float | None:
        """The time of the last heartbeat, or None if no session has begun."""
        return None if self.session is None else self.session.heartbeat


def read_snapshot(files: BlobStore, now: float) -> Snapshot:
    """Reads the search whose folder is ``files``.

    Raises:
        SearchNotFoundError: there is no search.
        ConfigurationError: the records have another format.
        CorruptError: a record can't be read.
    """
    from nas.search.finals import newest_best
    from nas.storage.sessions import last_export, spent_hours

    records = Records(files)
    name = records.files.name
    header = read_header(records, name)
    session = last_session(records, now)
    trials = _with_running(records, session)
    return Snapshot(
        name=name,
        url=records.files.url,
        identity=header.identity,
        about=header.about,
        metrics=header.metrics,
        stages=header.stages,
        lineage=Lineage.of(trials),
        tests=records.tests(),
        best=newest_best(records),
        winner=next(iter(competitors(trials, header.metrics, header.stages, last_export(records))), None),
        final=header.final,
        session=session,
        taken=now,
        hours=0.0 if session is None else spent_hours(records),
        data=header.data,
    )


def last_session(records: Records, now: float) -> LastSession | None:
    """Returns the newest session of a search, or None before the first one.

    Raises:
        CorruptError: its record can't be read.
    """
    from nas.search.host_process import HostProcess
    from nas.search.lease import LEASE_TIMEOUT_S
    from nas.storage.sessions import last_with_setting, newest_session, read_heartbeat

    newest = newest_session(records)
    if newest is None:
        return None
    number, record, last_heartbeat = newest
    beat = last_heartbeat or {}
    process = HostProcess.of_session(record)
    seen = float(beat.get("time", record["started"]))
    is_here = process.process_started != "" and process.is_beside(HostProcess.current())
    searched, budget = last_with_setting(records, "budget") or (number, None)
    last_beat = beat if searched == number else read_heartbeat(records, searched) or {}
    complete = last_beat.get("complete")
    is_alive = not beat.get("ended") and not process.is_gone() and (is_here or abs(now - seen) < LEASE_TIMEOUT_S)
    return LastSession(
        number=number,
        host=process.host,
        pid=process.pid,
        heartbeat=seen,
        is_alive=is_alive,
        is_complete=complete if complete or last_beat.get("ended") else None,
        budget=_limits(budget),
    )


def _limits(budget: Any) -> dict[str, float]:
    """Returns the positive limits of a budget in a session's record."""
    found = budget.items() if isinstance(budget, Mapping) else ()
    return {
        name: float(limit)
        for name, limit in found
        if isinstance(limit, int | float) and not isinstance(limit, bool) and 0 < limit < 1e300
    }


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """Content of ``search.json``; ``stages`` holds the names of stages."""

    identity: Mapping[str, Any]
    about: Mapping[str, str]
    metrics: tuple[Metric, ...]
    stages: tuple[str, ...]
    final: Stage | None
    data: Mapping[str, str]


def read_header(records: Records, name: str) -> Header:
    """Reads ``search.json``.

    Raises:
        SearchNotFoundError: there is no search.
        ConfigurationError: the record has another format.
        CorruptError: the record can't be read.
    """
    header = records.header()
    if header is None:
        raise SearchNotFoundError(f"no search {name}: {records.files.url} holds no search.json")
    identity = header["identity"]
    metrics = tuple(Metric(m["name"], m["direction"], m.get("reference")) for m in header["metrics"])
    plan = PolicyPlan.from_stages(identity["policy"])
    stages = tuple(stage.name for stage in plan.stages)
    about = header.get("about", {})
    data = header.get("data", {})
    return Header(identity=identity, about=about, metrics=metrics, stages=stages, final=plan.final, data=data)


def _with_running(records: Records, session: LastSession | None) -> list[Trial]:
    """Returns all trials by number; those started by the running session are RUNNING."""
    trials, starts = records.load()
    for number, found in starts.items():
        if number >= len(trials) or trials[number].is_finished:
            continue
        attempt = found.last_attempt
        trial = trials[number] = replace(trials[number], attempt=attempt)
        start = records.read_start(number, attempt) or {}
        if session is not None and session.is_alive and start.get("session") == session.number:
            trials[number] = trial.start(
                attempt=attempt,
                slot=start.get("slot"),
                started=start.get("time"),
                resolved_donor=start.get("resolved_donor"),
            )
    return trials
