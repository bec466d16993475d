"""The Prefect server of a search: the user's own, or a temporary one.

Prefect's own temporary server prints to the command's standard error, gets its Ctrl-C, and survives its ``kill -9``.
This one is a child process with its own session and log. It ends when a pipe from the command is closed.
"""

from __future__ import annotations

import contextlib
import errno
import http.client
import os
import re
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from nas.core.errors import ConfigurationError, ServerError
from nas.core.redaction import public_line
from nas.storage.mounts import find_mount

if TYPE_CHECKING:
    from uuid import UUID

    import httpx

_NETWORK_FILE_SYSTEMS = re.compile("afs|beegfs|ceph|cifs|fuse.glusterfs|fuse.sshfs|gfs2|gpfs|lustre|nfs4?|smb.*|wekafs")
# PREFECT__SERVER_EPHEMERAL, PREFECT__SERVER_FINAL and the factory in server_main.py are private names, taken from
# Prefect's SubprocessASGIServer (prefect/server/api/server.py, 3.8.8). Because of them pyproject.toml bounds prefect.
_SERVER_SETTINGS = {
    "PREFECT__SERVER_EPHEMERAL": "1",
    "PREFECT__SERVER_FINAL": "1",
    "PREFECT_UI_ENABLED": "0",
    "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
    # The event feed and automations, 15 % of the server's work. Nobody sees them; task runs are recorded without them.
    "PREFECT_SERVER_SERVICES_EVENT_PERSISTER_ENABLED": "false",
    "PREFECT_SERVER_SERVICES_TRIGGERS_ENABLED": "false",
    "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": "",  # no web page may read its responses
    "PREFECT_SERVER_SERVICES_DB_VACUUM_RETENTION_PERIOD": str(30 * 86400),
}
# With a UI the server is a web server alone: no scheduler or other service that changes runs.
_UI_SETTINGS = {
    "PREFECT_UI_ENABLED": "1",
    "PREFECT__SERVER_EPHEMERAL": "",
    "PREFECT__SERVER_WEBSERVER_ONLY": "1",
    "PREFECT_UI_API_URL": "/api",  # relative: the page may come through a tunnel with another port
    "PREFECT_SERVER_UI_SHOW_PROMOTIONAL_CONTENT": "false",
}
START_S = 180.0
"""Longest start of a server: the first in a home takes a minute on busy machines."""
_LOG_DAYS = 7


def server_home() -> Path:
    """Returns the folder of the temporary server's database.

    It is in ``HEIRLOOM_CACHE`` if this is set, else in the user's cache folder.
    """
    if chosen := os.environ.get("HEIRLOOM_CACHE"):
        return Path(os.path.expanduser(chosen)).absolute() / "prefect"
    default = "~/Library/Caches" if sys.platform == "darwin" else "~/.cache"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or default).expanduser().absolute() / "heirloom"
    if _is_on_network(cache):  # SQLite's locks do not hold between hosts, and clusters share their home folders
        cache = Path(tempfile.gettempdir()) / f"heirloom-{os.getuid()}"
    return cache / "prefect"


class TemporaryServer:
    """A Prefect server for one command. It ends with this process, even after ``kill -9``.

    Its home stays. The first start in a home takes about 10 s (migrations), later ones 3 s. Several servers can share a
    home.

    Args:
        ui_port: The port of a server with Prefect's UI; 0 is a free one. None: no UI, and a free port.
    """

    def __init__(self, *, ui_port: int | None = None) -> None:
        self._ui_port = ui_port
        self._home = server_home()
        self.log_path = self._home / "logs" / f"{time.time_ns()}-{os.getpid()}.log"
        self.api_url = ""
        self.auth_string = f"heirloom:{secrets.token_urlsafe(32)}"
        """User and password, new for each start and unknown to other users of the machine."""
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> TemporaryServer:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def start(self) -> None:
        """Starts the server and returns at once; ``api_url`` is known from here on.

        One that has ended starts again, with the same port and password.

        Raises:
            ConfigurationError: another process has the port.
            ServerError: its home or its log can't be written.
        """
        if self.is_running:
            return
        self.stop()
        with socket.socket() as listener:  # the child inherits it, so no other process can take the port
            _bind(listener, urlsplit(self.api_url).port or self._ui_port or 0)
            try:
                _make_private_folder(self._home)
                self.log_path.parent.mkdir(parents=True, exist_ok=True)
                _forget_old_logs(self._home / "logs")
                with self.log_path.open("ab") as log:
                    self._child = subprocess.Popen(
                        [sys.executable, "-m", "flows.engine.server_main", str(listener.fileno()), str(os.getpid())],
                        stdin=subprocess.PIPE,
                        stdout=log,
                        stderr=log,
                        cwd=self._home,  # Prefect reads .env, prefect.toml and pyproject.toml of its folder
                        env=self._environment(),
                        pass_fds=[listener.fileno()],
                        start_new_session=True,  # a terminal's Ctrl-C goes to the whole group
                    )
            except OSError as error:
                raise ServerError(
                    f"the temporary Prefect server can't start in {self._home} ({error.filename}: {error.strerror}): "
                    "name another folder with HEIRLOOM_CACHE, or a running server with PREFECT_API_URL"
                ) from error
            self.api_url = f"http://127.0.0.1:{listener.getsockname()[1]}/api"

    def wait_until_healthy(self, timeout_s: float = START_S) -> str:
        """Returns the API's URL when the server responds.

        Raises:
            ServerError: it ended, or did not respond within ``timeout_s``.
        """
        if self._child is None:
            raise ServerError("the temporary Prefect server was not started: call start() first")
        deadline = time.monotonic() + timeout_s
        while not _is_healthy(self.api_url):
            status = self._child.poll()
            if status is not None or time.monotonic() > deadline:
                raise ServerError(self._why_not(status, timeout_s))
            time.sleep(0.05)
        return self.api_url

    @property
    def is_running(self) -> bool:
        """Whether it was started and has not ended."""
        return self._child is not None and self._child.poll() is None

    def stop(self) -> None:
        """Ends the server within 2 s, without output. Does nothing if it has ended."""
        child, self._child = self._child, None
        if child is None:
            return
        assert child.stdin is not None
        child.stdin.close()
        try:
            child.wait(timeout=1)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()

    def _environment(self) -> dict[str, str]:
        """Returns the environment without the user's settings of Prefect, which are for other servers."""
        kept = {name: value for name, value in os.environ.items() if not name.upper().startswith("PREFECT")}
        path = os.pathsep.join(filter(None, [str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH")]))
        own = {"PREFECT_HOME": str(self._home), "PREFECT_SERVER_API_AUTH_STRING": self.auth_string}
        ui = {} if self._ui_port is None else {**_UI_SETTINGS, "PREFECT_UI_STATIC_DIRECTORY": str(self._home / "ui")}
        return kept | _SERVER_SETTINGS | ui | own | {"PYTHONPATH": path}

    def _why_not(self, status: int | None, timeout_s: float) -> str:
        """Returns the error's line on a server that did not start."""
        try:
            log = self.log_path.read_text(errors="replace")
        except OSError as error:
            log = f"(can't be read: {error.strerror})"
        if "Can't locate revision" in log:
            return (
                f"the database of the temporary Prefect server is of a newer Prefect: {self._home / 'prefect.db'}. "
                "Upgrade Prefect, name another folder with HEIRLOOM_CACHE, or delete the file"
            )
        what = f"did not answer within {timeout_s:g} s" if status is None else f"ended with status {status}"
        last = next((line.strip()[:300] for line in reversed(log.split("\n")) if line.strip()), "(empty)")
        return f"the temporary Prefect server {what}; {self.log_path} ends: {last}"


def use_server(api_url: str) -> None:
    """Checks within a few seconds that the user's own server responds.

    Raises:
        ServerError: it does not respond, or is no Prefect API.
    """
    import httpx

    bare = re.sub(r"(?<=://)[^/]*@", "", api_url).rstrip("/")
    try:
        # Certificates are not checked, since nothing secret is sent or received. Prefect's client checks them later.
        answer = httpx.get(f"{bare}/health", timeout=3.0, follow_redirects=True, verify=False)
        # 401 and 403 come from a server as well. A web page is Prefect's UI: the URL lacks its /api.
        answers = answer.status_code in (401, 403) or (
            answer.is_success and "html" not in answer.headers.get("content-type", "")
        )
        why = "" if answers else f"something there answers with status {answer.status_code}, but not as Prefect's API"
    except httpx.HTTPError as error:
        why = str(error) or type(error).__name__
    except (httpx.InvalidURL, ValueError):
        why = "that is no URL"
    if why:
        raise ServerError(
            f"no Prefect server at {_shown(api_url)} ({why}): start it with `prefect server start`, "
            "or unset PREFECT_API_URL (environment or profile) to use a temporary one"
        )


def refusal_of(error: BaseException, api_url: str) -> ServerError:
    """Returns the error for a server that did not begin the flow."""
    line = public_line(f"{type(error).__name__}: {error}".split("\n", 1)[0])
    refusal = ServerError(
        f"Prefect's server at {_shown(api_url)} did not begin the flow run ({line}): check PREFECT_API_URL, and "
        "PREFECT_API_AUTH_STRING or PREFECT_API_KEY"
    )
    refusal.__cause__ = error
    return refusal


def _shown(api_url: str) -> str:
    return re.sub(r"(?<=://).*@", "***@", api_url)


def chosen_api_url() -> str | None:
    """Returns the API that the user chose in Prefect's settings, or None.

    The import of Prefect takes a second, so this reads the same places in the same order. They are the environment
    (empty means none), ``.env``, ``prefect.toml``, ``pyproject.toml`` in the current folder, and the active profile.

    Raises:
        ConfigurationError: one of the files is not valid TOML. The import of Prefect would fail as well.
    """
    if (chosen := os.environ.get("PREFECT_API_URL")) is not None:
        return chosen or None
    if found := re.search(r"^\s*(?:export\s+)?PREFECT_API_URL\s*=\s*[\"']?([^\"'\s#]+)", _text(Path(".env")), re.M):
        return found[1]
    profiles = _toml(_profiles_path())
    active = os.environ.get("PREFECT_PROFILE") or profiles.get("active")
    for value in (
        _value(_toml(Path("prefect.toml")), "api", "url"),
        _value(_toml(Path("pyproject.toml")), "tool", "prefect", "api", "url"),
        _value(profiles, "profiles", active, "PREFECT_API_URL"),
    ):
        if value is not None:
            return str(value) or None
    return None


def quiet_environment() -> dict[str, str]:
    """Returns the environment variables to set before Prefect is imported.

    With them it prints nothing, sends no telemetry and starts no second server. Variables that the user has set keep
    their values.
    """
    settings = {
        "PREFECT_HOME": str(server_home()),  # the import prints a warning if the default, ~/.prefect, can't be made
        "PREFECT_PROFILES_PATH": str(_profiles_path()),
        "PREFECT_LOGGING_LEVEL": "WARNING",
        "PREFECT_LOGGING_LOG_PRINTS": "false",
        "PREFECT_LOGGING_TO_API_ENABLED": "false",  # 1 ms a task run
        "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_EPHEMERAL_ENABLED": "false",
        "DO_NOT_TRACK": "1",  # otherwise the first import in a terminal prints a notice and sends events
    }
    environment = {name: os.environ.get(name, value) for name, value in settings.items()}
    if any(name.lower() in ("http_proxy", "https_proxy", "all_proxy") for name in os.environ):
        direct = os.environ.get("no_proxy") or os.environ.get("NO_PROXY") or ""
        if direct != "*" and "127.0.0.1" not in direct.split(","):  # otherwise requests to 127.0.0.1 go to the proxy
            direct = f"{direct},127.0.0.1".lstrip(",")
        environment |= {"no_proxy": direct, "NO_PROXY": direct}
    return environment


def wait_for_backlog(client: httpx.Client, flow_run_id: UUID | str, n_task_runs: int, timeout_s: float) -> int:
    """Waits for task runs to be shown as ended, and returns their number.

    A temporary server that is stopped earlier loses its backlog, about 20 ms a task run. An error ends the wait.

    Args:
        client: A client of the server.
        flow_run_id: The flow run of these task runs.
        n_task_runs: The number that ends the wait.
        timeout_s: The longest wait.
    """
    import httpx

    client.timeout = httpx.Timeout(2.0)
    ended = {"type": {"any_": ["COMPLETED", "FAILED", "CRASHED", "CANCELLED"]}}
    asked = {"flow_runs": {"id": {"any_": [str(flow_run_id)]}}, "task_runs": {"state": ended}}
    deadline = time.monotonic() + timeout_s
    seen = 0
    while True:
        try:
            seen = int(client.post("/task_runs/count", json=asked).raise_for_status().text)
        except httpx.ReadTimeout:
            pass  # busy with the backlog
        except (httpx.HTTPError, ValueError):
            return seen
        if seen >= n_task_runs or time.monotonic() > deadline:
            return seen
        time.sleep(0.2)


def _bind(listener: socket.socket, port: int) -> None:
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # else a port stays taken for a minute
    try:
        listener.bind(("127.0.0.1", port))
    except OSError as error:
        raise ConfigurationError(
            f"port={port}: must be a port that this process may take ({error.strerror}). "
            "Name another, or port=0 for a free one."
        ) from error


def _make_private_folder(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    folder.mkdir(exist_ok=True, mode=0o700)
    is_open_to_all = folder.parent.parent == Path(tempfile.gettempdir())  # another user may have made it first
    if not os.access(folder, os.W_OK | os.X_OK) or (is_open_to_all and folder.parent.stat().st_uid != os.getuid()):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(folder))


def _forget_old_logs(folder: Path) -> None:
    for log in folder.glob("*.log"):
        with contextlib.suppress(OSError):
            if log.stat().st_mtime < time.time() - _LOG_DAYS * 86400:
                log.unlink()


def _is_on_network(folder: Path) -> bool:
    """Returns whether a folder, made or not, is on a network file system; False without /proc."""
    mount = find_mount(str(folder))
    return mount is not None and _NETWORK_FILE_SYSTEMS.fullmatch(mount.kind) is not None


def _is_healthy(api_url: str) -> bool:
    url = urlsplit(api_url)
    assert url.hostname is not None
    connection = http.client.HTTPConnection(url.hostname, url.port, timeout=2)
    try:
        connection.request("GET", f"{url.path}/health")
        return connection.getresponse().status == http.HTTPStatus.OK
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _profiles_path() -> Path:
    home = os.environ.get("PREFECT_HOME") or "~/.prefect"
    return Path(os.environ.get("PREFECT_PROFILES_PATH") or Path(home) / "profiles.toml").expanduser()


def _toml(path: Path) -> Mapping[str, Any]:
    import tomllib

    try:
        return tomllib.loads(_text(path))
    except tomllib.TOMLDecodeError as error:
        raise ConfigurationError(
            f"{path.absolute()}, which holds settings of Prefect, can't be read: {error}"
        ) from error


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _value(tree: object, *keys: object) -> object:
    for key in keys:
        tree = tree.get(key) if isinstance(tree, Mapping) else None
    return tree
