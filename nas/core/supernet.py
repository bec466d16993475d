"""Supernet epochs, which train shared weights, and subnets, which are scored with them."""

from __future__ import annotations

from nas.core.point import Point

EPOCH = "supernet_epoch"
"""The only key of the point of a supernet epoch. No space may give a point with only this key."""


def epoch_of(point: Point) -> int | None:
    """Returns the number of the supernet epoch that the point stands for, or None."""
    number = point.get(EPOCH) if len(point) == 1 else None
    return number if type(number) is int and number >= 0 else None
