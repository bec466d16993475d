"""The report on inheritance, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import NoneType
from typing import Any, Literal, get_args

from nas.core.errors import CorruptError
from nas.core.validation import checked_fields, checked_int, checked_number, short_repr

NO_DONOR = "no donor"
How = Literal["copied", "morphed", "inserted", "sliced", "new"]
"""``morphed``: changed by recorded operations; ``inserted``: of a layer that these operations put in."""
_TENSOR: Mapping[str, tuple[type, ...]] = {
    "how": (str,),
    "share": (int, float),
    "donor": (int, NoneType),
    "why": (str,),
}
_REPORT: Mapping[str, tuple[type, ...]] = {
    "share": (int, float),
    "given": (list,),
    "tensors": (dict,),
    "replayed": (int, NoneType),
    "notes": (list,),
}


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
    share: float = 0.0
    donor: int | None = None
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

    share: float
    given: Mapping[int, float]
    tensors: Mapping[str, TensorInheritance]
    replayed: int | None = None
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
        fields = checked_fields(plain, _REPORT)
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in fields["given"]):
            raise CorruptError(f"given must not be {short_repr(fields['given'])}")
        if not all(isinstance(note, str) for note in fields["notes"]):
            raise CorruptError(f"notes must not be {short_repr(fields['notes'])}")
        return cls(
            share=checked_number(fields["share"], "share", 0, 1),
            given={
                checked_int(donor, "a donor"): checked_number(share, "given", 0, 1) for donor, share in fields["given"]
            },
            tensors={name: _tensor(entry) for name, entry in fields["tensors"].items()},
            replayed=_index(fields["replayed"]),
            notes=tuple(fields["notes"]),
        )

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


def _tensor(plain: object) -> TensorInheritance:
    fields = checked_fields(plain, _TENSOR)
    if fields["how"] not in get_args(How):
        raise CorruptError(f"how must not be {short_repr(fields['how'])}")
    share = checked_number(fields["share"], "share", 0, 1)
    return TensorInheritance(how=fields["how"], share=share, donor=_index(fields["donor"]), why=fields["why"])


def _index(value: int | None) -> int | None:
    return None if value is None else checked_int(value, "a donor")
