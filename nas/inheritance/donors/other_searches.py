"""Donors in other searches under the same root (``"name:42"``), and trials here that are donors there."""

from __future__ import annotations

import logging
import re

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, CorruptError, StorageError
from nas.core.names import NAME, check_name
from nas.core.trial import DonorRule
from nas.storage.records import Records

logger = logging.getLogger(__name__)


def other_search_checkpoint(records: Records, donor: str) -> Checkpoint | None:
    """Returns the checkpoint of another search's trial (``"name:42"``), or None if it has no weights.

    Raises:
        ConfigurationError: ``donor`` is not such a name.
    """
    name, _, number = donor.rpartition(":")
    if not name or not re.fullmatch(r"\d{1,9}", number, re.ASCII):
        raise ConfigurationError(
            f"donor {donor!r} must be a trial's number, 'search:number' or one of {', '.join(DonorRule)}"
        )
    trial = Records(records.files.sibling(check_name(name))).finished_trial(int(number))
    return None if trial is None else trial.checkpoint


def donors_for_other_searches(records: Records) -> frozenset[int]:
    """Returns the trials of this search that other searches need as donors.

    Their unfinished trials name them, or they are initial weights, which later trials may need, too. Searches that
    this user may not read are left out.
    """
    prefix = f"{records.files.name}:"
    found: set[str] = set()
    for name in filter(NAME.fullmatch, records.files.sibling_names()):
        try:
            donors = _donors_of(Records(records.files.sibling(name)))
        except CorruptError as error:  # which stops that search, too
            logger.warning("search %s: its donors can't be read: %s", name, error)
            continue
        except StorageError as error:
            if not isinstance(error.__cause__, PermissionError):
                raise
            logger.info("search %s is left out, no permission to read it: %s", name, error)  # lost+found, say
            continue
        found.update(donor.removeprefix(prefix) for donor in donors if donor.startswith(prefix))
    return frozenset(int(number) for number in found if number.isdecimal())


def _donors_of(records: Records) -> list[str]:
    """Returns the donors of a search's unfinished trials, and its initial weights."""
    donors = [str(donor) for trial in records.unfinished() for donor in trial.proposal.weight_donors]
    try:
        identity = (records.header() or {}).get("identity", {})
    except ConfigurationError as error:
        logger.warning("the initial weights of another search may be deleted: %s", error)
        return donors
    return [*donors, str((identity.get("init") or {}).get("weights", ""))]
