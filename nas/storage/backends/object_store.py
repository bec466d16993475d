"""Blob store of whole objects: S3, sftp, or another storage of fsspec (``gs://``, ``memory://``).

An object store and our sftp backend show an object when it is whole. Other file systems show it while it grows; readers
with a reference notice that by the digest.
"""

from __future__ import annotations

import errno
import secrets
from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import closing, contextmanager, suppress
from functools import partial
from threading import Thread
from typing import Any, final

from nas.core.errors import AlreadyPublishedError, ConfigurationError, HeirloomError, StorageError
from nas.core.names import CHECKS
from nas.core.redaction import without_passwords
from nas.core.reference import TEMPORARY, Reference, checked_path
from nas.storage.backends.chunks import Hashed, RangeRead, reads_for, reads_of
from nas.storage.backends.object_backend import SMALL_AT_ONCE, ObjectBackend, open_backend
from nas.storage.backends.retry import in_order
from nas.storage.blobs import BlobInfo, BlobStore
from nas.storage.secrets import Secrets
from nas.storage.verified import Buffer, ByteRange, WrongContentsError, WrongSizeError, check_range, digest_of

_PACKAGES = {"smbclient": "smbprotocol"}
"""Packages whose modules have other names."""
_CHECK_S = 5.0
"""Seconds to retry at the start of a command, if the store can't be reached."""
_SILENT_S = 10.0
"""Seconds to wait for a server that accepts a connection and does not answer."""


@final
class ObjectBlobStore(BlobStore):
    """The objects under one URL, with the guarantees of ``BlobStore``.

    S3, sftp, ``gs://``, ``az://`` and ``memory://`` keep a name exclusive. Another store is asked before a put: two
    writers at the same moment can both win.
    """

    batch_bytes = 32 << 20

    def __init__(self, url: str, options: Mapping[str, object], *, retry_s: float = 60.0) -> None:
        self.url = without_passwords(url)
        self.retry_s = retry_s
        self._opening = (url, dict(options))
        self._secrets = Secrets(url, options)
        self._backend, root = self._open()
        self._root = root.rstrip("/")
        self.in_process = self._backend.in_process

    def publish(self, path: str, chunks: Iterable[Buffer], *, exclusive: bool = False) -> Reference:
        """Puts the whole object, which the store shows when the last chunk has arrived."""
        hashed = Hashed(chunks)
        with self._calling("publish", path, hashed):
            self._backend.put(self._target(path), hashed, exclusive=exclusive)
        return Reference(path, hashed.bytes, hashed.digest)

    @contextmanager
    def open(self, reference: Reference) -> Iterator[Iterator[memoryview]]:
        """Asks for the size, then gets the object block by block."""
        self._expect_size(reference, self.size(reference.path))
        with closing(self._fill(reference, reads_of(reference.bytes))) as reads:
            yield (wanted.views[0] for wanted in reads)

    def fill(self, reference: Reference, ranges: Sequence[ByteRange], *, bypass_cache: bool) -> None:
        """Gets ranges into their memory, near ones in one request."""
        waiting = deque(ranges)
        reads = reads_for([part for part in ranges if part.memory.nbytes])
        with closing(self._fill(reference, reads)) as filled:
            for wanted in filled:
                while waiting and waiting[0].end <= wanted.begin + wanted.bytes:
                    check_range(reference, part := waiting.popleft(), digest_of(part.memory))
        for part in waiting:  # without bytes
            check_range(reference, part, digest_of(part.memory))

    def size(self, path: str) -> int:
        """Returns the size of the object."""
        with self._calling("read", path):
            return self._backend.size(self._target(path))

    def read_records(self, paths: Sequence[str], *, just_listed: bool = False) -> list[bytes | None]:
        """Gets many objects at once, without asking first if they exist."""
        where = paths[0] if len(paths) == 1 else "".join(paths[:1]).rpartition("/")[0]
        with self._calling("read", where):
            return self._backend.get_all([f"{self._root}/{path}" for path in paths])

    def names(self, folder: str = "") -> list[str]:
        """Lists a folder, without a cache."""
        found: list[str] = []
        with suppress(FileNotFoundError), self._calling("list", folder):
            found = self._backend.names(self._folder(folder))
        return sorted(name for name in set(found) if name and not name.startswith(TEMPORARY))

    def replace(self, path: str, data: bytes, *, durable: bool = True) -> None:
        """Puts the whole object."""
        source = Hashed([data])
        with self._calling("replace", path, source):
            self._backend.put(self._target(path), source, exclusive=False)

    def delete_all(self, paths: Iterable[str]) -> None:
        """Removes objects, several at once, then empty folders of checkpoints."""
        folders: set[str] = set()
        for path in in_order((partial(self._remove, path) for path in paths), SMALL_AT_ONCE):
            folders.add(path.rpartition("/")[0])
        for folder in sorted(folders):
            with self._calling("delete", folder):
                # files/<stem>/ and _check/, but never files/, into which another writer may be about to write
                while ("/" in folder or folder == CHECKS) and self._backend.prune(f"{self._root}/{folder}"):
                    folder = folder.rpartition("/")[0]

    def _remove(self, path: str) -> str:
        with suppress(FileNotFoundError), self._calling("delete", path):
            self._backend.delete(f"{self._root}/{checked_path(path, unfinished=True)}")
        return path

    def walk(self) -> list[BlobInfo]:
        """Lists everything, without a cache."""
        found: list[BlobInfo] = []
        with suppress(FileNotFoundError), self._calling("list", ""):
            found = self._backend.walk(self._root)
        return sorted(found, key=lambda stored: stored.path)

    def check_reachable(self) -> None:
        """Makes a request in a thread, which is abandoned if it hangs."""
        backend, answer = self._backend.within(min(_CHECK_S, self.retry_s)), Future[None]()

        def ask() -> None:
            try:
                backend.reach(self._root)
            except Exception as error:
                answer.set_exception(error)
            else:
                answer.set_result(None)

        Thread(target=ask, name="heirloom-first-contact", daemon=True).start()
        if wait((answer,), _SILENT_S).not_done:
            raise StorageError(f"storage root {self.url} can't be used: no answer within {_SILENT_S:g} s")
        if (error := answer.exception()) is not None:
            cause = self._secrets.cause(error) if isinstance(error, Exception) else error
            raise self._unusable(self._secrets.masked(error), cause) from cause

    def check_writable(self) -> None:
        """Publishes a small object, checks that a second writer is refused, replaces it and deletes it."""
        quick = self._with(_backend=self._backend.within(min(_CHECK_S, self.retry_s)))
        path = f"check-{secrets.token_hex(8)}"
        try:
            quick.publish(path, [b"heirloom"], exclusive=True)
            try:
                with suppress(AlreadyPublishedError):
                    quick.publish(path, [b"a second writer"], exclusive=True)
                is_first = quick.read_if_present(path) == b"heirloom"
                quick.replace(path, b"replaced")
            finally:
                quick.delete(path)
        except StorageError as error:
            raise self._unusable(error, error.__cause__) from error.__cause__
        if not is_first:
            raise ConfigurationError(
                f"storage root {self.url} can't be used: it lets a second writer replace a record. Choose a store that "
                "honors conditional writes (S3's If-None-Match), or a folder"
            )

    def subfolder(self, folder: str) -> ObjectBlobStore:
        """Returns the objects under a folder of this root."""
        return self._with(_root=self._target(folder), url=f"{self.url.removesuffix('/')}/{folder}")

    def parent(self) -> ObjectBlobStore:
        """Returns the objects under the folder above."""
        above, _, own = self._root.rpartition("/")
        return self._with(_root=above, url=self.url.rstrip("/").removesuffix(own))

    def _unusable(self, why: object, cause: BaseException | None) -> ConfigurationError | StorageError:
        """Returns the error for a root that can't be used, by the backend's error."""
        other = isinstance(cause, PermissionError | FileNotFoundError | ValueError)
        refuses = isinstance(cause, OSError) and cause.errno in (errno.ENOSYS, errno.ENOTSUP)
        kind = ConfigurationError if other or refuses else StorageError
        return kind(
            f"storage root {self.url} can't be used: {why}. "
            "Check its address and permissions, or set another storage.root"
        )

    def __getstate__(self) -> dict[str, Any]:
        return {key: value for key, value in self.__dict__.items() if key != "_backend"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._backend, _ = self._open()

    def _with(self, **changes: object) -> ObjectBlobStore:
        """Returns a copy with other attributes, which shares the backend and its connection."""
        other = object.__new__(ObjectBlobStore)
        other.__dict__.update(self.__dict__ | changes)
        return other

    def _open(self) -> tuple[ObjectBackend, str]:
        url, options = self._opening
        try:
            return open_backend(url, options, retry_s=self.retry_s)
        except ImportError as error:
            module = getattr(error.__cause__, "name", None) or error.name or "fsspec"
            package = _PACKAGES.get(module, module)
            raise ConfigurationError(
                f"storage root {self.url} needs the package {package}: pip install {package}"
            ) from error
        except ConfigurationError:
            raise
        except (TypeError, ValueError, KeyError) as error:
            raise ConfigurationError(
                f"storage root {self.url} refuses its URL or storage.options: {self._secrets.masked(error)}"
            ) from self._secrets.cause(error)
        except Exception as error:
            raise StorageError(
                f"can't reach storage root {self.url}: {self._secrets.masked(error)}"
            ) from self._secrets.cause(error)

    def _target(self, path: str) -> str:
        return f"{self._root}/{checked_path(path)}"

    def _folder(self, folder: str) -> str:
        return self._target(folder) if folder else self._root

    def _fill(self, reference: Reference, reads: Iterable[RangeRead]) -> Generator[RangeRead, None, None]:
        """Yields the filled ranges, if the object has the expected size."""
        target, is_known = self._target(reference.path), False
        with self._calling("read", reference.path):
            with closing(self._backend.fill(target, reads)) as filled:
                for size, wanted in filled:
                    self._expect_size(reference, size)
                    is_known = True
                    yield wanted
            if not is_known:
                self._expect_size(reference, self._backend.size(target))

    def _expect_size(self, reference: Reference, size: int) -> None:
        if size != reference.bytes:
            raise WrongSizeError(size)

    @contextmanager
    def _calling(self, doing: str, path: str, source: Hashed | None = None) -> Iterator[None]:
        """Translates errors into one line without credentials; those that the published chunks raise pass unchanged."""
        try:
            yield
        except (HeirloomError, WrongContentsError):
            raise
        except Exception as error:
            if source is not None and source.error is error:
                raise
            where, cause = f"{self.url}/{path}", self._secrets.cause(error)
            if isinstance(error, FileExistsError):
                raise AlreadyPublishedError(f"{where} is published already") from cause
            if isinstance(error, FileNotFoundError) and source is None:
                raise FileNotFoundError(errno.ENOENT, "no such object", where) from cause
            raise StorageError(f"can't {doing} {where}: {self._secrets.masked(error)}") from cause
