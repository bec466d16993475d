"""Handwritten digits, 8x8: the default problem. It needs no file and trains in seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, final

import torch

from nas.core.validation import check_seed
from nas.inheritance.rules import Rules
from nas.problems.images.fit import Recipe
from nas.problems.images.image_problem import ImageProblem
from nas.problems.images.pixels import Images
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace

_WIDTHS = (8, 16, 24, 32)


@final
class DigitsProblem(ImageProblem):
    """The 1,797 handwritten digits that come with scikit-learn (UCI Optical Recognition of Handwritten Digits).

    Args:
        split_seed: The seed of the split: 60 % training, 20 % validation, 20 % test, the same shares in each class.
        objectives: ``accuracy`` and others of ``ImageProblem.OBJECTIVES``; None: accuracy alone.
        rules: Inheritance rules by name (`nas.inheritance.rules`); None: the defaults.
        lanes: Cheap trials that train at once as one stack of networks, for ``runner=threads`` on a GPU.
    """

    space = ParameterSpace(
        {
            "n_blocks": Int(1, 3),
            "width_1": Choice(*_WIDTHS),
            "kernel_1": Choice(3, 5),
            "width_2": Choice(*_WIDTHS, when={"n_blocks": [2, 3]}),
            "kernel_2": Choice(1, 3, 5, when={"n_blocks": [2, 3]}),
            "width_3": Choice(*_WIDTHS, when={"n_blocks": [3]}),
            "kernel_3": Choice(1, 3, 5, when={"n_blocks": [3]}),
            "norm": Choice("batch", "group"),
            "dropout": Float(0.0, 0.3),
            "learning_rate": Float(0.02, 0.2, log=True),
        }
    )
    recipe = Recipe(n_epochs=60, n_epochs_early=5, n_train_downscaled=538, n_validation_quick=180, batch_size=16)
    pixel_mean = 4.884
    pixel_std = 6.017
    image_shape = (1, 8, 8)

    def __init__(
        self,
        *,
        split_seed: int = 0,
        objectives: Sequence[str] | None = None,
        rules: Mapping[str, Any] | None = None,
        lanes: int = 1,
    ) -> None:
        check_seed("problem.split_seed", split_seed, n_bits=32)  # as in scikit-learn
        self.split_seed = split_seed
        self.choose_objectives(objectives)
        self.rules = Rules.of(rules)
        self.choose_lanes(lanes)

    def load_train(self) -> tuple[Images, Images]:
        """Returns 1,077 training images and 360 validation images."""
        images = self._load()
        return images[0], images[1]

    def load_test(self) -> Images:
        """Returns 360 test images."""
        return self._load()[2]

    def _load(self) -> tuple[Images, Images, Images]:
        from sklearn.datasets import load_digits
        from sklearn.model_selection import train_test_split

        pixels, labels = load_digits(return_X_y=True)
        images = Images(torch.from_numpy(pixels).to(torch.uint8).reshape(-1, 1, 8, 8), torch.from_numpy(labels))
        seed = self.split_seed
        rest, test = train_test_split(torch.arange(len(images)), test_size=0.2, stratify=labels, random_state=seed)
        train, validation = train_test_split(rest, test_size=0.25, stratify=labels[rest], random_state=seed)
        return images[train], images[validation], images[test]
