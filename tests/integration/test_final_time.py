"""Finals of a real problem with few hours train for as long as there is time."""

from __future__ import annotations

from pathlib import Path

import pytest

from nas.core.trial import State
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.storage.sessions import past_sessions, spent_hours
from tests.support.commands import run
from tests.support.image_files import write_fashion_mnist

pytestmark = pytest.mark.slow
HOURS = 0.02


def test_a_final_ends_with_the_hours(here: Path, api_url: str) -> None:
    """A final that would take hours ends by itself before the deadline, and uses the time that it has."""
    write_fashion_mnist(here)
    data = (f"problem.data_root={here}", "problem.n_epochs=100000", "problem.max_flops=20000000")
    command = (
        "+tuner=random",
        "problem=fashion_mnist",
        *data,
        "device=cpu",
        "threads=1",
        "slots=1",
        "finalists=1",
        "name=short",
    )
    done = run(here, *command, f"budget.hours={HOURS}", PREFECT_API_URL=api_url)
    records = Records(open_root(str(here / "heirloom" / "short")))
    [final] = [trial for trial in records.load()[0] if trial.stage == "final"]

    assert done.status == 0, done.err
    assert final.state == State.COMPLETE
    assert not final.reached_deadline
    assert final.finished is not None
    assert final.proposal.fidelity is not None
    assert 0 < final.cost["epochs_share"] < 0.01
    assert final.is_shortened
    assert final.finished - past_sessions(records)[1]["started"] < 3600 * HOURS
    assert spent_hours(records) > 0.7 * HOURS
    assert f"trained for {100 * final.cost['epochs_share']:.3g}% of its epochs" in done.out
