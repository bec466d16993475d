"""The code, versions and files of a session, compared with those of the session before it."""

from __future__ import annotations

import platform
import subprocess
from collections.abc import Callable, Mapping
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from typing import Any

from nas.core.errors import ConfigurationError
from nas.core.validation import first_of
from nas.search.definition import PreparedSearch
from nas.storage.records import Records
from nas.training.code_digests import changed_files
from nas.training.data_digest import contents


def session_code(
    records: Records,
    prepared: PreparedSearch,
    *,
    allow_changes: bool = False,
    is_finished: bool = False,
    notify: Callable[[str], None] = lambda message: None,
) -> dict[str, Any]:
    """Returns the fields of a session's record that describe its code: versions, git commit and digests.

    Unchanged code is described as in the last session, without files that trials wrote since then.

    Args:
        records: The search's records.
        prepared: The search.
        allow_changes: Whether the code may differ from that of the last session (``code=changed``).
        is_finished: Whether no trial is left to run. Then a change is refused only if an option names the code: the
            search may be that of another template or folder.
        notify: Called with one line about differences that are not refused.

    Raises:
        ConfigurationError: code of the problem, the tuner or the stopper has changed. The message names the files.
    """
    code: dict[str, Mapping[str, str]] = dict(prepared.code)
    versions, files = _versions(), _other_files(prepared)
    here = {"versions": versions, "commit": _git_commit(), "code": code, "files": files}
    there = records.newest_code_session()
    if there is None:
        return here
    changed = {part: changed_files(known, code.get(part, {})) for part, known in there["code"].items()}
    code |= {part: known for part, known in there["code"].items() if not changed[part]}
    session = f"session {there['session']}"
    if names := [_shown(part, name, prepared) for part in changed for name in changed[part]]:
        what = f"{first_of(names, 8)} changed since {session}"
        scores_stay = not changed.get("problem")
        effect = (
            "the problem's code is the same, so scores stay comparable"
            if scores_stay
            else "older trials then give weights, but none of them can win"
        )
        is_named = not scores_stay and prepared.search.problem.target.startswith("nas.")
        if not allow_changes and (is_named or not is_finished):
            raise ConfigurationError(
                f"the search in {records.files.url} was begun with other code: {what}. Choose another name=..., "
                f"restore the code, or add code=changed: {effect}"
            )
        notify(f"{what}; " + ("the results are those of the earlier code" if is_finished else "code=changed goes on"))
    if names := [f"problem.{name}" for name in changed_files(there.get("files", {}), files)]:
        notify(f"the content of {first_of(names, 8)} changed since {session}: scores may not be comparable")
    if names := [f"{name} {old} to {new}" for name, old, new in _pairs(there.get("versions", {}), versions)]:
        notify(f"versions changed since {session}: {first_of(names, 8)}")
    return here


def _pairs(there: Mapping[str, str], here: Mapping[str, str]) -> list[tuple[str, str, str]]:
    """Returns the names with both versions that differ."""
    return [(name, there[name], here[name]) for name in here if there.get(name, here[name]) != here[name]]


def _shown(part: str, name: str, prepared: PreparedSearch) -> str:
    """Returns a file's name in messages, or the option that names the file."""
    given = prepared.search.problem.arguments.get(name) if part == "problem" else None
    return name if given is None else f"problem.{name}={given}"


def _other_files(prepared: PreparedSearch) -> dict[str, str]:
    """Returns the digests of files that the problem's other arguments name."""
    problem, arguments = prepared.problem, prepared.search.problem.arguments
    return contents(arguments.keys() - problem.data_files - problem.code_files.keys(), arguments)


def _versions() -> dict[str, str]:
    import torch

    found = {"python": platform.python_version(), "torch": torch.__version__, "cuda": torch.version.cuda or ""}
    with suppress(PackageNotFoundError):
        found["heirloom"] = version("heirloom-nas")
    return {name: str(text) for name, text in found.items()}


def _git_commit() -> str | None:
    """Returns the commit of the working folder, or None without git or outside a repository."""
    command = ["git", "rev-parse", "--verify", "--quiet", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() or None
