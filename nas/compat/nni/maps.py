"""Paths that an experiment's code names, and that are elsewhere here: ``/mnt/nfs/nni`` becomes a link to a folder."""

from __future__ import annotations

import os
from pathlib import Path

from nas.core.errors import ConfigurationError


def map_path(text: str) -> str | None:
    """Makes a link of ``FROM=TO``, which stays, as others may go by it; says so, where it was not there.

    Raises:
        ConfigurationError: it is no such text, something else is there, or no link can be made.
    """
    source, equals, target = text.partition("=")
    if not equals or not os.path.isabs(source) or not target:
        raise ConfigurationError(f"--map ({text}) must be FROM=TO, as /mnt/nfs/nni=/data/nni, and FROM be absolute")
    link, folder = Path(source.rstrip("/")), Path(target).expanduser().resolve()
    if link.resolve() == folder and folder.is_dir():
        return None
    if os.path.lexists(link):
        raise ConfigurationError(
            f"--map ({text}): {link} is there already, and is not {folder}; move it, or leave --map out"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(folder, target_is_directory=True)
    except OSError as error:
        raise ConfigurationError(
            f"--map ({text}): {error.filename}: {error.strerror}; "
            f"as root: mkdir -p {link.parent}; ln -s {folder} {link}"
        ) from error
    return f"made {link}, a link to {folder}"
