"""Roots in S3: real requests to a real server (moto), also through a proxy that fails, and a server that dies."""

from __future__ import annotations

import pickle
import random
import signal
import time
import traceback
from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from nas.core.errors import AlreadyPublishedError, ConfigurationError, CorruptError, MissingError, StorageError
from nas.core.reference import Reference
from nas.storage.backends import s3 as module
from nas.storage.blobs import BlobStore
from nas.storage.open import open_root
from nas.storage.verified import ByteRange, digest_of
from tests.support.proxies import HttpProxy
from tests.support.servers import KEY_ID, S3, SECRET, assert_walked, eventually, s3_server

pytestmark = pytest.mark.usefixtures("silence")
LARGE = random.Random(5).randbytes(17_000_000)


@pytest.fixture
def url() -> str:
    """A folder of the bucket that no other test uses."""
    return f"s3://bucket/{uuid4().hex}"


@pytest.fixture
def files(s3: S3, url: str) -> BlobStore:
    return s3.root(url)


@pytest.fixture
def proxy(s3: S3) -> Iterator[HttpProxy]:
    with HttpProxy(s3.endpoint) as running:
        yield running


@pytest.fixture
def patient(s3: S3, url: str, proxy: HttpProxy) -> BlobStore:
    """The same folder, behind the proxy, by a client that repeats what fails."""
    return s3.root(url, retry_s=20, endpoint=proxy.endpoint)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads in parts of the least size that S3 takes."""
    monkeypatch.setattr(module, "PART", 5 << 20)


class TestPlain:
    def test_other_process_sees_everything_at_once(self, s3: S3, url: str) -> None:
        """Names are exclusive, listings fresh, references verified; a pickled root, as workers get it, is the same."""
        files, other = s3.root(url), pickle.loads(pickle.dumps(open_root(url, s3.options(), retry_s=0)))
        files.check_writable()

        assert other.names("trials") == []
        reference = files.publish("trials/1.json", [b"1"], exclusive=True)
        assert other.names("trials") == ["1.json"]
        with pytest.raises(AlreadyPublishedError):
            other.publish("trials/1.json", [b"2"], exclusive=True)
        assert other.read(reference) == b"1"
        assert other.read_folder("trials", ".json") == {"1.json": b"1"}
        assert other.names() == ["trials"]
        files.replace("beat", b"1")
        files.replace("beat", b"22")
        assert other.read_if_present("beat") == b"22"
        assert other.read_if_present("nothing") is None
        files.delete("trials/1.json")
        files.delete("trials/1.json")
        assert other.names("trials") == []
        with pytest.raises(MissingError):
            other.read(reference)
        assert files.subfolder("one").sibling("two").url == f"{url}/two"

    def test_bucket_is_not_made_by_mistake(self, s3: S3) -> None:
        """A bucket that does not exist is refused, not created."""
        with pytest.raises(ConfigurationError, match=r"s3://misspelt/searches.*no such bucket"):
            s3.root("s3://misspelt/searches").check_writable()
        assert [bucket["Name"] for bucket in s3.client.list_buckets()["Buckets"]] == ["bucket"]

    def test_root_is_walked(self, s3: S3, url: str) -> None:
        """A walk tells sizes and times, and sees what another process did."""
        assert_walked(s3.root(url), s3.root(url))

    def test_crashed_upload_is_walked_and_deleted(self, s3: S3, url: str) -> None:
        """Parts that a crashed writer left look like an unfinished file beside the object, which a sweep deletes.

        However long the upload's id is (the server's here has 400 letters), and the object's name.
        """
        files = s3.root(url)
        long = f"{url.removeprefix('s3://bucket/')}/files/000001-aa/{'long' * 62}"
        s3.client.create_multipart_upload(Bucket="bucket", Key=long)
        (left,) = files.walk()
        files.delete(left.path)
        key = f"{url.removeprefix('s3://bucket/')}/packs/000001-aa.safetensors"
        upload = s3.client.create_multipart_upload(Bucket="bucket", Key=key)
        s3.client.upload_part(Bucket="bucket", Key=key, PartNumber=1, UploadId=upload["UploadId"], Body=b"part")

        (left,) = files.walk()
        assert left.path.startswith("packs/.tmp-")
        assert left.path.endswith("~000001-aa.safetensors")
        assert left.modified is not None
        assert files.names("packs") == []
        files.delete(left.path)
        assert files.walk() == []
        assert s3.unfinished() == []

    def test_many_are_deleted_at_once(self, s3: S3, url: str, proxy: HttpProxy) -> None:
        """A sweep does not wait for one delete after the other; of one that is refused the name is told."""
        files = s3.root(url, endpoint=proxy.endpoint)
        paths = [files.publish(f"packs/{number}", [b"1"]).path for number in range(8)]
        proxy.fail("together", method="DELETE", times=8)
        files.delete_all([*paths, "packs/never-there"])
        assert files.names("packs") == []

        files.publish("packs/kept", [b"1"])
        proxy.fail(403, method="DELETE", path="packs/kept")
        with pytest.raises(StorageError, match=f"can't delete {url}/packs/kept: PermissionError"):
            files.delete_all(["packs/kept", "packs/gone"])

    @pytest.mark.slow
    def test_listing_has_every_page(self, s3: S3, files: BlobStore, url: str) -> None:
        """A folder of more names than a page holds is listed and read in full."""
        key, client = url.removeprefix("s3://bucket/"), s3.client
        for number in range(1003):
            client.put_object(Bucket="bucket", Key=f"{key}/trials/{number:06d}.json", Body=b"%d" % number)

        names = [f"{number:06d}.json" for number in range(1003)]
        assert files.names("trials") == names
        assert [stored.path for stored in files.walk()] == [f"trials/{name}" for name in names]

    def test_only_what_is_wanted_is_got(self, s3: S3, url: str, proxy: HttpProxy) -> None:
        """Parts less than 1 MB apart come in one request, others in requests of their own, and the rest not at all."""
        files = s3.root(url, endpoint=proxy.endpoint)
        reference = files.publish("packs/a", [LARGE])
        memory = bytearray(4000)
        wanted = [(0, 1000), (900_000, 901_000), (9_000_000, 9_001_000), (16_999_000, 17_000_000)]
        proxy.seen.clear()

        files.read_ranges(
            reference,
            [
                ByteRange(begin, digest_of(LARGE[begin:end]), memoryview(memory)[1000 * n : 1000 * n + 1000])
                for n, (begin, end) in enumerate(wanted)
            ],
        )

        assert bytes(memory) == b"".join(LARGE[begin:end] for begin, end in wanted)
        assert len(proxy.seen) == 3

    def test_object_of_another_size_is_corrupt(self, files: BlobStore) -> None:
        """A truncated and a longer object are corrupt, and the message says what is there."""
        reference = files.publish("packs/a", [b"12345678"])

        for wrong in (b"1234", b"", b"123456789"):
            files.replace("packs/a", wrong)
            for read in (files.read, files.check_size, files.check_contents):
                with pytest.raises(CorruptError, match=f"found {len(wrong)} bytes {digest_of(wrong)}"):
                    read(reference)

    def test_what_is_no_record_is_refused(self, files: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """An object larger than any record, where a record should be, is refused by its size."""
        files.publish("trials/a.json", [bytes(2001)])
        monkeypatch.setattr("nas.storage.backends.object_backend.MAX_RECORD_BYTES", 2000)

        for read in (lambda: files.read_if_present("trials/a.json"), lambda: files.read_folder("trials", ".json")):
            with pytest.raises(CorruptError, match=r"trials/a\.json holds 2001 bytes; a record has at most 2000"):
                read()

    def test_giant_is_not_got_for_a_message(self, files: BlobStore, monkeypatch: pytest.MonkeyPatch) -> None:
        """An object of another size that is larger than any record is corrupt by its size alone."""
        reference = files.publish("packs/a", [b"12345678"])
        files.replace("packs/a", bytes(2001))
        monkeypatch.setattr("nas.storage.blobs.MAX_RECORD_BYTES", 2000)

        with pytest.raises(CorruptError, match="found 2001 bytes, tried"):
            files.check_size(reference)


@pytest.mark.usefixtures("small_parts")
class TestParts:
    def test_large_object_goes_up_in_parts(self, files: BlobStore, s3: S3, url: str) -> None:
        """Many chunks of any size become one object, whose digest was made on the way."""
        sizes = [1, 7_000_000, 0, 3, 9_999_996]
        ends = [sum(sizes[: n + 1]) for n in range(len(sizes))]
        chunks = [LARGE[end - size : end] for size, end in zip(sizes, ends, strict=True)]

        reference = files.publish("packs/large", iter(chunks))

        assert reference == Reference("packs/large", len(LARGE), digest_of(LARGE))
        assert files.read(reference) == LARGE
        head = s3.client.head_object(Bucket="bucket", Key=f"{url.removeprefix('s3://bucket/')}/packs/large")
        assert head["ETag"].strip('"').endswith("-4")
        assert s3.unfinished() == []

    def test_failing_source_leaves_nothing(self, files: BlobStore, s3: S3) -> None:
        """An exception from the chunks, after parts went up, publishes nothing and throws the parts away."""

        def chunks() -> Iterator[bytes]:
            yield LARGE
            raise PermissionError("the source's own error")

        with pytest.raises(PermissionError, match="own error"):
            files.publish("packs/large", chunks())
        assert files.names("packs") == []
        assert s3.unfinished() == []

    def test_taken_name_throws_the_parts_away(self, files: BlobStore, s3: S3) -> None:
        """A large object does not replace one that has the exclusive name."""
        files.publish("packs/large", [b"first"], exclusive=True)

        with pytest.raises(AlreadyPublishedError):
            files.publish("packs/large", [LARGE], exclusive=True)
        assert files.read_if_present("packs/large") == b"first"
        assert s3.unfinished() == []

    @pytest.mark.parametrize("fault", ["half", "reset", 500, 403])
    def test_put_that_fails_half_way_leaves_nothing(self, s3: S3, url: str, proxy: HttpProxy, fault: int | str) -> None:
        """A part that does not arrive ends the upload where there is no patience; nothing is published or left."""
        files = s3.root(url, endpoint=proxy.endpoint)
        proxy.fail(fault, method="PUT", path="partNumber=3", times=2)

        with pytest.raises(StorageError, match=f"can't publish {url}/packs/large"):
            files.publish("packs/large", [LARGE])
        assert files.names("packs") == []
        assert s3.unfinished() == []

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("method", "path"), [("POST", "?uploads"), ("PUT", "partNumber=2"), ("POST", "?uploadId=")]
    )
    @pytest.mark.parametrize("fault", [503, "reset", "lost"])
    def test_every_step_is_repeated(
        self, patient: BlobStore, proxy: HttpProxy, method: str, path: str, fault: int | str
    ) -> None:
        """A begin, a part or an end that is refused, or whose reply is lost, is sent again; the object is whole."""
        proxy.fail(fault, method=method, path=path, times=2)

        reference = patient.publish("packs/large", [LARGE], exclusive=True)

        assert patient.read(reference) == LARGE


class TestFaults:
    @pytest.mark.slow
    def test_put_is_repeated(self, patient: BlobStore, proxy: HttpProxy) -> None:
        """A put that is refused, cut off or not answered is sent again; an exclusive one knows its own work."""
        for fault in (500, 503, "reset", "lost", "half"):
            for path, exclusive in ((f"packs/{fault}", False), (f"trials/{fault}", True)):
                proxy.fail(fault, method="PUT", path=path, times=2)

                reference = patient.publish(path, [b"contents"], exclusive=exclusive)

                assert patient.read(reference) == b"contents"

    @pytest.mark.slow
    def test_what_takes_longer_than_the_patience_is_repeated(self, s3: S3, url: str, proxy: HttpProxy) -> None:
        """A put over a slow line that is cut after a time beyond the patience is sent again: errors alone count."""
        files = s3.root(url, retry_s=0.3, endpoint=proxy.endpoint)
        proxy.fail("late", method="PUT")

        reference = files.publish("packs/a", [b"contents"])

        assert files.read(reference) == b"contents"

    @pytest.mark.slow
    def test_connection_that_dies_without_a_word(self, s3: S3, url: str, proxy: HttpProxy) -> None:
        """A reply that never comes does not use up the default patience: what was asked is asked again."""
        files = s3.root(url, retry_s=60, endpoint=proxy.endpoint)
        proxy.fail("silent", method="PUT")
        proxy.fail("silent", method="GET")

        reference = files.publish("trials/1.json", [b"contents"], exclusive=True)

        assert files.read(reference) == b"contents"

    def test_other_writer_between_repeats_wins(self, files: BlobStore, s3: S3, url: str, proxy: HttpProxy) -> None:
        """A create that was cut off, and finds another's object when it is repeated, is told so."""
        late = s3.root(url, retry_s=20, endpoint=proxy.endpoint)
        proxy.fail("reset", method="PUT", path="trials/1.json", times=2)
        files.publish("trials/1.json", [b"same"], exclusive=True)

        with pytest.raises(AlreadyPublishedError):
            late.publish("trials/1.json", [b"same"], exclusive=True)
        assert len(proxy.seen) >= 2

    @pytest.mark.slow
    def test_reads_are_repeated(self, patient: BlobStore, proxy: HttpProxy) -> None:
        """Gets, listings and deletes that fail, or end early, are sent again."""
        for fault in (500, 503, "reset", "lost", "short"):
            reference = patient.publish("trials/1.json", [b"contents" * 1000])
            memory = bytearray(8)
            proxy.fail(fault, method="GET")
            assert patient.read(reference) == b"contents" * 1000
            proxy.fail(fault, method="GET")
            patient.read_ranges(reference, [ByteRange(8, digest_of(b"contents"), memoryview(memory))])
            assert memory == b"contents"
            proxy.fail(fault, method="GET", times=2)
            assert list(patient.read_folder("trials", ".json")) == ["1.json"]
            if fault != "short":  # these have no body
                proxy.fail(fault, method="HEAD")
                patient.check_size(reference)
                proxy.fail(fault, method="DELETE")
                patient.delete("trials/1.json")
                assert patient.names("trials") == []

    def test_refusal_is_not_repeated(self, patient: BlobStore, proxy: HttpProxy) -> None:
        """Where access is denied, patience would help nobody."""
        proxy.fail(403, method="PUT", times=5)

        with pytest.raises(StorageError, match="PermissionError"):
            patient.publish("packs/a", [b"1"])
        assert len(proxy.seen) == 1

    @pytest.mark.slow
    def test_patience_ends(self, s3: S3, url: str, proxy: HttpProxy) -> None:
        """A server that stays busy is an error after the bound, and in its own words."""
        files = s3.root(url, retry_s=2, endpoint=proxy.endpoint)
        proxy.fail(503, method="PUT", times=1000)
        began = time.monotonic()

        with pytest.raises(StorageError, match="SlowDown"):
            files.publish("packs/a", [b"1"])
        assert time.monotonic() - began < 20
        assert 2 <= len(proxy.seen) < 20

    @pytest.mark.slow
    @pytest.mark.usefixtures("small_parts")
    def test_killed_server_publishes_nothing(self, url: str) -> None:
        """A server that is killed while parts go up makes one error, in one line, within the bound."""
        with s3_server() as server:
            files = server.root(url, retry_s=0.5)

            def chunks() -> Iterator[bytes]:
                yield LARGE
                assert eventually(server.unfinished)
                server.process.send_signal(signal.SIGKILL)
                server.process.wait()
                yield LARGE

            with pytest.raises(StorageError, match=f"can't publish {url}/packs/large") as caught:
                files.publish("packs/large", chunks())
            assert "\n" not in str(caught.value)


class TestRefusals:
    def test_store_without_conditions_is_refused(self, s3: S3, url: str, proxy: HttpProxy) -> None:
        """A store that ignores the condition lets a second writer replace a record: it can't be a root."""
        proxy.fail("unconditional", method="PUT", times=10)

        with pytest.raises(ConfigurationError, match="lets a second writer replace a record"):
            s3.root(url, endpoint=proxy.endpoint).check_writable()
        assert s3.root(url).names() == []

    def test_store_that_refuses_conditions_is_refused(self, s3: S3, url: str, proxy: HttpProxy) -> None:
        """A store that does not implement conditions says so itself, and can't be a root either."""
        proxy.fail(501, method="PUT", times=10)

        with pytest.raises(ConfigurationError, match="NotImplemented"):
            s3.root(url, endpoint=proxy.endpoint).check_writable()

    def test_silent_server_is_told(self, s3: S3, url: str, proxy: HttpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
        """The first contact waits seconds for an answer, whatever patience later requests have."""
        monkeypatch.setattr("nas.storage.backends.object_store._SILENT_S", 0.2)
        proxy.fail("silent", method="GET", times=9)
        files = s3.root(url, retry_s=60, endpoint=proxy.endpoint)

        with pytest.raises(StorageError, match=rf"storage root {url} can't be used: no answer within 0\.2 s"):
            files.check_reachable()

    def test_first_contact_tells_what_to_change(self, s3: S3, url: str, proxy: HttpProxy) -> None:
        """A bucket that is not there, and credentials that are refused, are the user's to fix, also for who reads."""
        s3.root(url).check_reachable()
        proxy.fail(403, method="GET")

        with pytest.raises(ConfigurationError, match="no such bucket"):
            s3.root("s3://misspelt/searches").check_reachable()
        with pytest.raises(ConfigurationError, match='Invalid bucket name "no!"'):
            s3.root("s3://no!/searches").check_reachable()
        with pytest.raises(ConfigurationError, match="AccessDenied"):
            s3.root(url, endpoint=proxy.endpoint).check_reachable()

    def test_unreachable_server_is_named(self, s3: S3) -> None:
        """Where nothing listens, the line names the endpoint."""
        with pytest.raises(StorageError, match=r"127\.0\.0\.1:9/") as caught:
            s3.root("s3://bucket/x", endpoint="http://127.0.0.1:9").check_writable()
        assert not isinstance(caught.value, ConfigurationError)


CALLS: dict[str, Callable[[BlobStore], object]] = {
    "publish": lambda files: files.publish("packs/a", [b"1"]),
    "exclusive": lambda files: files.publish("packs/a", [b"1"], exclusive=True),
    "replace": lambda files: files.replace("beat", b"1"),
    "check": lambda files: files.check_writable(),
    "reach": lambda files: files.check_reachable(),
    "delete": lambda files: files.delete("packs/a"),
    "read": lambda files: files.read(Reference("packs/a", 1, digest_of(b"1"))),
    "check_size": lambda files: files.check_size(Reference("packs/a", 1, digest_of(b"1"))),
    "names": lambda files: files.names("packs"),
    "read_folder": lambda files: files.read_folder("packs", ""),
    "read_if_present": lambda files: files.read_if_present("packs/a"),
}


def test_no_error_tells_a_secret(s3: S3, url: str, proxy: HttpProxy) -> None:
    """Neither a message nor the traceback below it shows a credential, even if the server's own words do."""
    files = s3.root(url, endpoint=proxy.endpoint)
    for method in ("PUT", "DELETE", "GET", "HEAD"):
        proxy.fail(403, method=method, times=100)  # its message is the secret

    for name, call in CALLS.items():
        with pytest.raises((StorageError, ConfigurationError)) as caught:
            call(files)
        text = "".join(traceback.format_exception(caught.value)) + repr(caught.value)
        assert "AccessDenied" in text or "Forbidden" in text, name
        assert SECRET not in text, name
        assert KEY_ID not in text, name
