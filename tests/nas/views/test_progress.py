"""The search's progress."""

from __future__ import annotations

import re
import sys
import threading
from dataclasses import replace

import pytest

from nas.core.checkpoint import Checkpoint
from nas.core.metric import Metric
from nas.core.ranking import competitors
from nas.core.reference import Reference
from nas.core.trial import Proposal, Reason, State, Trial
from nas.executors.events import Finished, Proposed, Reported, Started, TrialLost
from nas.views.progress import Progress
from nas.views.report_counter import ReportCounter


def trial(number: int, stage: str, state: State = State.WAITING) -> Trial:
    metrics = {"score": 0.1 * number} if state == State.COMPLETE else {}
    return Trial(
        number=number, index=number, proposal=Proposal(point={}), stage=stage, state=state, metrics=metrics, attempt=1
    )


def test_new_finalists_of_an_extended_search_count_before_they_are_done(capsys: pytest.CaptureFixture[str]) -> None:
    """Proposed trials beyond the planned ones count in the total, so it is never below the number done.

    One trial more, and both finalists of before have been overtaken: one of the new ones had been proposed already.
    """
    known = [trial(n, "search", State.COMPLETE) for n in range(4)]
    known += [trial(n, "final", State.COMPLETE) for n in (4, 5)] + [trial(6, "final")]
    progress = Progress([Metric("score")], {"search": 5, "final": 2}, known)
    for event in (
        *(Proposed(trial(7, "search")), Finished(trial(7, "search", State.COMPLETE))),
        *(Proposed(trial(8, "final")), Finished(trial(6, "final", State.COMPLETE))),
        Finished(trial(8, "final", State.COMPLETE)),
    ):
        progress.observe(event)

    assert re.findall(r"^\[(\d+/\d+) done\]", capsys.readouterr().err, re.MULTILINE) == ["7/8", "8/9", "9/9"]


def test_retries_come_on_top_of_the_budget() -> None:
    """A trial that ``retry=failed`` adds is none of the trials that are left."""
    failed = (1, 4, 7)
    known = [trial(n, "search", State.FAILED if n in failed else State.COMPLETE) for n in range(10)]
    progress = Progress([Metric("score")], {"search": 16, "final": 2}, known)
    for number, source in enumerate(failed, 10):
        progress.observe(Proposed(replace(trial(number, "search"), retry_of=source)))
        progress.observe(Finished(replace(trial(number, "search", State.COMPLETE), retry_of=source)))

    assert (progress.n_done, progress.n_total) == (13, 16 + 3 + 2)


@pytest.mark.parametrize("is_live", [False, True])
def test_notes_hold_no_passwords(
    is_live: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A note masks the password of a URL, on a terminal too."""
    monkeypatch.setenv("TTY_COMPATIBLE", str(int(is_live)))
    progress = Progress([Metric("score")], {"search": 1}, [])
    progress.observe(TrialLost(0, 0, "no answer from sftp://me:secret@host/root"))

    assert capsys.readouterr().err == "trial 0 was lost: no answer from sftp://me:***@host/root\n"


def test_the_best_so_far_is_the_summarys_winner(capsys: pytest.CaptureFixture[str]) -> None:
    """Of equals the lower number is best, in any order; of stopped trials, only a better final without time left."""
    scores = {3: 0.5, 1: 0.5, 2: 0.9, 0: 0.4}
    done = [
        replace(trial(n, "search", State.STOPPED if n == 2 else State.COMPLETE), metrics={"score": score})
        for n, score in scores.items()
    ]
    progress = Progress([Metric("score")], {"search": 5, "final": 1}, [])
    for event in (*(Proposed(trial(n, "search")) for n in range(5)), *map(Finished, done)):
        progress.observe(event)
    progress.observe(Finished(replace(trial(4, "search", State.FAILED), reason=Reason.EXCEPTION)))
    weights = Checkpoint(manifest=Reference("manifests/000005-aa.json", 9, f"blake3:{0:064x}"), packs=())
    late = replace(trial(5, "final", State.STOPPED), metrics={"score": 0.9}, checkpoint=weights)
    late = replace(late, reason=Reason.DEADLINE)
    finals = [replace(late, metrics={"score": 0.45}), replace(late, number=6)]
    for n_finals, told in ((1, "best score 0.5000 (trial 1)"), (2, "best final score 0.9000 (trial 6)")):
        for event in (Proposed(trial(4 + n_finals, "final")), Finished(finals[n_finals - 1])):
            progress.observe(event)
        [winner, *_] = competitors([*done, *finals[:n_finals]], [Metric("score")], ["search", "final"])

        assert f"(trial {winner.number})" in told
        assert told in capsys.readouterr().err.splitlines()[-1]


def searched(number: int, n_reports: int, share: float) -> Trial:
    """A COMPLETE trial of the search stage that inherited, and trained a share of the epochs."""
    done = trial(number, "search", State.COMPLETE)
    curve = tuple((step, {"score": 0.5}) for step in range(n_reports))
    return replace(done, curve=curve, cost={"epochs_share": share}, resolved_donor=0, donor=0, inherited=1.0)


def final_of(number: int, parent: int, state: State = State.WAITING) -> Trial:
    """A final that trains a trial's point again, from scratch."""
    return replace(trial(number, "final", state), proposal=Proposal(point={}, parents=(parent,)))


def test_finals_show_their_epochs(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The reports of each running final are counted; those of the search tell how many to expect."""
    monkeypatch.setattr("nas.views.progress.PLAIN_REPORTS_EVERY_S", 0.0)
    progress = Progress([Metric("score")], {"search": 2, "final": 2}, [searched(0, 8, 0.2), searched(1, 10, 0.2)])
    for event in (Proposed(final_of(2, 0)), Proposed(final_of(3, 1)), Started(2, 1, 0), Started(3, 1, 1)):
        progress.observe(event)
    for event in (*(Reported(2, step, {}) for step in range(3)), Reported(3, 0, {})):
        progress.observe(event)
    progress.observe(TrialLost(0, 2, "interrupted"))
    for event in (Started(2, 2, 0), Reported(2, 0, {})):  # it resumes, and reports its earlier steps again
        progress.observe(event)
    lines = capsys.readouterr().err.splitlines()

    assert "[2/4 done] running 2, finals 0/2, final 2 epoch 3/40, final 3 epoch 1/50, best score" in lines[3]
    assert "final 2 epoch 1/40" in lines[-1]
    assert not [line for line in lines if "inherited" in line]


def test_a_finished_final_tells_how_many_epochs_the_next_has(capsys: pytest.CaptureFixture[str]) -> None:
    """A final that reports less often than the search is measured by the finals before it."""
    done = replace(final_of(2, 0, State.COMPLETE), curve=((0, {"score": 0.5}), (1, {"score": 0.5})))
    progress = Progress([Metric("score")], {"search": 2, "final": 2}, [searched(0, 8, 0.2), searched(1, 10, 0.2)])
    for event in (Proposed(final_of(2, 0)), Proposed(final_of(3, 1)), Started(3, 1, 1), Reported(3, 0, {})):
        progress.observe(event)
    progress.observe(Finished(done))
    [*_, line] = capsys.readouterr().err.splitlines()

    assert "; running 1, finals 1/2, final 3 epoch 1/2, best final score" in line


def test_a_shortened_final_has_fewer_epochs(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its fidelity counts, also if it trains for longer, and it says nothing about a full one."""
    monkeypatch.setattr("nas.views.progress.PLAIN_REPORTS_EVERY_S", 0.0)
    short = replace(final_of(2, 0), proposal=Proposal(point={}, parents=(0,), fidelity=0.1))
    progress = Progress([Metric("score")], {"search": 2, "final": 2}, [searched(0, 8, 0.2), searched(1, 10, 0.2)])
    for event in (Proposed(short), Started(2, 1, 0), *(Reported(2, step, {}) for step in range(5))):
        progress.observe(event)
    done = replace(short, state=State.COMPLETE, curve=((0, {"score": 0.5}),), metrics={"score": 0.5})
    for event in (Finished(done), Proposed(final_of(3, 1)), Started(3, 1, 1), Reported(3, 0, {})):
        progress.observe(event)
    printed = capsys.readouterr().err

    assert "final 2 epoch 1 of about 4," in printed
    assert "final 2 epoch 5 of about 4," in printed
    assert "final 3 epoch 1/50," in printed


@pytest.mark.parametrize(("stage", "wanted"), [("final", {"search": 1, "final": 1}), ("search", {"search": 2})])
def test_more_epochs_count_no_finals(
    stage: str, wanted: dict[str, int], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A trial that goes on is named with its epochs, without the finals of earlier sessions."""
    monkeypatch.setattr("nas.views.progress.PLAIN_REPORTS_EVERY_S", 0.0)
    known = [searched(0, 8, 0.2), replace(final_of(1, 0, State.COMPLETE), stage=stage)]
    progress = Progress([Metric("score")], wanted, known)
    further = replace(final_of(2, 1), stage=stage, more_epochs=5)
    for event in (Proposed(further), Started(2, 1, 0), Reported(2, 0, {})):
        progress.observe(event)
    [*_, line] = capsys.readouterr().err.splitlines()

    best = "best final" if stage == "final" else "best"
    assert f"[2/3 done] running 1, {stage} 2 epoch 1/5, {best} score" in line


def test_last_trial_takes_as_long_as_the_others() -> None:
    """Slots without a trial shorten no time left."""
    progress = Progress([Metric("score")], {"search": 5}, [])
    for n in range(4):
        progress.observe(Started(n, 1, n))
    for n in range(4):
        progress.observe(Finished(replace(trial(n, "search", State.COMPLETE), cost={"seconds": 40.0})))

    assert progress.detail.endswith("about 40 s left")


def test_time_left_is_at_most_the_hours_left() -> None:
    """A search of many trials ends with its hours, as an NNI experiment without maxTrialNum does."""
    progress = Progress([Metric("score")], {"search": 99_999}, [])
    progress.limit_hours(0.5)
    progress.observe(Started(0, 1, 0))
    progress.observe(Finished(replace(trial(0, "search", State.COMPLETE), cost={"seconds": 40.0})))

    assert re.search(r"about (29 min 5\d s|30 min 00 s) left$", progress.detail)


def test_the_epochs_are_read_while_trials_are_added() -> None:
    """The thread of a live display sees no change of what it loops over."""
    counter = ReportCounter("search")
    counter.add([final_of(0, 1), *(trial(n, "search") for n in range(1, 1000))])
    counter.start(0)
    more = threading.Thread(target=lambda: [counter.add([trial(n, "search")]) for n in range(1000, 9000)])
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        more.start()
        while more.is_alive():
            assert counter.text() == "final 0 epoch 0"
    finally:
        sys.setswitchinterval(interval)
        more.join()
