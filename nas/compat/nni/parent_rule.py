"""The parents of an NNI configuration, found by the names of its parameters.

NNI records no parents. Tuners that share weights write the parent into the parameters, as a number or a folder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nas.core.errors import ConfigurationError

ID_PARAMETERS = ("parent_id", "prev_id", "father_id", "parent", "father")
"""Parameters with the parent's parameter_id."""
RESTORE_PARAMETERS = (
    "restore_dir", "prev_path", "restore_path", "parent_path", "load_dir", "load_path", "load_checkpoint_dir",
)  # fmt: skip
"""Parameters with the folder of the parent's weights."""
SAVE_PARAMETERS = ("save_dir", "path", "save_path", "save_checkpoint_dir")
"""Keys of the parent's parameters or result with the folder of its weights."""


@dataclass(frozen=True, slots=True)
class ParentRule:
    """The parameters that name a parent.

    Attributes:
        ids: Names of parameters with a parameter_id.
        folders: Names of parameters with a folder, used if no id is given. The parent is the first configuration
            with that folder under one of ``SAVE_PARAMETERS``.
    """

    ids: tuple[str, ...] = ID_PARAMETERS
    folders: tuple[str, ...] = RESTORE_PARAMETERS

    @classmethod
    def parse(cls, text: str | None) -> ParentRule:
        """Returns the rule of ``--parents``.

        Args:
            text: ``none``, or names separated by commas; a name that ends in ``/`` has a folder. None: the default.

        Raises:
            ConfigurationError: a name is empty, or this is no text.
        """
        if text is None:
            return cls()
        if text == "none":
            return cls((), ())
        names = [name.strip() for name in text.split(",")] if isinstance(text, str) else [""]
        if not all(name.rstrip("/") for name in names):
            raise ConfigurationError(f"--parents={text}: must be none, or names such as prev_id,restore_dir/")
        return cls(
            tuple(name for name in names if not name.endswith("/")),
            tuple(name.rstrip("/") for name in names if name.endswith("/")),
        )

    def describe(self) -> str:
        """Returns the text that ``parse`` reads."""
        return ",".join([*self.ids, *(f"{name}/" for name in self.folders)]) or "none"

    def find(self, parameters: Any, own_id: int, earlier: Mapping[int, tuple[Any, Any]]) -> tuple[int, ...]:
        """Returns the parameter_ids of the parents.

        Args:
            parameters: Of the new configuration.
            own_id: Its parameter_id. The first configurations often name themselves as their parent.
            earlier: Parameters and result (None if there is none yet) of each configuration, by parameter_id.
        """
        if not isinstance(parameters, dict):
            return ()
        values = [parameters.get(name) for name in self.ids]
        found = [v for v in values if isinstance(v, int) and not isinstance(v, bool) and v != own_id and v in earlier]
        if not found:
            folders = [parameters.get(name) for name in self.folders]
            candidates = {number: known for number, known in earlier.items() if number != own_id}
            parents = [_owner(folder, candidates) for folder in folders if isinstance(folder, str) and folder]
            found = [number for number in parents if number is not None]
        return tuple(dict.fromkeys(found))


def _owner(folder: str, candidates: Mapping[int, tuple[Any, Any]]) -> int | None:
    """Returns the first configuration with the folder in its parameters or result."""
    for number, known in candidates.items():
        if any(folder == content.get(key) for content in known if isinstance(content, dict) for key in SAVE_PARAMETERS):
            return number
    return None
