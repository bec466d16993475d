"""The live handle that a problem's code holds while a trial trains."""

from __future__ import annotations

import copy
import logging
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, CorruptError, MissingError, TrialDeadlineExceeded, TrialStopped
from nas.core.metric import not_finite, plain_metrics, whole_step
from nas.core.point import Point
from nas.core.reference import Reference
from nas.core.tracebacks import error_line
from nas.core.trial import MAX_WARNING, Donor, DonorWeights, Trial, trial_name
from nas.storage.blobs import BlobStore
from nas.storage.checkpoints import fetch_folder, publish_checkpoint, publish_tensors
from nas.storage.folders import publish_folder
from nas.storage.tensor_names import is_weight, unwrapped
from nas.storage.trial_log import MAX_LOG_BYTES, log_path
from nas.training.messages import EVERY_S, LOG_DIR, TrialChannel
from nas.training.policy_scaling import PolicyScaling
from nas.training.resume import ResumePointSaver, Resumption
from nas.training.suggestion import checked_suggestion
from nas.training.temporary_folders import temporary_folder

if TYPE_CHECKING:
    import torch

    from nas.inheritance.report import InheritanceReport
    from nas.inheritance.rules import Rules
    from nas.spaces.space import Space
    from nas.storage.lazy_weights import StoredWeights
    from nas.storage.manifest import Manifest
    from nas.storage.tensor_parts import TensorParts

logger = logging.getLogger(__name__)


class TrialRun(PolicyScaling):
    """The live handle of a trial: its point, its settings, and its weights.

    A long training continues after an interruption if it names what to save (docs/guides/long_trials.md):

        if resumed := run.resumed_from():
            resumed.load(network, optimizer)
        for epoch in range(resumed.step if resumed else 0, n_epochs):
            ...  # train for an epoch, report it
            run.save_resume_point(epoch + 1, network, optimizer)

    Attributes:
        number: The trial's id.
        name: ``trial-0042``, as in Prefect and in loggers.
        search: The search's name.
        stage: The stage's name: ``search``, ``final`` or a user's own.
        point: Architecture and hyper-parameters, plain JSON data. Changes of it reach no record.
        policies: The policies that are on.
        fidelity: The share of a full training that the tuner requests, or None.
        more_epochs: The epochs for which the trial goes on training its parent, or None for another trial.
        derivation: The tuner's note on how it made the point.
        seed: The trial's random seed. Python, numpy and torch are seeded with it already.
        device: ``cpu``, ``cuda`` or ``mps``.
        n_gpus: The number of GPUs of this trial; a fraction if it shares one.
        train_until: The ``time.time`` at which the training should end, as ``budget.hours`` allows. None: any;
            infinite: in full.
    """

    def __init__(
        self,
        trial: Trial,
        files: BlobStore,
        *,
        donors: Sequence[DonorWeights] = (),
        device: str = "cpu",
        n_gpus: float = 0.0,
        channel: TrialChannel | None = None,
        resume_every_s: float = EVERY_S,
        example_inputs: Callable[[], tuple[torch.Tensor, ...]] | None = None,
        space: Space | None = None,
        log_dir: str = LOG_DIR,
        train_until: float | None = None,
    ) -> None:
        super().__init__(trial.policies, trial.proposal.fidelity, trial.more_epochs)
        self.number = trial.number
        self.name = trial_name(trial.number)
        self.search = files.name
        self.stage = trial.stage
        self.point: Point = copy.deepcopy(trial.point)  # the problem's code may change it
        self.seed = trial.seed
        self.derivation = copy.deepcopy(trial.proposal.derivation)
        self._parents = trial.proposal.parents
        self.device = device
        self._example_inputs = example_inputs
        self._space = space
        self._log_dir = log_dir
        self.n_gpus = n_gpus
        self.train_until = train_until
        # the clock of ``time.time`` may be set while the trial trains
        self._ends_s = math.inf if train_until is None else time.perf_counter() + train_until - time.time()
        self.inheritance: InheritanceReport | None = None
        self.warnings: list[str] = []
        """Texts about the problem's code that the command shows, each kind once."""
        self.curve: list[tuple[int, dict[str, float]]] = []
        self.stop: TrialStopped | None = None
        self.returned: str | None = None
        """The result in a format of its own; an adapter sets it before ``finish``. See ``Trial.returned``."""
        self.result_error: str | None = None
        """The error of a result without finite metrics; an adapter sets it."""
        self.suggested: tuple[Point, ...] = ()
        """The points of the last ``suggest_points``."""
        self.test_error: str | None = None
        """An error of ``test`` after its scores were known, in one line; an adapter sets it."""
        self._files = files
        self.donors = tuple(donors)
        self._own = trial.checkpoint
        self._channel = channel
        self._finish: Callable[[Mapping[str, float]], None] | None = None
        self._check_scores: Callable[[Mapping[str, float]], None] = lambda metrics: None
        self._extra_results: list[str] = []
        self.has_ended = False
        """Whether the trial has its result, or its handle is closed."""
        self._stem = f"{trial.number:06d}-{secrets.token_hex(4)}"
        self._saved: Manifest | None = None
        self._parts: Mapping[str, TensorParts] = {}
        self._n_packs = 0
        self._folders: dict[str, TemporaryDirectory[str]] = {}
        self.lost: tuple[Donor, MissingError | CorruptError] | None = None
        self._taken_whole: Donor | None = None
        self._donor_tensors: list[_DonorTensors] = []
        self._unreadable: tuple[Donor, MissingError | CorruptError] | None = None
        self.resume_point_saver = ResumePointSaver(self, trial, files, channel, resume_every_s)

    @property
    def time_share(self) -> float:
        """The share of the time that has passed, 0 to 1; 0 without ``train_until``.

        The time counts from the first call of ``epochs``. An attempt that resumes goes on from the share of the earlier
        ones. A training that ends at 1, with a learning rate that has fallen by then, is not stopped by the deadline.
        """
        if self.train_until is None or self.asked_epochs_s is None:
            return 0.0
        now_s = time.perf_counter()
        spent_s = self.resume_point_saver.earlier_s + now_s - self.asked_epochs_s
        left_s = max(0.0, self._ends_s - now_s)
        return spent_s / (spent_s + left_s) if spent_s > 0 else 0.0

    @property
    def has_trained_its_time(self) -> bool:
        """Whether the time is over, and ``trained_share`` tells how much was trained."""
        return self.time_share >= 1 and self.trained_share is not None

    @property
    def log_dir(self) -> Path:
        """A local folder for your own loggers, created now; all attempts of the trial share it.

        It is ``<log_dir>/<search>/trial-0042`` for the option ``log_dir``. Nothing in it is published or deleted. The
        TensorBoard logger of the search writes there, too.

        Raises:
            ConfigurationError: it can't be created.
        """
        folder = Path(self._log_dir, self.search, self.name).absolute()
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise ConfigurationError(
                f"log_dir={self._log_dir}: must be a folder that workers can create ({error.strerror}). Choose another."
            ) from error
        return folder

    @property
    def has_donor(self) -> bool:
        """Whether there are weights to inherit."""
        return bool(self.donors)

    def load_donors(self) -> None:
        """Reads the donors' manifests and checks their weights; called before the problem's code.

        Raises:
            MissingError: a donor's file is missing; ``lost`` names the donor.
            CorruptError: a donor's file has other content than was published; likewise.
        """
        from nas.storage.lazy_weights import StoredWeights

        for index, donor in enumerate(self.donors):
            files = self._files_of(donor.donor)
            with self._watch(donor.donor):
                self._donor_tensors.append(_DonorTensors(self, donor.donor, StoredWeights(files, donor.checkpoint)))
                if index == 0 and donor.checkpoint.saved is not None:
                    fetch_folder(files, donor.checkpoint, self._folder("restore"))

    def ignore_missing_donor(self) -> None:
        """Accepts a donor that ``load_donors`` lost, since the attempt resumes. Reading it later still raises."""
        if self.lost is not None:
            logger.warning("%s; not needed: the trial resumes from an earlier attempt", self.lost[1])
        self._unreadable, self.lost = self.lost, None

    def fetch_own_files(self) -> None:
        """Fetches the files that this finished trial published. Called before ``test`` and ``export``."""
        if self._own is not None and self._own.saved is not None:
            fetch_folder(self._files, self._own, self._folder("restore"))

    def inherit(
        self, model: torch.nn.Module, cache: Mapping[str, torch.Tensor] | None = None, *, rules: Rules | None = None
    ) -> InheritanceReport:
        """Copies into ``model`` what fits of the donors' weights, and returns a report.

        See `nas.inheritance.inherit`. Without a donor nothing is copied. The trial keeps the last report.

        If the tuner recorded the operations that made the network (`nas.spaces.graphs.derivation`,
        `nas.spaces.growth`), they are replayed on the parent's weights. If the parent is no donor, the best donor with
        the same tensors is used, and a note says so. In a crossing each part inherits from its own parent.

        Lazy layers get their sizes from the problem's ``example_inputs``. If it has none, run one batch through the
        network before; otherwise they inherit nothing, and a warning says so.

        Args:
            model: The network, newly initialized.
            cache: Tensors in memory, by name (``train_many``: the state dict of the trial before). A tensor whose
                digest equals that of the donor's tensor is not read from storage. The result is the same without it.
            rules: The rules of inheritance (`nas.inheritance.rules`).

        Raises:
            PointError: the derivation has invalid operations.
            MissingError: a donor's weights are missing; the trial is FAILED, whatever the problem's code does.
            CorruptError: they have other content than was published; likewise.
        """
        from nas.inheritance.inherit import inherit
        from nas.spaces.graphs.derivation import derivation_from_json
        from nas.spaces.growth import Growth

        self._check_open("inherit")
        self._check_readable()
        for tensors in self._donor_tensors:
            tensors.cache = cache or {}
        self._size_lazy_layers(model)
        self.note_heads(model)
        derivation = Growth.from_json(self.derivation) or derivation_from_json(self.derivation)
        index_of = {donor.donor: index for index, donor in enumerate(self.donors)}
        parents = [index_of.get(parent) for parent in self._parents]
        report = inherit(model, self._donor_tensors, rules=rules, derivation=derivation, parents=parents)
        donor = None if report.replayed is None else self.donors[report.replayed].donor
        if donor is not None and self._parents and donor not in self._parents:
            names = " or ".join(map(str, self._parents))
            note = f"replayed on trial {donor}, not on the parent ({names}): same tensors, possibly another network"
            report = replace(report, notes=(*report.notes, note))
        self.inheritance = report
        return report

    def _size_lazy_layers(self, model: torch.nn.Module) -> None:
        """Gives lazy layers their sizes by the problem's example inputs, or adds a warning."""
        from nas.inheritance.module_state import lazy_layers, size_lazy_layers

        network = unwrapped(model)
        if not lazy_layers(network):
            return
        why = ""
        if self._example_inputs is not None:
            try:
                size_lazy_layers(network, self._example_inputs())
            except Exception as error:  # of the problem's code; training shows it in full
                why = f" (example_inputs: {error_line(error)})"
        if lazy := lazy_layers(network):
            self.warn(
                f"run.inherit: lazy layers {', '.join(lazy[:4])} have no sizes and inherit nothing{why}. "
                "Run one batch through the network before run.inherit."
            )

    def warn(self, text: str) -> None:
        """Adds a warning about the problem's code, which the command shows."""
        text = text[:MAX_WARNING]
        if text not in self.warnings:
            self.warnings.append(text)

    def inherit_optimizer(self, optimizer: torch.optim.Optimizer, model: torch.nn.Module) -> InheritanceReport:
        """Copies into a new optimizer what fits of the state that donors published.

        See `nas.inheritance.optimizer_state`. The trial's record keeps the report on weights, not this one.

        Args:
            optimizer: The optimizer of the model, before its first step; any of torch's but SparseAdam and LBFGS.
            model: The model, which names the parameters.

        Raises:
            MissingError: as in ``inherit``.
            CorruptError: as in ``inherit``.
        """
        from nas.inheritance.optimizer_state import inherit_optimizer

        self._check_open("inherit_optimizer")
        self._check_readable()
        return inherit_optimizer(optimizer, model, self._donor_tensors)

    def inherit_tensors(self) -> dict[str, torch.Tensor] | None:
        """Returns all tensors of the best donor, in main memory, or None without a donor.

        For code that does its own inheritance. The trial's ``inherited`` share is then unknown (None).

        Raises:
            MissingError: as in ``inherit``.
            CorruptError: as in ``inherit``.
        """
        self._check_open("inherit_tensors")
        self._check_readable()
        if not self._donor_tensors:
            return None
        best = self._donor_tensors[0]
        with self._watch(best.donor):
            tensors = best.weights.read_all()
        self._taken_whole = best.donor
        return tensors

    def restore_tensors(self) -> dict[str, torch.Tensor]:
        """Returns all tensors that this trial published, in main memory, for ``test`` and ``export``.

        Raises:
            LookupError: the trial published no weights.
        """
        if self._own is None:
            raise LookupError(f"trial {self.number} published no weights")
        from nas.storage.lazy_weights import StoredWeights

        return StoredWeights(self._files, self._own).read_all()

    def restore(self, model: torch.nn.Module) -> torch.nn.Module:
        """Loads this trial's published weights into ``model`` and moves it to ``device``, for ``test`` and ``export``.

        Lazy layers get the sizes of the published tensors. Published optimizer state
        (`nas.inheritance.optimizer_state`) is not loaded.

        Raises:
            LookupError: the trial published no weights.
        """
        if self._own is None:
            raise LookupError(f"trial {self.number} published no weights")
        from nas.inheritance.module_state import copies_in, lazy_layers, load_weights
        from nas.storage.lazy_weights import StoredWeights

        weights = StoredWeights(self._files, self._own, is_weight)
        network = unwrapped(model)
        state = network.state_dict()
        if not lazy_layers(network) and not copies_in(state, network) and weights.fits(state):
            weights.read_into(state)
        else:
            load_weights(network, weights.read_all())
        return model.to(self.device)

    def finish(self, **metrics: float) -> None:
        """Ends the trial with its validation scores and publishes its saved weights; for ``train_many``.

        Only the first call counts. Later ones are kept in the trial's log ``extra_results``.

        Raises:
            ConfigurationError: called in ``train``, which returns its scores instead. In a loop of ``nas.open_search``:
                a second call, or a metric is missing.
            StorageError: the storage failed.
        """
        if self._finish is None:
            raise ConfigurationError(
                f"run.finish of trial {self.number}: must be called in `train_many(job)`. `train` returns its scores"
            )
        self._check_scores(metrics)
        if self.has_ended:
            self.log_extra_result(str(metrics))
            return
        self.has_ended = True
        self._finish(metrics)

    def log_extra_result(self, result: str) -> None:
        """Logs another result of a finished trial, in its own format; for ``finish`` and adapters."""
        logger.warning("trial %d has its result; another one is ignored: %.1000s", self.number, result)
        self._extra_results.append(f"{result}\n")
        text = "".join(self._extra_results).encode(errors="backslashreplace")
        self._files.replace(log_path(self.number, "extra_results"), text[-MAX_LOG_BYTES:], durable=False)
        if self._channel is not None:
            self._channel.extra_result(result)

    def on_finish(self, finish: Callable[[Mapping[str, float]], None]) -> None:
        """Sets the function that receives the scores of ``finish``; called by the job."""
        self._finish = finish

    def check_scores_by(self, check: Callable[[Mapping[str, float]], None]) -> None:
        """Sets a function that may refuse scores of ``finish``, by an exception.

        The trial then stays open.
        """
        self._check_scores = check

    def report(self, step: int, **metrics: float) -> None:
        """Reports intermediate validation metrics after ``step``, for example an epoch.

        Raises:
            TrialStopped: the trial should end now. Do not catch it, except for a last ``save``.
            ConfigurationError: the trial has its result already, or the step is no whole number.
            FloatingPointError: a metric is not finite; the trial is then FAILED.
        """
        self._check_open("report")
        step = whole_step("run.report: step", step)
        plain = plain_metrics(metrics)
        if bad := not_finite(plain):
            raise FloatingPointError(f"step {step} reported {', '.join(f'{name}={plain[name]}' for name in bad)}")
        self.curve.append((step, plain))
        if self._channel is not None:
            try:
                self._channel.report(step, plain)
            except TrialStopped as stop:
                if isinstance(stop, TrialDeadlineExceeded) and self.has_trained_its_time:
                    return  # this is its last score
                self.stop = stop
                raise

    def suggest_points(self, points: Sequence[Point]) -> None:
        """Suggests points that the trial found, best first, to the tuner (``Trial.suggested``).

        Only the last call counts. A resumed attempt starts with the points suggested before its resume point.

        Raises:
            ConfigurationError: a point is not in the space, or all together exceed 600 bytes of JSON.
        """
        self._check_open("suggest_points")
        self.suggested = checked_suggestion(points, self._space)

    def raise_if_stopped(self) -> None:
        """Raises if the trial should end; for code that waits for another process between reports.

        Raises:
            TrialStopped: as in ``report``.
        """
        if self._channel is not None and not self.has_ended:
            try:
                self._channel.raise_if_stopped()
            except TrialStopped as stop:
                self.stop = stop
                raise

    def save_resume_point(self, step: int, *parts: object, every_s: float | None = None, force: bool = False) -> bool:
        """Saves a resume point for the next attempt. Returns whether it did.

        Call it often, after ``report``. It saves only if ``every_s`` have passed since the last save or the start;
        otherwise the call costs almost nothing. The resume point is deleted when the trial has its result. In ``test``
        and ``export`` nothing is saved.

        Args:
            step: How many steps are done, in your loop's count. The next attempt reads it as ``resumed_from().step``.
            parts: All objects whose state affects the rest of the training. Allowed are objects with ``state_dict``
                and ``load_state_dict`` (network, optimizer, schedule, gradient scaler), random generators of torch,
                numpy and Python, and dicts. The global random states and the reports are always saved.
            every_s: Seconds between saves; None: the session's ``resume_every_s``.
            force: Save now.

        Raises:
            ConfigurationError: a part can't be saved without pickling; the message names its key and type.
            StorageError: the storage failed.
        """
        self._check_open("save_resume_point")
        return self.resume_point_saver.save(step, parts, every_s, force)

    def resumed_from(self) -> Resumption | None:
        """Returns the resume point of an earlier attempt, or None: train from the start.

        After loading it, do not call ``inherit``: it has the trained weights. Its ``inheritance`` is the earlier
        report, which is kept on the trial.
        """
        return self.resume_point_saver.find()

    def note_heads(self, model: torch.nn.Module) -> None:
        """Notes the heads of a network's attentions for ``save``; ``inherit`` and resuming call it."""
        from nas.inheritance.attention import parts_of

        self._parts = {**self._parts, **parts_of(unwrapped(model))}

    def save(self, model: torch.nn.Module | Mapping[str, torch.Tensor]) -> None:
        """Saves the weights: a module or its ``state_dict``.

        The last save before the trial ends is published.

        Only tensors that no donor in this search has are written. A network inside ``torch.compile`` or
        ``DataParallel`` is saved by its own names.

        The heads of its attentions are saved, too, so that a child can inherit head by head. Those of a ``state_dict``
        are known if its module inherited (``inherit``) or was resumed before.

        Raises:
            ConfigurationError: the module has lazy layers without sizes.
        """
        from torch import nn

        from nas.inheritance.attention import parts_of
        from nas.inheritance.module_state import lazy_layers

        self._check_open("save")
        if isinstance(model, nn.Module):
            model = unwrapped(model)
            self._parts = parts_of(model)
            if lazy := lazy_layers(model):
                raise ConfigurationError(
                    f"run.save: lazy layers {', '.join(lazy)} must have sizes. Run one batch through the network first."
                )
        tensors = model.state_dict() if isinstance(model, nn.Module) else model
        donors = [tensors.weights.manifest for tensors in self._donor_tensors if isinstance(tensors.donor, int)]
        earlier, path = self._saved, f"packs/{self._stem}-{self._n_packs}.safetensors"
        self._n_packs += 1
        self._saved = publish_tensors(self._files, path, tensors, donors, self._parts)
        for pack in earlier.packs if earlier else ():
            if pack.path.startswith(f"packs/{self._stem}-"):
                self._files.delete(pack.path)

    @property
    def save_dir(self) -> Path:
        """A local folder, empty at first. Its files are published with the trial when ``train`` ends."""
        return self._folder("save")

    @property
    def restore_dir(self) -> Path | None:
        """A local folder with the files that the best donor published from its ``save_dir``, or None.

        In ``test`` and ``export``: with the files that this trial published.
        """
        return Path(self._folders["restore"].name) if "restore" in self._folders else None

    def unpublished(self) -> tuple[dict[str, torch.Tensor], Path | None]:
        """Returns the tensors and the folder that would be published if the trial ended now."""
        tensors: dict[str, torch.Tensor] = {}
        if self._saved is not None:
            from nas.storage.pack import read_tensors

            tensors = read_tensors(self._files, self._saved.tensors, {pack.path: pack for pack in self._saved.packs})
        return tensors, Path(self._folders["save"].name) if "save" in self._folders else None

    def commit_weights(self) -> Checkpoint | None:
        """Publishes the manifest of the saved weights and files. Returns None if there are none."""
        saved: tuple[Reference, ...] = ()
        if "save" in self._folders:
            saved = publish_folder(self._files, self._stem, Path(self._folders["save"].name))
        if self._saved is None and not saved:
            return None
        return publish_checkpoint(self._files, self._stem, self._saved, saved)

    def close(self) -> None:
        """Removes the local folders. Methods that change the trial raise afterwards."""
        self.has_ended = True
        for folder in self._folders.values():
            folder.cleanup()
        self._folders.clear()
        self._donor_tensors.clear()

    def _check_open(self, what: str) -> None:
        """Raises if the trial has ended."""
        if self.has_ended:
            raise ConfigurationError(
                f"run.{what}: trial {self.number} has its result already. Take the next trial from job.trials()"
            )

    def _check_readable(self) -> None:
        """Raises the error that ``ignore_missing_donor`` ignored, since the weights are needed now."""
        if self._unreadable is not None:
            self.lost = self._unreadable
            raise self.lost[1]

    def _folder(self, kind: str) -> Path:
        if kind not in self._folders:
            self._folders[kind] = temporary_folder(f"heirloom-{self.number:06d}-{kind}-")
        return Path(self._folders[kind].name)

    @contextmanager
    def _watch(self, donor: Donor) -> Iterator[None]:
        """Sets ``lost`` if the donor's weights can't be read."""
        try:
            yield
        except (MissingError, CorruptError) as error:
            self.lost = (donor, error)
            raise

    def _files_of(self, donor: Donor) -> BlobStore:
        return self._files if isinstance(donor, int) else self._files.sibling(donor.rpartition(":")[0])

    @property
    def donor(self) -> Donor | None:
        """The donor that gave the most by the last ``inherit`` or ``inherit_tensors``, or None."""
        if self.inheritance is None:
            return self._taken_whole
        index = self.inheritance.main_donor
        return None if index is None else self.donors[index].donor

    def summary(self) -> dict[str, Any]:
        """Returns the summary of the report, for the trial's record.

        If several donors gave parameters, ``given`` has the share of each, by its name.
        """
        warnings = {"warnings": self.warnings} if self.warnings else {}
        if self.inheritance is None:
            return warnings
        given = {str(self.donors[index].donor): share for index, share in self.inheritance.given.items()}
        return {**self.inheritance.summary(), **({"given": given} if len(given) > 1 else {}), **warnings}


class _DonorTensors:
    """The tensors of a donor; a failed read makes it the run's lost donor."""

    def __init__(self, run: TrialRun, donor: Donor, weights: StoredWeights) -> None:
        self.run = run
        self.donor = donor
        self.weights = weights
        self.cache: Mapping[str, torch.Tensor] = {}

    @property
    def shapes(self) -> Mapping[str, torch.Tensor]:
        return self.weights.shapes

    @property
    def parts(self) -> Mapping[str, TensorParts]:
        return self.weights.parts

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, torch.Tensor]]:
        with self.run._watch(self.donor):
            yield from self.weights.read(names, self.cache)
