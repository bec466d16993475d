"""The driver's side of ``runner=remote``: opens the channel, and says how a worker is started."""

from __future__ import annotations

import os
import socket
from typing import TYPE_CHECKING

from flows.cli.formatting import SECRET_HINT, count
from flows.cli.overrides import as_shell
from flows.cli.program import command
from flows.cli.settings import TOKEN_VARIABLE
from flows.cli.trusted_code import repeated_words
from nas.core.redaction import without_passwords
from nas.executors.remote.pool import Gate, RemotePool

if TYPE_CHECKING:
    from flows.engine.context import SearchContext
    from flows.views.progress import Progress
    from nas.training.messages import RuntimeSpec

EVERYWHERE = ("0.0.0.0", "::")


def open_pool(context: SearchContext, spec: RuntimeSpec, gate: Gate, progress: Progress) -> RemotePool:
    """A place for the search's workers, which are told of on the terminal as they come and go."""

    def show_wait(what: str | None) -> None:
        progress.waits_for = what

    machine = context.machine
    pool = RemotePool(
        spec,
        context.name,
        gate,
        slots=machine.slots,
        trial_timeout_s=machine.trial_timeout_s,
        note=progress.note,
        show_wait=show_wait,
    )
    slots = count(machine.slots, "slot")
    progress.note(f"trials wait for workers, {slots}; start each, here or elsewhere, beside your code:")
    progress.note(f"  {worker_line(context, spec, gate, pool.port)}")
    return pool


def worker_line(context: SearchContext, spec: RuntimeSpec, gate: Gate, port: int) -> str:
    """What a shell takes to start a worker.

    The token stands before the command, so that no list of processes shows it, and is left out where the user set it.
    """
    host = socket.gethostname() if gate.host in EVERYWHERE else gate.host
    host = f"[{host}]" if ":" in host else host
    url = context.root if "://" in context.root else os.path.abspath(context.root)
    shown = without_passwords(url)
    words = [
        as_shell([f"channel=http://{host}:{port}", f"storage.root={shown}"]),
        *repeated_words("problem", spec.problem),
    ]
    token = f'"${TOKEN_VARIABLE}"' if os.environ.get(TOKEN_VARIABLE) else gate.token
    hint = "  # and its storage.options" if context.options else ""
    hint = SECRET_HINT if shown != url else hint
    return f"{TOKEN_VARIABLE}={token} {command('worker')} {' '.join(words)}{hint}"
