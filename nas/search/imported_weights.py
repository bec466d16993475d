"""Imports a safetensors file as a search of one trial, usable like any other donor."""

from __future__ import annotations

import json
import logging
import re
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, ClassVar, final

from nas.core.budget import Budget
from nas.core.errors import ConfigurationError, SearchBusyError, StorageError
from nas.core.metric import Metric
from nas.core.policy import PolicyPlan
from nas.core.spec import Spec
from nas.core.trial import State
from nas.inheritance.donors.other_searches import other_search_checkpoint
from nas.search.definition import Search
from nas.search.identity import claim_identity
from nas.search.pipeline import SearchPipeline
from nas.search.search_init import SearchInit
from nas.search.session import run_session
from nas.spaces.parameters.space import ParameterSpace
from nas.storage.records import Records
from nas.storage.remote_file import read_file
from nas.training.problem import Problem
from nas.training.trial_run import TrialRun

if TYPE_CHECKING:
    import torch

RETRY_S = 1.0
"""The pause between looks at the import of another command."""
logger = logging.getLogger(__name__)


@final
class WeightsFileProblem(Problem):
    """A problem whose only trial trains nothing and publishes the tensors of a file.

    Args:
        file: The safetensors file, at any fsspec URL.
        name: The name of the search, which contains the file's digest.
    """

    metrics = (Metric("tensors"),)
    data_arguments: ClassVar[frozenset[str]] = frozenset({"file"})

    def __init__(self, file: str, *, name: str) -> None:
        self.file = file
        self.space = ParameterSpace({"weights": name})

    def train(self, run: TrialRun) -> Mapping[str, float]:
        """Publishes the tensors; the score is their number.

        Raises:
            StorageError: the file can't be read now; the trial runs again.
        """
        try:
            content = read_file(self.file, {})
        except OSError as error:
            raise StorageError(f"init.weights={self.file}: can't be read ({error})") from error
        tensors = _tensors(content)
        run.save({name: tensors[name] for name in sorted(tensors, key=_order)})
        return {"tensors": float(len(tensors))}


def _tensors(content: bytes) -> dict[str, torch.Tensor]:
    """Returns the tensors of a safetensors file by all names.

    Its metadata has the other names of a tensor that is stored once.
    """
    from safetensors.torch import load

    tensors = load(content)
    header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
    stored_as = header.get("__metadata__", {}).items()
    return {name: tensors[stored] for name, stored in stored_as if stored in tensors} | tensors


def _order(name: str) -> tuple[list[int | str], str, str]:
    """Returns a sort key: the layer's name, with its numbers compared as numbers.

    A safetensors file does not keep the order of definition.
    """
    layer, _, own = name.rpartition(".")
    return [int(part) if n % 2 else part for n, part in enumerate(re.split("([0-9]+)", layer))], layer, own


def import_weights(records: Records, init: SearchInit) -> None:
    """Publishes initial weights from a file under the search's root, unless they exist.

    Weights of another search's trial must exist before the first trial is proposed; later, ``on_missing_weights``
    applies.

    Args:
        records: The records of the search that uses the weights.
        init: The initial points and weights of that search.

    Raises:
        ConfigurationError: the file holds no safetensors, or the other search's trial has no weights.
        StorageError: the storage failed.
    """
    if init.weights is None:
        return
    if init.file is None:
        if other_search_checkpoint(records, init.weights) is None and not records.load()[0]:
            raise ConfigurationError(
                f"init.weights={init.weights}: no such trial with weights under this root. Name one of "
                "another search there (the command `report` lists them), or a safetensors file"
            )
        return
    name = init.weights.rpartition(":")[0]
    own = Records(records.files.sibling(name))
    is_told = False
    while (found := own.finished_trial(0)) is None or found.checkpoint is None:
        try:
            return _import(own, init.file, name)
        except SearchBusyError as error:
            if not is_told:
                logger.warning("init.weights=%s: waiting, since another command imports it: %s", init.file, error)
            is_told = True
            time.sleep(RETRY_S)


def _import(own: Records, file: str, name: str) -> None:
    """Runs the search that imports a file.

    Raises:
        ConfigurationError: the file holds no safetensors.
        SearchBusyError: another command runs it.
        StorageError: the storage failed.
    """
    from nas.training.seeds import kept_torch_state

    search = Search(
        problem=Spec(f"{__name__}.{WeightsFileProblem.__name__}", {"file": file, "name": name}),
        tuner=Spec("nas.tuners.random.RandomTuner"),
        plan=PolicyPlan.from_stages([{"name": "search", "policies": []}]),
    )
    prepared = search.build()
    claim_identity(own, prepared)
    with kept_torch_state():
        run_session(SearchPipeline(prepared, own, Budget(trials=1), finalists=1))
    trial = own.finished_trial(0)
    if trial is None or trial.state is not State.COMPLETE:
        error = "" if trial is None else (trial.error or "").strip().rpartition("\n")[2]
        raise ConfigurationError(f"init.weights={file}: must be a file of safetensors: {error}")
