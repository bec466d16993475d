"""The tree of a space: choices, constants and dicts of parameters."""

from __future__ import annotations

import copy
import random
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, combinations, product
from typing import Any

from nas.core.errors import ConfigurationError, PointError
from nas.core.point import Point, is_json, point_key
from nas.core.validation import first_of
from nas.spaces.domain import Ask, Categorical, Decision
from nas.spaces.parameters.numeric import Parameter, Site, When, checked_conditions, invalid_value

MAX_POINTS = 1_000_000


_PLAIN = frozenset({str, int, bool, type(None)})
"""Types whose equal values have the same JSON. Float is not one: 0.0 and -0.0 differ."""


@dataclass(frozen=True, slots=True, init=False)
class Choice(Parameter):
    """One of the options, with equal probability.

    An option is JSON, or a dict that contains parameters. A value must show which option it is, so two dicts of
    parameters need a constant that differs: ``{"type": "sgd", ...}``. A choice with one option is a conditional
    constant or dict: ``Choice({...}, when=...)``.
    """

    options: tuple[Parameter, ...]
    when: When
    _domain: Categorical = field(repr=False, compare=False)

    def __init__(self, *options: Any, when: When = None) -> None:
        if not options:
            raise ConfigurationError("Choice(): at least one option is required")
        if len(options) == 1 and isinstance(options[0], list | tuple | range) and when is None:
            raise ConfigurationError(
                f"Choice({options[0]!r}) has a single option, a list. Write Choice(*{options[0]!r})."
            )
        for option in options:
            if isinstance(option, Parameter):
                raise ConfigurationError(f"Choice: option {option!r} must be JSON or a dict. Wrap it in a dict.")
        nodes = tuple(_node(option, "Choice: option") for option in options)
        if (overlapping := _overlapping(nodes)) is not None:
            one, other = overlapping
            raise ConfigurationError(
                f"Choice: options {one} and {other} can be the same value. Remove one, or give each dict "
                'a constant that differs, such as {"type": "a", ...} and {"type": "b", ...}'
            )
        object.__setattr__(self, "options", nodes)
        object.__setattr__(self, "when", checked_conditions(when))
        object.__setattr__(self, "_domain", Categorical(len(nodes), tuple(map(str, nodes))))

    def __str__(self) -> str:
        return f"one of {first_of(self.options, 20)}"

    def sample(self, rng: random.Random) -> Any:
        """Returns a random option, with its parameters sampled."""
        return rng.choice(self.options).sample(rng)

    def sites(self, value: Any) -> list[Site]:
        """Returns the choice itself, if it has several options, and the sites in the chosen option."""
        own: list[Site] = [()] if len(self.options) > 1 else []
        return own + self._option(value).sites(value)

    def mutate(self, value: Any, site: Site, rng: random.Random) -> Any:
        """Returns a sample of another option, or the same option mutated at a site in it."""
        present = self._option(value)
        if site:
            return present.mutate(value, site, rng)
        return rng.choice([option for option in self.options if option is not present]).sample(rng)

    def check(self, value: Any, name: str) -> None:
        """Checks that an option allows the value.

        The error is that of an option if only this one has the value's constants.
        """
        if any(option.accepts(value) for option in self.options):
            return
        meant = [
            option for option in self.options if isinstance(option, ParameterDict) and option.has_same_constants(value)
        ]
        if len(meant) == 1:
            meant[0].check(value, name)
        raise invalid_value(self, value, name)

    def decide(self, name: str, ask: Ask) -> Any:
        """Asks for the option's index, then for the option's own decisions."""
        index = int(ask(name, self._domain)) if len(self.options) > 1 else 0
        return self.options[index].decide(f"{name}.{index}", ask)

    def decisions(self, name: str, value: Any) -> Iterator[Decision]:
        """Yields the option's index, then its own decisions."""
        index = next(index for index, option in enumerate(self.options) if option.accepts(value))
        if len(self.options) > 1:
            yield Decision(name, self._domain, index)
        yield from self.options[index].decisions(f"{name}.{index}", value)

    @property
    def n_values(self) -> int | None:
        """The sum over the options, which have no common value."""
        counts = [option.n_values for option in self.options]
        return None if None in counts else sum(count for count in counts if count is not None)

    def values(self) -> Iterator[Any]:
        """Yields the values of each option, in the order of the options."""
        for option in self.options:
            yield from option.values()

    def to_json(self) -> dict[str, Any]:
        """Returns the options as JSON, in order."""
        return {"type": "Choice", "options": [option.to_json() for option in self.options]}

    def _option(self, value: Any) -> Parameter:
        return next(option for option in self.options if option.accepts(value))


@dataclass(frozen=True, slots=True)
class Constant(Parameter):
    """One JSON value."""

    value: Any
    json: str
    when: When = None

    def __str__(self) -> str:
        return repr(self.value)

    def sample(self, rng: random.Random) -> Any:
        return self.value

    def sites(self, value: Any) -> list[Site]:
        return []

    def mutate(self, value: Any, site: Site, rng: random.Random) -> Any:
        raise AssertionError("a constant has no sites")

    def check(self, value: Any, name: str) -> None:
        if not self.accepts(value):
            raise invalid_value(self, value, name)

    def accepts(self, value: Any) -> bool:
        if type(value) is not type(self.value):
            return False
        if type(value) in _PLAIN:
            return bool(value == self.value)
        return is_json(value) and point_key(value) == self.json

    def decide(self, name: str, ask: Ask) -> Any:
        return self.value

    def decisions(self, name: str, value: Any) -> Iterator[Decision]:
        return iter(())

    @property
    def n_values(self) -> int:
        return 1

    def values(self) -> Iterator[Any]:
        yield self.value

    def to_json(self) -> dict[str, Any]:
        return {"type": "constant", "value": copy.deepcopy(self.value)}


class ParameterDict(Parameter):
    """A dict of parameters. Those whose conditions do not hold are absent."""

    def __init__(self, parameters: Mapping[str, Any], name: str) -> None:
        self.when = None
        self.parameters: dict[str, Parameter] = {}
        self.conditions: dict[str, dict[str, frozenset[str]]] = {}
        for child, value in parameters.items():
            if type(child) is not str:
                raise ConfigurationError(f"{name}: parameter name {child!r} must be a string")
            node = _node(value, child)
            self.conditions[child] = {
                earlier: self._keys(child, earlier, values) for earlier, values in (node.when or {}).items()
            }
            self.parameters[child] = node

    def __str__(self) -> str:
        return "{" + ", ".join(f"{name!r}: {node}" for name, node in self.parameters.items()) + "}"

    def sample(self, rng: random.Random) -> Point:
        return self._completed({}, rng)

    def sites(self, value: Point) -> list[Site]:
        return [
            (name, *site) for name, node in self.parameters.items() if name in value for site in node.sites(value[name])
        ]

    def mutate(self, value: Point, site: Site, rng: random.Random) -> Point:
        name, *inner = site
        mutated = self.parameters[name].mutate(value[name], tuple(inner), rng)
        return self._completed({**value, name: mutated}, rng)

    def check(self, value: Any, name: str) -> None:
        if type(value) is not dict:
            raise invalid_value(self, value, name or "the point")
        prefix = f"{name}." if name else ""
        for child in value:
            if child not in self.parameters:
                raise PointError(
                    f"{prefix}{child}={value[child]!r}: must be one of the parameters "
                    f"({', '.join(self.parameters) or 'there are none'}). Remove it or add it to the space."
                )
        for child, node in self.parameters.items():
            active = self._is_active(child, value)
            if active and child not in value:
                raise PointError(f"{prefix}{child} (missing) must be {node}. Add it to the point.")
            if not active and child in value:
                conditions = " and ".join(f"{earlier} is in {list(of)}" for earlier, of in (node.when or {}).items())
                raise PointError(
                    f"{prefix}{child}={value[child]!r}: must be absent unless {conditions}. Remove it from the point."
                )
            if active:
                node.check(value[child], f"{prefix}{child}")

    def decide(self, name: str, ask: Ask) -> Point:
        prefix = f"{name}." if name else ""
        point: Point = {}
        for child, node in self.parameters.items():
            if self._is_active(child, point):
                point[child] = node.decide(f"{prefix}{child}", ask)
        return point

    def decisions(self, name: str, value: Point) -> Iterator[Decision]:
        prefix = f"{name}." if name else ""
        for child, node in self.parameters.items():
            if child in value:
                yield from node.decisions(f"{prefix}{child}", value[child])

    @property
    def n_values(self) -> int | None:
        """The number of values, counted without listing them.

        Values of earlier parameters are distinguished only by the later conditions that use them.
        """
        asked: dict[str, set[str]] = defaultdict(set)
        last_asked: dict[str, int] = {}
        for index, conditions in enumerate(self.conditions.values()):
            for name, keys in conditions.items():
                asked[name] |= keys
                last_asked[name] = index
        ways: dict[tuple[tuple[str, str], ...], int] = {(): 1}
        for index, (name, node) in enumerate(self.parameters.items()):
            n_values = node.n_values
            following: dict[tuple[tuple[str, str], ...], int] = defaultdict(int)
            for state, n_ways in ways.items():
                known = dict(state)
                kept = tuple(item for item in state if last_asked[item[0]] > index)
                if not all(known.get(earlier) in keys for earlier, keys in self.conditions[name].items()):
                    following[kept] += n_ways
                    continue
                if n_values is None:
                    return None
                distinguished = sorted(asked.get(name, ()))
                for key in distinguished:
                    following[*kept, (name, key)] += n_ways
                if n_values > len(distinguished):
                    following[kept] += n_ways * (n_values - len(distinguished))
            if len(following) > MAX_POINTS:  # a state has at least one value
                return None
            ways = following
        return sum(ways.values())

    def values(self) -> Iterator[Point]:
        yield from self._extensions({}, tuple(self.parameters))

    def to_json(self) -> dict[str, Any]:
        parameters = {}
        for name, node in self.parameters.items():
            conditions = {earlier: copy.deepcopy(list(values)) for earlier, values in (node.when or {}).items()}
            parameters[name] = node.to_json() | ({"when": conditions} if conditions else {})
        # Canonical JSON sorts the names, but their order decides which random number each parameter gets.
        return {"type": "dict", "parameters": parameters, "order": list(self.parameters)}

    def has_same_constants(self, value: Any) -> bool:
        """Returns whether the value is a dict with the same constants."""
        return type(value) is dict and all(
            name in value and node.accepts(value[name])
            for name, node in self.parameters.items()
            if isinstance(node, Constant)
        )

    def is_disjoint(self, other: ParameterDict) -> bool:
        """Returns whether an unconditional name or constant of this dict is impossible in the other."""
        for name, node in self.parameters.items():
            if not self.conditions[name]:
                counterpart = other.parameters.get(name)
                if counterpart is None or (isinstance(node, Constant) and not counterpart.accepts(node.value)):
                    return True
        return False

    def _keys(self, child: str, earlier: str, values: Sequence[Any]) -> frozenset[str]:
        """Returns the keys of the values that the condition of ``child`` on ``earlier`` allows."""
        controller = self.parameters.get(earlier)
        if controller is None:
            raise ConfigurationError(
                f"{child}: when: {earlier!r} must be an earlier parameter of the same dict "
                f"({', '.join(self.parameters) or 'there are none'}); reorder them or correct the name"
            )
        for value in values:
            if not controller.accepts(value):
                raise ConfigurationError(f"{child}: when: {earlier}={value!r}: must be {controller}")
        return frozenset(controller.key(value) for value in values)

    def _is_active(self, name: str, value: Point) -> bool:
        return all(
            earlier in value and self.parameters[earlier].key(value[earlier]) in keys
            for earlier, keys in self.conditions[name].items()
        )

    def _completed(self, partial: Point, rng: random.Random) -> Point:
        """Returns the active parameters with their values in ``partial``, or else sampled values."""
        point: Point = {}
        for name, node in self.parameters.items():
            if self._is_active(name, point):
                point[name] = partial[name] if name in partial else node.sample(rng)
        return point

    def _extensions(self, partial: Point, names: Sequence[str]) -> Iterator[Point]:
        """Yields each completion of ``partial`` with values of ``names``."""
        if not names:
            yield partial
        elif not self._is_active(names[0], partial):
            yield from self._extensions(partial, names[1:])
        else:
            for value in self.parameters[names[0]].values():
                yield from self._extensions({**partial, names[0]: value}, names[1:])


def _node(value: Any, name: str) -> Parameter:
    if isinstance(value, Parameter):
        return value
    if _holds_parameter(value):
        return ParameterDict(value, name)
    if not is_json(value):
        raise ConfigurationError(
            f"{name}: {value!r} must be JSON (dict, list, str, int, finite float, bool, None) or a dict of parameters. "
            "Write a tuple as a list, and a numpy scalar as its .item()"
        )
    return Constant(copy.deepcopy(value), point_key(value))


def _holds_parameter(value: Any) -> bool:
    return isinstance(value, Mapping) and any(
        isinstance(item, Parameter) or _holds_parameter(item) for item in value.values()
    )


def _overlapping(options: Sequence[Parameter]) -> tuple[Parameter, Parameter] | None:
    """Returns two options that can have a common value, or None.

    For two dicts, that is not certain.
    """
    constants: dict[str, Constant] = {}  # by JSON: thousands are compared at once
    dicts: list[ParameterDict] = []
    for option in options:
        if isinstance(option, ParameterDict):
            dicts.append(option)
        elif isinstance(option, Constant) and (same := constants.setdefault(option.json, option)) is not option:
            return same, option
    others: Iterator[tuple[ParameterDict, ParameterDict | Constant]] = product(dicts, constants.values())
    pairs = chain(combinations(dicts, 2), others)
    return next(((one, other) for one, other in pairs if _overlap(one, other)), None)


def _overlap(one: ParameterDict, other: ParameterDict | Constant) -> bool:
    if isinstance(other, Constant):
        return one.accepts(other.value)
    return not one.is_disjoint(other) and not other.is_disjoint(one)
