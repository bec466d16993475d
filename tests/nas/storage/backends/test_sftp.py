"""Roots over sftp: real servers (asyncssh's, and OpenSSH's where it is installed), real connections that are cut."""

from __future__ import annotations

import os
import pickle
import random
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from nas.core.errors import AlreadyPublishedError, ConfigurationError, CorruptError, MissingError, StorageError
from nas.core.reference import Reference
from nas.storage.blobs import BlobStore
from nas.storage.maintenance.backend_checks.folder import check_folder
from nas.storage.open import open_root
from nas.storage.verified import ByteRange, digest_of
from nas.testing import check_blob_store
from tests.support.proxies import TcpProxy
from tests.support.servers import SECRET, assert_walked, openssh_server, sftp_root, sftp_server

pytestmark = pytest.mark.usefixtures("silence")
LARGE = random.Random(6).randbytes(17_000_000)


@pytest.fixture
def files(sftp_port: int, tmp_path: Path) -> BlobStore:
    return sftp_root(sftp_port, tmp_path / "root")


@pytest.fixture
def openssh(tmp_path: Path) -> Iterator[tuple[str, dict[str, object]]]:
    """The URL of a folder on an OpenSSH server, and the options that open it."""
    try:
        with openssh_server(tmp_path) as (port, options):
            yield f"sftp://{_user()}@127.0.0.1:{port}{tmp_path}/root", options
    except FileNotFoundError as error:
        pytest.skip(f"OpenSSH's server is needed: {error}")


def _user() -> str:
    return subprocess.run(["id", "-un"], capture_output=True, text=True, check=True).stdout.strip()


def everything(folder: Path) -> list[str]:
    """Every file below a folder, unfinished ones too."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if not path.is_dir())


class TestPlain:
    def test_other_process_sees_everything_at_once(self, files: BlobStore, tmp_path: Path) -> None:
        """Names are exclusive and whole, folders are made; a pickled root, as workers get it, is the same."""
        files.check_writable()
        other = pickle.loads(pickle.dumps(files))

        assert other.names("trials") == []
        reference = files.publish("trials/1.json", [b"1"], exclusive=True)
        assert other.names("trials") == ["1.json"]
        with pytest.raises(AlreadyPublishedError):
            other.publish("trials/1.json", [b"2"], exclusive=True)
        assert other.read(reference) == b"1"
        assert other.read_folder("trials", ".json") == {"1.json": b"1"}
        files.replace("beat", b"1")
        files.replace("beat", b"22")
        assert other.read_if_present("beat") == b"22"
        assert other.read_if_present("nothing") is None
        assert everything(tmp_path / "root") == ["beat", "trials/1.json"]
        files.delete("beat")
        files.delete("beat")
        assert other.names() == ["trials"]

    def test_large_file_is_whole(self, files: BlobStore, tmp_path: Path) -> None:
        """A file of many pieces, from chunks of any size, comes back in full and in parts."""
        reference = files.publish("packs/a", iter([LARGE[:1], LARGE[1:9_000_001], b"", LARGE[9_000_001:]]))
        memory = bytearray(2000)
        parts = [(500, 1500), (16_999_000, 17_000_000)]

        spans = [
            ByteRange(begin, digest_of(LARGE[begin:end]), memoryview(memory)[1000 * n : 1000 * n + 1000])
            for n, (begin, end) in enumerate(parts)
        ]
        files.read_ranges(reference, spans)

        assert (tmp_path / "root/packs/a").read_bytes() == LARGE == files.read(reference)
        assert bytes(memory) == b"".join(LARGE[begin:end] for begin, end in parts)

    def test_failing_source_leaves_nothing(self, files: BlobStore, tmp_path: Path) -> None:
        """An exception from the chunks passes as it is; the temporary file is removed."""

        def chunks() -> Iterator[bytes]:
            yield LARGE
            raise PermissionError("the source's own error")

        with pytest.raises(PermissionError, match="own error"):
            files.publish("packs/a", chunks())
        assert everything(tmp_path / "root") == []

    def test_check_leaves_no_folder(self, files: BlobStore, tmp_path: Path) -> None:
        """A backend check removes the folder of all checks, unless another one has files in it."""
        with check_folder(files) as folder:
            files.publish(f"{folder}/small/record", [b"1"])
            with check_folder(files) as other:
                files.publish(f"{other}/first", [b"1"])
            assert everything(tmp_path / "root") == [f"{folder}/small/record"]

        assert list((tmp_path / "root").iterdir()) == []

    def test_path_may_begin_at_home(self, tmp_path: Path) -> None:
        """``/~/`` leads to the user's home on the server; folders are made there."""
        with sftp_server(home=tmp_path) as port:
            sftp_root(port, "/~/heirloom/searches").publish("packs/a", [b"1"])

        assert (tmp_path / "heirloom/searches/packs/a").read_bytes() == b"1"

    def test_truncated_file_is_corrupt(self, files: BlobStore, tmp_path: Path) -> None:
        """A short read is not believed, and the message says what was found."""
        reference = files.publish("packs/a", [b"12345678"])
        (tmp_path / "root/packs/a").write_bytes(b"1234")

        for read in (files.read, files.check_size, files.check_contents):
            with pytest.raises(CorruptError, match=f"found 4 bytes {digest_of(b'1234')}"):
                read(reference)
        (tmp_path / "root/packs/a").unlink()
        with pytest.raises(MissingError):
            files.read(reference)

    def test_what_is_no_record_is_refused(self, files: BlobStore, tmp_path: Path) -> None:
        """A terabyte where a record should be is refused before memory is taken for it."""
        files.publish("trials/a.json", [b"{}"])
        os.truncate(tmp_path / "root/trials/a.json", 1 << 40)  # takes no room on the disk

        for read in (lambda: files.read_if_present("trials/a.json"), lambda: files.read_folder("trials", ".json")):
            with pytest.raises(CorruptError, match=r"trials/a\.json holds \d+ bytes; a record has at most \d+"):
                read()

    def test_root_is_walked(self, sftp_port: int, tmp_path: Path) -> None:
        """A walk tells sizes and times, sees what another process did, and unfinished files, which can be deleted."""
        root, other = (sftp_root(sftp_port, tmp_path / "root") for _ in range(2))
        assert_walked(root, other)
        (tmp_path / "root/trials/.tmp-0123").write_bytes(b"half")
        assert [stored.path for stored in other.walk() if "tmp" in stored.path] == ["trials/.tmp-0123"]
        other.delete("trials/.tmp-0123")

        assert everything(tmp_path / "root") == ["inner/a", "search.json", "trials/1.json"]
        assert not (tmp_path / "root/files/000001-aa").exists()

    def test_threads_share_a_connection(self, sftp_port: int, tmp_path: Path) -> None:
        """Many threads publish and read at once, over one connection, and none waits for another's reply."""
        with TcpProxy(sftp_port) as proxy:
            root = sftp_root(proxy.port, tmp_path)

            def work(number: int) -> bool:
                data = bytes([number]) * 300_000
                return root.read(root.publish(f"packs/{number}", [data])) == data

            with ThreadPoolExecutor(8) as pool:
                assert all(pool.map(work, range(16)))
            assert proxy.n_connections == 1


class TestFaults:
    @pytest.mark.parametrize(
        ("fault", "exclusive"), [("lost_rename", True), ("lost_rename", False), ("dropped_rename", True)]
    )
    def test_rename_without_reply(self, tmp_path: Path, fault: str, exclusive: bool) -> None:
        """A connection that is lost at the rename is made anew, and the file has its name, whether it had it or not."""
        with sftp_server(fault) as port:
            root = sftp_root(port, tmp_path, retry_s=20)

            reference = root.publish("trials/1.json", [b"contents"], exclusive=exclusive)

            assert root.read(reference) == b"contents"
            assert everything(tmp_path) == ["trials/1.json"]

    @pytest.mark.parametrize("contents", [b"another's", b"mine"])
    def test_other_writer_wins_while_the_connection_is_away(
        self, tmp_path: Path, sftp_port: int, contents: bytes
    ) -> None:
        """A rename that never arrived, and finds another's file when it is repeated, is told so: an equal one, too."""
        with sftp_server("dropped_rename") as port:
            sftp_root(sftp_port, tmp_path).publish("trials/1.json", [contents], exclusive=True)

            with pytest.raises(AlreadyPublishedError):
                sftp_root(port, tmp_path, retry_s=20).publish("trials/1.json", [b"mine"], exclusive=True)
            assert everything(tmp_path) == ["trials/1.json"]
            assert (tmp_path / "trials/1.json").read_bytes() == contents

    @pytest.mark.slow
    def test_upload_goes_on_after_a_cut(self, tmp_path: Path) -> None:
        """A connection that is lost in the middle of a large file is made anew; the file is whole."""
        with sftp_server("cut_write") as port:
            root = sftp_root(port, tmp_path, retry_s=20)

            reference = root.publish("packs/a", [LARGE])

            assert root.read(reference) == LARGE

    @pytest.mark.slow
    def test_what_a_server_forgot_is_found_missing(self, tmp_path: Path) -> None:
        """Where the server lost what it had confirmed, the file is not published."""
        with sftp_server("lost_data") as port:
            with pytest.raises(StorageError, match=r"lost a part of .*\.tmp-"):
                sftp_root(port, tmp_path, retry_s=20).publish("packs/a", [LARGE])
            assert everything(tmp_path) == []

    @pytest.mark.slow
    def test_stale_handles_pass(self, tmp_path: Path) -> None:
        """A server whose own file system has a stale handle is asked again."""
        (tmp_path / "beat").write_bytes(b"contents")
        with sftp_server("failing_reads") as port:
            assert sftp_root(port, tmp_path, retry_s=20).read_if_present("beat") == b"contents"

    @pytest.mark.slow
    def test_full_disk_is_told(self, tmp_path: Path) -> None:
        """A disk that takes no more ends the upload at once, and nothing is left of it."""
        with sftp_server("small_disk") as port:
            began = time.monotonic()
            with pytest.raises(StorageError, match="a full disk"):
                sftp_root(port, tmp_path, retry_s=60).publish("packs/a", [LARGE])
            assert time.monotonic() - began < 30
            assert everything(tmp_path) == []

    @pytest.mark.slow
    def test_cut_upload_without_patience_leaves_nothing_published(self, sftp_port: int, tmp_path: Path) -> None:
        """A connection that is cut half-way ends an upload that may not wait; the name stays free."""
        with TcpProxy(sftp_port, cut_after=9_000_000) as proxy:
            with pytest.raises(StorageError, match="can't publish"):
                sftp_root(proxy.port, tmp_path).publish("packs/a", [LARGE])
            assert not (tmp_path / "packs/a").exists()

    def test_idle_connection_is_made_anew(self, sftp_port: int, tmp_path: Path) -> None:
        """A connection that was lost while nobody used it is made anew."""
        with TcpProxy(sftp_port) as proxy:
            root = sftp_root(proxy.port, tmp_path, retry_s=20)
            reference = root.publish("packs/a", [b"1"])
            proxy.cut()

            assert root.read(reference) == b"1"
            assert proxy.n_connections == 2

    @pytest.mark.slow
    def test_connection_that_dies_without_a_word(self, sftp_port: int, tmp_path: Path) -> None:
        """A connection on which nothing comes any more does not use up the default patience: another one is made."""
        with TcpProxy(sftp_port) as proxy:
            root = sftp_root(proxy.port, tmp_path, retry_s=60)
            reference = root.publish("packs/a", [b"1"])
            proxy.hush()

            assert root.read(reference) == b"1"
            assert proxy.n_connections == 2

    def test_unreachable_server_is_named(self, tmp_path: Path) -> None:
        """Where nothing listens, the line says so within the bound."""
        with pytest.raises(StorageError, match=r"sftp://me@127\.0\.0\.1:9/.*ConnectionRefused") as caught:
            sftp_root(9, tmp_path, retry_s=0.3).check_writable()
        assert not isinstance(caught.value, ConfigurationError)


class TestRefusals:
    def test_wrong_password_is_a_mistake(self, sftp_port: int, tmp_path: Path) -> None:
        """A password that is refused is the user's to change; it is in no message and in no traceback."""
        url = f"sftp://me:{SECRET}%21@127.0.0.1:{sftp_port}{tmp_path}"
        for root in (open_root(url), open_root(url.replace(f":{SECRET}%21", ""), {"password": f"{SECRET}!"})):
            with pytest.raises(ConfigurationError, match="Permission denied") as caught:
                root.check_writable()

            text = "".join(traceback.format_exception(caught.value)) + repr(caught.value) + root.url
            assert SECRET not in text

    def test_no_error_tells_a_secret(self) -> None:
        """Whatever is asked of a server that is not there, no line and no traceback shows a credential."""
        files = open_root(f"sftp://me:{SECRET}@127.0.0.1:9/x", {"passphrase": f"{SECRET}-too"}, retry_s=0)
        reference = Reference("packs/a", 1, digest_of(b"1"))
        calls: list[Callable[[], object]] = [
            lambda: files.publish("packs/a", [b"1"]),
            lambda: files.replace("beat", b"1"),
            lambda: files.read(reference),
            lambda: files.check_size(reference),
            lambda: files.read_if_present("beat"),
            lambda: files.read_folder("trials", ".json"),
            lambda: files.walk(),
            lambda: files.delete("beat"),
            lambda: files.check_writable(),
            lambda: files.check_reachable(),
        ]

        for call in calls:
            with pytest.raises(StorageError, match=r"sftp://me:\*\*\*@127\.0\.0\.1:9/x") as caught:
                call()
            assert SECRET not in "".join(traceback.format_exception(caught.value)) + repr(caught.value)

    def test_folder_without_permission_is_a_mistake(self, sftp_port: int) -> None:
        """A folder in which the server may not write needs another root."""
        with pytest.raises((ConfigurationError, StorageError), match="can't be used"):
            sftp_root(sftp_port, "/proc/heirloom").check_writable()

    @pytest.mark.parametrize(
        ("url", "options", "line"),
        [
            ("sftp:///path", {}, "sftp://user@host:port/path"),
            ("sftp:///path", {"host": None}, "sftp://user@host:port/path"),
            ("sftp://host/path", {"key_filename": "x"}, "key_filename"),
            ("sftp://host:nan/path", {}, "could not be cast"),
        ],
    )
    def test_mistaken_options_are_told_at_once(self, url: str, options: dict[str, object], line: str) -> None:
        """What can't be an sftp root is refused before anything is connected."""
        with pytest.raises(ConfigurationError, match=line):
            open_root(url, options)

    def test_null_means_the_urls(self, sftp_port: int, tmp_path: Path) -> None:
        """A host, port, username or password of null in a yaml is the URL's."""
        options = dict.fromkeys(("host", "port", "username", "password"))

        root = open_root(f"sftp://me:{SECRET}@127.0.0.1:{sftp_port}{tmp_path}", options, retry_s=0)
        root.check_writable()

    def test_unknown_host_is_not_trusted(self, sftp_port: int, tmp_path: Path) -> None:
        """A host other than this one must be known; the line says how."""
        (tmp_path / "known_hosts").touch()
        options = {"password": SECRET, "known_hosts": str(tmp_path / "known_hosts")}

        with pytest.raises(ConfigurationError, match=r"not trusted.*ssh-keyscan"):
            open_root(f"sftp://me@127.0.0.1:{sftp_port}{tmp_path}", options).check_writable()
        with pytest.raises(ConfigurationError, match=r"not trusted"):
            open_root(f"sftp://me@0.0.0.0:{sftp_port}{tmp_path}", {"password": SECRET}).check_writable()


@pytest.mark.slow
class TestOpenSsh:
    def test_contract(self, openssh: tuple[str, dict[str, object]]) -> None:
        """OpenSSH's own server keeps the contract."""
        check_blob_store(*openssh)

    def test_a_home_and_the_whole_server_are_listed(
        self, openssh: tuple[str, dict[str, object]], tmp_path: Path
    ) -> None:
        """``/~`` is the home folder, and ``/`` the whole server, of which names are listed."""
        url, options = openssh
        host = url.removesuffix(f"{tmp_path}/root")
        home = {name for path in Path.home().iterdir() if (name := path.name)}

        assert {*open_root(f"{host}/~/", options).names()} == {*open_root(f"{host}/~", options).names()} == home
        assert {*open_root(f"{host}/", options).names()} >= {"etc", "tmp"}

    def test_taken_name_or_link_is_refused(self, openssh: tuple[str, dict[str, object]], tmp_path: Path) -> None:
        """An exclusive name is refused also where it is a link that leads nowhere."""
        root = open_root(*openssh, retry_s=0)
        root.check_writable()
        (tmp_path / "root/dangling").symlink_to("nowhere")

        with pytest.raises(AlreadyPublishedError):
            root.publish("dangling", [b"1"], exclusive=True)
        assert everything(tmp_path / "root") == ["dangling"]

    def test_large_file_over_a_cut(self, openssh: tuple[str, dict[str, object]], tmp_path: Path) -> None:
        """A cut connection in the middle of an upload and of a restore costs nothing but time."""
        url, options = openssh
        port = url.rpartition(":")[2].partition("/")[0]
        with TcpProxy(int(port), cut_after=9_000_000) as proxy:
            root = open_root(url.replace(f":{port}/", f":{proxy.port}/"), options, retry_s=30)
            reference = root.publish("packs/a", [LARGE], exclusive=True)

            assert proxy.n_connections == 2
            assert (tmp_path / "root/packs/a").read_bytes() == LARGE
            proxy.cut()
            assert root.read(reference) == LARGE
