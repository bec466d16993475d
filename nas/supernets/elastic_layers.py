"""Linear layers, embeddings and convolutions of elastic size."""

from __future__ import annotations

from typing import final

from torch import Tensor, nn
from torch.nn import functional

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.supernets.elastic import ElasticModule, part_of, with_parts
from nas.supernets.sizes import Size, all_sizes, largest


@final
class ElasticLinear(nn.Linear, ElasticModule):
    """A linear layer of elastic width. Inputs have the shape ``(..., in_features)``.

    Args:
        in_features: The width of its inputs.
        out_features: The width of its outputs.
        bias: Whether it adds a bias.
    """

    def __init__(self, in_features: Size, out_features: Size, *, bias: bool = True) -> None:
        super().__init__(largest(in_features), largest(out_features), bias=bias)
        self.declare({"in": in_features, "out": out_features})

    def forward(self, x: Tensor) -> Tensor:
        """Returns the first outputs, of the first inputs."""
        n_out = self._chosen["out"]
        bias = None if self.bias is None else self.bias[:n_out]
        return functional.linear(x, self.weight[:n_out, : self._chosen["in"]], bias)

    def subnet(self, point: Point) -> nn.Linear:
        """Returns the linear layer of the point's widths."""
        sizes = self.sizes_at(point)
        plain = nn.Linear(sizes["in"], sizes["out"], bias=self.bias is not None, device="meta")
        return with_parts(plain, self)


@final
class ElasticEmbedding(nn.Embedding, ElasticModule):
    """An embedding of elastic width.

    Args:
        num_embeddings: The number of vectors.
        embedding_dim: The width of a vector.
    """

    def __init__(self, num_embeddings: int, embedding_dim: Size) -> None:
        super().__init__(num_embeddings, largest(embedding_dim))
        self.declare({"width": embedding_dim})

    def forward(self, input: Tensor) -> Tensor:
        """Returns the first features of the vectors with these indices."""
        return functional.embedding(input, self.weight[:, : self._chosen["width"]])

    def subnet(self, point: Point) -> nn.Embedding:
        """Returns the embedding of the point's width."""
        return with_parts(nn.Embedding(self.num_embeddings, self.sizes_at(point)["width"], device="meta"), self)


@final
class ElasticConv2d(nn.Conv2d, ElasticModule):
    """A convolution of elastic width and kernel size.

    Its padding keeps the size of images at stride 1.

    Args:
        in_channels: The channels of its inputs.
        out_channels: The channels of its outputs.
        kernel_size: The width and height of its kernel: odd numbers.
        stride: The step between outputs, in pixels.
        bias: Whether it adds a bias.
        depthwise: Whether each channel is convolved alone. Then inputs and outputs must have the same size.

    Raises:
        ConfigurationError: a kernel size is even, or a depthwise convolution changes the channels.
    """

    def __init__(
        self,
        in_channels: Size,
        out_channels: Size,
        kernel_size: Size = 3,
        *,
        stride: int = 1,
        bias: bool = True,
        depthwise: bool = False,
    ) -> None:
        if any(kernel % 2 == 0 for (kernel,) in all_sizes(kernel_size)):
            raise ConfigurationError(
                f"ElasticConv2d: kernel_size={kernel_size}: must be odd numbers. Others change the size of images."
            )
        if depthwise and in_channels != out_channels:
            raise ConfigurationError(
                f"ElasticConv2d: depthwise=True: must have in_channels={in_channels} also as out_channels, "
                f"not {out_channels}. Follow it by a convolution of kernel size 1."
            )
        n_in, kernel = largest(in_channels), largest(kernel_size)
        groups = n_in if depthwise else 1
        super().__init__(n_in, largest(out_channels), kernel, stride, kernel // 2, groups=groups, bias=bias)
        self.is_depthwise = depthwise
        self.declare({"in": in_channels, "out": out_channels, "kernel": kernel_size})

    def forward(self, x: Tensor) -> Tensor:
        """Returns the first output channels, by the middle of the kernel."""
        n_in, n_out, kernel = (self._chosen[name] for name in ("in", "out", "kernel"))
        weight = part_of(self.weight, (n_out, 1 if self.is_depthwise else n_in, kernel, kernel))
        bias = None if self.bias is None else self.bias[:n_out]
        return functional.conv2d(x, weight, bias, self.stride, kernel // 2, groups=n_in if self.is_depthwise else 1)

    def subnet(self, point: Point) -> nn.Conv2d:
        """Returns the convolution of the point's widths and kernel size."""
        sizes = self.sizes_at(point)
        groups = sizes["in"] if self.is_depthwise else 1
        plain = nn.Conv2d(
            sizes["in"], sizes["out"], sizes["kernel"], self.stride[0], sizes["kernel"] // 2,
            groups=groups, bias=self.bias is not None, device="meta",
        )  # fmt: skip
        return with_parts(plain, self)
