"""Resume points of long trials, so that the next attempt continues.

A resume point holds everything that decides the rest of the training:

* the parts that the problem's code names: network, optimizer, schedule, generators;
* the global random states and the curve;
* the content of ``run.save`` and ``run.save_dir``, and the points of ``run.suggest_points``;
* the totals so far: donor, inherited share, inheritance report and cost.

If the training is deterministic, the result is the same to the bit as without the interruption.
"""

from __future__ import annotations

import logging
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, final

from nas.core.errors import ConfigurationError
from nas.core.metric import whole_step
from nas.core.point import Point
from nas.core.reference import checked_path
from nas.core.trial import Trial, training_cost
from nas.inheritance.report import InheritanceReport
from nas.storage.blobs import BlobStore
from nas.storage.folders import walk_folder
from nas.storage.resume_points import ResumePoints
from nas.storage.trial_records import check_resume_state

if TYPE_CHECKING:
    import torch
    from torch import nn

    from nas.core.trial import Donor
    from nas.storage.state_codec import Json
    from nas.training.messages import TrialChannel


logger = logging.getLogger(__name__)

_RESUMES = "trial %d resumes after step %d of an earlier attempt"
_NEVER_ASKED = (
    "trial %d starts from the beginning, and the resume point of an earlier attempt is not used: "
    "train must call run.resumed_from() and load it"
)


@final
class Resumption:
    """A resume point that an earlier attempt saved.

    Attributes:
        step: The step given to ``run.save_resume_point``; training continues with the next one.
        inheritance: The last report of ``run.inherit``, or None if it was not called.
    """

    def __init__(self, saver: ResumePointSaver, state: Json, tensors: Mapping[str, torch.Tensor]) -> None:
        self.step: int = state["step"]
        self.inheritance = None if state["inheritance"] is None else InheritanceReport.from_json(state["inheritance"])
        self._saver = saver
        self._saved: tuple[Json, Mapping[str, torch.Tensor]] | None = (state, tensors)

    def load(self, *parts: object) -> None:
        """Restores the parts that ``run.save_resume_point`` saved, given in the same order.

        Also restores the random states, the curve, the content of ``run.save`` and ``run.save_dir``, the suggested
        points and the totals.
        Call it last before the training loop, because random numbers drawn before it are drawn again.

        Raises:
            ConfigurationError: the parts differ from the saved ones, or it is the second call.
        """
        if self._saved is None:
            raise ConfigurationError("the resume point is loaded already: load all parts in one call")
        state, tensors = self._saved
        kinds, saved = [type(part).__name__ for part in parts], [kind for kind, _ in state["parts"]]
        if kinds != saved:
            raise ConfigurationError(
                f"run.save_resume_point saved {_listed(saved)}, but load is given {_listed(kinds)}: "
                "give both the same parts in the same order"
            )
        self._saved = None
        self._saver.restore(parts, state, tensors)


class ResumableRun(Protocol):
    """The part of a run that is saved and restored."""

    device: str
    n_gpus: float
    inheritance: InheritanceReport | None
    curve: list[tuple[int, dict[str, float]]]
    suggested: tuple[Point, ...]

    @property
    def donor(self) -> Donor | None:
        """The main donor, or None."""

    @property
    def save_dir(self) -> Path:
        """The local folder that is published with the trial."""

    def note_heads(self, model: nn.Module) -> None:
        """Notes the heads of a network's attentions."""

    def save(self, model: Mapping[str, torch.Tensor]) -> None:
        """Saves weights for publishing."""

    def suggest_points(self, points: Sequence[Point]) -> None:
        """Suggests points to the tuner."""

    def unpublished(self) -> tuple[dict[str, torch.Tensor], Path | None]:
        """Returns the tensors and the folder that would be published now."""

    def summary(self) -> dict[str, Any]:
        """Returns the summary of ``inherit`` for the trial's record."""


@final
class ResumePointSaver:
    """Saver and finder of a trial's resume points.

    Args:
        run: The trial's run.
        trial: The trial as assigned.
        files: The search's root.
        channel: Receives the reports and totals of earlier attempts.
        every_s: Default seconds between resume points.
    """

    def __init__(
        self, run: ResumableRun, trial: Trial, files: BlobStore, channel: TrialChannel | None, every_s: float
    ) -> None:
        self._run = run
        self._trial = trial
        self._store = ResumePoints(files, trial.number)
        self._channel = channel
        self._every_s = every_s
        self._began_s = self._saved_s = time.monotonic()
        self._n_saves = 0
        self._found: Resumption | None = None
        self._must_look = trial.attempt > 1
        self._earlier: Mapping[str, Any] | None = None
        """The totals of earlier attempts, if this attempt continues them."""

    @property
    def earlier_s(self) -> float:
        """The seconds of the attempts that this one continues."""
        return 0.0 if self._earlier is None else float(self._earlier["cost"]["seconds"])

    def find(self) -> Resumption | None:
        """Returns the newest resume point of an earlier attempt, read and verified at the first call."""
        if self._must_look:
            self._must_look = False
            newest = self._store.newest(_check)
            self._found = None if newest is None else Resumption(self, *newest)
        return self._found

    def save(self, step: int, parts: Sequence[object], every_s: float | None, force: bool) -> bool:
        """Saves a resume point if one is due; see ``TrialRun.save_resume_point``."""
        every_s = self._every_s if every_s is None else every_s
        step = whole_step("run.save_resume_point: step", step, least=0)
        if not every_s >= 0:
            raise ConfigurationError(f"run.save_resume_point: every_s={every_s!r}: must be at least 0 seconds.")
        if self._trial.is_finished or (not force and time.monotonic() - self._saved_s < every_s):
            return False
        if self._must_look and not self._n_saves:
            logger.warning(_NEVER_ASKED, self._trial.number)
        from nas.storage.state_codec import encode_state
        from nas.training.seeds import random_state

        tensors: dict[str, torch.Tensor] = {}
        saved, folder = self._run.unpublished()
        report = self._run.inheritance or (self._found and self._found.inheritance)
        state = {
            "step": step,
            "curve": [[step, metrics] for step, metrics in self._run.curve],
            "totals": self._totals(),
            "inheritance": None if report is None else report.to_json(),
            "parts": [_encode_part(place, part, tensors) for place, part in enumerate(parts, 1)],
            "saved": encode_state(saved, "saved", tensors),
            "files": encode_state(_read_files(folder), "files", tensors),
            "random": encode_state(random_state(), "random", tensors),
            "suggested": list(self._run.suggested),
        }
        self._store.publish(state, tensors)
        self._n_saves += 1
        self._saved_s = time.monotonic()  # after the save, so that slow storage never takes all the time
        return True

    def restore(self, parts: Sequence[object], state: Json, tensors: Mapping[str, torch.Tensor]) -> None:
        """Restores the parts and the run; called by ``Resumption.load``."""
        from torch import nn

        from nas.storage.state_codec import decode_state
        from nas.training.seeds import set_random_state

        device = self._run.device
        for part, (_, saved) in zip(parts, state["parts"], strict=True):
            _set_state(part, decode_state(saved, tensors, device))
            if isinstance(part, nn.Module):
                self._run.note_heads(part)
        if weights := decode_state(state["saved"], tensors):
            self._run.save(weights)
        for name, data in decode_state(state["files"], tensors).items():
            path = self._run.save_dir / checked_path(name)
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data.tobytes())
        self._run.suggest_points(state.get("suggested", ()))
        self._earlier = state["totals"]
        self._run.curve[:] = [(step, metrics) for step, metrics in state["curve"]]
        if self._channel is not None:
            self._channel.resumed(self._run.curve, state["totals"])
        logger.warning(_RESUMES, self._trial.number, state["step"])
        set_random_state(decode_state(state["random"], tensors))

    def completed(self, trial: Trial) -> Trial:
        """Returns the trial with the totals of the attempts that it continues."""
        if self._earlier is None:
            return trial
        spent = self._earlier["cost"]
        cost = {**trial.cost, **{name: trial.cost[name] + spent[name] for name in ("seconds", "gpu_seconds")}}
        lost = {name: value for name, value in trial.inheritance.items() if name == "lost"}
        inheritance = {**self._earlier["inheritance"], **lost}
        return replace(trial, **{**self._earlier, "cost": cost, "inheritance": inheritance})

    def delete(self, trial: Trial) -> None:
        """Deletes the resume points of a finished trial."""
        if self._n_saves or trial.attempt > 1:
            self._store.delete()

    def _totals(self) -> dict[str, Any]:
        """Returns donor, inheritance and cost up to now."""
        seconds = time.monotonic() - self._began_s
        summary = self._run.summary()
        now = replace(
            self._trial,
            cost=training_cost(seconds, self._run.n_gpus),
            donor=self._run.donor,
            inherited=summary.get("share"),
            inheritance={**self._trial.inheritance, **summary},
        )
        total = self.completed(now)
        return {name: getattr(total, name) for name in ("resolved_donor", "donor", "inherited", "inheritance", "cost")}


def _check(state: Json) -> None:
    """Checks the record of a resume point; raises CorruptError."""
    check_resume_state(state)
    if state["inheritance"] is not None:
        InheritanceReport.from_json(state["inheritance"])


def _listed(kinds: Sequence[str]) -> str:
    return ", ".join(kinds) or "nothing"


def _encode_part(place: int, part: object, tensors: dict[str, torch.Tensor]) -> Json:
    from nas.storage.state_codec import encode_state

    kind = type(part).__name__
    return [kind, encode_state(_state(place, part), f"part {place} ({kind})", tensors)]


def _state(place: int, part: object) -> object:
    """Returns the state of a part, as ``_set_state`` takes it."""
    import numpy as np
    import torch

    match part:
        case dict():
            return dict(part)
        case random.Random():
            return part.getstate()
        case np.random.Generator():
            return part.bit_generator.state
        case torch.Generator():
            return part.get_state()
    if not callable(getattr(part, "state_dict", None)) or not callable(getattr(part, "load_state_dict", None)):
        raise ConfigurationError(
            f"part {place} of run.save_resume_point is a {type(part).__name__}, which has no state_dict and "
            "load_state_dict: give what holds the state (of a DataLoader, its generator), or a dict of it"
        )
    return part.state_dict()  # type: ignore[attr-defined]


def _set_state(part: Any, state: Any) -> None:
    import numpy as np
    import torch

    from nas.inheritance.module_state import load_weights

    match part:
        case dict():
            part.clear()
            part.update(state)
        case random.Random():
            part.setstate(state)
        case np.random.Generator():
            part.bit_generator.state = state
        case torch.Generator():
            part.set_state(state)
        case torch.nn.Module():
            load_weights(part, state)
        case _:
            part.load_state_dict(state)


def _read_files(folder: Path | None) -> dict[str, Any]:
    """Returns the files below a folder as arrays of bytes, by relative name."""
    import numpy as np

    return {} if folder is None else {name: np.fromfile(local, np.uint8) for name, local in walk_folder(folder)}
