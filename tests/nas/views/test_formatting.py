"""Numbers as text: small scores keep their digits, and great amounts too."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from nas.core.lineage import Lineage
from nas.views.comparison.intervals import Mean
from nas.views.comparison.searches import read_compared
from nas.views.comparison.tables import Comparison, group_texts, mean_text
from nas.views.formatting import amount, masked, score
from tests.support.sample_searches import BEGAN, trial, write_search


@pytest.mark.parametrize(
    ("value", "text"),
    [(3.8e-06, "3.8e-06"), (-0.00012345, "-0.0001234"), (0.001, "0.0010"), (0.94213, "0.9421"), (0.0, "0.0000")],
)
def test_small_scores_keep_their_digits(value: float, text: str) -> None:
    """A score below a thousandth has significant digits; others have four decimals."""
    assert score(value) == text


@pytest.mark.parametrize(
    ("override", "shown"),
    [
        ("storage.options.key=s3cret", "storage.options.key=***"),
        ("++problem.data_options={key:s3cret}", "++problem.data_options=***"),
        ("storage={root:x,options:{key:s3cret}}", "storage=***"),
        ("runner.cluster.env.AWS_SECRET_ACCESS_KEY=s3cret", "runner.cluster.env.AWS_SECRET_ACCESS_KEY=***"),
        ("+runner.cluster.env={A:s3cret}", "+runner.cluster.env=***"),
        ("runner.cluster.connect_options=[{password:s3cret},{}]", "runner.cluster.connect_options=***"),
        ("++runner.cluster={image:mine,\n env: {A: s3cret}}", "++runner.cluster=***"),
        ("++runner.cluster= {connect_options:{password:s3cret}}", "++runner.cluster=***"),
        ("+runner={kind:dask,cluster:{env:{A:s3cret}}}", "+runner=***"),
        ("++runner.cluster={hosts:[a,b]}", "++runner.cluster={hosts:[a,b]}"),
        ("runner.cluster.environment=conda", "runner.cluster.environment=conda"),
        ("runner=dask", "runner=dask"),
    ],
)
def test_credentials_are_masked(override: str, shown: str) -> None:
    """Options of storage, of a problem's data and of a cluster's workers are not printed, however they are given."""
    assert masked(override) == shown


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.02881, "0.0288"), (1.25, "1.25"), (99.96, "100"), (999.6, "1,000"), (1234.5, "1,234"), (16, "16")],
)
def test_amounts_have_no_exponent(value: float, text: str) -> None:
    """Small amounts have three digits; whole and great ones are shown in full."""
    assert amount(value) == text


def test_a_group_shows_its_number_of_trials_in_full(tmp_path: Path) -> None:
    """The mean number of trials of a group has no exponent."""
    compared = read_compared(write_search(tmp_path, "search", [trial(0, score=0.5)]).files, BEGAN)
    many = Lineage.of(trial(n, score=0.5) for n in range(1234))
    compared = replace(compared, snapshot=replace(compared.snapshot, lineage=many, best={}))

    assert group_texts(Comparison.of([compared]))["trials"] == ["1,234"]


def test_small_means_keep_their_digits() -> None:
    """A mean of small losses is not 0, however small they are."""
    assert mean_text(Mean(3.8e-06, 1.2e-06, 3)) == "3.8e-06 ± 1.2e-06"
    assert mean_text(Mean(3.8e-13, None, 1)) == "3.8e-13"
    assert mean_text(Mean(-0.0, None, 1)) == "0.0000"
