"""Checks that code and data named by a record are also named on the command line."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import TYPE_CHECKING, Any

from nas.core.parsing import signature_of

if TYPE_CHECKING:
    from flows.cli.command import Invocation
    from nas.core.spec import Spec

MAX_SHOWN = 200
"""Characters of a record's value that an error repeats; longer ones are left to the user."""


def trusted_spec(
    group: str,
    stored: Mapping[str, Any],
    invocation: Invocation,
) -> Spec:
    """Returns the class that a record names, with arguments added by the command line.

    A record gives only what can be no path, URL, file-system option or code. The rest is named on the command line:

    * Of Heirloom's classes: ``code_arguments``, and ``data_arguments`` and ``foreign_arguments`` that hold text,
      unless they are the defaults. A tuner of Heirloom inside another is no code, if this holds for it as well.
    * Of other classes: all arguments that hold text, because their use is not known.

    With ``trust=true`` a record gives all but chained URLs and file-system options.

    Args:
        group: ``problem``, ``tuner`` or ``stopper``.
        stored: Target and arguments in the record.
        invocation: The command line, which may name the same target.

    Raises:
        ConfigurationError: the target lies outside Heirloom, is no problem, tuner or stopper, or is not the one that
            the command line names. Or an argument is code or data that the command line does not name.
    """
    from nas.core.errors import ConfigurationError
    from nas.core.spec import Spec
    from nas.core.validation import check_bool

    target, is_trusted = str(stored["target"]), check_bool("trust", invocation.values["trust"])
    given = dict(invocation.values.get(group) or {})
    named = given.pop("_target_", None)
    spec = Spec(target, {**stored["arguments"], **given})
    if named not in (None, target):
        raise ConfigurationError(
            f"{group}._target_={named}: must be {target}, the {group} of this search. Correct it, or choose another "
            "search"
        )
    if named is None and not is_trusted and not _is_own(group, spec):
        raise ConfigurationError(
            f"the search's record names {target} as its {group}, but a shared disk is not trusted with code: "
            f"add {group}._target_={target} or trust=true"
        )
    unnamed = {key: value for key, value in stored["arguments"].items() if key not in given}
    if is_trusted:
        refused = {key for key in _declared("data", spec) & unnamed.keys() if _opens_more(unnamed[key])}
    else:
        refused = _untrusted(spec, unnamed)
    if refused:
        kind, does = "text", "gets"
        if refused & _declared("code", spec):
            kind, does = "code", "runs"
        elif refused & _declared("data", spec):
            kind, does = "data", "reads"
        remedy = " ".join(_words(group, spec, unnamed, refused))
        raise ConfigurationError(
            f"the search's record names {kind} that its {group} {does}, but a shared disk is not trusted with {kind}: "
            f"add {remedy}{'' if is_trusted else ' or trust=true'}"
        )
    return spec


def repeated_words(group: str, spec: Spec) -> list[str]:
    """Returns what a later command on the search must name again, as words of a shell."""
    from flows.cli.overrides import override

    target = [] if spec.target.startswith("nas.") else [override(f"{group}._target_", spec.target)]
    return [*target, *_words(group, spec, spec.arguments, _untrusted(spec, spec.arguments))]


def _words(group: str, spec: Spec, arguments: Mapping[str, Any], keys: Set[str]) -> list[str]:
    """Returns the words that give these arguments; ``...`` stands for long values and for secrets."""
    from flows.cli.overrides import override
    from nas.views.formatting import masked

    words = {}
    for key in sorted(keys):
        may_be_secret = key in _declared("data", spec) or key.endswith("options")
        is_secret = may_be_secret and isinstance(arguments[key], Mapping)
        words[f"{group}.{key}"] = "" if is_secret else override(f"{group}.{key}", arguments[key])
    return [masked(word) if 0 < len(word) <= MAX_SHOWN else f"{key}=..." for key, word in words.items()]


def _untrusted(spec: Spec, arguments: Mapping[str, Any]) -> set[str]:
    """Returns the arguments that only a command line may give."""
    if not spec.target.startswith("nas."):
        return {key for key, value in arguments.items() if _holds_text(value)}
    named = {key for key in arguments.keys() & _declared("code", spec) if not _is_own_part(arguments[key])}
    named |= {key for key in arguments.keys() & _declared("data", spec) if _holds_text(arguments[key])}
    named |= {key for key in arguments.keys() & _declared("foreign", spec) if _passes_text(arguments[key])}
    parameters = signature_of(spec.find()).parameters
    return {key for key in named if key not in parameters or parameters[key].default != arguments[key]}


def _declared(kind: str, spec: Spec) -> frozenset[str]:
    """Returns the arguments of one of Heirloom's own classes that are ``code``, ``data`` or ``foreign``."""
    found: frozenset[str] = frozenset()
    return getattr(spec.find(), f"{kind}_arguments", found) if spec.target.startswith("nas.") else found


def _is_own(group: str, spec: Spec) -> bool:
    """Returns whether the class is one of Heirloom's problems, tuners or stoppers."""
    from nas.stoppers.base import Stopper
    from nas.training.problem import Problem
    from nas.tuners.base import Tuner

    kind = {"problem": Problem, "tuner": Tuner, "stopper": Stopper}[group]
    return spec.target.startswith("nas.") and issubclass(spec.find(), kind)


def _is_own_part(value: object) -> bool:
    """Returns whether a value describes a tuner of Heirloom that gets no code and no data."""
    from nas.core.spec import Spec

    if not isinstance(value, Mapping) or not isinstance(value.get("_target_"), str):
        return False
    part = Spec.from_config(value)
    return _is_own("tuner", part) and not _untrusted(part, part.arguments)


def _holds_text(value: object) -> bool:
    """Returns whether a value holds text: a path, a URL or an option."""
    if isinstance(value, list | tuple):
        return any(map(_holds_text, value))
    return isinstance(value, str) or (isinstance(value, Mapping) and bool(value))


def _passes_text(value: object) -> bool:
    """Returns whether one of the keyword arguments for other code holds text."""
    return any(map(_holds_text, value.values())) if isinstance(value, Mapping) else _holds_text(value)


def _opens_more(value: object) -> bool:
    """Returns whether a data argument holds options or a chained URL."""
    if isinstance(value, list | tuple):
        return any(map(_opens_more, value))
    return (isinstance(value, str) and "::" in value) or (isinstance(value, Mapping) and bool(value))
