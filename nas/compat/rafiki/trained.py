"""Trained models of a search, for use outside of it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nas.compat.rafiki.knobs import PolicyKnob
from nas.compat.rafiki.model import BaseModel
from nas.compat.rafiki.params import from_tensors
from nas.compat.rafiki.space import knob_values, replaced_knobs
from nas.compat.rafiki.supernet import trained_policies
from nas.compat.rafiki.template import Template, load_template
from nas.core.errors import ConfigurationError, TrialNotFoundError
from nas.core.supernet import is_epoch
from nas.core.trial import Trial
from nas.search.finals import newest_best
from nas.storage.open import open_root
from nas.storage.records import Records
from nas.training.trial_run import TrialRun


def load_trial_model(
    url: str,
    file: str,
    *,
    trial: int | None = None,
    class_name: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> BaseModel:
    """Returns a model with the parameters of a trial, ready for ``predict``.

    Args:
        url: The folder of the search: ``storage.root``, a slash and the name.
        file: The file of the template.
        trial: The number of the trial; None: the winner.
        class_name: The model class; None: the only one in the file.
        options: Options for opening the URL.

    Raises:
        ConfigurationError: the search has no winner yet, the trial is a supernet epoch, or the file has another
            template.
        TrialNotFoundError: no trial with that number has parameters.
    """
    records = Records(open_root(url, options))
    where, best = records.files.url, newest_best(records)
    if trial is None and best is None:
        raise ConfigurationError(f"{where} must be the folder of a search with a winner. Correct it or give a trial")
    number = trial if trial is not None or best is None else best["trial"]
    trials, _ = records.load()
    found = next((t for t in trials if t.number == number), None)
    if found is None or found.checkpoint is None:
        raise TrialNotFoundError(f"{where} has no trial {number} with parameters")
    template = load_template(file, class_name)
    header = records.header() or {}
    if (trained := header.get("about", {}).get("template")) is None:
        raise ConfigurationError(f"{where} must be the folder of a search with problem=rafiki")
    if is_epoch(found):
        raise ConfigurationError(f"trial={number}: must be a subnet or a finalist of {where}; it is a supernet epoch")
    _check_class(template, trained, found)
    arguments = header["identity"]["problem"]["arguments"]
    pinned = arguments.get("knobs", {})
    policies = trained_policies(found.policies) if arguments.get("supernet_paths") else found.policies
    knobs = replaced_knobs(template.knobs, pinned)
    with template.importing():
        with template.method_in_errors("__init__"):
            model = template.class_(**knob_values(knobs, found.point, policies, pinned))
        template.load(model, from_tensors(TrialRun(found, records.files).restore_tensors()))
    return template.with_imports(model)


def _check_class(template: Template, trained: str, trial: Trial) -> None:
    """Checks that a trial is of the template; ``trained`` names the class of its search."""
    own = {name for name, knob in template.knobs.items() if not isinstance(knob, PolicyKnob)}
    if trained.partition(" in ")[0] != template.name or own != trial.point.keys():
        raise ConfigurationError(
            f"file={template.file}: must be the template of the search, {trained}; {template.name} has the knobs "
            f"{', '.join(sorted(own)) or 'none'}, the trial {', '.join(sorted(trial.point)) or 'none'}. "
            "Give that file, and class_name if it defines several classes"
        )
