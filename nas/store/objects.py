"""A root in whatever else fsspec reaches (``s3://``, ``gs://``, ``sftp://``, ``memory://``): whole objects, no rename.

An object store shows an object when all of it has arrived, and so does our sftp; other file systems show it while it
grows, which a reader with a reference notices by the digest.
"""

from __future__ import annotations

import importlib
import secrets
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any, TypeVar, final

from blake3 import blake3

from nas.errors import AlreadyPublishedError, ConfigurationError, HeirloomError, StoreError
from nas.passwords import passwords_of, without_passwords
from nas.store.files import Buffer, Files, Span, Stored, Witness, no_witness
from nas.store.reference import (
    TEMPORARY,
    Reference,
    WrongContentsError,
    checked_path,
    checked_spans,
    digest_of,
    expect,
    expect_span,
    read_verified,
)
from nas.store.sftp import Sftp

_BUCKETS = frozenset({"s3", "s3a", "gs", "gcs", "abfs", "abfss", "az", "adl", "oss"})
"""Protocols without folders: "not found" on writing means the bucket, and a misspelt bucket is not to be created."""
_SFTP = frozenset({"sftp", "ssh"})
_PACKAGES = {"smbclient": "smbprotocol"}
"""The package that brings a module, where their names differ."""
_ONE_AT_A_TIME = threading.RLock()
"""Held around calls of file systems that are not asynchronous: these share open files between threads."""


_GAP = 1 << 20
"""Unwanted bytes between two parts that cost less to get than another request."""
_BLOCK = 32 << 20
"""Bytes that are asked for at once, and held in memory."""

T = TypeVar("T")


@final
class ObjectFiles(Files):
    """The objects under one URL; what each method promises stands at ``Files``.

    A name is exclusive where the file system honours ``mode="create"`` (S3 does, sftp by its rename; in ``memory://`` a
    lock sees to it). Others look and then put: two writers within the same moment can both win.
    """

    batch_bytes = _BLOCK

    def __init__(self, url: str, options: Mapping[str, object], *, patience_s: float = 60.0) -> None:
        self.url = without_passwords(url)
        self.patience_s = patience_s
        self._protocol = url.partition("://")[0]
        self.in_process = self._protocol == "memory"
        self._opening = (url, dict(options))
        self._fs, root = self._open()
        self._root = root.rstrip("/")

    def publish(self, path: str, chunks: Iterable[Buffer], *, exclusive: bool = False) -> Reference:
        """One put of the whole object, after the last chunk has come."""
        target = self._target(path)
        data = b"".join(chunks)
        with self._calling("publish", path):
            if exclusive:
                self._put_new(target, data)
            else:
                self._put(target, data)
        return Reference(path, len(data), digest_of(data))

    def read(self, reference: Reference) -> bytes:
        """Gets the object; one that is missing or wrong is tried again, as some stores show new objects late."""

        def attempt() -> bytes:
            data = self._get(reference.path)
            expect(reference, data)
            return data

        return self._read(reference, attempt)

    def read_spans(self, reference: Reference, spans: Sequence[Span]) -> None:
        """Gets ranges, near parts in one."""
        groups = list(_groups(checked_spans(reference, spans)))

        def attempt() -> None:
            for group in groups:
                begin, end = group[0].offset, group[-1].end
                data = memoryview(self._get(reference.path, begin, end))
                if len(data) != end - begin:
                    expect(reference, self._get(reference.path))
                    raise WrongContentsError(f"only {len(data)} of the {end - begin} bytes from {begin} on")
                for span in group:
                    span.memory[:] = data[span.offset - begin : span.end - begin]
                    expect_span(reference, span, digest_of(span.memory))

        self._read(reference, attempt)

    def check_size(self, reference: Reference) -> None:
        """Asks for the object's size."""

        def attempt() -> None:
            with self._calling("read", reference.path):
                size = self._fs.info(self._target(reference.path))["size"]
            if size != reference.bytes:
                expect(reference, self._get(reference.path))

        self._read(reference, attempt)

    def check_contents(self, reference: Reference, witness: Callable[[], Witness] = no_witness) -> None:
        """Gets the object block by block."""

        def attempt() -> None:
            hasher, show = blake3(), witness()
            for begin in range(0, reference.bytes, _BLOCK):
                block = memoryview(self._get(reference.path, begin, min(begin + _BLOCK, reference.bytes)))
                hasher.update(block)
                show(block)
            if (digest := f"blake3:{hasher.hexdigest()}") != reference.digest:
                raise WrongContentsError(f"{reference.bytes} bytes {digest}")

        self.check_size(reference)
        self._read(reference, attempt)

    def read_if_present(self, path: str) -> bytes | None:
        """Gets the object and does not ask first whether there is one."""
        with suppress(FileNotFoundError):
            return self._get(path)
        return None

    def read_all(self, folder: str, suffix: str) -> dict[str, bytes]:
        """Lists the folder and gets its objects, all at once where the file system can."""
        names = [name for name in self.names(folder) if name.endswith(suffix)]
        targets = [f"{self._folder(folder)}/{name}" for name in names]
        found: dict[str, bytes] = {}
        with self._calling("read", folder):
            everything = [None] * len(names)
            contents = self._fs.cat_ranges(targets, everything, everything, on_error="return") if names else []
            for name, content in zip(names, contents, strict=True):
                if isinstance(content, bytes):
                    found[name] = content
                elif not isinstance(content, FileNotFoundError):
                    raise content
        return found

    def names(self, folder: str = "") -> list[str]:
        """A listing that no cache answers."""
        place = self._folder(folder)
        entries: list[str] = []
        with suppress(FileNotFoundError), self._calling("list", folder):
            self._fs.invalidate_cache()
            entries = [str(entry).rstrip("/") for entry in self._fs.ls(place, detail=False)]
        found = {entry.rpartition("/")[2] for entry in entries if entry != place}
        return sorted(name for name in found if not name.startswith(TEMPORARY))

    def replace(self, path: str, data: bytes) -> None:
        """One put of the whole object."""
        with self._calling("replace", path):
            self._put(self._target(path), data)

    def put(self, path: str, data: bytes) -> None:
        """One put of the whole object."""
        self.replace(path, data)

    def delete(self, path: str) -> None:
        """Removes the object."""
        with suppress(FileNotFoundError), self._calling("delete", path):
            self._fs.rm_file(f"{self._root}/{checked_path(path, unfinished=True)}")

    def walk(self) -> list[Stored]:
        """A listing of everything that no cache answers."""
        entries: dict[str, Any] = {}
        with suppress(FileNotFoundError), self._calling("list", ""):
            self._fs.invalidate_cache()
            entries = self._fs.find(self._root, detail=True)
        return [
            Stored(str(name).removeprefix(self._root).lstrip("/"), int(info["size"] or 0), _modified(info))
            for name, info in sorted(entries.items())
        ]

    def check_writable(self) -> None:
        """Publishes a small object, proves that no second writer gets its name, and deletes it."""
        path, exclusive = f"check-{secrets.token_hex(8)}", False
        try:
            reference = self.publish(path, [b"heirloom"], exclusive=True)
            with suppress(AlreadyPublishedError):
                self.publish(path, [b"a second writer"], exclusive=True)
            exclusive = self.read_if_present(path) == b"heirloom"
            self.delete(reference.path)
        except StoreError as error:
            other = isinstance(error.__cause__, PermissionError | FileNotFoundError)
            kind = ConfigurationError if other else StoreError
            raise kind(f"storage root {self.url} can't be used: {error}") from error
        if not exclusive:
            raise ConfigurationError(f"storage root {self.url} can't be used: it lets a second writer replace a record")

    def below(self, folder: str) -> ObjectFiles:
        """The objects under a folder of this root."""
        return self._at(self._target(folder), f"{self.url.rstrip('/')}/{folder}")

    def sibling(self, name: str) -> ObjectFiles:
        """The objects under the folder of that name beside this root."""
        parent, _, own = self._root.rpartition("/")
        return self._at(f"{parent}/{checked_path(name)}", self.url.rstrip("/").removesuffix(own) + name)

    def siblings(self) -> list[str]:
        """The names in the folder above, without this one's."""
        parent, _, own = self._root.rpartition("/")
        above = self._at(parent, self.url.rstrip("/").removesuffix(own).rstrip("/"))
        return [name for name in above.names() if name != own]

    def local_path(self, path: str) -> str | None:
        """None: the objects are elsewhere."""
        checked_path(path)
        return None

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_fs"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._fs, _ = self._open()

    def _at(self, root: str, url: str) -> ObjectFiles:
        other = object.__new__(ObjectFiles)
        other.__dict__.update(self.__dict__, url=url, _root=root)
        return other

    def _open(self) -> tuple[Any, str]:
        """The fsspec file system, which remembers no listings and is nobody else's, and the root's path in it."""
        fsspec: Any = importlib.import_module("fsspec")
        url, options = self._opening
        try:
            fsspec.get_filesystem_class(self._protocol)
        except ValueError as error:
            known = ", ".join(sorted(fsspec.available_protocols()))
            raise ConfigurationError(
                f"storage root {self.url}: unknown protocol; try a folder or one of {known}"
            ) from error
        except ImportError as error:
            module = getattr(error.__cause__, "name", None) or self._protocol
            package = _PACKAGES.get(module, module)
            raise ConfigurationError(
                f"storage root {self.url} needs the package {package}: pip install {package}"
            ) from error
        try:
            fs, root = fsspec.core.url_to_fs(url, **options, skip_instance_cache=True)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(
                f"storage root {self.url} refuses its URL or storage.options: {self._masked(error)}"
            ) from error
        except Exception as error:
            raise StoreError(f"can't reach storage root {self.url}: {self._masked(error)}") from error
        fs.dircache.use_listings_cache = False
        return Sftp(fs) if self._protocol in _SFTP else fs, root

    def _target(self, path: str) -> str:
        return f"{self._root}/{checked_path(path)}"

    def _folder(self, folder: str) -> str:
        return self._target(folder) if folder else self._root

    def _read(self, reference: Reference, attempt: Callable[[], T]) -> T:
        where = f"{self.url}/{reference.path}"
        return read_verified(reference, lambda _around_cache: attempt(), lambda: where, self.patience_s)

    def _get(self, path: str, begin: int | None = None, end: int | None = None) -> bytes:
        if begin is not None and begin == end:
            return b""  # which no range can ask for
        with self._calling("read", path):
            return bytes(self._fs.cat_file(self._target(path), start=begin, end=end))

    def _put(self, target: str, data: bytes, **mode: str) -> None:
        try:
            self._fs.pipe_file(target, data, **mode)
        except FileNotFoundError as error:
            if self._protocol in _BUCKETS:
                raise StoreError(f"can't write {self.url}: there is no such bucket") from error
            self._fs.makedirs(target.rpartition("/")[0], exist_ok=True)
            self._fs.pipe_file(target, data, **mode)

    def _put_new(self, target: str, data: bytes) -> None:
        taken: FileExistsError | None = None
        try:
            if self._fs.async_impl or self._protocol in _SFTP:
                self._put(target, data, mode="create")
            # memory's own exists() walks all names
            elif target in self._fs.store if self.in_process else self._fs.exists(target):
                taken = FileExistsError()
            else:
                self._put(target, data)
        except FileExistsError as error:
            taken = error
        if taken is not None:
            raise AlreadyPublishedError(f"{self.url}: {target} is published already") from taken

    @contextmanager
    def _calling(self, doing: str, path: str) -> Iterator[None]:
        """One call at a time where fsspec needs that; its errors in one line, but for "not found"."""
        with nullcontext() if self._fs.async_impl else _ONE_AT_A_TIME:
            try:
                yield
            except (HeirloomError, FileNotFoundError):
                raise
            except Exception as error:
                raise StoreError(f"can't {doing} {self.url}/{path}: {self._masked(error)}") from error

    def _masked(self, error: Exception) -> str:
        """The error on one line, without anything that stood in the options or as a password in the URL."""
        text = " ".join(f"{type(error).__name__}: {error}".split())
        url, options = self._opening
        for secret in [*_texts(options), *passwords_of(url)]:
            text = text.replace(secret, "***")
        return text


def _groups(spans: Sequence[Span]) -> Iterator[list[Span]]:
    """Parts that one request gets, because they lie near one another."""
    group: list[Span] = []
    for span in spans:
        if group and (span.offset - group[-1].end > _GAP or span.end - group[0].offset > _BLOCK):
            yield group
            group = []
        group.append(span)
    if group:
        yield group


def _modified(info: Mapping[str, Any]) -> float | None:
    """When an object was written, by whichever name its file system gives that."""
    for key in ("mtime", "LastModified", "last_modified", "updated", "created"):
        value = info.get(key)
        if isinstance(value, str):
            with suppress(ValueError):
                value = datetime.fromisoformat(value)
        if isinstance(value, datetime):
            return (value if value.tzinfo else value.replace(tzinfo=UTC)).timestamp()
        if isinstance(value, int | float):
            return float(value)
    return None


def _texts(value: object) -> Iterator[str]:
    """Every text in nested options that is long enough to be a secret."""
    if isinstance(value, Mapping):
        for item in value.values():
            yield from _texts(item)
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _texts(item)
    elif isinstance(value, str) and len(value) > 3:
        yield value
