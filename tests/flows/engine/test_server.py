"""The temporary server and the quiet around Prefect, with real processes."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from flows.engine.server import (
    TemporaryServer,
    _is_healthy,
    _is_on_network,
    chosen_api_url,
    quiet_environment,
    server_home,
    use_server,
    wait_for_backlog,
)
from nas.core.errors import ConfigurationError, ServerError
from nas.storage import mounts
from tests.support.commands import run

ROOT = Path(__file__).parents[3]

DRIVER = """
import os, signal, time
from flows.engine.server import TemporaryServer

signal.signal(signal.SIGINT, lambda *_: None)
with TemporaryServer() as server:
    server.wait_until_healthy()
    os.fork() or time.sleep(60)  # another process that has the pipe
    print(server.api_url, flush=True)
    while True:
        time.sleep(1)
"""

SEARCH = """
import os, signal, sys, threading, time
from pathlib import Path
from flows.engine.prefect_output import silence_prefect
from flows.engine.server import TemporaryServer, quiet_environment, wait_for_backlog

how, folder = sys.argv[1], Path(sys.argv[2])
server = TemporaryServer()
server.start()
os.environ.update(quiet_environment() | {"PREFECT_API_URL": server.api_url})

silence_prefect(folder / "prefect.log", server.auth_string)
from prefect import flow, runtime, task
from prefect.cache_policies import NO_CACHE
from prefect.task_runners import ThreadPoolTaskRunner
from flows.engine.artifacts import api_client

server.wait_until_healthy()
stop_asked = threading.Event()
signal.signal(signal.SIGINT, lambda *_: stop_asked.set())

@task(cache_policy=NO_CACHE, persist_result=False)
def trial(number):
    time.sleep(0.01)

@flow(task_runner=ThreadPoolTaskRunner(max_workers=2))
def search():
    trials = []
    for number in range(100):
        trials.append(trial.submit(number, wait_for=trials[number // 3 : number // 3 + 1]))
        if number == 50 and how == "interrupted":
            os.killpg(0, signal.SIGINT)
        if number == 50 and how == "server killed":
            server._child.kill()
        if stop_asked.wait(0.01):
            break
    for future in trials:
        future.wait()
    if how == "server killed":
        bound = threading.Timer(3, os._exit, [7])
        bound.daemon = True
        bound.start()
    return runtime.flow_run.id, len(trials)

flow_run_id, n_trials = search()
n_seen = wait_for_backlog(api_client(server.api_url), flow_run_id, n_trials, timeout_s=60)
(folder / "counts").write_text(f"{n_trials} {n_seen}")
server.stop()
"""


@pytest.fixture
def no_choice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder to stand in and a Prefect home without any setting."""
    for name in list(os.environ):
        if name.startswith("PREFECT"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    (tmp_path / "home").mkdir()
    return tmp_path


def environment(**changes: str) -> dict[str, str]:
    ours = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT", "CI"))}
    return ours | {"PYTHONPATH": str(ROOT)} | changes


@contextmanager
def driver() -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A process in its own group that holds a healthy server, and the server's URL."""
    command = [sys.executable, "-c", DRIVER]
    with subprocess.Popen(
        command, env=environment(), stdout=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, process.stdout.readline().strip()
        finally:
            os.killpg(process.pid, signal.SIGKILL)


def seconds_until_gone(api_url: str, bound_s: float) -> float:
    began = time.monotonic()
    while _is_healthy(api_url) and time.monotonic() < began + bound_s:
        time.sleep(0.05)
    return time.monotonic() - began


@pytest.mark.slow
def test_it_starts_at_once_and_answers() -> None:
    """The start returns before the server is up, with the URL at which it then answers."""
    began = time.monotonic()
    with TemporaryServer() as server:
        took_s = time.monotonic() - began
        was_healthy = _is_healthy(server.api_url)
        api_url = server.wait_until_healthy()
        healthy_s = time.monotonic() - began
        use_server(api_url)

    assert took_s < healthy_s / 2
    assert not was_healthy
    assert api_url == server.api_url


@pytest.mark.slow
def test_it_ends_with_a_killed_driver_only() -> None:
    """After kill -9 of the driver the server is gone, although a forked process still holds the pipe.

    A Ctrl-C, which the terminal sends to the whole process group, leaves the server alone.
    """
    with driver() as (process, api_url):
        os.killpg(process.pid, signal.SIGINT)
        healthy_s = seconds_until_gone(api_url, bound_s=1)
        is_driver_alive = process.poll() is None
        process.kill()
        gone_s = seconds_until_gone(api_url, bound_s=20)

    assert healthy_s >= 1
    assert is_driver_alive
    assert gone_s < 20


@pytest.mark.slow
@pytest.mark.parametrize("wait", ["server.wait_until_healthy()", "time.sleep(0.5)"], ids=["healthy", "still_booting"])
def test_it_stops_in_silence(wait: str) -> None:
    """A stop, and a second one, print nothing, neither here nor in the log, whether the server was up or not."""
    lines = [
        "import time",
        "from flows.engine.server import TemporaryServer",
        "server = TemporaryServer()",
        "server.start()",
    ]
    lines += [wait, "began = time.monotonic()", "server.stop()", "server.stop()"]
    lines += ["assert time.monotonic() - began < 20", "log = server.log_path.read_text()", "assert log == '', log"]
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], env=environment(), capture_output=True)

    assert (done.returncode, done.stdout, done.stderr) == (0, b"", b"")


@pytest.mark.slow
def test_only_the_driver_may_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests without the credentials of this start are refused; no origin may read answers; old runs are deleted."""
    monkeypatch.setenv("HEIRLOOM_CACHE", str(tmp_path))
    states = {"old": "COMPLETED", "interrupted": "RUNNING", "in use": "RUNNING", "new": "COMPLETED", "fresh": "RUNNING"}
    asked = {"flow_runs": {"name": {"any_": list(states)}}}
    with TemporaryServer() as first:
        first.wait_until_healthy()
        with httpx.Client(base_url=first.api_url, auth=tuple(first.auth_string.split(":")), timeout=30) as client:
            flow = client.post("/flows/", json={"name": "f"}).raise_for_status().json()["id"]
            for name, state in states.items():
                body = {"flow_id": flow, "name": name, "state": {"type": state}}
                made = client.post("/flow_runs/", json=body).raise_for_status().json()
                body = {"flow_run_id": made["id"], "task_key": "trial", "dynamic_key": "0"}
                client.post("/task_runs/", json=body).raise_for_status()
            assert len(client.post("/flow_runs/filter", json=asked).json()) == 5
        evil = httpx.post(f"{first.api_url}/flow_runs/filter", json={}, headers={"Origin": "http://evil.example"})
    with sqlite3.connect(tmp_path / "prefect" / "prefect.db") as database:
        database.execute("UPDATE flow_run SET end_time = '2001-01-01 00:00:00.000000' WHERE name = 'old'")
        running = "name IN ('interrupted', 'in use')"
        database.execute(f"UPDATE flow_run SET created = '2001-01-01 00:00:00.000000' WHERE {running}")
        in_it = "flow_run_id = (SELECT id FROM flow_run WHERE name = 'interrupted')"
        database.execute(f"UPDATE task_run SET updated = '2001-01-01 00:00:00.000000' WHERE {in_it}")
    with TemporaryServer() as second:
        second.wait_until_healthy()
        stale = httpx.post(f"{second.api_url}/flow_runs/filter", json={}, auth=tuple(first.auth_string.split(":")))
        with httpx.Client(base_url=second.api_url, auth=tuple(second.auth_string.split(":")), timeout=30) as client:
            end_s = time.monotonic() + 120
            while len(left := client.post("/flow_runs/filter", json=asked).json()) > 3 and time.monotonic() < end_s:
                time.sleep(0.2)

    assert (evil.status_code, stale.status_code) == (401, 401)
    assert "access-control-allow-origin" not in evil.headers
    assert {run["name"] for run in left} == {"in use", "new", "fresh"}


CURIOUS = """
import os, pathlib
from nas import Float, Metric, ParameterSpace, Problem

class Curious(Problem):
    metrics = (Metric("accuracy"),)
    space = ParameterSpace({"rate": Float(0.1, 1.0)})

    def train(self, run):
        names = "PREFECT_API_AUTH_STRING", "PREFECT_SERVER_API_AUTH_STRING"
        assert not any(name in os.environ for name in names)
        assert "AUTH_STRING" not in pathlib.Path("/proc/self/environ").read_text()
        return {"accuracy": 0.5}
"""


@pytest.mark.slow
def test_no_worker_gets_the_credentials(here: Path) -> None:
    """A trial's process has the temporary server's credentials neither in its environment nor at its start."""
    (here / "curious.py").write_text(CURIOUS)
    done = run(here, "+tuner=random", "problem._target_=curious.Curious", "budget.trials=1", "slots=1", "name=s")

    assert done.status == 0, done.err
    assert "did not accept" not in done.err


@pytest.mark.slow
def test_two_start_at_once_on_a_fresh_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two servers that start together on a new home both come up: the migrations take turns."""
    monkeypatch.setenv("HEIRLOOM_CACHE", str(tmp_path))
    with TemporaryServer() as first, TemporaryServer() as second:
        urls = {first.wait_until_healthy(), second.wait_until_healthy()}

    assert len(urls) == 2
    assert (tmp_path / "prefect" / "prefect.db").exists()


@pytest.mark.slow
def test_a_failed_start_names_log_and_reason(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that ends while it starts gives one line: the log's path and the log's last line."""
    monkeypatch.setenv("HEIRLOOM_CACHE", str(tmp_path))
    (tmp_path / "prefect" / "prefect.db").mkdir(parents=True)
    with TemporaryServer() as server, pytest.raises(ServerError) as caught:
        server.wait_until_healthy()

    assert "\n" not in str(caught.value)
    assert str(server.log_path) in str(caught.value)
    assert "Application startup failed" in str(caught.value)


@pytest.mark.slow
def test_a_newer_prefects_database_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A database that a newer Prefect has migrated is not used; the line names it and what to do."""
    monkeypatch.setenv("HEIRLOOM_CACHE", str(tmp_path))
    database = tmp_path / "prefect" / "prefect.db"
    database.parent.mkdir()
    with contextlib.closing(sqlite3.connect(database)) as opened, opened:
        opened.execute("CREATE TABLE alembic_version (version_num TEXT)")
        opened.execute("INSERT INTO alembic_version VALUES ('f0f0f0f0f0f0')")
    with TemporaryServer() as server, pytest.raises(ServerError) as caught:
        server.wait_until_healthy()

    assert str(caught.value) == (
        f"the database of the temporary Prefect server is of a newer Prefect: {database}. "
        "Upgrade Prefect, name another folder with HEIRLOOM_CACHE, or delete the file"
    )


def test_a_home_that_cannot_be_made_is_one_clear_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the home can't be written, the start fails with the path, the reason and the remedy."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("HEIRLOOM_CACHE", str(tmp_path / "file"))
    with pytest.raises(ServerError, match=r"file/prefect \(.*\): name another folder with HEIRLOOM_CACHE"):
        TemporaryServer().start()


def test_the_home_is_in_the_users_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The home lies in HEIRLOOM_CACHE if that is set, else in the user's cache folder."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("HEIRLOOM_CACHE", raising=False)
    default = server_home()
    monkeypatch.setenv("HEIRLOOM_CACHE", str(tmp_path / "mine"))
    mine = server_home()
    monkeypatch.setenv("HEIRLOOM_CACHE", "~nobody_here/x")

    assert default == tmp_path / "heirloom" / "prefect" or _is_on_network(tmp_path)
    assert mine == tmp_path / "mine" / "prefect"
    assert server_home() == Path("~nobody_here/x/prefect").absolute()


@pytest.mark.parametrize("kind", ["ext4", "nfs4"])
def test_the_home_is_on_this_machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, kind: str) -> None:
    """A cache folder on a network file system is not used, whatever the name of its mount point."""
    listed = f"disk / ext4 rw 0 0\nserver:/home {tmp_path}/my\\040home {kind} rw 0 0\n"
    monkeypatch.setattr(mounts, "open", lambda *_, **__: io.StringIO(listed), raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "my home" / "cache"))
    monkeypatch.delenv("HEIRLOOM_CACHE", raising=False)
    here = Path(tempfile.gettempdir()) / f"heirloom-{os.getuid()}" / "prefect"

    assert server_home() == (tmp_path / "my home" / "cache" / "heirloom" / "prefect" if kind == "ext4" else here)


@pytest.mark.parametrize(
    "api_url",
    ["http://127.0.0.1:9/api", "http://me:s3cret@127.0.0.1:9/api", "nonsense", "https://me:s3cret@[::1/api"],
)
def test_a_dead_url_is_one_line_without_credentials(api_url: str) -> None:
    """A server that does not answer gives, within seconds, one line with URL and remedy, and no password."""
    began = time.monotonic()
    with pytest.raises(ServerError) as caught:
        use_server(api_url)

    assert time.monotonic() - began < 20
    assert "\n" not in str(caught.value)
    assert "prefect server start" in str(caught.value)
    assert "s3cret" not in str(caught.value)


@pytest.mark.slow
def test_an_answer_that_is_not_prefects_is_refused(api_url: str) -> None:
    """A URL without its /api is told from a server that is down."""
    use_server(api_url.replace("//", "//name:password@"))
    with pytest.raises(ServerError, match="not as Prefect's API"):
        use_server(api_url.removesuffix("/api"))


def test_the_environment_chooses_first(no_choice: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """PREFECT_API_URL counts before every file; empty, it stands for no choice."""
    (no_choice / ".env").write_text("PREFECT_API_URL=http://dotenv/api\n")
    monkeypatch.setenv("PREFECT_API_URL", "http://environment/api")
    first = chosen_api_url()
    monkeypatch.setenv("PREFECT_API_URL", "")

    assert first == "http://environment/api"
    assert chosen_api_url() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("files", "chosen"),
    [
        ({}, None),
        ({"home/profiles.toml": 'active = "gone"'}, None),
        (
            {"home/profiles.toml": 'active="a"\n[profiles.a]\nPREFECT_API_URL = "http://profile/api"'},
            "http://profile/api",
        ),
        ({"pyproject.toml": '[tool.prefect.api]\nurl = "http://pyproject/api"'}, "http://pyproject/api"),
        (
            {
                "prefect.toml": '[api]\nurl = "http://toml/api"',
                "pyproject.toml": '[tool.prefect.api]\nurl = "http://pyproject/api"',
            },
            "http://toml/api",
        ),
        ({".env": "export PREFECT_API_URL='http://dotenv/api'  # ours", "prefect.toml": ""}, "http://dotenv/api"),
    ],
    ids=["nothing", "no_profile", "profile", "pyproject", "prefect_toml", "dotenv"],
)
def test_files_choose_as_in_prefect(no_choice: Path, files: dict[str, str], chosen: str | None) -> None:
    """Without the import of Prefect, the files give the same API as Prefect itself finds."""
    for name, text in files.items():
        (no_choice / name).write_text(text)
    code = "import json; from prefect.settings import Settings; print(json.dumps(Settings().api.url))"
    prefects = subprocess.run([sys.executable, "-W", "ignore", "-c", code], capture_output=True, check=True)

    assert chosen_api_url() == chosen
    assert json.loads(prefects.stdout) == chosen


@pytest.mark.parametrize("name", ["home/profiles.toml", "prefect.toml", "pyproject.toml"])
def test_a_broken_file_is_the_users_mistake(no_choice: Path, name: str) -> None:
    """A file of settings that is no TOML is named in one line, instead of Prefect's traceback at its import."""
    (no_choice / name).write_text("broken [")
    with pytest.raises(ConfigurationError, match=name) as caught:
        chosen_api_url()

    assert "\n" not in str(caught.value)


def test_a_users_setting_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """The quiet environment overrules nothing that the user has set, and keeps loopback away from proxies."""
    monkeypatch.setenv("PREFECT_LOGGING_LEVEL", "DEBUG")
    monkeypatch.setenv("HTTPS_PROXY", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "example.org")
    quiet = quiet_environment()

    assert quiet["PREFECT_LOGGING_LEVEL"] == "DEBUG"
    assert quiet["no_proxy"] == quiet["NO_PROXY"] == "example.org,127.0.0.1"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["to its end", "interrupted", "server killed"])
def test_a_flow_leaves_the_terminal_empty(how: str, tmp_path: Path) -> None:
    """Not a byte reaches a terminal from 100 task runs with edges: finished, interrupted or without a server."""
    # A home that is new to Prefect, because its first import prints a notice there, on terminals only.
    changes = environment(PREFECT_HOME=str(tmp_path / "new"))
    output, status = run_on_terminal([sys.executable, "-c", SEARCH, how, str(tmp_path)], changes)

    assert output == b""
    if how == "server killed":
        assert status == 7  # the timer's: the flow's end alone would hold the process for minutes
    else:
        n_trials, n_seen = map(int, (tmp_path / "counts").read_text().split())
        assert status == 0
        assert n_seen == n_trials
        assert n_trials == 100 if how == "to its end" else n_trials < 100


def run_on_terminal(command: list[str], changes: dict[str, str]) -> tuple[bytes, int]:
    master, terminal = pty.openpty()
    with subprocess.Popen(
        command, env=changes, stdin=terminal, stdout=terminal, stderr=terminal, start_new_session=True
    ) as process:
        os.close(terminal)
        output = b""
        try:
            while chunk := os.read(master, 4096):
                output += chunk
        except OSError:  # Linux's end of file for a terminal
            pass
        os.close(master)
    return output, process.returncode


@pytest.mark.slow
def test_noise_lands_in_the_file_and_the_rest_does_not(tmp_path: Path) -> None:
    """Prefect's logging, warnings and dying threads go to the file named last; everybody else's go where they went."""
    code = """
import asyncio, logging, os, sys, threading, warnings
from pathlib import Path
from flows.engine.prefect_output import silence_prefect
from flows.engine.server import quiet_environment
os.environ.update(quiet_environment())
silence_prefect(Path(sys.argv[1]) / "first.log")
silence_prefect(Path(sys.argv[1]) / "new" / "prefect.log")
import prefect, prefect.main

def everywhere(package, file):
    logging.getLogger(package + ".part").error(f"{package} logs")
    warnings.warn_explicit(f"{package} warns", UserWarning, file, 1)
    scope = {}
    source = f"def die(): raise RuntimeError('{package} dies')\\nclass Sick:\\n  def __del__(self): die()"
    exec(compile(source, file, "exec"), scope)
    thread = threading.Thread(target=scope["die"])
    thread.start()
    thread.join()
    scope["Sick"]()

for package in ("prefect", "asyncio"):
    everywhere(package, sys.modules[package].__file__)
logging.getLogger("EventsWorker").warning("worker logs")
logging.getLogger("prefect._internal.concurrency").error("internal logs")
everywhere("mine", "/home/me/mine.py")
"""
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], env=environment(), capture_output=True, text=True
    )
    noise = (tmp_path / "new" / "prefect.log").read_text()

    assert done.returncode == 0
    for package, there, elsewhere in [
        ("prefect", noise, done.stderr),
        ("asyncio", noise, done.stderr),
        ("mine", done.stderr, noise),
    ]:
        for what, count in [("logs", 1), ("warns", 1), ("dies", 2)]:
            assert there.count(f"{package} {what}") >= count
            assert f"{package} {what}" not in elsewhere
    assert "worker logs" in noise
    assert "internal logs" in noise
    assert done.stdout == ""
    assert not (tmp_path / "first.log").exists()


def test_a_dead_server_ends_the_wait() -> None:
    """The wait for the backlog of a server that is gone ends at once with what was seen."""
    began = time.monotonic()

    assert wait_for_backlog(httpx.Client(base_url="http://127.0.0.1:9/api"), "any", n_task_runs=3, timeout_s=30) == 0
    assert time.monotonic() - began < 20


def test_the_import_is_light() -> None:
    """Workers import flows.engine.server without Prefect, httpx or the web server."""
    code = "import sys, flows.engine.server; print({'prefect', 'httpx', 'uvicorn', 'pydantic'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], env=environment(), capture_output=True, text=True)

    assert done.stdout == "set()\n"
