"""What inheritance did, tensor by tensor."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from types import NoneType
from typing import Any, Literal, get_args

from nas.core.errors import CorruptError
from nas.core.validation import checked_fields, number_within, shown, whole

NO_DONOR = "no donor"
How = Literal["copied", "morphed", "inserted", "sliced", "new"]
"""``morphed`` and ``inserted`` by recorded operations: of a donor's tensors, and for a layer that no donor has."""
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
    """What became of one tensor."""

    how: How
    share: float = 0.0
    """Share of its elements that were inherited."""
    donor: int | None = None
    """The place, among the donors, of the one that it came from."""
    why: str = ""
    """Why it was not copied whole from the donor's tensor of the same name."""

    @property
    def is_listed(self) -> bool:
        """Whether there is something to be told of it."""
        return bool(self.why) and self.why != NO_DONOR


@dataclass(frozen=True, slots=True, kw_only=True)
class InheritanceReport:
    """What ``inherit`` did, tensor by tensor, in the order of the network's ``state_dict``."""

    share: float
    """Share of the parameters (elements; buffers don't count) that were inherited; 0.0 where there are none."""
    given: Mapping[int, float]
    """Of that share, what each donor that gave some has given, by its place among the donors: who gave most comes
    first, of equals the better."""
    tensors: Mapping[str, TensorInheritance]
    replayed: int | None = None
    """The place, among the donors, of the one on whose tensors a derivation was replayed; None: it was not."""
    notes: tuple[str, ...] = ()
    """What else has to be known: why a derivation could not be replayed, on whose tensors it was where that is not the
    parent, and why a module can't be traced."""

    @property
    def main_donor(self) -> int | None:
        """The place, among the donors, of the one that gave most parameters; None: nobody did."""
        return next(iter(self.given), None)

    def to_json(self) -> dict[str, Any]:
        """Returns all of it as JSON."""
        return {**asdict(self), "given": [[place, share] for place, share in self.given.items()]}

    @classmethod
    def from_json(cls, plain: object) -> InheritanceReport:
        """Returns the report of which ``to_json`` made this.

        Raises:
            CorruptError: it made no such thing.
        """
        fields = checked_fields(plain, _REPORT)
        if not all(isinstance(pair, list) and len(pair) == 2 for pair in fields["given"]):
            raise CorruptError(f"given must not be {shown(fields['given'])}")
        if not all(isinstance(note, str) for note in fields["notes"]):
            raise CorruptError(f"notes must not be {shown(fields['notes'])}")
        return cls(
            share=number_within(fields["share"], "share", 0, 1),
            given={whole(place, "a donor"): number_within(share, "given", 0, 1) for place, share in fields["given"]},
            tensors={name: _tensor(entry) for name, entry in fields["tensors"].items()},
            replayed=_place(fields["replayed"]),
            notes=tuple(fields["notes"]),
        )

    def summary(self) -> dict[str, Any]:
        """Returns the report as JSON: ``share``, ``n_copied``, ``n_sliced``, ``n_new`` and ``not_copied``.

        ``not_copied`` maps the tensors that were not copied whole from their namesakes to the reason; without any donor
        it is empty, since the reason is the same for all. ``n_morphed``, ``n_inserted`` and ``notes`` are there where there
        are some.
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
        raise CorruptError(f"how must not be {shown(fields['how'])}")
    share = number_within(fields["share"], "share", 0, 1)
    return TensorInheritance(how=fields["how"], share=share, donor=_place(fields["donor"]), why=fields["why"])


def _place(value: int | None) -> int | None:
    return None if value is None else whole(value, "a donor")
