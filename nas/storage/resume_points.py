"""Resume points: what a trial without a result has reached, in a folder of its own until the result is there.

``resume/000042/`` holds, of each one, a pack ``000007-<nonce>.safetensors`` and, written after it, the record
``000007-<digest of the record>.json``: found by listing the folder, it is believed only if the digest is right.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from nas.core.errors import ConfigurationError, CorruptError, MissingError
from nas.core.reference import is_path
from nas.core.validation import checked_fields, path_in_errors
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import publish_tensors
from nas.storage.manifest import Manifest
from nas.storage.record_format import FORMAT, decode_record, encode_record

if TYPE_CHECKING:
    import torch

    from nas.storage.state_codec import Json

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{6,})-[0-9a-f]{8}\.(?:json|safetensors)")
_KINDS: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("format", "trial", "number"), (int,)),
    "manifest": (dict,),
    "state": (dict,),
}


class ResumePoints:
    """The resume points of one trial, of which the last two are kept.

    Args:
        files: The search's root.
        trial: Its number.
    """

    def __init__(self, files: BlobStore, trial: int) -> None:
        self._trial = trial
        self.folder = f"resume/{trial:06d}"
        self._files = files
        self._damaged: set[int] = set()

    def publish(self, state: Json, tensors: Mapping[str, torch.Tensor]) -> None:
        """Publishes a resume point, and deletes all but the newest undamaged one before it.

        Args:
            state: A JSON object.
            tensors: Those that the state names.

        Raises:
            ConfigurationError: a tensor that has no place in a pack, or a state that is too large.
            StorageError: the store failed.
        """
        names = self._names()
        number = 1 + max(names.values(), default=0)
        stem = f"{self.folder}/{number:06d}-{secrets.token_hex(4)}"
        manifest = publish_tensors(self._files, f"{stem}.safetensors", tensors)
        about = {"format": FORMAT, "trial": self._trial, "number": number}
        try:
            data = encode_record({**about, "manifest": manifest.to_json(), "state": state})
        except ValueError as error:
            raise ConfigurationError(
                f"the state beside the tensors can't be saved: {error}. Keep large values in tensors or arrays, and "
                "nest lists and dicts less deeply."
            ) from error
        self._files.publish(f"{stem}.json", [data])
        whole = [n for name, n in names.items() if name.endswith(".json") and n not in self._damaged]
        oldest = max(whole, default=number)
        self._delete([name for name, n in names.items() if n < oldest or n in self._damaged])

    def newest(self, check: Callable[[Json], None] = lambda state: None) -> tuple[Json, dict[str, torch.Tensor]] | None:
        """Returns the state and the tensors of the newest one that is whole, or None; the log tells of damaged ones.

        Args:
            check: Raises CorruptError where the state is none that the caller can go on from.
        """
        names = self._names()
        for name in sorted((name for name in names if name.endswith(".json")), key=lambda name: -names[name]):
            try:
                return self._read(f"{self.folder}/{name}", names[name], check)
            except (MissingError, CorruptError) as error:
                self._damaged.add(names[name])
                logger.warning("a resume point is lost, and the one before it, if any, is taken: %s", error)
        return None

    def delete(self) -> None:
        """Deletes all resume points of a finished trial, and unfinished files of killed attempts."""
        found = [stored.path for stored in self._files.subfolder(self.folder).walk()]
        self._delete([path for path in found if is_path(path, unfinished=True)])

    def _names(self) -> dict[str, int]:
        """Returns the files of the folder, as of now, with their numbers; files that are none of ours left out."""
        found = {name: _NAME.fullmatch(name) for name in self._files.names(self.folder)}
        return {name: int(match[1]) for name, match in found.items() if match}

    def _delete(self, names: list[str]) -> None:
        for name in sorted(names, key=lambda name: not name.endswith(".json")):  # a record without a pack alarms
            self._files.delete(f"{self.folder}/{name}")

    def _read(self, path: str, number: int, check: Callable[[Json], None]) -> tuple[Json, dict[str, torch.Tensor]]:
        from nas.storage.pack import read_tensors

        place = f"{self._files.url}/{path}"
        data = self._files.read_if_present(path)
        if data is None:
            raise MissingError(f"{place} is missing")
        with path_in_errors(place):
            fields = checked_fields(decode_record(data), _KINDS)
            if fields["format"] != FORMAT:
                raise CorruptError(f"format {fields['format']} is not {FORMAT}, which this version of Heirloom reads")
            if (fields["trial"], fields["number"]) != (self._trial, number):
                raise CorruptError("it is the record of another save")
            manifest = Manifest.from_json(fields["manifest"])
            check(fields["state"])
        return fields["state"], read_tensors(
            self._files, manifest.tensors, {pack.path: pack for pack in manifest.packs}
        )
