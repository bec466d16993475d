"""``python -m flows.worker channel=http://HOST:PORT storage.root=URL``: runs trials for ``runner=remote``."""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.cli.command import Invocation
    from flows.engine.signals import SignalHandler
    from nas.executors.events import StopRequested
    from nas.executors.remote.client import ChannelClient
    from nas.executors.remote.protocol import Message
    from nas.training.messages import RuntimeSpec


def main() -> int:
    """Runs the command; gives its exit status."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)  # no traceback of the imports; then the worker takes signals in
    from flows.cli.command import run_command
    from flows.cli.program import this_command
    from flows.cli.settings import TOKEN_VARIABLE
    from flows.engine.signals import SignalHandler

    with SignalHandler(f"{TOKEN_VARIABLE}=... {this_command()}") as signals:
        return run_command("worker", lambda invocation: work(invocation, signals))


def work(invocation: Invocation, signals: SignalHandler) -> int:
    """Joins a driver, and runs its trials until it says that it is over, or is gone."""
    from flows.cli.settings import TOKEN_VARIABLE

    client = open_client(invocation.values, os.environ.pop(TOKEN_VARIABLE, None))
    try:
        spec, welcome = join(client, invocation)
    except BaseException:
        client.close()
        raise
    return serve(client, spec, welcome, invocation, signals)


def serve(
    client: ChannelClient, spec: RuntimeSpec, welcome: Message, invocation: Invocation, signals: SignalHandler
) -> int:
    """Runs the driver's trials; gives the exit status."""
    from flows.cli.output import complain
    from flows.cli.settings import read_root
    from nas.executors.process_pool import ProcessPool
    from nas.executors.remote.agent import Agent, Ending
    from nas.storage.open import open_root
    from nas.storage.records import Records

    root, _ = read_root(invocation.values)
    records = Records(open_root(spec.url, spec.options))
    gpus = (0,) if spec.device == "cuda" else ()
    pool = ProcessPool(spec, 1, gpus=gpus, trial_timeout_s=welcome["trial_timeout_s"])
    agent = Agent(client, pool, lambda number: check_shared(records, number, root))

    def leave(stop: StopRequested) -> None:
        agent.end(Ending(f"interrupted ({stop.why}): its trial runs again elsewhere", 128 + (stop.signal or 0)))

    with signals.posted_to(leave):
        complain(f"works for search {welcome['search']}, on {spec.device}; Ctrl-C lets another worker take over")
        ending = agent.serve()
    complain(ending.why)
    return ending.status


def open_client(values: Any, token: str | None) -> ChannelClient:
    """The channel to the driver that the command line names.

    Raises:
        ConfigurationError: no channel, or no token.
    """
    from flows.cli.settings import TOKEN_VARIABLE
    from nas.core.errors import ConfigurationError
    from nas.executors.remote.client import ChannelClient

    url = values["channel"]
    if not isinstance(url, str) or not url.startswith(("http://", "https://")):
        raise ConfigurationError(f"channel={url!r}: must be http://HOST:PORT, as runner=remote prints it")
    if not token:
        raise ConfigurationError(f"no token: set {TOKEN_VARIABLE}, as runner=remote prints it")
    return ChannelClient(url, token)


def join(client: ChannelClient, invocation: Invocation) -> tuple[RuntimeSpec, Message]:
    """Joins the driver; gives what this worker is to run, with its own root and device, and all that the driver said.

    Raises:
        ConfigurationError: the driver refuses, or wants what this worker's user or machine does not.
        ServerError: nobody answers.
        StorageError: the root can't be read.
    """
    import socket

    import nas
    from flows.cli.settings import positive_int, reach_root, read_device, read_root, search_url
    from flows.cli.trusted_code import trusted_spec
    from nas.core.cpus import usable_cores
    from nas.core.errors import ConfigurationError
    from nas.core.names import check_name
    from nas.executors.remote.protocol import spec_from_wire
    from nas.storage.records import Records
    from nas.training.messages import RuntimeSpec

    values = invocation.values
    root, options = read_root(values)
    files = reach_root(values)
    n_threads = positive_int("threads", values["threads"])
    wishes = {"device": None if values["device"] == "auto" else values["device"], "threads": n_threads}
    welcome = client.join({"version": nas.__version__, "host": socket.gethostname(), "pid": os.getpid()})
    name = check_name(str(welcome["search"]))
    if Records(files.subfolder(name)).header() is None:
        raise ConfigurationError(f"storage.root={files.url}: holds no search {name}: name the driver's own root")
    for key, wanted in (("device", welcome["device"]), ("threads", welcome["n_threads"])):
        if wanted is not None and wishes[key] not in (None, wanted):
            raise ConfigurationError(f"{key}={wishes[key]}: the driver's {key}={wanted} holds for every worker")
    described = spec_from_wire(welcome["problem"]).to_json()
    spec = trusted_spec("problem", described, invocation, by="the driver", lacks="a channel")
    device, _ = read_device(wishes["device"] or welcome["device"] or "auto", "all")
    runtime = RuntimeSpec(
        problem=spec,
        url=search_url(root, files, name),
        options=options,
        session=welcome["session"],
        device=device,
        n_threads=n_threads or welcome["n_threads"] or usable_cores(),
        has_stopper=welcome["has_stopper"],
        jobs_request_trials=welcome["jobs_request_trials"],
        resume_every_s=welcome["resume_every_s"],
        code=welcome["code"],
    )
    return runtime, welcome


def check_shared(records: Any, number: int, root: str) -> None:
    """Makes sure that this worker sees what the driver writes.

    Raises:
        ConfigurationError: a proposal that the driver made durable before it ordered the trial is not there.
    """
    from nas.core.errors import ConfigurationError
    from nas.core.redaction import without_passwords

    if records.proposed(number) is None:
        raise ConfigurationError(
            f"storage.root={without_passwords(root)}: holds a search of the same name, but not the driver's "
            f"trial {number}: name the driver's own root"
        )


if __name__ == "__main__":
    sys.exit(main())
