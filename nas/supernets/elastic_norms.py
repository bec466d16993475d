"""Norms of elastic width."""

from __future__ import annotations

from typing import TypeVar, final

from torch import Tensor, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _BatchNorm

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.supernets.elastic import ElasticModule, with_parts
from nas.supernets.sizes import Size, all_sizes, largest

_Norm = TypeVar("_Norm", bound=_BatchNorm)


class _ElasticBatchNorm(_BatchNorm, ElasticModule):
    """A batch norm of elastic width.

    By default it has no running statistics, since those of a supernet fit none of its subnets.

    Args:
        num_features: The channels.
        eps: The number that is added to the variance.
        momentum: The share of a batch in running statistics.
        affine: Whether it scales and shifts channels.
        track_running_stats: Whether it has running statistics, which all sizes change.
    """

    def __init__(
        self,
        num_features: Size,
        eps: float = 1e-5,
        momentum: float = 0.1,
        *,
        affine: bool = True,
        track_running_stats: bool = False,
    ) -> None:
        super().__init__(largest(num_features), eps, momentum, affine, track_running_stats)
        self.declare({"channels": num_features})

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalized channels."""
        self._check_input_dim(x)  # type: ignore[no-untyped-call]
        n = self._chosen["channels"]
        momentum = 0.0 if self.momentum is None else self.momentum
        if self.training and self.track_running_stats and self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
            momentum = 1.0 / float(self.num_batches_tracked) if self.momentum is None else momentum
        keeps = self.track_running_stats or not self.training
        mean, variance, weight, bias = (
            None if tensor is None else tensor[:n]
            for tensor in (
                self.running_mean if keeps else None, self.running_var if keeps else None, self.weight, self.bias,
            )
        )  # fmt: skip
        uses_batch = self.training or self.running_mean is None
        return functional.batch_norm(x, mean, variance, weight, bias, uses_batch, momentum, self.eps)

    def _plain(self, kind: type[_Norm], point: Point) -> _Norm:
        """Returns the batch norm of this kind with the point's channels."""
        n = self.sizes_at(point)["channels"]
        plain = kind(n, self.eps, self.momentum, self.affine, self.track_running_stats, device="meta")
        return with_parts(plain, self)


@final
class ElasticBatchNorm1d(_ElasticBatchNorm, nn.BatchNorm1d):
    """A batch norm of elastic width for inputs ``(batch, channels)`` or ``(batch, channels, length)``."""

    def subnet(self, point: Point) -> nn.BatchNorm1d:
        """Returns the batch norm of the point's channels."""
        return self._plain(nn.BatchNorm1d, point)


@final
class ElasticBatchNorm2d(_ElasticBatchNorm, nn.BatchNorm2d):
    """A batch norm of elastic width for inputs ``(batch, channels, height, width)``."""

    def subnet(self, point: Point) -> nn.BatchNorm2d:
        """Returns the batch norm of the point's channels."""
        return self._plain(nn.BatchNorm2d, point)


@final
class ElasticLayerNorm(nn.LayerNorm, ElasticModule):
    """A layer norm of elastic width over the last dimension.

    Args:
        features: The width.
        eps: The number that is added to the variance.
        bias: Whether it shifts features.
    """

    def __init__(self, features: Size, eps: float = 1e-5, *, bias: bool = True) -> None:
        super().__init__(largest(features), eps, bias=bias)
        self.declare({"features": features})

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalized features."""
        n = self._chosen["features"]
        return functional.layer_norm(x, (n,), self.weight[:n], None if self.bias is None else self.bias[:n], self.eps)

    def subnet(self, point: Point) -> nn.LayerNorm:
        """Returns the layer norm of the point's width."""
        width = self.sizes_at(point)["features"]
        return with_parts(nn.LayerNorm(width, self.eps, bias=self.bias is not None, device="meta"), self)


@final
class ElasticGroupNorm(nn.GroupNorm, ElasticModule):
    """A group norm of elastic width; the number of groups is the same in all sizes.

    Args:
        n_groups: The number of groups, a divisor of each size.
        channels: The channels of its inputs ``(batch, channels, ...)``.
        eps: The number that is added to the variance.

    Raises:
        ConfigurationError: a size is not a multiple of the groups.
    """

    def __init__(self, n_groups: int, channels: Size, eps: float = 1e-5) -> None:
        sizes = [size for (size,) in all_sizes(channels)]
        if any(size % n_groups for size in sizes):
            raise ConfigurationError(
                f"ElasticGroupNorm: n_groups={n_groups}: must divide each of the sizes {sizes}. Choose other sizes."
            )
        super().__init__(n_groups, largest(channels), eps)
        self.declare({"channels": channels})

    def forward(self, x: Tensor) -> Tensor:
        """Returns the channels, normalized in groups."""
        n = self._chosen["channels"]
        return functional.group_norm(x, self.num_groups, self.weight[:n], self.bias[:n], self.eps)

    def subnet(self, point: Point) -> nn.GroupNorm:
        """Returns the group norm of the point's channels."""
        width = self.sizes_at(point)["channels"]
        return with_parts(nn.GroupNorm(self.num_groups, width, self.eps, device="meta"), self)
