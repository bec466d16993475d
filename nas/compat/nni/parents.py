"""From whom an NNI configuration inherits, by the names of its parameters.

NNI knows no parents; tuners that share weights say them in their parameters, by number or by folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nas.core.errors import ConfigurationError

NUMBERS = ("parent_id", "prev_id", "father_id", "parent", "father")
"""Parameters that name a parameter_id."""
FOLDERS = ("restore_dir", "prev_path", "restore_path", "parent_path", "load_dir", "load_path", "load_checkpoint_dir")
"""Parameters that name where the parent has put its weights ..."""
PLACES = ("save_dir", "path", "save_path", "save_checkpoint_dir")
"""... which are those that the parent's parameters, or its result, hold under these names."""


@dataclass(frozen=True, slots=True)
class ParentRule:
    """Which parameters name a parent.

    Attributes:
        numbers: Those that name it by its parameter_id.
        folders: Where no number is named: those that name a place, which stands in the parent's parameters or result
            under one of ``PLACES``; of several configurations with that place the first is the parent.
    """

    numbers: tuple[str, ...] = NUMBERS
    folders: tuple[str, ...] = FOLDERS

    @classmethod
    def of(cls, text: str | None) -> ParentRule:
        """From ``none``, or names with commas between; a name that ends in ``/`` is a folder's. None: the usual ones.

        Raises:
            ConfigurationError: a name is empty.
        """
        if text is None:
            return cls()
        if text == "none":
            return cls((), ())
        names = [name.strip() for name in text.split(",")]
        if not all(name.rstrip("/") for name in names):
            raise ConfigurationError(f"parents ({text}) must be none, or names such as prev_id,restore_dir/")
        return cls(
            tuple(name for name in names if not name.endswith("/")),
            tuple(name.rstrip("/") for name in names if name.endswith("/")),
        )

    def describe(self) -> str:
        """What ``of`` reads."""
        return ",".join([*self.numbers, *(f"{name}/" for name in self.folders)]) or "none"

    def find(self, parameters: Any, own_id: int, earlier: Mapping[int, tuple[Any, Any]]) -> tuple[int, ...]:
        """Returns the parameter_ids of the parents.

        Args:
            parameters: Of the new configuration.
            own_id: Its parameter_id, which founders often name as their own parent.
            earlier: Parameters and result (None where there is none yet) of each configuration, by parameter_id.
        """
        if not isinstance(parameters, dict):
            return ()
        found: dict[int, None] = {}
        for name in self.numbers:
            value = parameters.get(name)
            if isinstance(value, int) and not isinstance(value, bool) and value != own_id and value in earlier:
                found[value] = None
        for name in () if found else self.folders:
            place = parameters.get(name)
            if isinstance(place, str) and place:
                there = (i for i, known in earlier.items() if i != own_id and place in _places(*known))
                found.update((i, None) for i in [next(there, None)] if i is not None)
        return tuple(found)


def _places(*known: Any) -> set[str]:
    return {place for one in known if isinstance(one, dict) for key in PLACES if isinstance(place := one.get(key), str)}
