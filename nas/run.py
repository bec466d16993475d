"""The live handle that a problem's code holds while a trial trains."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from nas.errors import TrialStopped
from nas.metric import not_finite, plain_metrics
from nas.policy import Policy
from nas.spaces.base import Point
from nas.store.checkpoint import Checkpoint, fetch_folder, load_tensors, publish_checkpoint, publish_folder
from nas.store.files import Files, Reference
from nas.trial import Donor, Trial

if TYPE_CHECKING:
    import torch

    from nas.store.pack import TensorEntry
    from nas.weights.inherit import InheritanceReport


class Channel(Protocol):
    """How a running trial speaks to the loop."""

    def started(self) -> None:
        """Tells the loop that the problem's code starts now."""

    def report(self, step: int, metrics: Mapping[str, float]) -> None:
        """Tells the loop of intermediate metrics; raises ``TrialStopped`` where the trial should end."""


@dataclass(frozen=True, slots=True)
class DonorWeights:
    """A donor whose weights are whole: its name and its checkpoint, in this search or another."""

    donor: Donor
    checkpoint: Checkpoint


class TrialRun:
    """What a problem's ``train`` is given: the point to train, how, and where to leave weights.

    Attributes:
        number: The trial's id.
        stage: The stage's name: ``search``, ``final`` or a user's own.
        point: Architecture and hyper-parameters, plain JSON data.
        policies: The policies that are on.
        fidelity: The share of a full training that the tuner asks for, or None.
        seed: Seeds everything random; python, numpy and torch are seeded with it already.
        device: ``cpu``, ``cuda`` or ``mps``.
    """

    def __init__(
        self,
        trial: Trial,
        files: Files,
        *,
        donors: Sequence[DonorWeights] = (),
        device: str = "cpu",
        channel: Channel | None = None,
    ) -> None:
        self.number = trial.number
        self.stage = trial.stage
        self.point: Point = trial.point
        self.policies: frozenset[Policy] = trial.policies
        self.fidelity = trial.proposal.fidelity
        self.seed = trial.seed
        self.device = device
        self.inheritance: InheritanceReport | None = None
        self.curve: list[tuple[int, dict[str, float]]] = []
        self.stop: TrialStopped | None = None
        self._files = files
        self.donors = tuple(donors)
        self._own = trial.checkpoint
        self._channel = channel
        self._stem = f"{trial.number:06d}-{secrets.token_hex(4)}"
        self._pack: tuple[Reference, Mapping[str, TensorEntry]] | None = None
        self._n_packs = 0
        self._folders: dict[str, tempfile.TemporaryDirectory[str]] = {}
        self._loaded: dict[int, dict[str, torch.Tensor]] = {}

    @property
    def has_donor(self) -> bool:
        """Whether there are weights to inherit."""
        return bool(self.donors)

    def load_donors(self) -> None:
        """Reads and verifies the donors' weights; called before the problem's code.

        Raises:
            MissingError: a file of a donor is gone.
            CorruptError: a donor's bytes are not those that were published.
        """
        self._load_tensors()
        if self.donors and self.donors[0].checkpoint.files:
            first = self.donors[0]
            fetch_folder(self._files_of(first.donor), first.checkpoint, self._folder("restore"))

    def fetch_own_files(self) -> None:
        """Fetches what this finished trial published from its ``save_dir``; called before ``test`` and ``export``."""
        if self._own is not None and self._own.files:
            fetch_folder(self._files, self._own, self._folder("restore"))

    def inherit(self, model: torch.nn.Module) -> InheritanceReport:
        """Copies into ``model`` what fits of the donors' weights, the best donor first, and says what was done.

        Without a donor nothing is copied, and the report says so. The last report is kept on the trial.
        """
        from nas.weights.inherit import inherit

        if not self._loaded:  # a second network; the weights were let go after the first
            self._load_tensors()
        self.inheritance = inherit(model, [self._loaded[place] for place in sorted(self._loaded)])
        self._loaded.clear()
        return self.inheritance

    def restore(self, model: torch.nn.Module) -> torch.nn.Module:
        """``model`` with the weights that this trial has published, all of them, on ``device`` (for test, export).

        Raises:
            LookupError: the trial published no weights.
        """
        if self._own is None:
            raise LookupError(f"trial {self.number} published no weights")
        model.load_state_dict(load_tensors(self._files, self._own), strict=True)
        return model.to(self.device)

    def report(self, step: int, **metrics: float) -> None:
        """Reports intermediate validation metrics after ``step`` (an epoch, say).

        Raises:
            TrialStopped: the trial should end now; let it pass through (a last ``save`` is allowed).
        """
        plain = plain_metrics(metrics)
        if bad := not_finite(plain):
            raise FloatingPointError(f"step {step} reported {', '.join(f'{n}={plain[n]}' for n in bad)}")
        self.curve.append((int(step), plain))
        if self._channel is not None:
            try:
                self._channel.report(int(step), plain)
            except TrialStopped as stop:
                self.stop = stop
                raise

    def save(self, model: torch.nn.Module | Mapping[str, torch.Tensor]) -> None:
        """Publishes the weights (a module's ``state_dict``); the last save before the trial ends counts."""
        from torch import nn

        from nas.store.pack import write_pack

        tensors = model.state_dict() if isinstance(model, nn.Module) else model
        earlier = self._pack
        suffix = f"-{self._n_packs}" if self._n_packs else ""
        self._n_packs += 1
        self._pack = write_pack(self._files, f"packs/{self._stem}{suffix}.safetensors", tensors)
        if earlier is not None:
            self._files.delete(earlier[0].path)

    @property
    def save_dir(self) -> Path:
        """An empty local folder; what lies in it when ``train`` ends is published with the trial."""
        return self._folder("save")

    @property
    def restore_dir(self) -> Path | None:
        """A local folder with the files that the donor published from its ``save_dir``, or None.

        In ``test`` and ``export``: those that the trial itself published.
        """
        return Path(self._folders["restore"].name) if "restore" in self._folders else None

    def commit_weights(self) -> Checkpoint | None:
        """Publishes the manifest of what was saved; None where nothing was."""
        saved: tuple[Reference, ...] = ()
        if "save" in self._folders:
            saved = publish_folder(self._files, self._stem, Path(self._folders["save"].name))
        if self._pack is None and not saved:
            return None
        return publish_checkpoint(self._files, self._stem, self._pack, saved)

    def close(self) -> None:
        """Removes the local folders."""
        for folder in self._folders.values():
            folder.cleanup()
        self._folders.clear()
        self._loaded.clear()

    def _folder(self, kind: str) -> Path:
        if kind not in self._folders:
            self._folders[kind] = tempfile.TemporaryDirectory(prefix=f"heirloom-{self.number:06d}-{kind}-")
        return Path(self._folders[kind].name)

    def _load_tensors(self) -> None:
        for place, donor in enumerate(self.donors):
            self._loaded[place] = load_tensors(self._files_of(donor.donor), donor.checkpoint)

    def _files_of(self, donor: Donor) -> Files:
        return self._files if isinstance(donor, int) else self._files.sibling(donor.rpartition(":")[0])

    def summary(self) -> dict[str, Any]:
        """What ``inherit`` did, for the trial's record."""
        return {} if self.inheritance is None else self.inheritance.summary()
