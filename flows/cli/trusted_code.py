"""Checks that code named by a record is also named on the command line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from flows.cli.command import Invocation
    from nas.core.spec import Spec


def trusted_spec(
    group: str,
    stored: Mapping[str, Any],
    invocation: Invocation,
    *,
    by: str = "the search's record",
    lacks: str = "a shared disk",
) -> Spec:
    """Returns the class that a record names, with arguments added by the command line.

    Args:
        group: ``problem``, ``tuner`` or ``stopper``.
        stored: Target and arguments in the record.
        invocation: The command line, which may name the same target.
        by: The source of the record, for the error.
        lacks: The medium that is not trusted with code, for the error.

    Raises:
        ConfigurationError: the target lies outside Heirloom or is no problem, tuner or stopper. Or an argument is
            code that the command line does not name.
    """
    from flows.cli.overrides import as_shell
    from nas.core.errors import ConfigurationError
    from nas.core.spec import Spec
    from nas.stoppers.base import Stopper
    from nas.training.problem import Problem
    from nas.tuners.base import Tuner

    target = str(stored["target"])
    given = dict(invocation.values.get(group) or {})
    named = given.pop("_target_", None)
    spec = Spec(target, {**stored["arguments"], **given})
    if named != target and not invocation.values["trust"]:
        kind = {"problem": Problem, "tuner": Tuner, "stopper": Stopper}[group]
        if not target.startswith("nas.") or not issubclass(spec.find(), kind):
            raise ConfigurationError(
                f"{by} names {target} as its {group}, but {lacks} is not trusted with code: "
                f"add {group}._target_={target} or trust=true"
            )
    code = code_arguments(spec) & stored["arguments"].keys() - given.keys()
    if code and not invocation.values["trust"]:
        pairs = as_shell([f"{group}.{key}={stored['arguments'][key]}" for key in sorted(code)])
        raise ConfigurationError(
            f"{by} names code that its {group} runs, but {lacks} is not trusted with code: add {pairs} or trust=true"
        )
    return spec


def code_arguments(spec: Spec) -> frozenset[str]:
    """Returns the arguments of one of Heirloom's own classes that name code."""
    found: frozenset[str] = frozenset()
    return getattr(spec.find(), "code_arguments", found) if spec.target.startswith("nas.") else found
