"""Trust: a record on a shared disk, or a driver over a channel, names no code that runs here; the command line does."""

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
    """What the record names, with the arguments that the command line adds.

    Args:
        group: ``problem``, ``tuner`` or ``stopper``.
        stored: Target and arguments.
        invocation: The command line, which may name the same target.
        by: Who names it, for the error.
        lacks: What is not trusted with code, for the error.

    Raises:
        ConfigurationError: it names something outside Heirloom, or, within, no problem, tuner or stopper; or an
            argument that is code, which the command line does not name.
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
                f"{by} names {target} as its {group}, and {lacks} is not trusted with code: "
                f"add {group}._target_={target}, or trust=true"
            )
    code = code_arguments(spec) & stored["arguments"].keys() - given.keys()
    if code and not invocation.values["trust"]:
        pairs = as_shell([f"{group}.{key}={stored['arguments'][key]}" for key in sorted(code)])
        raise ConfigurationError(
            f"{by} says what its {group} runs, and {lacks} is not trusted with code: add {pairs}, or trust=true"
        )
    return spec


def code_arguments(spec: Spec) -> frozenset[str]:
    """Returns the arguments of one of Heirloom's own classes that are code."""
    found: frozenset[str] = frozenset()
    return getattr(spec.find(), "code_arguments", found) if spec.target.startswith("nas.") else found
