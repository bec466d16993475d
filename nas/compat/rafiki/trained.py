"""Models that a search has trained, in the hands of the user."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nas.compat.rafiki.model import BaseModel
from nas.compat.rafiki.params import from_tensors
from nas.compat.rafiki.space import realized
from nas.compat.rafiki.template import load_template
from nas.core.errors import ConfigurationError, TrialNotFoundError
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
    """Returns a model of the template in ``file`` that has loaded what a trial dumped; ready for ``predict``.

    Args:
        url: The search's folder: ``storage.root``, a slash and its name.
        file: The template's.
        trial: Its number; None: the winner.
        class_name: None: the only model class in the file.
        options: How to open the URL.

    Raises:
        ConfigurationError: there is no winner yet, or the file defines no such class.
        TrialNotFoundError: there is no trial of that number with parameters.
    """
    records = Records(open_root(url, options))
    best = newest_best(records)
    if trial is None and best is None:
        raise ConfigurationError(f"{url} is no search, or has no winner yet; correct it, or name a trial")
    number = trial if trial is not None or best is None else best["trial"]
    trials, _ = records.load()
    found = next((t for t in trials if t.number == number), None)
    if found is None or found.checkpoint is None:
        raise TrialNotFoundError(f"{url} has no trial {number} with parameters")
    template = load_template(file, class_name)
    with template.importing():
        model = template.class_(**realized(template.knobs, found.point, found.policies))
        template.loaded(model, from_tensors(TrialRun(found, records.files).restore_tensors()))
    return template.guided(model)
