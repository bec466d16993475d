"""Fashion-MNIST (Xiao, Rasul and Vollgraf 2017, arXiv:1708.07747): images of clothes, 28x28."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, final

import torch

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.core.validation import check_bool, check_choice, check_int, check_seed
from nas.inheritance.rules import Rules
from nas.problems.images.augmentation import Augmentation
from nas.problems.images.fit import Recipe
from nas.problems.images.graph_recipes import graph_recipe
from nas.problems.images.idx import read_idx
from nas.problems.images.image_problem import ImageProblem
from nas.problems.images.pixels import N_CLASSES, Images, split
from nas.spaces.parameters.space import Choice, Float, Int, ParameterSpace
from nas.storage.remote_file import check_file, checked_options
from nas.training.precision import checked_precision

HOME = "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com"
PARTS = ("train", "t10k")
KINDS = {"images": 3, "labels": 1}  # and their dimensions
_REMEDY = f"Download the four files of {HOME} to a folder and set problem.data_root=FOLDER"

BLOCKS = ParameterSpace(
    {
        "n_blocks": Int(2, 4),
        "width_1": Choice(16, 24, 32),
        "kernel_1": Choice(3, 5),
        "depth_1": Int(1, 2),
        "width_2": Choice(32, 48, 64),
        "kernel_2": Choice(3, 5),
        "depth_2": Int(1, 2),
        "width_3": Choice(48, 64, 96, 128, when={"n_blocks": [3, 4]}),
        "kernel_3": Choice(3, 5, when={"n_blocks": [3, 4]}),
        "depth_3": Int(1, 2, when={"n_blocks": [3, 4]}),
        "width_4": Choice(64, 96, 128, when={"n_blocks": [4]}),
        "kernel_4": Choice(1, 3, when={"n_blocks": [4]}),
        "depth_4": Int(1, 2, when={"n_blocks": [4]}),
        "norm": Choice("batch", "group"),
        "dropout": Float(0.0, 0.4),
        "learning_rate": Float(0.01, 0.2, log=True),
        "weight_decay": Float(1e-5, 3e-3, log=True),
    }
)
"""Chains of blocks (`nas.problems.images.conv_net`)."""
SPACES = ("graphs", "blocks")


@final
class FashionMnistProblem(ImageProblem):
    """Fashion-MNIST, or a data set in four files of the same names.

    Others are MNIST and KMNIST; set ``flip=False`` for them. A sixth of the training images is for validation: 10,000
    of 60,000. The 10,000 test images are for ``test`` alone.

    Args:
        data_root: The folder of the four files, at any fsspec URL: ``/data/fashion``, ``s3://bucket/fashion``,
            ``simplecache::http://...``. They are read when the first trial is trained.
        data_options: Options for fsspec, for example credentials.
        split_seed: The seed that chooses the validation images.
        space: ``graphs``: networks as graphs, changed by morphisms (`nas.problems.images.graph_recipes`). ``blocks``:
            chains of blocks with named parameters, which DOWNSCALE can halve.
        n_epochs: Epochs of a full training; None: 96 for graphs, 8 for blocks.
        n_search_images: For blocks: training images under DOWNSCALE; None: 8,000.
        max_flops: For graphs: most FLOPs of a network for one image; a multiplication and an addition are two. None: 80
            million; an epoch then takes less than a minute on a core with bfloat16 instructions.
        max_activations: For graphs: most activations of all layers together for one image; None: any. It limits memory,
            and the time of many narrow layers, which FLOPs do not show.
        flip: For graphs: whether training images are mirrored at random; None: yes. Right for clothes, wrong for digits
            and letters. Blocks are trained without augmentation.
        precision: Precision of training: ``float32``, ``bfloat16`` or ``auto`` (`nas.training.precision`). Tests and
            exports are float32.
        objectives: ``accuracy`` and others of ``ImageProblem.OBJECTIVES``; None: accuracy alone.
        rules: Inheritance rules by name (`nas.inheritance.rules`); None: the defaults.
        lanes: For blocks: cheap trials that train at once as one stack of networks, for ``runner=threads`` on a GPU;
            None: 1.

    Raises:
        ConfigurationError: a file does not exist or its host does not respond. Or a number is out of range, or an
            argument belongs to the other space.
    """

    shortens_finals = True
    pixel_mean = 72.94
    pixel_std = 90.02
    image_shape = (1, 28, 28)
    data_arguments: ClassVar[frozenset[str]] = frozenset({"data_root", "data_options"})

    def __init__(
        self,
        data_root: str = HOME,
        *,
        data_options: Mapping[str, Any] | None = None,
        split_seed: int = 0,
        space: str = "graphs",
        n_epochs: int | None = None,
        n_search_images: int | None = None,
        max_flops: int | None = None,
        max_activations: int | None = None,
        flip: bool | None = None,
        precision: str = "auto",
        objectives: Sequence[str] | None = None,
        rules: Mapping[str, Any] | None = None,
        lanes: int | None = None,
    ) -> None:
        is_graph = check_choice("problem.space", space, SPACES) == "graphs"
        n_epochs = (96 if is_graph else 8) if n_epochs is None else n_epochs
        check_seed("problem.split_seed", split_seed)
        check_int("problem.n_epochs", n_epochs, 1)
        of_graphs = {"max_flops": max_flops, "max_activations": max_activations, "flip": flip}
        of_blocks = {"n_search_images": n_search_images, "lanes": lanes}
        other = of_blocks if is_graph else of_graphs
        for name, value in other.items():
            if value is not None:
                its = "blocks" if is_graph else "graphs"
                raise ConfigurationError(
                    f"problem.{name}={value}: must be left out with problem.space={space}; it belongs to space={its}"
                )
        n_search_images = 8_000 if n_search_images is None else n_search_images
        flip = True if flip is None else flip
        check_int("problem.n_search_images", n_search_images, 1)
        check_bool("problem.flip", flip)
        if not isinstance(data_root, str | os.PathLike) or not data_root:
            raise ConfigurationError(f"problem.data_root={data_root!r}: must be a folder's path or URL. {_REMEDY}.")
        self.data_root = os.fspath(data_root).rstrip("/")
        self.data_options = checked_options("problem.data_options", data_options)
        self.split_seed = split_seed
        self.choose_objectives(objectives)
        self.rules = Rules.of(rules)
        self.choose_lanes(1 if lanes is None else lanes)
        if is_graph:
            self.space = self.graph_space(max_flops, max_activations)
            self.policies = self.policies - {Policy.DOWNSCALE}
            self.recipe = graph_recipe(n_epochs, precision, Augmentation(flip=flip, shift=1, erase=0))
        else:
            self.space = BLOCKS
            self.recipe = Recipe(
                n_epochs=n_epochs,
                n_epochs_early=2,
                n_train_downscaled=n_search_images,
                n_validation_quick=2_000,
                batch_size=64,
                precision=checked_precision(precision),
            )
        for part in PARTS:
            for kind in KINDS:
                check_file("problem.data_root", self._url(part, kind), self.data_options, _REMEDY)

    def load_train(self) -> tuple[Images, Images]:
        """Returns five sixths of the training images (50,000 of Fashion-MNIST) and, for validation, the rest."""
        train, _ = self._load("train"), self._test  # both, so that faults are told before any training
        return split(train, self.split_seed)

    def load_test(self) -> Images:
        """Returns the test images: 10,000 of Fashion-MNIST."""
        return self._test

    @cached_property
    def _test(self) -> Images:
        """The test images, kept for all finalists that this process scores."""
        return self._load("t10k")

    def _load(self, part: str) -> Images:
        try:
            pixels, labels = (read_idx(self._url(part, kind), KINDS[kind], self.data_options) for kind in KINDS)
            if pixels.shape[1:] != self.image_shape[1:] or not len(pixels):
                raise ConfigurationError(
                    f"{self._url(part, 'images')} has {len(pixels):,} images of {pixels.shape[1:]}: must be "
                    f"one or more of {self.image_shape[1:]}"
                )
            n_classes = int(labels.max(initial=0)) + 1
            if len(pixels) != len(labels) or n_classes > N_CLASSES:
                raise ConfigurationError(
                    f"{self._url(part, 'labels')} has {len(labels):,} labels in {n_classes} classes: must be "
                    f"{len(pixels):,} in at most {N_CLASSES}"
                )
        except ConfigurationError as error:
            raise ConfigurationError(f"problem.data_root={self.data_root}: {error}. {_REMEDY}.") from error
        return Images(torch.from_numpy(pixels).unsqueeze(1), torch.from_numpy(labels).long())

    def _url(self, part: str, kind: str) -> str:
        return f"{self.data_root}/{part}-{kind}-idx{KINDS[kind]}-ubyte.gz"
