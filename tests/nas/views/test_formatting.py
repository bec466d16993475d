"""Scores as text: small ones keep their digits."""

from __future__ import annotations

import pytest

from nas.views.comparison.intervals import Mean
from nas.views.comparison.tables import mean_text
from nas.views.formatting import masked, score


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


def test_small_means_keep_their_digits() -> None:
    """A mean of small losses is not 0; one of equal scores that only rounding separates is."""
    assert mean_text(Mean(3.8e-06, 1.2e-06, 3)) == "3.8e-06 ± 1.2e-06"
    assert mean_text(Mean(-5.5e-17, None, 1)) == "0.0000"
