"""CIFAR-10: its two file formats, its split, and its cheap trials."""

from __future__ import annotations

import inspect
import io
import os
import random
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.problems.cifar10 import Cifar10Problem
from nas.spaces.space import Variation

ROOT = Path(__file__).parents[3]
SEARCH = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.QUICK_EVAL})
Train = Callable[..., Any]


def images(n: int, first: int = 0) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Returns images ``(n, 32, 32, 3)`` with number in red, its double in green, 7 in blue; labels by number."""
    number = np.arange(first, first + n, dtype=np.uint8)
    pixels = np.stack([number, 2 * number, np.full(n, 7, np.uint8)], 1)[:, None, None, :]
    return np.broadcast_to(pixels, (n, 32, 32, 3)).copy(), number % 10


def npz(path: Path, **changes: Any) -> str:
    (x_train, y_train), (x_test, y_test) = images(60), images(10, 100)
    arrays = {"x_train": x_train, "y_train": y_train, "x_test": x_test, "y_test": y_test, **changes}
    np.savez(path, **{name: array for name, array in arrays.items() if array is not None})
    return str(path)


def archive(path: Path) -> str:
    """Returns the authors' archive: six files of records in a folder."""
    with tarfile.open(path, "w:gz") as found:
        for n, name in enumerate([*(f"data_batch_{n}.bin" for n in range(1, 6)), "test_batch.bin"]):
            pixels, labels = images(10, 100) if n == 5 else images(12, 12 * n)
            records = np.concatenate([labels[:, None], pixels.transpose(0, 3, 1, 2).reshape(len(labels), -1)], 1)
            content = records.astype(np.uint8).tobytes()
            member = tarfile.TarInfo(f"cifar-10-batches-bin/{name}")
            member.size = len(content)
            found.addfile(member, io.BytesIO(content))
    return str(path)


@pytest.mark.parametrize("write", [npz, archive])
def test_both_kinds_of_file_hold_the_same(tmp_path: Path, write: Callable[[Path], str]) -> None:
    """Channels come first, labels match, and a sixth is for validation by the split seed. The file is read once."""
    problem = Cifar10Problem(write(tmp_path / ("data.npz" if write is npz else "data.tar.gz")))
    train, validation = problem.data

    assert (len(train), len(validation), len(problem.load_test())) == (50, 10, 10)
    assert train.pixels.shape == (50, 3, 32, 32)
    for part in (train, validation, problem.load_test()):
        number = part.pixels[:, 0, 0, 0].long()
        assert torch.equal(part.labels, number % 10)
        assert torch.equal(part.pixels[:, 1, 5, 9].long(), 2 * number % 256)
        assert bool((part.pixels[:, 2] == 7).all())
    assert {int(image[0, 0, 0]) for image in problem.load_test().pixels} == set(range(100, 110))
    other = Cifar10Problem(problem.data_file, split_seed=1)
    assert not torch.equal(other.data[1].pixels, validation.pixels)
    Path(other.data_file).unlink()
    assert torch.equal(other.load_test().pixels, problem.load_test().pixels)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"y_train": np.full(60, -1)}, "as many labels from 0 to 9, .*. Download"),
        ({"y_train": np.full(60, 0.5)}, "as many labels from 0 to 9, .*. Download"),
        (
            {"x_train": np.zeros((60, 28, 28, 3), np.uint8)},
            r"must be images of .*, not images of shape \(60, 3, 28, 28\) with 60 labels",
        ),
        ({"y_train": np.zeros(59, np.uint8)}, "with 59 labels"),
        ({"x_train": np.zeros((60, 32, 32, 3))}, "x_train has dtype float64: must be uint8"),
        ({"x_train": np.array([None])}, "must be the authors' archive or an npz .*allow_pickle"),
        ({"y_test": None}, r"must be the authors' archive or an npz .*y_test"),
        ({"x_test": images(0)[0], "y_test": images(0)[1]}, r"not images of shape \(0, 3, 32, 32\) with 0 labels"),
    ],
)
def test_wrong_contents_are_named(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    """Invalid contents, also those that only a test needs, are named before any training; nothing is unpickled."""
    problem = Cifar10Problem(npz(tmp_path / "data.npz", **changes))

    with pytest.raises(ConfigurationError, match=message) as caught:
        _ = problem.data
    assert "problem.data_file=FILE" in str(caught.value)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data_file": ""}, "problem.data_file='': must be a file's path or URL"),
        ({"data_file": "memory://none.npz"}, "problem.data_file=memory://none.npz: must be a file that exists"),
        ({"data_file": str(ROOT / "conf")}, "conf: must be a file, not a folder. .*problem.data_file=FILE"),
        ({"n_epochs": 0}, r"problem.n_epochs=0: must be"),
        ({"precision": "half"}, "problem.precision='half': must be auto, float32 or bfloat16"),
    ],
)
def test_wrong_arguments_are_refused(tmp_path: Path, arguments: dict[str, Any], message: str) -> None:
    """An invalid argument is refused at construction in one line."""
    with pytest.raises(ConfigurationError, match=message):
        Cifar10Problem(**{"data_file": npz(tmp_path / "data.npz"), **arguments})


def test_torn_archive_is_named(tmp_path: Path) -> None:
    """A cut archive ends the first training with its name and the download address."""
    path = Path(archive(tmp_path / "data.tar.gz"))
    path.write_bytes(path.read_bytes()[:-400])

    with pytest.raises(ConfigurationError, match=r"data.tar.gz: must be the authors' archive .*cifar-10-binary.tar.gz"):
        _ = Cifar10Problem(str(path)).data


def test_yaml_holds_the_defaults() -> None:
    """conf/problem/cifar10.yaml names the class and each argument with its default."""
    arguments = yaml.safe_load((ROOT / "conf/problem/cifar10.yaml").read_text())

    assert arguments.pop("_target_") == "nas.problems.cifar10.Cifar10Problem"
    assert arguments == {p.name: p.default for p in inspect.signature(Cifar10Problem).parameters.values()}


@pytest.mark.slow
def test_search_trials_learn_and_inherit(train: Train) -> None:
    """On 5,000 real images two epochs are far above chance, and a child starts from its parent's accuracy."""
    path = (ROOT / os.environ.get("HEIRLOOM_DATA", "../shared/data") / "cifar10/cifar10_subset_5k_1k.npz").resolve()
    if not path.exists():
        pytest.skip(f"no {path}; set HEIRLOOM_DATA to the folder that holds cifar10/")
    problem = Cifar10Problem(str(path), n_epochs=4, max_flops=20_000_000, precision="float32")
    draw = random.Random(0)
    start = Variation.of(problem.space.sample(draw))
    child = problem.space.vary(start, draw)
    parent = train(problem, start.point, frozenset({Policy.SHARE_PARAMS}), seed=1)
    cold, warm = (train(problem, child.point, SEARCH, seed=2, donors=donors) for donors in ([], [parent]))

    assert parent.accuracy > 0.25
    assert warm.run.inheritance.share > 0.5
    assert warm.accuracies[0] > cold.accuracies[0]
    assert problem.test(warm.again)["accuracy"] > 0.25
