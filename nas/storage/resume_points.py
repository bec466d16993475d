"""Resume points: saved training state of a trial without a result.

Each consists of a pack ``resume/000042/000007-<nonce>.safetensors`` and a record ``000007-<nonce>.json``, which is
written after it. They are found by listing the trial's folder, and deleted when the trial has a result.
"""

from __future__ import annotations

import logging
import re
import secrets
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Literal

from msgspec import Struct

from nas.core.errors import ConfigurationError, CorruptError, MissingError
from nas.core.reference import is_path
from nas.core.validation import path_in_errors
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import publish_tensors
from nas.storage.manifest import Manifest
from nas.storage.record_format import FORMAT, decode_record, encode_record
from nas.storage.record_values import checked_as

if TYPE_CHECKING:
    import torch

    from nas.storage.state_codec import Json

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(\d{6,})-[0-9a-f]{8}\.(?:json|safetensors)")


class _ResumePoint(Struct, forbid_unknown_fields=True):
    """``resume/000042/000007-<nonce>.json``."""

    format: Literal[2]
    trial: int
    number: int
    manifest: dict[str, Any]
    state: dict[str, Any]


class ResumePoints:
    """Resume points of one trial; the last two are kept.

    Args:
        files: The search's root.
        trial: The trial's number.
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
            tensors: The tensors that the state names.

        Raises:
            ConfigurationError: a tensor can't be stored in a pack, or the state is too large or nested too deep.
            StorageError: the storage failed.
        """
        names = self._names()
        number = 1 + max(names.values(), default=0)
        stem = f"{self.folder}/{number:06d}-{secrets.token_hex(4)}"
        manifest = publish_tensors(self._files, f"{stem}.safetensors", tensors)
        ids = {"format": FORMAT, "trial": self._trial, "number": number}
        try:
            data = encode_record({**ids, "manifest": manifest.to_json(), "state": state}, is_large=True)
        except ValueError as error:
            raise ConfigurationError(
                f"the state beside the tensors can't be saved: {error}. Keep large values in tensors or arrays, and "
                "nest lists and dicts less deeply."
            ) from error
        self._files.publish(f"{stem}.json", [data])
        undamaged = [n for name, n in names.items() if name.endswith(".json") and n not in self._damaged]
        oldest = max(undamaged, default=number)
        self._delete([name for name, n in names.items() if n < oldest or n in self._damaged])

    def newest(self, check: Callable[[Json], None] = lambda state: None) -> tuple[Json, dict[str, torch.Tensor]] | None:
        """Returns state and tensors of the newest undamaged resume point, or None.

        Damaged ones are logged.

        Args:
            check: Raises CorruptError if the caller can't resume from the state.
        """
        names = self._names()
        records = sorted((name for name in names if name.endswith(".json")), key=lambda name: -names[name])
        for n_left, name in zip(range(len(records) - 1, -1, -1), records, strict=True):
            try:
                return self._read(f"{self.folder}/{name}", names[name], check)
            except (MissingError, CorruptError) as error:
                self._damaged.add(names[name])
                then = "the one before it is used" if n_left else "the trial starts from the beginning"
                logger.warning("resume point is damaged, %s: %s", then, error)
        return None

    def delete(self) -> None:
        """Deletes all resume points of a finished trial, and unfinished files of killed attempts."""
        found = [stored.path for stored in self._files.subfolder(self.folder).walk()]
        self._delete([path for path in found if is_path(path, unfinished=True)])

    def _names(self) -> dict[str, int]:
        """Returns the numbers of the trial's resume points by file name. Other files are ignored."""
        matches = {name: _NAME.fullmatch(name) for name in self._files.names(self.folder)}
        return {name: int(match[1]) for name, match in matches.items() if match}

    def _delete(self, names: list[str]) -> None:
        for name in sorted(
            names, key=lambda name: not name.endswith(".json")
        ):  # records first, as one without a pack is damage
            self._files.delete(f"{self.folder}/{name}")

    def _read(self, path: str, number: int, check: Callable[[Json], None]) -> tuple[Json, dict[str, torch.Tensor]]:
        from nas.storage.pack import read_tensors

        url = f"{self._files.url}/{path}"
        data = self._files.read_if_present(path)
        if data is None:
            raise MissingError(f"{url} is missing")
        with path_in_errors(url):
            state, manifest = parse_resume_point(decode_record(data, is_large=True), self._trial, number)
            check(state)
        packs = {pack.path: pack for pack in manifest.packs}
        return state, read_tensors(self._files, manifest.tensors, packs)


def parse_resume_point(record: Mapping[str, Any], trial: int, number: int) -> tuple[Json, Manifest]:
    """Returns state and manifest in the record of a resume point.

    Raises:
        CorruptError: Heirloom does not write such a record for this trial and number.
    """
    found = checked_as(_ResumePoint, record)
    if (found.trial, found.number) != (trial, number):
        raise CorruptError("it is the record of another resume point")
    return found.state, Manifest.from_json(found.manifest)
