"""Other searches under the same root: whose weights a trial here may take (``"name:42"``), and who takes ours."""

from __future__ import annotations

import logging
import re

from nas.core.checkpoint import Checkpoint
from nas.core.errors import ConfigurationError, CorruptError, StorageError
from nas.core.names import NAME, check_name
from nas.core.trial import DonorRule
from nas.storage.records import Records

logger = logging.getLogger(__name__)


def sibling_checkpoint(records: Records, donor: str) -> Checkpoint | None:
    """Another search's checkpoint, by ``"name:42"``; None where that trial has no weights.

    Raises:
        ConfigurationError: no such way to name a trial.
    """
    name, _, number = donor.rpartition(":")
    if not name or not re.fullmatch(r"\d{1,9}", number, re.ASCII):
        raise ConfigurationError(
            f"donor {donor!r} must be a trial's number, 'search:number' or one of {', '.join(DonorRule)}"
        )
    trial = Records(records.files.sibling(check_name(name))).finished_trial(int(number))
    return None if trial is None else trial.checkpoint


def borrowed(records: Records) -> frozenset[int]:
    """The trials of this search that unfinished trials of others name as donors, as far as this user may read them."""
    prefix = records.files.url.rstrip("/").rpartition("/")[2] + ":"
    found: set[str] = set()
    for name in filter(NAME.fullmatch, records.files.siblings()):
        try:
            waiting = Records(records.files.sibling(name)).unfinished()
        except CorruptError as error:  # which keeps that search from running, too
            logger.warning("whom search %s names as donors can't be read: %s", name, error)
            continue
        except StorageError as error:
            if not isinstance(error.__cause__, PermissionError):
                raise
            logger.info("%s is closed to this user, and left out: %s", name, error)  # a disk's lost+found, say
            continue
        donors = (str(donor) for trial in waiting for donor in trial.proposal.weight_donors)
        found.update(donor.removeprefix(prefix) for donor in donors if donor.startswith(prefix))
    return frozenset(int(number) for number in found if number.isdecimal())
