"""The report on inheritance, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from nas.storage.record_values import Share, Whole, checked_as, checked_exactly

NO_DONOR = "no donor"
How = Literal["copied", "morphed", "inserted", "sliced", "new"]
"""``morphed``: changed by recorded operations; ``inserted``: of a layer that these operations put in."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInheritance:
    """The result for one tensor.

    Attributes:
        how: How it got its values.
        share: The share of its elements that were inherited.
        donor: The index of the donor that they came from.
        why: The reason why it was not copied whole from the donor's tensor of the same name.
    """

    how: How
    share: Share = 0.0
    donor: Whole | None = None
    why: str = ""

    @property
    def is_listed(self) -> bool:
        """Whether the summary lists it."""
        return bool(self.why) and self.why != NO_DONOR


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritanceReport:
    """The result of ``inherit``.

    Attributes:
        share: The share of the parameters that were inherited, in elements, without buffers; 0.0 without parameters.
        given: The part of that share from each donor, by the donor's index; the largest part first, of equals the
            better donor.
        tensors: The result for each tensor, in the order of the network's ``state_dict``.
        replayed: The index of the donor on whose tensors a derivation was replayed, or None.
        notes: Reasons: a derivation was not replayed, or not on the parent; a module can't be traced.
    """

    share: Share
    given: Mapping[int, float]
    tensors: Mapping[str, TensorInheritance]
    replayed: Whole | None = None
    notes: tuple[str, ...] = ()

    @property
    def main_donor(self) -> int | None:
        """The index of the donor that gave the most parameters, or None."""
        return next(iter(self.given), None)

    def to_json(self) -> dict[str, Any]:
        """Returns the whole report as JSON."""
        return {**asdict(self), "given": [[donor, share] for donor, share in self.given.items()]}

    @classmethod
    def from_json(cls, plain: object) -> InheritanceReport:
        """Returns the report from the result of ``to_json``.

        Raises:
            CorruptError: ``plain`` is not such a result.
        """
        fields = checked_as(dict[str, Any], plain)
        given = dict(checked_as(list[tuple[Whole, Share]], fields.get("given")))
        return replace(checked_exactly(cls, fields | {"given": {}}), given=given)

    def summary(self) -> dict[str, Any]:
        """Returns the report as JSON: ``share``, ``n_copied``, ``n_sliced``, ``n_new`` and ``not_copied``.

        ``not_copied`` gives the reason for each tensor that was not copied whole from the tensor of the same name;
        without a donor it is empty. ``n_morphed``, ``n_inserted`` and ``notes`` are left out if there are none.
        """
        hows = [tensor.how for tensor in self.tensors.values()]
        by_operations = {f"n_{how}": hows.count(how) for how in ("morphed", "inserted") if how in hows}
        return {
            "share": self.share,
            "n_copied": hows.count("copied"),
            "n_sliced": hows.count("sliced"),
            "n_new": hows.count("new"),
            "not_copied": {name: tensor.why for name, tensor in self.tensors.items() if tensor.is_listed},
            **by_operations,
            **({"notes": list(self.notes)} if self.notes else {}),
        }
