"""Results of a command on standard output, or in a file outside the storage."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli.output import print_message, show
from nas.core.errors import ConfigurationError
from nas.core.validation import check_bool

if TYPE_CHECKING:
    from nas.storage.blobs import BlobStore

FORMATS = ("table", "csv", "json", "html")


@dataclass(frozen=True, slots=True, kw_only=True)
class Delivery:
    """Valid form and place of a result.

    Attributes:
        format: One of ``FORMATS``.
        out: The file or folder, or None.
        opens: Whether the page is opened in a browser.
    """

    format: str
    out: str | None
    opens: bool

    def __post_init__(self) -> None:
        if self.format not in FORMATS:
            raise ConfigurationError(f"format={self.format}: must be {', '.join(FORMATS[:-1])} or {FORMATS[-1]}")
        if self.opens and self.format != "html":
            raise ConfigurationError(f"open=true opens a page: add format=html (format is {self.format})")
        if self.out is not None and self.format == "table":
            raise ConfigurationError(f"out={self.out} takes csv, json or html: add format=html, or redirect the output")

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Delivery:
        """Returns the form and place of a configuration.

        Raises:
            ConfigurationError: a value is invalid or conflicts with another.
        """
        check_bool("open", values["open"])
        out = values["out"]
        return cls(format=str(values["format"]), out=None if out is None else str(out), opens=values["open"])


def deliver(text: str, store: BlobStore, out: str | None, name: str = "") -> Path | None:
    """Prints a text, or writes it to a file and prints the file's path.

    Args:
        text: The text.
        store: The storage root, into which nothing is written.
        out: A file, or a folder if ``name`` is given. None: standard output.
        name: The file's name in a folder.

    Raises:
        ConfigurationError: the file can't be written, or lies in the storage.
    """
    if out is None:
        sys.stdout.write(text)
        return None
    path = outside(store, out, name)
    write_file(path, text)
    show(path)
    return path


def outside(store: BlobStore, out: str, name: str = "") -> Path:
    """Returns the path of a result, which is not inside the storage.

    Args:
        store: The storage root.
        out: A file, or a folder if ``name`` is given.
        name: The file's name in a folder.

    Raises:
        ConfigurationError: the path lies in the storage.
    """
    path = Path(os.path.expanduser(out)).resolve()
    if name and path.is_dir():
        path = (path / name).resolve()
    in_store = store.local_path("search.json")
    if in_store is not None and path.is_relative_to(Path(in_store).resolve().parent):
        raise ConfigurationError(f"out={path}: must be outside the storage, which is only read. Name another.")
    return path


def missing_lines(missing: Mapping[str, str]) -> list[str]:
    """Returns a line for each part that an export lacks, given the reasons."""
    from nas.training.messages import NEEDS_EXTRA

    return [
        f"  optional: {name} {why}" if why.startswith(NEEDS_EXTRA) else f"  without {name}: {why}"
        for name, why in missing.items()
    ]


def write_file(path: Path, text: str) -> None:
    """Writes a text into a file, which keeps its old text until then.

    A path that is no regular file, such as ``/dev/stderr``, or lies in a read-only folder is written in place.

    Raises:
        ConfigurationError: the file can't be written.
    """
    try:
        if path.exists() and not (path.is_file() and os.access(path.parent, os.W_OK)):
            path.write_text(text, encoding="utf-8", errors="backslashreplace")
            return
        partial = path.with_name(f".{path.name[:50]}.{os.getpid()}")
        try:
            partial.write_text(text, encoding="utf-8", errors="backslashreplace")
            if path.exists():
                shutil.copymode(path, partial)
            partial.replace(path)
        except OSError:
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise ConfigurationError(f"can't write {path} ({error.strerror}): set out=PATH to another place") from error


def make_folder(path: Path) -> None:
    """Makes a folder, unless it exists.

    Raises:
        ConfigurationError: it can't be made.
    """
    try:
        path.mkdir(exist_ok=True)
    except OSError as error:
        raise ConfigurationError(f"can't make {path} ({error.strerror}): set out=PATH to another place") from error


def open_page(page: Path | str) -> None:
    """Opens a page, by its file or address, in the user's browser."""
    import webbrowser

    if not webbrowser.open(page.as_uri() if isinstance(page, Path) else page):
        print_message(f"no browser found to open {page}")
