"""The digits with short finals, for commands; they import it by name."""

from __future__ import annotations

from dataclasses import replace

from nas.problems.digits import DigitsProblem


class ShortDigits(DigitsProblem):  # type: ignore[misc]
    """`DigitsProblem` that trains finals for a few epochs only."""

    recipe = replace(DigitsProblem.recipe, n_epochs=6)
