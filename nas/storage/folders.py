"""Folders of files beside the tensors: whatever any framework saves, published and fetched whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from pathlib import Path, PurePosixPath

from nas.core.errors import ConfigurationError, CorruptError, HeirloomError, StorageError
from nas.core.reference import Reference, checked_path
from nas.storage.blobs import BlobStore

_BLOCK = 1 << 20


def publish_folder(files: BlobStore, stem: str, local_dir: str | os.PathLike[str]) -> tuple[Reference, ...]:
    """Publishes every file below a local folder as ``files/<stem>/<its relative path>``.

    Empty folders, permissions and times are not kept; a link to within the folder becomes what it points to.

    Raises:
        ConfigurationError: a link that leaves the folder or leads in a circle, something that is no file (a socket, a
            pipe), a name that can't be kept: before anything is published; or a file that can't be read.
    """
    found = [(checked_path(f"files/{stem}/{name}"), local) for name, local in walk_folder(local_dir)]
    return tuple(files.publish(path, _blocks(local)) for path, local in found)


def walk_folder(local_dir: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Relative name and real place of every file below a local folder, in order of name.

    Raises:
        ConfigurationError: as ``publish_folder``, but for names.
    """
    root = os.path.realpath(local_dir)
    try:
        return list(_walk(root, "", (root,)))
    except OSError as error:
        raise ConfigurationError(f"can't publish {error.filename or root}: {error.strerror}") from error


def fetch_files(files: BlobStore, saved: Sequence[Reference], local_dir: str | os.PathLike[str]) -> None:
    """Writes what a trial saved, verified, below a local folder that is empty or missing.

    Args:
        files: The root of the search.
        saved: What ``publish_folder`` gave.
        local_dir: Where to.

    Raises:
        ConfigurationError: the folder is not empty.
        CorruptError: a name is not one that ``publish_folder`` gives, before anything is written; or a file is not
            what was published.
        MissingError: a file is not there.
    """
    names = [_name(reference) for reference in saved]
    folders = {folder for name in names for folder in name.parents}
    if len(set(names)) < len(names) or not folders.isdisjoint(names):
        raise CorruptError(f"{saved[0].path}: one name is listed as two files, or as file and folder")
    root = Path(local_dir)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise ConfigurationError(f"{root} must be empty to take the files of a checkpoint")
        for name, reference in zip(names, saved, strict=True):
            data = files.read(reference)
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
    except HeirloomError:
        raise
    except OSError as error:
        raise StorageError(f"can't write {error.filename or root}: {error.strerror}") from error


def _name(reference: Reference) -> PurePosixPath:
    folder, _, rest = reference.path.partition("/")
    stem, _, name = rest.partition("/")
    if folder != "files" or not stem or not name:
        raise CorruptError(f"{reference.path} is no file that a trial saved: it must be files/<stem>/<name>")
    return PurePosixPath(name)


def _walk(root: str, name: str, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Relative name and real place of every file below a folder, in order of name.

    Args:
        root: The real path of the folder that no link may leave.
        name: The folder to walk, relative to it.
        above: The real paths of this folder and of those that led to it.
    """
    for entry in sorted(os.listdir(os.path.join(root, name))):
        child = f"{name}/{entry}" if name else entry
        local = os.path.realpath(os.path.join(root, child))
        if not local.startswith(f"{root}/") or local in above:
            raise ConfigurationError(f"can't publish {root}/{child}: it is a link out of the folder or in a circle")
        mode = os.stat(local).st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(root, child, (*above, local))
        elif stat.S_ISREG(mode):
            yield child, local
        else:
            raise ConfigurationError(f"can't publish {root}/{child}: it is neither file nor folder")


def _blocks(local: str) -> Iterator[bytes]:
    try:
        with open(local, "rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                yield block
    except OSError as error:
        raise ConfigurationError(f"can't publish {local}: {error.strerror}") from error
