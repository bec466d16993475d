"""``python -m flows.ui``: shows Prefect's UI on the kept database of earlier and running searches."""

from __future__ import annotations

import signal
import sys
import time
from typing import TYPE_CHECKING

from flows.cli.command import OK, Invocation, run_command
from flows.cli.output import print_message, show_line, tell
from flows.cli.program import command
from flows.views.delivery import open_page
from nas.core.errors import ServerError
from nas.core.validation import check_bool, check_int

if TYPE_CHECKING:
    from flows.engine.server import TemporaryServer


def main() -> int:
    """Runs the command and returns its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback during imports
    return run_command("ui", ui)


def ui(invocation: Invocation) -> int:
    """Serves the UI until Ctrl-C or SIGTERM, which end it with status 0."""
    from flows.engine.server import TemporaryServer

    port = check_int("port", invocation.values["port"], 0, 65535)
    opens = check_bool("open", invocation.values["open"])
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    try:
        _mention_what_is_missing()
        with TemporaryServer(ui_port=port) as server:
            _serve(server, opens=opens)
    except KeyboardInterrupt:
        tell("ended; the database stays")
    return OK


def _mention_what_is_missing() -> None:
    """Tells if searches are recorded elsewhere, or if there is none."""
    from flows.engine.server import chosen_api_url, server_home

    if (url := chosen_api_url()) is not None:
        print_message(f"PREFECT_API_URL is set: searches are shown by the server {url}, and here only those without it")
    elif not (server_home() / "prefect.db").exists():
        print_message(f"no search was recorded in {server_home()} yet: start one: {command('search')} +tuner=evolution")


def _serve(server: TemporaryServer, *, opens: bool) -> None:
    """Prints address and password, and returns only by an error.

    Raises:
        ServerError: the server did not start, or ended.
    """
    tell("starting Prefect's server")
    server.wait_until_healthy()
    url = server.api_url.removesuffix("/api")
    show_line(f"Prefect's UI: {url}")
    show_line(f"password: {server.auth_string}")
    sys.stdout.flush()
    tell("Ctrl-C ends it")
    if opens:
        open_page(url)
    while server.is_running:
        time.sleep(0.5)
    raise ServerError(f"Prefect's server ended; its output is in {server.log_path}")


if __name__ == "__main__":
    sys.exit(main())
