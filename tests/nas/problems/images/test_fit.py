"""Augmentation of small images, and training precision."""

from __future__ import annotations

import torch

from nas.problems.images.augmentation import Augmentation


def numbered(n: int, side: int = 9) -> torch.Tensor:
    """Returns images ``(n, 2, side, side)`` with distinct pixels, none of them 0."""
    pixels = 1 + torch.arange(side * side, dtype=torch.uint8).view(1, 1, side, side)
    return torch.cat([pixels, pixels + 100], 1).expand(n, -1, -1, -1).clone()


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_without_augmentation_images_are_unchanged() -> None:
    """Without flip, shift and square the images stay as they are."""
    pixels = numbered(4)

    assert torch.equal(Augmentation(flip=False, shift=0, erase=0).apply(pixels, seeded()), pixels)


def test_about_half_are_mirrored() -> None:
    """A flip mirrors about half of the images, all channels alike."""
    pixels = numbered(400)
    found = Augmentation(flip=True, shift=0, erase=0).apply(pixels, seeded())

    is_same = (found == pixels).flatten(1).all(1)
    is_mirrored = (found == pixels.flip(3)).flatten(1).all(1)
    assert bool((is_same | is_mirrored).all())
    assert 150 < int(is_mirrored.sum()) < 250


def test_shifts_move_and_fill_with_black() -> None:
    """Images move by each allowed number of pixels, and new pixels are 0."""
    pixels = numbered(500)
    found = Augmentation(flip=False, shift=2, erase=0).apply(pixels, seeded())

    moves = set()
    for image in found:
        padded = torch.nn.functional.pad(pixels[0], (2, 2, 2, 2))
        fits = [(y, x) for y in range(5) for x in range(5) if torch.equal(image, padded[:, y : y + 9, x : x + 9])]
        assert len(fits) == 1
        moves.add(fits[0])
    assert len(moves) == 25


def test_a_square_is_erased() -> None:
    """Each image has one zero square, cut at the border; equal seeds give equal squares."""
    pixels = numbered(300)
    change = Augmentation(flip=False, shift=0, erase=4)
    found, again = (change.apply(pixels, seeded(3)) for _ in range(2))

    assert torch.equal(found, again)
    assert torch.equal(pixels, numbered(300))
    is_erased = (found == 0).all(1)  # (n, height, width)
    assert torch.equal((found == 0).any(1), is_erased)
    assert torch.equal(torch.where(is_erased.unsqueeze(1), pixels, found), pixels)
    heights, widths = is_erased.any(2).sum(1), is_erased.any(1).sum(1)
    assert torch.equal(is_erased.sum((1, 2)), heights * widths)
    assert set(heights.tolist()) == set(widths.tolist()) == {2, 3, 4}
