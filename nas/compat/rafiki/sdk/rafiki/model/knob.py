"""The knobs."""

from nas.compat.rafiki.knobs import (
    ArchKnob,
    BaseKnob,
    CategoricalKnob,
    CategoricalValue,
    FixedKnob,
    FloatKnob,
    IntegerKnob,
    KnobValue,
    PolicyKnob,
)

__all__ = [
    "ArchKnob",
    "BaseKnob",
    "CategoricalKnob",
    "CategoricalValue",
    "FixedKnob",
    "FloatKnob",
    "IntegerKnob",
    "KnobValue",
    "PolicyKnob",
]
