"""Publishing and fetching of folders, for files that other frameworks save."""

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
    """Publishes every file below a local folder as ``files/<stem>/<relative path>``.

    Empty folders, permissions and times are not kept. A link within the folder is replaced by its target.

    Raises:
        ConfigurationError: a file can't be read. Or a link leaves the folder or is circular, an entry is not a file,
            or a name is not allowed. Then nothing is published.
    """
    found = [(checked_path(f"files/{stem}/{name}"), local) for name, local in walk_folder(local_dir)]
    return tuple(files.publish(path, _blocks(local)) for path, local in found)


def walk_folder(local_dir: str | os.PathLike[str]) -> list[tuple[str, str]]:
    """Returns relative name and real path of every file below a folder, sorted by name.

    Raises:
        ConfigurationError: as ``publish_folder``, apart from names.
    """
    root = os.path.realpath(local_dir)
    try:
        return list(_walk(root, "", (root,)))
    except OSError as error:
        raise ConfigurationError(f"can't publish {error.filename or root}: {error.strerror}") from error


def fetch_files(files: BlobStore, saved: Sequence[Reference], local_dir: str | os.PathLike[str]) -> None:
    """Writes the verified files that a trial saved to an empty or missing local folder.

    Args:
        files: The search's root.
        saved: Returned by ``publish_folder``.
        local_dir: The local folder.

    Raises:
        ConfigurationError: the folder is not empty.
        CorruptError: ``publish_folder`` does not write such a name (then nothing is written), or a digest is wrong.
        MissingError: a file does not exist.
        StorageError: the local folder can't be written.
    """
    names = saved_names(saved)
    root = Path(local_dir)
    try:
        root.mkdir(parents=True, exist_ok=True)
        if any(root.iterdir()):
            raise ConfigurationError(f"{root}: must be empty before the files of a checkpoint are written")
        for name, reference in zip(names, saved, strict=True):
            data = files.read(reference)
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_bytes(data)
    except HeirloomError:
        raise
    except OSError as error:
        raise StorageError(f"can't write {error.filename or root}: {error.strerror}") from error


def saved_names(saved: Sequence[Reference]) -> list[PurePosixPath]:
    """Returns the paths of saved files in their folder.

    Raises:
        CorruptError: ``publish_folder`` does not write such a name, or writes it once only.
    """
    names = [_name(reference) for reference in saved]
    folders = {folder for name in names for folder in name.parents}
    if len(set(names)) < len(names) or not folders.isdisjoint(names):
        raise CorruptError(f"{saved[0].path}: one name is listed as two files, or as file and folder")
    return names


def _name(reference: Reference) -> PurePosixPath:
    folder, _, rest = reference.path.partition("/")
    stem, _, name = rest.partition("/")
    if folder != "files" or not stem or not name:
        raise CorruptError(f"{reference.path} is not a file that a trial saved: must be files/<stem>/<name>")
    return PurePosixPath(name)


def _walk(root: str, name: str, above: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Yields relative name and real path of every file below a folder, sorted by name.

    Args:
        root: Real path of the folder that links must not leave.
        name: The folder to walk, relative to the root.
        above: Real paths of this folder and of those above it.
    """
    for entry in sorted(os.listdir(os.path.join(root, name))):
        child = f"{name}/{entry}" if name else entry
        local = os.path.realpath(os.path.join(root, child))
        if not local.startswith(f"{root}/") or local in above:
            raise ConfigurationError(f"can't publish {root}/{child}: it is a link out of the folder, or circular")
        mode = os.stat(local).st_mode
        if stat.S_ISDIR(mode):
            yield from _walk(root, child, (*above, local))
        elif stat.S_ISREG(mode):
            yield child, local
        else:
            raise ConfigurationError(f"can't publish {root}/{child}: it is neither a file nor a folder")


def _blocks(local: str) -> Iterator[bytes]:
    try:
        with open(local, "rb", buffering=0) as file:
            while block := file.read(_BLOCK):
                yield block
    except OSError as error:
        raise ConfigurationError(f"can't publish {local}: {error.strerror}") from error
