"""Specs: the dotted path of a class and its arguments, as data."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from nas.core.argument_types import unfit_argument
from nas.core.arguments import arguments_of, changed_argument
from nas.core.errors import ConfigurationError, HeirloomError
from nas.core.parsing import signature_of
from nas.core.targets import load_target
from nas.core.validation import did_you_mean, short_repr


@dataclass(frozen=True, slots=True)
class Spec:
    """The content of a yaml with ``_target_``: the dotted path of a class, and keyword arguments."""

    target: str
    arguments: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, class_: type, **arguments: Any) -> Spec:
        """Returns the spec of an importable class.

        Raises:
            ConfigurationError: it is no class.
        """
        given: object = class_
        if not isinstance(given, type):
            raise ConfigurationError(
                f"nas.Spec.of({short_repr(given)}): must be a class. A dotted path goes into nas.Spec"
            )
        return cls(f"{class_.__module__}.{class_.__qualname__}", arguments)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> Spec:
        """Returns the spec in the content of a yaml, which has a ``_target_``."""
        return cls(str(config["_target_"]), {key: value for key, value in config.items() if key != "_target_"})

    @property
    def name(self) -> str:
        """The class name in snake case without its kind: ``FashionMnistProblem`` is ``fashion_mnist``."""
        words = "".join(f"_{c.lower()}" if c.isupper() else c for c in self.target.rsplit(".", 1)[-1]).strip("_")
        stem, _, kind = words.rpartition("_")
        return stem if stem and kind in ("problem", "tuner", "stopper") else words

    def to_json(self, without: frozenset[str] = frozenset()) -> dict[str, Any]:
        """Returns the spec as JSON for the identity of a search, without the named arguments."""
        return {"target": self.target, "arguments": {k: v for k, v in self.arguments.items() if k not in without}}

    def find(self) -> type:
        """Returns the class.

        Raises:
            ConfigurationError: the module or class does not exist.
        """
        found = self._load()
        if not isinstance(found, type):
            raise ConfigurationError(f"_target_={self.target}: must be a class, not {found!r}")
        return found

    def _load(self) -> Any:
        return load_target(self.target)

    def build(self, *injected: Any, **more: Any) -> Any:
        """Returns an instance, built from ``injected``, the spec's arguments and ``more``.

        Args:
            *injected: Positional arguments.
            **more: Keyword arguments besides those of the spec.

        Raises:
            ConfigurationError: the class does not exist, is abstract, or does not take these arguments.
        """
        class_ = self.find()
        if inspect.isabstract(class_):
            missing = ", ".join(sorted(getattr(class_, "__abstractmethods__", ())))
            raise ConfigurationError(f"{self.target} must define {missing}")
        self._check_arguments(class_, injected, more)
        is_own = self.target.startswith("nas.")  # then the constructor checks types
        if not is_own and (unfit := unfit_argument(class_, self.arguments, by_default=False)) is not None:
            raise ConfigurationError(f"{_group_of(class_)}{unfit}, as {self.target} declares it")
        try:
            return class_(*injected, **self.arguments, **more)
        except (TypeError, ValueError, OverflowError) as error:
            unfit = None if is_own else unfit_argument(class_, self.arguments, by_default=True)
            if unfit is not None:
                text = f"{type(error).__name__}: {error}"
                raise ConfigurationError(f"{_group_of(class_)}{unfit}, as its default is ({text})") from error
            if isinstance(error, HeirloomError) or not self.target.startswith("nas."):
                raise
            group = _group_of(class_)
            given = ", ".join(f"{group}{name}={_shown(value)}" for name, value in self.arguments.items())
            raise ConfigurationError(
                f"{self.target}: {given}: must have the types of its arguments ({type(error).__name__}: {error}). "
                "Compare them with its docstring"
            ) from error

    def call(self) -> Any:
        """Returns what a class or a function returns for the spec's arguments.

        Raises:
            ConfigurationError: it does not exist, or does not take these arguments.
        """
        function = self._load()
        if not callable(function):
            raise ConfigurationError(f"_target_={self.target}: must be a class or a function, not {function!r}")
        self._check_arguments(function, (), {})
        return function(**self.arguments)

    def _check_arguments(
        self, function: Callable[..., Any], injected: tuple[Any, ...], more: Mapping[str, Any]
    ) -> None:
        try:
            signature_of(function).bind(*injected, **self.arguments, **more)
        except TypeError as error:
            raise ConfigurationError(self._describe_mismatch(function, len(injected), more, str(error))) from error

    def _describe_mismatch(
        self, function: Callable[..., Any], n_injected: int, more: Mapping[str, Any], error: str
    ) -> str:
        """Returns a one-line error about arguments that the constructor does not take."""
        parameters = list(signature_of(function).parameters.values())
        given = {*more, *(parameter.name for parameter in parameters[:n_injected])}
        own = {
            p.name: p.default
            for p in parameters
            if p.name not in given and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        }
        accepted = ", ".join(n if v is inspect.Parameter.empty else f"{n}={v!r:.60}" for n, v in own.items())
        what = f"; it takes {accepted or 'no arguments'}"
        for name in self.arguments:
            if name in given:
                return f"{self.target} gets its {name} from the search, not as an argument{what}"
            if name not in own:
                return f"{self.target} has no argument {name}{did_you_mean(name, own, cutoff=0.5)}{what}"
        missing = [n for n, v in own.items() if v is inspect.Parameter.empty and n not in self.arguments]
        return f"{self.target} needs {', '.join(missing)}{what}" if missing else f"{self.target}: {error}{what}"


@dataclass(frozen=True)
class LoadedSpec(Spec):
    """The spec of a class or an instance that this process holds.

    It may have no importable name. An instance is used as it is. Worker processes get a copy of it.
    """

    loaded: Any = field(default=None, compare=False, repr=False)
    """The class or the instance."""

    @property
    def is_instance(self) -> bool:
        """Whether it is an instance."""
        return not isinstance(self.loaded, type)

    def build(self, *injected: Any, **more: Any) -> Any:
        """Returns the instance, or an instance of the class as ``Spec.build``.

        Raises:
            ConfigurationError: as ``Spec.build``, or a problem was changed after it was built.
        """
        if not self.is_instance:
            return Spec.build(self, *injected, **more)
        group = _group_of(type(self.loaded))
        if group == "problem." and (name := changed_argument(self.loaded)) is not None:  # a tuner may change its own
            class_, value = type(self.loaded).__name__, short_repr(getattr(self.loaded, name))
            raise ConfigurationError(
                f"problem={class_}(...): {name} must not be changed after it was built. "
                f"Pass {class_}({name}={value}, ...)"
            )
        return self.loaded

    def _load(self) -> Any:
        return type(self.loaded) if self.is_instance else self.loaded


def spec_of(kind: str, part: object, base: type, *, injected: frozenset[str] = frozenset()) -> Spec:
    """Returns the spec of a class, an instance, a dotted path or a spec.

    Args:
        kind: The name of the part in messages: ``problem``, ``tuner``, ``stopper``.
        part: The part.
        base: The class that the part must extend.
        injected: The constructor's arguments that the search gives.

    Raises:
        ConfigurationError: it is something else, or an instance whose arguments are unknown.
    """
    if isinstance(part, Spec):
        return part
    if isinstance(part, str):
        return _spec_of_target(kind, part)
    class_ = part if isinstance(part, type) else type(part)
    if not issubclass(class_, base):
        raise ConfigurationError(
            f"{kind}={short_repr(part)}: must be a subclass of nas.{base.__name__}, an instance of one, or its dotted "
            "path. Arguments of a class go into nas.Spec.of(MyClass, argument=1)"
        )
    arguments = {} if isinstance(part, type) else _arguments_of(kind, part, injected)
    return LoadedSpec(f"{class_.__module__}.{class_.__qualname__}", arguments, part)


def _spec_of_target(kind: str, target: str) -> Spec:
    if "." not in target:
        example = f"nas.{kind}s.{target}.{target.title().replace('_', '')}{kind.title()}"
        raise ConfigurationError(
            f"{kind}={target}: must be a class, an instance or a dotted path. Only commands know names; from Python, "
            f'write a path such as "{example}"'
        )
    return Spec(target)


def _arguments_of(kind: str, part: object, injected: frozenset[str]) -> dict[str, Any]:
    """Returns the arguments that an instance was built with, without those that the search gives."""
    if (found := arguments_of(part)) is None:
        class_ = type(part).__name__
        raise ConfigurationError(
            f"{kind}={class_}(...): its arguments must be known. Pass nas.Spec.of({class_}, argument=...) instead"
        )
    return {name: value for name, value in found.items() if name not in injected}


def _group_of(class_: type) -> str:
    """Returns the beginning of an argument's key, such as ``problem.``; empty if unknown."""
    bases = (base for base in class_.__mro__ if base.__module__.startswith("nas."))
    names = (base.__name__.lower() for base in bases)
    return next((f"{name}." for name in names if name in ("problem", "tuner", "stopper")), "")


def _shown(value: object) -> str:
    """Returns a short text of an argument without values of mappings, which may be secrets."""
    if isinstance(value, Mapping):
        return "{...}"
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(_shown, value[:6]))}{', ...' if len(value) > 6 else ''}]"
    return short_repr(value)
