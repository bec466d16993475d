"""Checks of this machine: versions, extras, devices and Prefect's server."""

from __future__ import annotations

import platform
import shutil
import socket
import time
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, metadata, requires, version
from typing import TYPE_CHECKING

from flows.cli.options import options_of
from flows.cli.program import command
from nas.core.errors import HeirloomError
from nas.core.redaction import without_passwords
from nas.storage.maintenance.backend_checks.check import CheckResult, CheckStatus

if TYPE_CHECKING:
    from packaging.requirements import Requirement

DISTRIBUTION = "heirloom-nas"
LOOPBACK = "127.0.0.1"
UI_PORT = next(int(option.default) for option in options_of("ui") if option.key == "port")
NOT_FOR_USERS = frozenset({"docs", "test"})
"""Extras for the development of Heirloom."""


def check_versions() -> Iterator[CheckResult]:
    """Yields the versions, and a result for each required library of another version."""
    yield CheckResult(
        name="versions",
        observed=f"Python {platform.python_version()}, Heirloom {_found(DISTRIBUTION) or 'not installed'}, "
        f"torch {_found('torch')}, Prefect {_found('prefect')}, {platform.system()} {platform.machine()}",
    )
    if _found(DISTRIBUTION) is not None:
        yield from _wrong(_requirements(""), "library", CheckStatus.FAILED)


def check_extras() -> Iterator[CheckResult]:
    """Yields the installed extras, and a result for each library of theirs with another version."""
    if _found(DISTRIBUTION) is None:
        observed = "Heirloom is not installed, so the versions that it needs are not checked"
        hint = "pip install -e . in Heirloom's folder"
        yield CheckResult(name="extras", status=CheckStatus.WARNING, observed=observed, hint=hint)
        return
    names = [name for name in metadata(DISTRIBUTION).get_all("Provides-Extra") or () if name not in NOT_FOR_USERS]
    found = {name: [_found(one.name) is not None for one in _requirements(name)] for name in names}
    installed = sorted(name for name in names if all(found[name]))
    others = sorted(set(names) - set(installed))
    observed = f"installed: {', '.join(installed) or 'none'}; not installed: {', '.join(others) or 'none'}"
    hint = f"pip install '{DISTRIBUTION}[NAME]' adds one" if others else ""
    yield CheckResult(name="extras", observed=observed, hint=hint)
    for name in installed:
        yield from _wrong(_requirements(name), f"extra {name}", CheckStatus.WARNING)


def _requirements(extra: str) -> list[Requirement]:
    """Returns the libraries of an extra; of an empty name those that are always needed."""
    from packaging.requirements import Requirement

    known = [Requirement(text) for text in requires(DISTRIBUTION) or ()]
    applies = [one for one in known if one.marker is None or one.marker.evaluate({"extra": extra})]
    return [one for one in applies if not extra or "extra" in str(one.marker)]


def _wrong(needed: list[Requirement], what: str, status: CheckStatus) -> Iterator[CheckResult]:
    """Yields a result for each library that is missing, or whose version is not allowed."""
    for one in needed:
        found = _found(one.name)
        if found is not None and one.specifier.contains(found, prereleases=True):
            continue
        text = f"{one.name} {found}" if found else f"{one.name} is not installed"
        yield CheckResult(
            name=what,
            status=status,
            observed=f"{text}: must be {one.specifier}",
            hint=f"pip install '{one.name}{one.specifier}'",
        )


def _found(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def check_devices() -> Iterator[CheckResult]:
    """Yields the devices on which trials can run, each after a calculation on it."""
    from nas.core.cpus import usable_cores

    try:
        import torch
    except (ImportError, OSError) as error:
        hint = "install torch again for this machine: https://pytorch.org/get-started/locally"
        yield CheckResult(name="torch", status=CheckStatus.FAILED, observed=_line(error), hint=hint)
        return
    yield _check_device("cpu", f"{usable_cores()} usable cores")
    for index in range(torch.cuda.device_count()):
        yield _check_gpu(f"cuda:{index}")
    if torch.backends.mps.is_available():
        yield _check_device("mps", "Apple's GPU")
    if not torch.cuda.is_available() and shutil.which("nvidia-smi") is not None:
        yield CheckResult(
            name="NVIDIA GPU",
            status=CheckStatus.WARNING,
            observed=f"nvidia-smi is here, but torch {torch.__version__} sees no GPU",
            hint="check `nvidia-smi`, then install torch for its CUDA: https://pytorch.org/get-started/locally",
        )


def _check_gpu(device: str) -> CheckResult:
    """Returns whether a GPU calculates; one that the driver counts may be out of CUDA's reach."""
    import torch

    try:
        of_gpu = torch.cuda.get_device_properties(device)
    except (RuntimeError, AssertionError) as error:
        hint = "use device=cpu, or update the driver, or install torch for its CUDA: https://pytorch.org/get-started/locally"
        return CheckResult(name=device, status=CheckStatus.FAILED, observed=_line(error), hint=hint)
    return _check_device(device, f"{of_gpu.name}, {of_gpu.total_memory / 2**30:.0f} GiB")


def _check_device(device: str, observed: str) -> CheckResult:
    import torch

    try:
        ones = torch.ones(64, 64, device=device)
        total = float((ones @ ones).sum())
    except RuntimeError as error:
        hint = f"trials fail on it: use device=cpu, or end what uses {device}, or update its driver"
        return CheckResult(name=device, status=CheckStatus.FAILED, observed=f"{observed}: {_line(error)}", hint=hint)
    if total != 64**3:
        hint = "it calculates wrongly: choose another device"
        return CheckResult(name=device, status=CheckStatus.FAILED, observed=f"64^3 is {total:g} here", hint=hint)
    return CheckResult(name=device, observed=observed)


def check_ports() -> CheckResult:
    """Returns whether processes of this machine can connect, and whether the UI's port is free."""
    name = "ports"
    try:
        with socket.create_server((LOOPBACK, 0)) as server:
            socket.create_connection(server.getsockname(), timeout=5).close()
    except OSError as error:
        hint = f"Prefect's server and the runners dask and ray connect to {LOOPBACK}: allow that, or use runner=debug"
        return CheckResult(name=name, status=CheckStatus.FAILED, observed=f"{LOOPBACK}: {error}", hint=hint)
    try:
        socket.create_server((LOOPBACK, UI_PORT)).close()
    except OSError as error:
        hint = f"{command('ui')} port=0 takes a free one"
        observed = f"{UI_PORT}, the port of the UI: {error.strerror}"
        return CheckResult(name=name, status=CheckStatus.WARNING, observed=observed, hint=hint)
    return CheckResult(name=name, observed=f"connections to {LOOPBACK} work, and {UI_PORT} is free for the UI")


def check_server(timeout_s: float) -> CheckResult:
    """Returns whether the user's Prefect server answers, or else whether a temporary one starts."""
    from flows.engine.server import TemporaryServer, chosen_api_url, server_home, use_server

    began = time.monotonic()
    try:
        if (url := chosen_api_url()) is not None:
            use_server(url)
            return CheckResult(name="Prefect's server", observed=without_passwords(f"answers at {url}"))
        with TemporaryServer() as server:
            server.wait_until_healthy(timeout_s)
    except HeirloomError as error:
        return CheckResult(name="Prefect's server", status=CheckStatus.FAILED, observed=str(error))
    observed = (
        f"a temporary one answers on 127.0.0.1 after {time.monotonic() - began:.1f} s, database in {server_home()}"
    )
    return CheckResult(name="Prefect's server", observed=observed)


def _line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
