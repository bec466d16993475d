"""Objects in S3, or in a store with its interface (MinIO, Ceph, R2), by Amazon's client.

An object of up to 16 MB is one request. A larger one is uploaded in parts, which the last request joins. A name is
exclusive by a conditional write (``If-None-Match``, in S3 since 2024). Nothing is cached.
"""

from __future__ import annotations

import errno
import logging
import re
import secrets
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import closing, suppress
from functools import partial
from itertools import chain, islice
from typing import Any, TypeVar, final
from urllib.parse import urlsplit

from blake3 import blake3
from botocore import exceptions as boto

from nas.core.reference import TEMPORARY
from nas.storage.backends.aws import is_temporary, make_client, status_of, translated
from nas.storage.backends.chunks import PART, Hashed, RangeRead, pieces
from nas.storage.backends.object_backend import SMALL_AT_ONCE, ObjectBackend, check_small
from nas.storage.backends.retry import in_order, persist
from nas.storage.blobs import BlobInfo

_AT_ONCE = 4
_STEP = 1 << 20
_WRITER = "heirloom-writer"
"""Metadata with the writer's token, which recognizes its own object after a lost reply."""

T = TypeVar("T")
logger = logging.getLogger(__name__)


@final
class S3Backend(ObjectBackend):
    """Whole objects by the requests of S3; a full name is ``bucket/key``.

    Args:
        client: A client of boto3 that makes one attempt per request; this class retries.
        extra: Arguments of each request that creates an object: encryption, storage class.
        retry_s: Seconds to retry.
    """

    def __init__(self, client: Any, extra: Mapping[str, Any], retry_s: float) -> None:
        self._client = client
        self._extra = extra
        self.retry_s = retry_s

    def put(self, target: str, chunks: Hashed, *, exclusive: bool) -> None:
        """Makes one request, or one per part; deletes the parts of a failed upload."""
        place, token = _place(target), secrets.token_hex(16)
        condition = {"IfNoneMatch": "*"} if exclusive else {}
        new = {**self._extra, "Metadata": {_WRITER: token}}
        source = pieces(chunks, PART)
        first = list(islice(source, 2))
        if len(first) < 2:
            self._create(token, "put_object", **place, **condition, **new, Body=b"".join(first))
            return
        upload = {**place, "UploadId": self._call("create_multipart_upload", **place, **new)["UploadId"]}
        try:
            numbered = enumerate(chain(first, source), 1)
            uploads = (partial(self._upload, upload, number, body) for number, body in numbered)
            parts = list(in_order(uploads, _AT_ONCE))
            self._create(token, "complete_multipart_upload", **upload, **condition, MultipartUpload={"Parts": parts})
        except BaseException:
            self._abort(upload)
            raise

    def get(self, target: str) -> bytes:
        """Makes one request."""

        def attempt() -> bytes:
            found = self._once("get_object", **_place(target))
            with closing(found["Body"]) as body:
                check_small(target, found["ContentLength"])
                return bytes(body.read())

        return self._persist(attempt)

    def size(self, target: str) -> int:
        """Makes one request."""
        return int(self._call("head_object", **_place(target))["ContentLength"])

    def fill(self, target: str, reads: Iterable[RangeRead]) -> Generator[tuple[int, RangeRead], None, None]:
        """Makes one request per range, which tells the size, too."""
        return in_order((partial(self._fill, target, wanted) for wanted in reads), _AT_ONCE)

    def reach(self, folder: str) -> None:
        """Lists one object, since a refused listing has a text, unlike a refused HEAD."""
        bucket, _, prefix = f"{folder}/".partition("/")
        self._call("list_objects_v2", Bucket=bucket, Prefix=prefix, MaxKeys=1)

    def names(self, folder: str) -> list[str]:
        """Lists the folder page by page."""
        bucket, _, prefix = f"{folder}/".partition("/")
        names: list[str] = []
        for page in self._pages("list_objects_v2", bucket, prefix, Delimiter="/"):
            names += [item["Key"].removeprefix(prefix) for item in page.get("Contents", ())]
            names += [item["Prefix"].removeprefix(prefix).rstrip("/") for item in page.get("CommonPrefixes", ())]
        return names

    def walk(self, folder: str) -> list[BlobInfo]:
        """Lists all objects, and unfinished uploads as unfinished files, page by page."""
        bucket, _, prefix = f"{folder}/".partition("/")
        found: list[BlobInfo] = []
        for page in self._pages("list_objects_v2", bucket, prefix):
            found += [
                BlobInfo(item["Key"].removeprefix(prefix), item["Size"], item["LastModified"].timestamp())
                for item in page.get("Contents", ())
            ]
        try:
            for page in self._pages("list_multipart_uploads", bucket, prefix):
                for item in page.get("Uploads", ()):
                    name = _unfinished(item["Key"].removeprefix(prefix), item["UploadId"])
                    found.append(BlobInfo(name, 0, item["Initiated"].timestamp()))
        except OSError as error:  # needs another permission, and some stores can't do it
            if error.errno not in (errno.EACCES, errno.ENOSYS):
                raise
        return found

    def delete(self, target: str) -> None:
        """Makes one request, which succeeds also for a missing object; aborts an unfinished upload."""
        if (mark := _begun(target)) is None:
            self._call("delete_object", **_place(target))
            return
        bucket, _, folder = target.rpartition("/")[0].partition("/")
        for page in self._pages("list_multipart_uploads", bucket, f"{folder}/"):
            for item in page.get("Uploads", ()):
                if _mark(item["UploadId"]) == mark:
                    self._call("abort_multipart_upload", Bucket=bucket, Key=item["Key"], UploadId=item["UploadId"])

    def _pages(self, request: str, bucket: str, prefix: str, **details: str) -> Iterator[dict[str, Any]]:
        more: dict[str, str] | None = {}
        while more is not None:
            page = self._call(request, Bucket=bucket, Prefix=prefix, **details, **more)
            yield page
            marks = {"NextContinuationToken": "ContinuationToken", "NextKeyMarker": "KeyMarker"}
            marks |= {"NextUploadIdMarker": "UploadIdMarker"}
            is_last = not page.get("IsTruncated")
            more = None if is_last else {own: page[theirs] for theirs, own in marks.items() if theirs in page}

    def _create(self, token: str, request: str, **arguments: Any) -> None:
        """Creates the object; if its own object exists, an earlier reply was lost."""

        def attempt() -> None:
            try:
                self._once(request, **arguments)
            except (FileExistsError, FileNotFoundError):  # the name is taken, or the upload no longer exists
                if self._writer(arguments) != token:
                    raise

        self._persist(attempt)

    def _writer(self, place: Mapping[str, Any]) -> str | None:
        """Returns the token of the object's writer."""
        with suppress(FileNotFoundError):
            head = self._once("head_object", Bucket=place["Bucket"], Key=place["Key"])
            return str(head["Metadata"].get(_WRITER))
        return None

    def _upload(self, upload: Mapping[str, Any], number: int, body: bytes) -> dict[str, Any]:
        reply = self._call("upload_part", **upload, PartNumber=number, Body=body)
        # some stores require the checksum that the client computed
        sums = {key: value for key, value in reply.items() if key.startswith("Checksum") and key != "ChecksumType"}
        return {"PartNumber": number, "ETag": reply["ETag"], **sums}

    def _abort(self, upload: Mapping[str, Any]) -> None:
        """Deletes the parts."""
        try:
            with suppress(FileNotFoundError):
                self.within(min(self.retry_s, 5.0))._call("abort_multipart_upload", **upload)
        except Exception as error:
            what = f"{upload['Bucket']}/{upload['Key']} (upload {upload['UploadId']})"
            logger.warning("can't delete the parts of %s: %s", what, type(error).__name__)

    def _fill(self, target: str, wanted: RangeRead) -> tuple[int, RangeRead]:
        """Fills one range, and returns the object's size."""

        def attempt() -> tuple[int, RangeRead]:
            place, end = _place(target), wanted.begin + wanted.bytes
            try:
                reply = self._once("get_object", **place, Range=f"bytes={wanted.begin}-{end - 1}")
            except boto.ClientError as error:
                if status_of(error) != 416:
                    raise
                return self.size(target), wanted  # the object ends before the range begins
            if "ContentRange" not in reply and wanted.begin:
                raise OSError(errno.ENOTSUP, "the store does not honor ranges")
            with closing(reply["Body"]) as body:
                offset, size = 0, int(reply.get("ContentRange", f"/{reply['ContentLength']}").rpartition("/")[2])
                while offset < wanted.bytes and (n := body.readinto(wanted.at(offset)[:_STEP])):
                    offset += n
            return size, wanted

        return self._persist(attempt)

    def _call(self, request: str, **arguments: Any) -> dict[str, Any]:
        """Makes a request that may be repeated."""
        return self._persist(partial(self._once, request, **arguments))

    def _persist(self, attempt: Callable[[], T]) -> T:
        return persist(attempt, is_temporary, self.retry_s)

    def _once(self, request: str, **arguments: Any) -> dict[str, Any]:
        """Makes one attempt, and raises the errors of a backend."""
        try:
            reply: dict[str, Any] = getattr(self._client, request)(**arguments)
            return reply
        except boto.ClientError as error:
            if (found := translated(error)) is error:
                raise
            raise found from error
        except boto.ParamValidationError as error:  # an invalid name of a bucket
            raise ValueError(" ".join(str(error).split())) from error
        except boto.NoCredentialsError as error:
            raise PermissionError(errno.EACCES, f"{error}: set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY") from error


def _place(target: str) -> dict[str, str]:
    bucket, _, key = target.partition("/")
    return {"Bucket": bucket, "Key": key}


def _unfinished(path: str, upload: str) -> str:
    """Returns the name of an unfinished upload: that of an unfinished file beside its object.

    It holds a short digest of the upload's id, which S3 does not bound, and the end of a long name.
    """
    folder, slash, name = path.rpartition("/")
    return f"{folder}{slash}{TEMPORARY}{_mark(upload)}~{name[-100:]}"


def _mark(upload: str) -> str:
    return blake3(upload.encode()).hexdigest(length=8)


def _begun(target: str) -> str | None:
    """Returns the digest of the upload's id if the name is from ``_unfinished``, else None."""
    found = re.fullmatch(rf"{re.escape(TEMPORARY)}([0-9a-f]{{16}})~.*", target.rpartition("/")[2], re.DOTALL)
    return None if found is None else found[1]


def open_backend(url: str, options: Mapping[str, Any], *, retry_s: float) -> tuple[S3Backend, str]:
    """Returns the backend, and ``bucket/prefix``. Options are those of ``nas.storage.backends.aws.make_client``.

    Raises:
        ImportError, TypeError, ValueError: as ``nas.storage.backends.object_backend.open_backend``.
    """
    parts = urlsplit(url)
    if not parts.netloc or "@" in parts.netloc or parts.query or parts.fragment:
        raise ValueError("an S3 root must be s3://bucket/prefix. Give credentials in variables or options")
    client = make_client(options, n_connections=2 * SMALL_AT_ONCE)
    return S3Backend(client, options.get("s3_additional_kwargs") or {}, retry_s), f"{parts.netloc}{parts.path}"
