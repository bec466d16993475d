"""The typed layers of a network: their attributes and output shapes.

A shape is ``(channels, height, width)`` of an image or ``(features,)`` of a vector, without the batch. Convolutions and
pools pad by ``(kernel - 1) // 2``: an odd kernel with stride s turns n pixels into ceil(n / s).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import lru_cache
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from nas.core.errors import PointError
from nas.core.validation import closest_names, short_repr

Shape: TypeAlias = tuple[int, ...]
Activations = Literal["relu", "prelu"]

MAX_SIZE = 65_536
"""The greatest number of channels, features, pixels of a side, or pixels of a stride."""
MAX_KERNEL = 31


class ReasonError(PointError):
    """The reason why a layer is invalid; network and operation add the node's name."""


@dataclass(frozen=True, slots=True)
class Layer(ABC):
    """One layer: its kind (``op``) and its attributes (the fields).

    Raises:
        ReasonError: an attribute is not allowed.
    """

    op: ClassVar[str]
    joins: ClassVar[bool] = False
    """Whether it takes two or more inputs; other layers take one."""
    is_symmetric: ClassVar[bool] = False
    """Whether the order of its inputs makes no difference."""

    @abstractmethod
    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns the shape of its output.

        Raises:
            ReasonError: it can't take these inputs.
        """

    def flops(self, inputs: Sequence[Shape]) -> int:
        """Returns the FLOPs of one example, two for each multiplication, as torch counts them."""
        return 0

    def to_json(self) -> dict[str, Any]:
        """Returns ``op`` and the attributes."""
        return {"op": self.op, **{field.name: getattr(self, field.name) for field in fields(self)}}

    @property
    def text(self) -> str:
        """The layer as text, for people and digests: ``conv(channels=32,kernel=3,stride=1,bias=False)``."""
        return _text(self)


@lru_cache(maxsize=65_536)
def _text(layer: Layer) -> str:
    attributes = ",".join(f"{field.name}={getattr(layer, field.name)}" for field in fields(layer))
    return f"{layer.op}({attributes})"


@dataclass(frozen=True, slots=True)
class Conv(Layer):
    """A padded convolution of an image; its input channels follow from the graph."""

    op: ClassVar[str] = "conv"
    channels: int
    kernel: int
    stride: int = 1
    bias: bool = True

    def __post_init__(self) -> None:
        _check_size("channels", self.channels)
        _check_size("kernel", self.kernel, MAX_KERNEL)
        if self.kernel % 2 == 0:
            raise ReasonError(f"kernel={self.kernel}: must be odd, from 1 to {MAX_KERNEL}. Add or take 1.")
        _check_size("stride", self.stride)
        _check_bool("bias", self.bias)

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns ``(channels, ceil(height / stride), ceil(width / stride))``."""
        _, height, width = _image(self, inputs[0])
        return self.channels, math.ceil(height / self.stride), math.ceil(width / self.stride)

    def flops(self, inputs: Sequence[Shape]) -> int:
        """Returns two FLOPs for each weight and output value."""
        return 2 * math.prod(self.shape(inputs)) * inputs[0][0] * self.kernel**2


@dataclass(frozen=True, slots=True)
class Linear(Layer):
    """A linear layer over a vector."""

    op: ClassVar[str] = "linear"
    features: int
    bias: bool = True

    def __post_init__(self) -> None:
        _check_size("features", self.features)
        _check_bool("bias", self.bias)

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns ``(features,)``."""
        if len(inputs[0]) != 1:
            raise ReasonError(f"its input {inputs[0]} must be a vector. Put a flatten or a global_pool before it.")
        return (self.features,)

    def flops(self, inputs: Sequence[Shape]) -> int:
        """Returns two FLOPs for each weight."""
        return 2 * self.features * inputs[0][0]


@dataclass(frozen=True, slots=True)
class Norm(Layer):
    """Batch-norm, with a learned weight and bias for each channel."""

    op: ClassVar[str] = "norm"

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns the shape of its input."""
        return inputs[0]


@dataclass(frozen=True, slots=True)
class Activation(Layer):
    """``relu``, or ``prelu`` with a learned slope for each channel (He et al. 2015, arXiv:1502.01852)."""

    op: ClassVar[str] = "activation"
    kind: Activations = "relu"

    def __post_init__(self) -> None:
        if self.kind not in get_args(Activations):
            raise ReasonError(
                f"kind={short_repr(self.kind)}: must be one of {', '.join(get_args(Activations))}. Choose one."
            )

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns the shape of its input."""
        return inputs[0]


@dataclass(frozen=True, slots=True)
class Scale(Layer):
    """A learned factor for each channel, 0 at first (ReZero, Bachlechner et al. 2020, arXiv:2003.04887)."""

    op: ClassVar[str] = "scale"

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns the shape of its input."""
        return inputs[0]


@dataclass(frozen=True, slots=True)
class Pool(Layer):
    """The maximum or the mean (without padding) of each window of each channel."""

    op: ClassVar[str] = "pool"
    kind: Literal["max", "mean"]
    kernel: int
    stride: int

    def __post_init__(self) -> None:
        if self.kind not in ("max", "mean"):
            raise ReasonError(f"kind={short_repr(self.kind)}: must be one of max, mean. Choose one.")
        _check_size("kernel", self.kernel, MAX_KERNEL)
        _check_size("stride", self.stride)

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns ``(channels, (height + 2 * padding - kernel) // stride + 1, ...)``."""
        channels, *sides = _image(self, inputs[0])
        padded = [side + 2 * ((self.kernel - 1) // 2) - self.kernel for side in sides]
        if min(padded) < 0:
            raise ReasonError(f"kernel={self.kernel}: is larger than its input {inputs[0]}. Make it smaller.")
        return channels, *(side // self.stride + 1 for side in padded)


@dataclass(frozen=True, slots=True)
class GlobalPool(Layer):
    """The mean of each channel: an image becomes a vector."""

    op: ClassVar[str] = "global_pool"

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns ``(channels,)``."""
        return _image(self, inputs[0])[:1]


@dataclass(frozen=True, slots=True)
class Flatten(Layer):
    """All pixels of an image as a vector, channel by channel."""

    op: ClassVar[str] = "flatten"

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns ``(channels * height * width,)``."""
        return (math.prod(_image(self, inputs[0])),)


@dataclass(frozen=True, slots=True)
class Add(Layer):
    """The sum of its inputs."""

    op: ClassVar[str] = "add"
    joins: ClassVar[bool] = True
    is_symmetric: ClassVar[bool] = True

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns the shape of each of its inputs."""
        if len({*inputs}) != 1:
            raise ReasonError(f"its inputs {' and '.join(map(str, inputs))} must have the same shape. Make them equal.")
        return inputs[0]


@dataclass(frozen=True, slots=True)
class Concat(Layer):
    """The channels of all its inputs, in order."""

    op: ClassVar[str] = "concat"
    joins: ClassVar[bool] = True

    def shape(self, inputs: Sequence[Shape]) -> Shape:
        """Returns ``(sum of the channels, height, width)``."""
        if len({shape[1:] for shape in inputs}) != 1:
            shapes = " and ".join(map(str, inputs))
            raise ReasonError(f"its inputs {shapes} must have the same height and width; pool the larger")
        return sum(shape[0] for shape in inputs), *inputs[0][1:]


LAYERS: dict[str, type[Layer]] = {
    layer.op: layer for layer in (Conv, Linear, Norm, Activation, Scale, Pool, GlobalPool, Flatten, Add, Concat)
}


def layer_from_json(data: Mapping[str, Any]) -> Layer:
    """Returns the layer of ``op`` and its attributes, all of which must be given.

    Raises:
        ReasonError: the layer is invalid.
    """
    op = data.get("op")
    if not isinstance(op, str) or op not in LAYERS:
        raise ReasonError(f"op={short_repr(op)}: must be one of {closest_names(str(op), LAYERS)}")
    kind = LAYERS[op]
    names = [field.name for field in fields(kind)]
    attributes = {name: value for name, value in data.items() if name != "op"}
    if strange := [name for name in attributes if name not in names]:
        allowed = ", ".join(names) or "no attribute"
        raise ReasonError(f"{strange[0]}={short_repr(attributes[strange[0]])}: unknown, it has {allowed}. Remove it.")
    if missing := [name for name in names if name not in attributes]:
        raise ReasonError(f"{missing[0]} (missing) must be given. Add it.")
    return kind(**attributes)


def _image(layer: Layer, shape: Shape) -> Shape:
    if len(shape) != 3:
        raise ReasonError(f"its input {shape} must be an image (channels, height, width). Put the {layer.op} earlier.")
    return shape


def _check_size(name: str, value: object, most: int = MAX_SIZE) -> None:
    if type(value) is not int or not 1 <= value <= most:
        raise ReasonError(f"{name}={short_repr(value)}: must be a whole number from 1 to {most}")


def _check_bool(name: str, value: object) -> None:
    if type(value) is not bool:
        raise ReasonError(f"{name}={short_repr(value)}: must be true or false")
