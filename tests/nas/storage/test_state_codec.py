"""Nested state becomes JSON and tensors, and comes back with equal types and bits; other values are refused."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict, defaultdict, namedtuple
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from nas.core.errors import ConfigurationError, CorruptError
from nas.storage.state_codec import decode_state, encode_state


def back(value: object) -> Any:
    """Returns the value after a round trip through JSON text and tensors with memory of their own."""
    tensors: dict[str, torch.Tensor] = {}
    tree = json.loads(json.dumps(encode_state(value, "value", tensors), allow_nan=False))
    return decode_state(tree, {name: tensor.contiguous().clone() for name, tensor in tensors.items()})


def same(one: object, other: object) -> bool:
    """Returns whether two values are equal, in type and to the bit."""
    if type(one) is not type(other):
        return False
    match one:
        case dict():
            assert isinstance(other, dict)
            return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
        case list() | tuple():
            assert isinstance(other, list | tuple)
            return len(one) == len(other) and all(map(same, one, other))
        case float():
            return repr(one) == repr(other)
        case torch.Tensor():
            assert isinstance(other, torch.Tensor)
            facts = [(t.dtype, t.shape, t.stride(), bytes_of(t)) for t in (one, other)]
            return facts[0] == facts[1]
        case np.ndarray() | np.generic():
            assert isinstance(other, np.ndarray | np.generic)
            return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
    return one == other


def bytes_of(tensor: torch.Tensor) -> bytes:
    return tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
KEYS = st.none() | st.booleans() | st.integers() | st.text() | st.tuples(st.integers(), st.text())
TREES = st.recursive(
    SCALARS | st.integers(0, 9).map(lambda n: torch.arange(float(n))) | st.floats(width=32).map(np.float32),
    lambda inner: st.lists(inner) | st.lists(inner).map(tuple) | st.dictionaries(KEYS, inner),
    max_leaves=20,
)


@given(TREES)
def test_encoded_state_comes_back(value: object) -> None:
    """Nested dicts, lists and tuples of numbers, text, tensors and scalars come back in type and to the bit."""
    assert same(back(value), value)


TENSORS = [
    torch.tensor(3.5),
    torch.tensor([-0.0, math.inf, math.nan, 1e-45]),
    torch.zeros(0, 3),
    torch.tensor([True, False]),
    torch.arange(6, dtype=torch.bfloat16).reshape(2, 3),
    torch.tensor([1 + 2j]),
    torch.arange(24.0).reshape(1, 4, 3, 2).to(memory_format=torch.channels_last),
    nn.Conv2d(8, 4, 1).to(memory_format=torch.channels_last).weight.detach(),
    torch.arange(6.0).reshape(2, 3).T,
]


@pytest.mark.parametrize("tensor", TENSORS, ids=lambda tensor: f"{tensor.dtype}{list(tensor.shape)}")
def test_tensors_keep_their_layout(tensor: torch.Tensor) -> None:
    """A tensor that fills its memory in another order than row-major keeps that order."""
    assert same(back(tensor), tensor)


def test_part_of_a_tensor_is_packed() -> None:
    """A tensor with gaps, or with one element in several places, comes back row-major."""
    whole = torch.arange(12.0).reshape(3, 4)

    assert same(back(whole[:, :2]), whole[:, :2].contiguous())
    assert same(back(whole[:1].expand(3, 4)), whole[:1].expand(3, 4).contiguous())


def test_parameters_come_back_as_tensors() -> None:
    """A parameter comes back as a plain tensor of its values."""
    found = back(nn.Parameter(torch.ones(2)))

    assert same(found, torch.ones(2))
    assert not found.requires_grad


ARRAYS = [np.arange(6, dtype=np.uint32)[::-2], np.zeros((0, 2)), np.array(2.5), np.float64(1 / 3), np.bool_(True)]


@pytest.mark.parametrize("array", ARRAYS, ids=repr)
def test_arrays_and_their_scalars(array: np.ndarray | np.generic) -> None:
    """Arrays, also read-only and reversed ones, and numpy's scalars come back."""
    if isinstance(array, np.ndarray):
        array.flags.writeable = False

    assert same(back(array), array)


def test_kinds_of_dicts() -> None:
    """A Counter, which MultiStepLR keeps, comes back as one; a module's state_dict as a plain dict."""
    assert same(back(Counter([30, 80, 30])), Counter([30, 80, 30]))
    assert same(back(OrderedDict(a=1)), {"a": 1})
    assert same(back(torch.Size([2, 3])), (2, 3))


Pair = namedtuple("Pair", "a b")

REFUSED: list[tuple[object, str]] = [
    ({"state": [{"hook": print}]}, r"^value\['state'\]\[0\]\['hook'\] is of type builtins.builtin_function"),
    ({3: {1, 2}}, r"^value\[3\] is of type builtins.set: "),
    (Pair(1, 2), "Pair: "),
    (defaultdict(list), "defaultdict: "),
    ([b"bytes"], r"^value\[0\] is of type builtins.bytes: "),
    (np.array([object()]), "^value is an array of object: "),
    (np.array(["text"]), "^value is an array of <U4: "),
    (np.arange(3).astype(">i4"), "^value is an array of >i4: "),
    (np.ma.masked_array([1.0, 2.0], [0, 1]), "^value is of type numpy.ma.*MaskedArray: "),
    (np.rec.array([(1, 2.0)]), "^value is of type numpy.*recarray: "),
    ({nn.ReLU(): 1}, r"^key ReLU\(\) of value is of type torch"),
    ({torch.ones(1): 1}, r"^key tensor\(\[1.\]\) of value must be a number, text, None, or a tuple of them"),
]


@pytest.mark.parametrize(("value", "line"), REFUSED, ids=[line for _, line in REFUSED])
def test_values_that_need_pickling_are_refused(value: object, line: str) -> None:
    """What is neither JSON nor a tensor is refused by its key and type, with a remedy."""
    with pytest.raises(ConfigurationError, match=line):
        encode_state(value, "value", {})


def test_subclass_of_tensor_is_refused() -> None:
    """A subclass of Tensor is refused, not turned into a plain tensor."""

    class Scaled(torch.Tensor):
        pass

    with pytest.raises(ConfigurationError, match=r"^value\['w'\] is of type .*Scaled: make it a plain tensor first"):
        encode_state({"w": torch.ones(2).as_subclass(Scaled)}, "value", {})


def test_tensors_are_named_by_their_place() -> None:
    """Tensors have distinct names by their place, whatever the keys are."""
    tensors: dict[str, torch.Tensor] = {}
    encode_state({"a": {"b": torch.ones(1), 0: torch.ones(1), "0": torch.ones(1)}}, "part 1 (SGD)", tensors)

    assert list(tensors) == ["part 1 (SGD)['a']['b']", "part 1 (SGD)['a'][0]", "part 1 (SGD)['a']['0']"]


TENSOR = {"t": torch.ones(2, 3)}
FORGED: Sequence[Any] = [
    {"tensor": "other"},
    {"array": "other"},
    {"tensor": ["t"]},
    {"tensor": "t", "strides": [1]},
    {"tensor": "t", "strides": [0, 0]},
    {"tensor": "t", "strides": [10**12, 1]},
    {"tensor": "t", "strides": [-3, 1]},
    {"tensor": "t", "strides": "31"},
    {"float": "1e999"},
    {"dict": [["a"]]},
    {"dict": [[[], 1]]},
    {"dict": "ab"},
    {"counter": [[{"tensor": "t"}, 1]]},
    {"tuple": {}},
    {"object": "os.system"},
    {},
]


@pytest.mark.parametrize("tree", FORGED, ids=repr)
def test_forged_state_is_refused(tree: Any) -> None:
    """JSON that encode_state does not write is refused, also when nested, before memory is allocated."""
    for forged in (tree, [tree], {"dict": [["a", tree]]}):
        with pytest.raises(CorruptError):
            decode_state(forged, TENSOR)


def sgd(parameters: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, 0.1, momentum=0.9, nesterov=True)


OPTIMIZERS: list[Callable[[Any], torch.optim.Optimizer]] = [
    sgd,
    lambda p: torch.optim.Adam(p, torch.tensor(0.01), amsgrad=True),
    lambda p: torch.optim.AdamW(p, 0.01, fused=True),
    torch.optim.Adadelta,
    torch.optim.Adagrad,
    torch.optim.Adamax,
    torch.optim.ASGD,
    torch.optim.LBFGS,
    torch.optim.NAdam,
    torch.optim.RAdam,
    torch.optim.RMSprop,
    torch.optim.Rprop,
    torch.optim.Adafactor,
]


@pytest.mark.parametrize("make", OPTIMIZERS, ids=lambda make: getattr(make, "__name__", "made"))
def test_torchs_optimizers(make: Callable[[Any], torch.optim.Optimizer]) -> None:
    """The state of each of torch's optimizers comes back unchanged."""
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.Flatten(), nn.Linear(16, 2))
    if make is not torch.optim.LBFGS:  # which refuses it
        model.to(memory_format=torch.channels_last)
    optimizer = make(model.parameters())

    def closure() -> torch.Tensor:
        optimizer.zero_grad()
        loss = model(torch.ones(3, 2, 4, 4)).square().sum()
        loss.backward()
        return loss

    for _ in range(3):
        optimizer.step(closure)  # type: ignore[arg-type]

    assert optimizer.state_dict()["state"]
    assert same(back(optimizer.state_dict()), optimizer.state_dict())


schedulers = torch.optim.lr_scheduler
SCHEDULES: list[Callable[[torch.optim.Optimizer], Any]] = [
    lambda o: schedulers.StepLR(o, 2),
    lambda o: schedulers.MultiStepLR(o, [2, 3, 3]),
    lambda o: schedulers.OneCycleLR(o, 0.1, total_steps=9),
    lambda o: schedulers.CyclicLR(o, 0.1, 0.2, scale_fn=lambda x: x, scale_mode="cycle"),
    lambda o: schedulers.CosineAnnealingWarmRestarts(o, 3),
    lambda o: schedulers.LambdaLR(o, lambda step: 0.9**step),
    lambda o: schedulers.ReduceLROnPlateau(o),
    lambda o: schedulers.SequentialLR(o, [schedulers.ConstantLR(o), schedulers.ExponentialLR(o, 0.9)], [1]),
    lambda o: schedulers.ChainedScheduler([schedulers.LinearLR(o), schedulers.PolynomialLR(o, 5)]),
    lambda o: torch.optim.swa_utils.SWALR(o, 0.05),
]


@pytest.mark.parametrize("make", SCHEDULES, ids=range(len(SCHEDULES)))
def test_torchs_schedules(make: Callable[[torch.optim.Optimizer], Any]) -> None:
    """The state of torch's schedules comes back, except for functions, which torch itself leaves out."""
    optimizer = sgd(nn.Linear(1, 1).parameters())
    schedule = make(optimizer)
    for _ in range(2):
        optimizer.step()
        schedule.step(1.0) if isinstance(schedule, schedulers.ReduceLROnPlateau) else schedule.step()

    assert same(back(schedule.state_dict()), schedule.state_dict())
