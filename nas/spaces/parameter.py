"""Spaces of named parameters: ranges and choices, nested and conditional.

A space is a tree: a dict of parameters, constants and further dicts; an option of a `Choice` may be such a dict again.

    ParameterSpace(
        {
            "n_layers": Int(1, 3),
            "width_2": Int(16, 256, log=True, when={"n_layers": [2, 3]}),
            "optimizer": Choice({"type": "adam"}, {"type": "sgd", "momentum": Float(0.0, 0.99)}),
            "batch_size": 64,
        }
    )
"""

from __future__ import annotations

import copy
import math
import random
import sys
from abc import ABC, abstractmethod
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import combinations
from typing import Any, TypeAlias

from nas.errors import ConfigurationError, PointError, SpaceExhaustedError
from nas.spaces.base import Point, Space, is_json, point_key

Site: TypeAlias = tuple[str, ...]
"""A place in a value that can be changed: the names that lead there, none for the value as a whole."""
When: TypeAlias = Mapping[str, Sequence[Any]] | None

_MAX_POINTS = 1_000_000
_MAX_INT = 2**53  # beyond it, floats and the JSON of other languages skip whole numbers
_STEP = 0.2
_TRIES = 16


class Parameter(ABC):
    """A set of JSON values: what a `ParameterSpace` allows for one name.

    ``when={"n_layers": [2, 3]}`` makes it conditional: it is part of the point only if each named parameter is, and has
    one of these values. The names are those of *earlier* parameters in the same dict.
    """

    __slots__ = ()
    when: When

    @abstractmethod
    def sample(self, rng: random.Random) -> Any:
        """A random value."""

    @abstractmethod
    def sites(self, value: Any) -> list[Site]:
        """Where this value can be changed, in an order that does not depend on that of its keys."""

    @abstractmethod
    def mutate(self, value: Any, site: Site, rng: random.Random) -> Any:
        """A value that differs at this one of its `sites`; elsewhere, only in what depends on that."""

    @abstractmethod
    def check(self, value: Any, name: str) -> None:
        """Returns if the value is allowed.

        Raises:
            PointError: it is not.
        """

    @property
    @abstractmethod
    def n_values(self) -> int | None:
        """How many values there are, or None: uncountable."""

    @abstractmethod
    def values(self) -> Iterator[Any]:
        """Each value once, if they are countable."""

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The set of values as JSON, without `when`."""

    @abstractmethod
    def __str__(self) -> str:
        """What is allowed, for a sentence that ends in "must be ..."."""

    def key(self, value: Any) -> str:
        """Equal for values that a condition takes for the same."""
        return point_key(value)

    def accepts(self, value: Any) -> bool:
        """Whether the value is allowed."""
        try:
            self.check(value, "")
        except PointError:
            return False
        return True


@dataclass(frozen=True, slots=True)
class _Range(Parameter):
    """The numbers from ``low`` to ``high``, seen as 0 to 1 of a scale that is linear or logarithmic."""

    low: float
    high: float
    log: bool = field(default=False, kw_only=True)
    when: When = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if self.low > self.high:
            raise ConfigurationError(f"{self!r}: low ({self.low}) must be at most high ({self.high}); swap them")
        if type(self.log) is not bool:
            raise ConfigurationError(f"{self!r}: log ({self.log!r}) must be True or False")
        if self.log and self.low <= 0:
            raise ConfigurationError(f"{self!r}: low ({self.low}) must be greater than 0 for log; raise it or drop log")
        object.__setattr__(self, "when", _conditions(self.when))

    @abstractmethod
    def _at(self, unit: float) -> float:
        """The allowed number that is nearest to this place on the scale."""

    @property
    @abstractmethod
    def _ends(self) -> tuple[float, float]:
        """The numbers at 0 and 1 of the scale."""

    def sample(self, rng: random.Random) -> float:
        return self._at(rng.random())

    def sites(self, value: float) -> list[Site]:
        return [()] if self.low < self.high else []

    def mutate(self, value: float, site: Site, rng: random.Random) -> float:
        low, high, present = (math.log(x) if self.log else x for x in (*self._ends, value))
        unit = (present - low) / (high - low) if low < high else 0.5  # neighbours may share their logarithm
        for _ in range(_TRIES):
            mutated = self._at(rng.gauss(unit, _STEP))
            if mutated != value:
                return mutated
        return rng.choice([end for end in (self.low, self.high) if end != value])

    def describe(self) -> dict[str, Any]:
        return {"type": type(self).__name__, "low": self.low, "high": self.high, "log": self.log}

    def _from_unit(self, unit: float) -> float:
        low, high = self._ends
        if not 0.0 < unit < 1.0:
            return low if unit <= 0.0 else high
        if self.log:
            return math.exp(math.log(low) + (math.log(high) - math.log(low)) * unit)
        return low + (high - low) * unit


@dataclass(frozen=True, slots=True)
class Float(_Range):
    """A real number from ``low`` to ``high``, both included; a point may hold a whole number in its place.

    With ``log``, samples and steps are uniform in the logarithm, and ``low`` must be positive.
    """

    def __post_init__(self) -> None:
        for name, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, bool) or not isinstance(bound, int | float) or not abs(bound) <= sys.float_info.max:
                raise ConfigurationError(f"{self!r}: {name} ({bound!r}) must be a finite number")
            object.__setattr__(self, name, float(bound))
        if math.isinf(self.high - self.low):
            raise ConfigurationError(f"{self!r}: high - low must be finite; narrow the range")
        _Range.__post_init__(self)  # super() does not know the second class that slots=True makes

    def __str__(self) -> str:
        return f"a float from {self.low} to {self.high}"

    def check(self, value: Any, name: str) -> None:
        """Returns if the value is a float or int in the range, and finite therefore."""
        if type(value) not in (float, int) or not self.low <= value <= self.high:
            raise _refusal(self, value, name)

    @property
    def n_values(self) -> int | None:
        """None, or 1 where the bounds are equal."""
        return 1 if self.low == self.high else None

    def values(self) -> Iterator[float]:
        """The one value of equal bounds."""
        yield self.low

    def key(self, value: Any) -> str:
        """Equal for 0, 0.0 and -0.0."""
        return point_key(float(value) + 0.0)

    def _at(self, unit: float) -> float:
        return min(max(self._from_unit(unit), self.low), self.high)

    @property
    def _ends(self) -> tuple[float, float]:
        return self.low, self.high


@dataclass(frozen=True, slots=True)
class Int(_Range):
    """A whole number from ``low`` to ``high``, both included.

    With ``log``, the probability of ``n`` falls as 1/n (it is that of n - 0.5 to n + 0.5 on the logarithmic scale), and
    ``low`` must be positive.
    """

    low: int
    high: int

    def __post_init__(self) -> None:
        for name, bound in (("low", self.low), ("high", self.high)):
            if isinstance(bound, bool) or not isinstance(bound, int) or abs(bound) > _MAX_INT:
                raise ConfigurationError(f"{self!r}: {name} ({bound!r}) must be an int from -2**53 to 2**53")
            object.__setattr__(self, name, int(bound))
        _Range.__post_init__(self)

    def __str__(self) -> str:
        return f"an int from {self.low} to {self.high}"

    def check(self, value: Any, name: str) -> None:
        """Returns if the value is an int in the range; a bool or a float is none."""
        if type(value) is not int or not self.low <= value <= self.high:
            raise _refusal(self, value, name)

    @property
    def n_values(self) -> int:
        """How many whole numbers the range has."""
        return self.high - self.low + 1

    def values(self) -> Iterator[int]:
        """The whole numbers, ascending."""
        yield from range(self.low, self.high + 1)

    def _at(self, unit: float) -> int:
        return min(max(round(self._from_unit(unit)), self.low), self.high)

    @property
    def _ends(self) -> tuple[float, float]:
        return self.low - 0.5, self.high + 0.5


@dataclass(frozen=True, slots=True, init=False)
class Choice(Parameter):
    """One of the options, each as likely as the others.

    An option is JSON, or a dict that holds parameters (the point then holds the dict with values in their place). A
    value must tell which option it is, so two dicts of parameters need a constant that differs: ``{"type": "sgd",
    ...}``. A choice of one option is a conditional constant or group: ``Choice({...}, when=...)``.
    """

    options: tuple[Parameter, ...]
    when: When

    def __init__(self, *options: Any, when: When = None) -> None:
        if not options:
            raise ConfigurationError("Choice(): at least one option is required")
        if len(options) == 1 and isinstance(options[0], list | tuple | range) and when is None:
            raise ConfigurationError(f"Choice({options[0]!r}) has one option, the list; write Choice(*{options[0]!r})")
        for option in options:
            if isinstance(option, Parameter):
                raise ConfigurationError(f"Choice: option {option!r} must be JSON or a dict; wrap it in a dict")
        nodes = tuple(_node(option, "Choice: option") for option in options)
        for one, other in combinations(nodes, 2):
            if _overlap(one, other):
                raise ConfigurationError(
                    f"Choice: options {one} and {other} can be the same value; remove one, or give each dict "
                    'a constant that differs, such as {"type": "a", ...} and {"type": "b", ...}'
                )
        object.__setattr__(self, "options", nodes)
        object.__setattr__(self, "when", _conditions(when))

    def __str__(self) -> str:
        return f"one of {', '.join(map(str, self.options))}"

    def sample(self, rng: random.Random) -> Any:
        """An option, its parameters sampled."""
        return rng.choice(self.options).sample(rng)

    def sites(self, value: Any) -> list[Site]:
        """The choice itself, if it has two options or more, and the sites in the chosen one."""
        here: list[Site] = [()] if len(self.options) > 1 else []
        return here + self._option(value).sites(value)

    def mutate(self, value: Any, site: Site, rng: random.Random) -> Any:
        """Another option, its parameters sampled; or the same one, changed at a site within."""
        present = self._option(value)
        if site:
            return present.mutate(value, site, rng)
        return rng.choice([option for option in self.options if option is not present]).sample(rng)

    def check(self, value: Any, name: str) -> None:
        """Returns if an option allows the value; blames a part of it where constants tell which option was meant."""
        if any(option.accepts(value) for option in self.options):
            return
        meant = [option for option in self.options if isinstance(option, _Group) and option.resembles(value)]
        if len(meant) == 1:
            meant[0].check(value, name)
        raise _refusal(self, value, name)

    @property
    def n_values(self) -> int | None:
        """The sum over the options, which share no value."""
        counts = [option.n_values for option in self.options]
        return None if None in counts else sum(count for count in counts if count is not None)

    def values(self) -> Iterator[Any]:
        """The values of the first option, then of the next."""
        for option in self.options:
            yield from option.values()

    def describe(self) -> dict[str, Any]:
        """The options as JSON, in their order."""
        return {"type": "Choice", "options": [option.describe() for option in self.options]}

    def _option(self, value: Any) -> Parameter:
        return next(option for option in self.options if option.accepts(value))


@dataclass(frozen=True, slots=True)
class _Constant(Parameter):
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
        if type(value) is not type(self.value) or not is_json(value) or point_key(value) != self.json:
            raise _refusal(self, value, name)

    @property
    def n_values(self) -> int:
        return 1

    def values(self) -> Iterator[Any]:
        yield self.value

    def describe(self) -> dict[str, Any]:
        return {"type": "constant", "value": copy.deepcopy(self.value)}


class _Group(Parameter):
    """A dict of parameters, without those whose conditions don't hold."""

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
        return self._settled({}, rng)

    def sites(self, value: Point) -> list[Site]:
        return [
            (name, *site) for name, node in self.parameters.items() if name in value for site in node.sites(value[name])
        ]

    def mutate(self, value: Point, site: Site, rng: random.Random) -> Point:
        name, *inner = site
        mutated = self.parameters[name].mutate(value[name], tuple(inner), rng)
        return self._settled({**value, name: mutated}, rng)

    def check(self, value: Any, name: str) -> None:
        if type(value) is not dict:
            raise _refusal(self, value, name or "the point")
        prefix = f"{name}." if name else ""
        for child in value:
            if child not in self.parameters:
                raise PointError(
                    f"{prefix}{child} ({value[child]!r}) must be one of the parameters "
                    f"({', '.join(self.parameters) or 'there is none'}); remove it or add it to the space"
                )
        for child, node in self.parameters.items():
            active = self._is_active(child, value)
            if active and child not in value:
                raise PointError(f"{prefix}{child} (missing) must be {node}; add it to the point")
            if not active and child in value:
                conditions = " and ".join(f"{earlier} is in {list(of)}" for earlier, of in (node.when or {}).items())
                raise PointError(
                    f"{prefix}{child} ({value[child]!r}) must be absent unless {conditions}; remove it from the point"
                )
            if active:
                node.check(value[child], f"{prefix}{child}")

    @property
    def n_values(self) -> int | None:
        """Counted, not listed: of the earlier values, only what later conditions ask about is told apart."""
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
                told_apart = sorted(asked.get(name, ()))
                for key in told_apart:
                    following[*kept, (name, key)] += n_ways
                if n_values > len(told_apart):
                    following[kept] += n_ways * (n_values - len(told_apart))
            if len(following) > _MAX_POINTS:  # each state stands for one value or more
                return None
            ways = following
        return sum(ways.values())

    def values(self) -> Iterator[Point]:
        yield from self._extensions({}, tuple(self.parameters))

    def describe(self) -> dict[str, Any]:
        described = {}
        for name, node in self.parameters.items():
            conditions = {earlier: copy.deepcopy(list(values)) for earlier, values in (node.when or {}).items()}
            described[name] = node.describe() | ({"when": conditions} if conditions else {})
        # Canonical JSON sorts the names, but their order decides which draw goes to which parameter.
        return {"type": "group", "parameters": described, "order": list(self.parameters)}

    def resembles(self, value: Any) -> bool:
        """Whether the value is a dict that holds the constants of this one."""
        return type(value) is dict and all(
            name in value and node.accepts(value[name])
            for name, node in self.parameters.items()
            if isinstance(node, _Constant)
        )

    def parts_from(self, other: _Group) -> bool:
        """Whether it always holds a name that the other never has, or a constant that the other can't have there."""
        for name, node in self.parameters.items():
            if not self.conditions[name]:
                there = other.parameters.get(name)
                if there is None or (isinstance(node, _Constant) and not there.accepts(node.value)):
                    return True
        return False

    def _keys(self, child: str, earlier: str, values: Sequence[Any]) -> frozenset[str]:
        """What the condition of ``child`` on ``earlier`` allows."""
        controller = self.parameters.get(earlier)
        if controller is None:
            raise ConfigurationError(
                f"{child}: when names {earlier!r}, which must be an earlier parameter of the same dict "
                f"({', '.join(self.parameters) or 'there is none'}); reorder them or correct the name"
            )
        for value in values:
            if not controller.accepts(value):
                raise ConfigurationError(
                    f"{child}: when asks for {earlier} = {value!r}, which must be {controller}; correct it"
                )
        return frozenset(controller.key(value) for value in values)

    def _is_active(self, name: str, value: Point) -> bool:
        return all(
            earlier in value and self.parameters[earlier].key(value[earlier]) in keys
            for earlier, keys in self.conditions[name].items()
        )

    def _settled(self, partial: Point, rng: random.Random) -> Point:
        """What is active, taken from ``partial`` or else sampled."""
        settled: Point = {}
        for name, node in self.parameters.items():
            if self._is_active(name, settled):
                settled[name] = partial[name] if name in partial else node.sample(rng)
        return settled

    def _extensions(self, partial: Point, names: Sequence[str]) -> Iterator[Point]:
        """Each value that starts as ``partial`` and goes on with these names."""
        if not names:
            yield partial
        elif not self._is_active(names[0], partial):
            yield from self._extensions(partial, names[1:])
        else:
            for value in self.parameters[names[0]].values():
                yield from self._extensions({**partial, names[0]: value}, names[1:])


class ParameterSpace(Space):
    """The points that hold a value for each name; a plain JSON value is a constant, a dict a sub-space.

    Example: ``ParameterSpace({"lr": Float(1e-4, 1e-1, log=True), "batch_size": 64})``.

    Args:
        parameters: By name, in an order in which conditions name earlier parameters only.

    Raises:
        ConfigurationError: a name is no string, a value is no JSON, or a condition can't be.
    """

    def __init__(self, parameters: Mapping[str, Any]) -> None:
        if not isinstance(parameters, Mapping):
            raise ConfigurationError(f"ParameterSpace: parameters ({parameters!r}) must be a dict by name")
        self._root = _Group(parameters, "ParameterSpace")

    def __repr__(self) -> str:
        return f"ParameterSpace({self._root})"

    def sample(self, rng: random.Random) -> Point:
        """A random point: uniform over each range (or its logarithm) and over the options of each choice."""
        return copy.deepcopy(self._root.sample(rng))

    def mutate(self, point: Point, rng: random.Random) -> Point:
        """A point in which one parameter, any as likely as the others, has another value.

        A number moves by a Gaussian step (standard deviation 0.2 of its range, or log range), clipped; a choice takes
        another option. What becomes active by it is sampled, all else keeps its value.
        """
        self.validate(point)
        sites = self._root.sites(point)
        if not sites:
            raise SpaceExhaustedError(f"the space holds no point but {point}; give a parameter a second value")
        return copy.deepcopy(self._root.mutate(point, rng.choice(sites), rng))

    def validate(self, point: Point) -> None:
        """Returns if each active parameter has an allowed value, and there is nothing else."""
        self._root.check(point, "")

    def describe(self) -> dict[str, Any]:
        """The parameters with their conditions, by name, and the order of the names."""
        return {**self._root.describe(), "type": "ParameterSpace"}

    @property
    def n_points(self) -> int | None:
        """How many points there are; None for more than 1,000,000, or if a `Float` has more than one value."""
        return self._n_points if self._n_points is not None and self._n_points <= _MAX_POINTS else None

    def points(self) -> Iterator[Point]:
        """Each point once, the last parameter fastest; also if they are finite but too many for `n_points`."""
        if self._n_points is None:
            raise ConfigurationError(
                "the points of the space can't be listed: a Float has more than one value; use a Choice in its place"
            )
        return (copy.deepcopy(point) for point in self._root.values())

    @cached_property
    def _n_points(self) -> int | None:
        return self._root.n_values


def _node(value: Any, name: str) -> Parameter:
    if isinstance(value, Parameter):
        return value
    if _holds_parameter(value):
        return _Group(value, name)
    if not is_json(value):
        raise ConfigurationError(
            f"{name}: {value!r} must be JSON (dict, list, str, int, finite float, bool, None) or a dict of parameters; "
            "write a tuple as a list, and a numpy scalar as its .item()"
        )
    return _Constant(copy.deepcopy(value), point_key(value))


def _holds_parameter(value: Any) -> bool:
    return isinstance(value, Mapping) and any(
        isinstance(item, Parameter) or _holds_parameter(item) for item in value.values()
    )


def _overlap(one: Parameter, other: Parameter) -> bool:
    """Whether two options may share a value; for two groups, True may be overcautious, False is certain."""
    if isinstance(one, _Group) and isinstance(other, _Group):
        return not one.parts_from(other) and not other.parts_from(one)
    if isinstance(one, _Constant) and isinstance(other, _Constant):
        return one.json == other.json
    if isinstance(one, _Constant):
        return other.accepts(one.value)
    return isinstance(other, _Constant) and one.accepts(other.value)


def _conditions(when: When) -> dict[str, list[Any]] | None:
    """A copy of the conditions, which must be lists of JSON values by name."""
    if when is None:
        return None
    if not isinstance(when, Mapping) or not all(type(name) is str for name in when):
        raise ConfigurationError(f"when ({when!r}) must be a dict: a parameter's name to a list of its values")
    for name, values in when.items():
        if not isinstance(values, list | tuple | range) or not values or not is_json(list(values)):
            raise ConfigurationError(f"when: {name} ({values!r}) must be a list of at least one JSON value")
        if any(isinstance(value, dict) for value in values):
            raise ConfigurationError(f"when: {name} ({values!r}) can't be a dict; put the parameter inside that dict")
    return {name: copy.deepcopy(list(values)) for name, values in when.items()}


def _refusal(parameter: Parameter, value: Any, name: str) -> PointError:
    return PointError(
        f"{name} ({value!r}, {type(value).__name__}) must be {parameter}; change the point or widen the space"
    )
