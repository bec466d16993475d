"""Learned positions of images are resampled for a grid of another size; those of texts keep their numbers."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nas.inheritance.inherit import inherit
from nas.inheritance.rules import Rules

OWN = Rules(rest="own")


class Patches(nn.Module):
    """Cuts an image into patches."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.proj = nn.Conv2d(3, width, 4, 4)


class Vision(nn.Module):
    """The first layers of a vision transformer, with positions as a parameter or as an embedding."""

    def __init__(self, side: int, n_class: int = 1, width: int = 2, *, is_embedding: bool = False) -> None:
        super().__init__()
        self.patch_embed = Patches(width)
        if is_embedding:
            self.position_embedding = nn.Embedding(n_class + side * side, width)
        else:
            self.pos_embed = nn.Parameter(torch.randn(1, n_class + side * side, width))


class Oblong(Vision):
    """A vision transformer of images that are no squares."""

    grid_size = (2, 8)


class Text(nn.Module):
    """The embeddings of a text."""

    def __init__(self, n_positions: int) -> None:
        super().__init__()
        self.tokens, self.pos_embed = nn.Embedding(9, 2), nn.Parameter(torch.randn(1, n_positions, 2))


class TextAndImage(Text):
    """The embeddings of a text, beside those of patches."""

    def __init__(self, n_positions: int) -> None:
        super().__init__(n_positions)
        self.patch_embed = Patches(2)


class Window(nn.Module):
    """The biases of a window's offsets."""

    def __init__(self, side: int, n_heads: int, n_class: int = 0) -> None:
        super().__init__()
        n_offsets = (2 * side - 1) ** 2 + n_class
        self.relative_position_bias_table = nn.Parameter(torch.randn(n_offsets, n_heads))


def positions_of(model: Any) -> Tensor:
    """Returns the positions of a vision transformer, ``(positions, width)``."""
    found: Tensor = model.position_embedding.weight if hasattr(model, "position_embedding") else model.pos_embed[0]
    return found.detach()


@pytest.mark.parametrize("is_embedding", [False, True])
@pytest.mark.parametrize("n_class", [0, 1, 2])
@pytest.mark.parametrize(("side", "other"), [(2, 3), (4, 2), (3, 6)])
def test_positions_of_images_are_resampled(side: int, other: int, n_class: int, is_embedding: bool) -> None:
    """Rows and columns of the child's grid go from the donor's first to its last; class tokens stay."""
    donor = Vision(side, n_class, is_embedding=is_embedding)
    child = Vision(other, n_class, width=3, is_embedding=is_embedding)
    steps = torch.linspace(0, 1, side + 1)[:-1] + 0.5 / side  # the middles of the patches
    grid = torch.stack(torch.meshgrid(steps, steps, indexing="ij"), -1).flatten(0, 1)
    positions_of(donor)[n_class:] = grid
    report = inherit(child, [donor.state_dict()], rules=OWN)

    name = "position_embedding.weight" if is_embedding else "pos_embed"
    assert report.tensors[name].why.endswith("resampled")
    assert torch.equal(positions_of(child)[:n_class, :2], positions_of(donor)[:n_class])
    found = positions_of(child)[n_class:, :2].unflatten(0, (other, other))
    expected = (torch.arange(other) + 0.5) / other
    expected = expected.clamp(steps[0], steps[-1])
    torch.testing.assert_close(found[..., 0], expected[:, None].expand(other, other))
    torch.testing.assert_close(found[..., 1], expected.expand(other, other))


def test_positions_of_texts_keep_their_numbers() -> None:
    """Positions in a model without patches, or beside symbols, are sliced from the first on."""
    for kind in (Text, TextAndImage):
        donor, child = kind(5), kind(10)
        report = inherit(child, [donor], rules=OWN)

        assert torch.equal(child.pos_embed[:, :5], donor.pos_embed)
        assert report.tensors["pos_embed"].share == 0.5


@pytest.mark.parametrize(
    ("donor", "child"),
    [
        (lambda: Vision(2, 0), lambda: Vision(3, 1)),
        (lambda: Vision(4, 0), lambda: Oblong(2, 0)),
    ],
)
def test_positions_without_a_common_square_stay_new(
    donor: Callable[[], nn.Module], child: Callable[[], nn.Module]
) -> None:
    """With other class tokens, or a grid that is no square, positions of another number are not inherited."""
    report = inherit(child(), [donor()])

    assert report.tensors["pos_embed"].how == "new"
    assert "positions of images in no square grid" in report.tensors["pos_embed"].why


@pytest.mark.parametrize("n_class", [0, 3])
def test_offsets_in_a_window_are_resampled(n_class: int) -> None:
    """A relative bias follows its offset, and heads keep their columns; BEiT's class offsets stay last."""
    donor, child = Window(2, 2, n_class), Window(3, 3, n_class)
    table = donor.relative_position_bias_table.data
    table[:9] = torch.arange(-1.0, 2).repeat(3)[:, None]  # the offset between columns
    inherit(child, [donor], rules=OWN)

    found = child.relative_position_bias_table.data
    grid = found[:25, :2].view(5, 5, 2)
    assert torch.equal(grid, grid[:1].expand_as(grid))
    assert (grid[:, 2] == 0).all()
    assert (grid[:, 1:] >= grid[:, :-1]).all()
    assert torch.equal(found[25:, :2], table[9:])
