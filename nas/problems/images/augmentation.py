"""Random changes of training images that keep their class."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional


@dataclass(frozen=True, slots=True, kw_only=True)
class Augmentation:
    """The random changes of each image in a batch.

    Attributes:
        flip: Whether an image is mirrored, left for right, with probability 0.5.
        shift: Most pixels that an image is moved along each axis. The free border is 0.
        erase: The side of a random square that is set to 0 (DeVries and Taylor 2017, arXiv:1708.04552, "Cutout").
    """

    flip: bool
    shift: int
    erase: int

    def apply(self, pixels: Tensor, generator: torch.Generator) -> Tensor:
        """Returns changed images of the same shape.

        Args:
            pixels: uint8 ``(n, channels, height, width)``; is not changed.
            generator: A CPU generator, so that the changes are the same on any device.
        """
        n, _, height, width = pixels.shape

        def drawn(high: int) -> Tensor:
            return torch.randint(high, (n, 1), generator=generator).to(pixels.device)

        rows, columns = (torch.arange(side, device=pixels.device) for side in (height, width))
        of_row = rows + drawn(2 * self.shift + 1)  # (n, height), in the padded image
        of_column = columns + drawn(2 * self.shift + 1)
        if self.flip:
            of_column = torch.where(drawn(2) == 1, of_column.flip(1), of_column)
        padded = functional.pad(pixels, (self.shift,) * 4)
        images = torch.arange(n, device=pixels.device).view(n, 1, 1)
        moved = padded.movedim(1, -1)[
            images, of_row.unsqueeze(2), of_column.unsqueeze(1)
        ]  # (n, height, width, channels)
        if self.erase:
            in_rows = _is_between(rows, drawn(height) - self.erase // 2, self.erase)
            in_columns = _is_between(columns, drawn(width) - self.erase // 2, self.erase)
            moved.masked_fill_((in_rows.unsqueeze(2) & in_columns.unsqueeze(1)).unsqueeze(3), 0)
        return moved.movedim(-1, 1)


def _is_between(places: Tensor, low: Tensor, n: int) -> Tensor:
    """Returns ``(images, places)``: whether a place is one of the ``n`` from ``low`` on."""
    return (places >= low) & (places < low + n)
