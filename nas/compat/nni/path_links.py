"""Symbolic links for the absolute paths in an experiment's code, such as ``/mnt/nfs/nni``."""

from __future__ import annotations

import os
import secrets
from pathlib import Path

from nas.core.errors import ConfigurationError


def link_path(text: str) -> str | None:
    """Creates the link of ``FROM=TO`` and returns a message, or None if the link exists.

    A link to a folder that no longer exists is replaced. Another link stays, because other processes may use it.

    Raises:
        ConfigurationError: the text is not ``FROM=TO``, another file has that name, or the link cannot be created.
    """
    source, equals, target = text.partition("=")
    if not equals or not os.path.isabs(source) or not target:
        raise ConfigurationError(f"--map={text}: must be FROM=TO with an absolute FROM, such as /mnt/nfs/nni=/data/nni")
    link, folder = Path(source.rstrip("/")), Path(os.path.expanduser(target)).resolve()
    if _leads_to(link, folder):
        return None
    is_dangling = link.is_symlink() and not link.exists()
    try:
        if (is_dangling or not os.path.lexists(link)) and _create(link, folder, replaces=is_dangling):
            return f"created the link {link} to {folder}"
    except OSError as error:
        raise ConfigurationError(
            f"--map={text}: {error.filename}: {error.strerror}. "
            f"Run as root: mkdir -p {link.parent}; ln -s {folder} {link}"
        ) from error
    if _leads_to(link, folder):  # by another command, which started at the same moment
        return None
    raise ConfigurationError(f"--map={text}: {link} exists and is not {folder}. Move it, or omit --map")


def _leads_to(link: Path, folder: Path) -> bool:
    return link.resolve() == folder and folder.is_dir()


def _create(link: Path, folder: Path, *, replaces: bool) -> bool:
    """Creates a folder and a link to it.

    Returns False if another process has created a file of this name meanwhile.
    """
    folder.mkdir(parents=True, exist_ok=True)
    link.parent.mkdir(parents=True, exist_ok=True)
    new = link.with_name(f".{link.name}-{secrets.token_hex(8)}") if replaces else link
    try:
        new.symlink_to(folder, target_is_directory=True)
    except FileExistsError:
        return False
    if replaces:
        new.replace(link)
    return True
