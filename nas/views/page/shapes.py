"""Outlines of marks around (0, 0), as SVG paths."""

from __future__ import annotations

from nas.core.trial import State


def circle(radius: float) -> str:
    """Returns a circle."""
    r = f"{radius:g}"
    return f"M-{r} 0a{r} {r} 0 1 0 {2 * radius:g} 0a{r} {r} 0 1 0 -{2 * radius:g} 0Z"


def square(half: float) -> str:
    """Returns a square."""
    return f"M-{half:g} -{half:g}H{half:g}V{half:g}H-{half:g}Z"


def diamond(half: float) -> str:
    """Returns a square that stands on a corner."""
    return f"M0 -{half:g}L{half:g} 0L0 {half:g}L-{half:g} 0Z"


def cross(half: float) -> str:
    """Returns two diagonal lines."""
    return f"M-{half:g} -{half:g}L{half:g} {half:g}M-{half:g} {half:g}L{half:g} -{half:g}"


def triangle(half: float, *, is_up: bool) -> str:
    """Returns a triangle with its tip up or down."""
    tip = -half if is_up else half
    return f"M-{half:g} {-tip:g}H{half:g}L0 {tip:g}Z"


def star(radius: float) -> str:
    """Returns a star with five tips."""
    corners = ((0, -1), (0.24, -0.32), (0.95, -0.31), (0.38, 0.12), (0.59, 0.81), (0, 0.4))
    mirrored = [*corners, *((-x, y) for x, y in reversed(corners[1:5]))]
    return f"M{'L'.join(f'{x * radius:.1f} {y * radius:.1f}' for x, y in mirrored)}Z"


def rounded(half_width: float, half_height: float, radius: float) -> str:
    """Returns a rectangle with round corners."""
    r, x, y = f"{radius:g}", half_width - radius, half_height - radius
    arc = f"a{r} {r} 0 0 1 "
    return f"M{-x:g} {-half_height:g}H{x:g}{arc}{r} {r}V{y:g}{arc}-{r} {r}H{-x:g}{arc}-{r} -{r}V{-y:g}{arc}{r} -{r}Z"


def pill(state: State, half_width: float, half_height: float, *, margin: float = 0.0) -> str:
    """Returns a mark with room for a label, or with a margin the ring around it."""
    radius = 3.0 if state in (State.STOPPED, State.FAILED) else half_height
    return rounded(half_width + margin, half_height + margin, radius + margin)


def dot(state: State, radius: float, *, is_final: bool = False, is_winner: bool = False) -> str:
    """Returns a mark without a label, by winner, later stage and state."""
    if is_winner:
        return star(2.3 * radius)
    if state == State.FAILED:
        return cross(0.75 * radius)
    if is_final:
        return diamond(1.45 * radius)
    if state == State.STOPPED:
        return square(0.86 * radius)
    return circle(0.75 * radius if state == State.WAITING else radius)
