"""Fashion-MNIST: its files, its split, and its cheap trials."""

from __future__ import annotations

import functools
import http.server
import inspect
import os
import random
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.problems.fashion_mnist import FashionMnistProblem
from nas.problems.images.conv_net import ConvNet
from nas.spaces.space import Variation
from nas.storage import remote_file
from tests.support.image_files import write_idx

SEARCH = frozenset(Policy) - {Policy.SKIP_TRAIN}
Train = Callable[..., Any]
ROOT = Path(__file__).parents[3]
NAMES = [f"{part}-{kind}-ubyte.gz" for part in ("train", "t10k") for kind in ("images-idx3", "labels-idx1")]
POINT = {
    "n_blocks": 3, "width_1": 24, "kernel_1": 3, "depth_1": 1, "width_2": 32, "kernel_2": 3, "depth_2": 1,
    "width_3": 64, "kernel_3": 3, "depth_3": 1, "norm": "batch", "dropout": 0.1, "learning_rate": 0.05,
    "weight_decay": 5e-4,
}  # fmt: skip


@pytest.fixture
def tiny(tmp_path: Path) -> Path:
    """Returns a folder of 60 training and 10 test images, filled with 0, 1, ... and with 255, 254, ..."""
    for part, values in (("train", np.arange(60)), ("t10k", 255 - np.arange(10))):
        images = np.broadcast_to(values[:, None, None], (len(values), 28, 28)).astype(np.uint8)
        write_idx(tmp_path / f"{part}-images-idx3-ubyte.gz", images)
        write_idx(tmp_path / f"{part}-labels-idx1-ubyte.gz", (values % 10).astype(np.uint8))
    return tmp_path


@pytest.fixture(scope="module")
def problem() -> FashionMnistProblem:
    """Returns the real data with short trials, warm as in a worker."""
    folder = (ROOT / os.environ.get("HEIRLOOM_DATA", "../shared/data") / "fashion_mnist").resolve()
    if not folder.is_dir():
        pytest.skip(f"no Fashion-MNIST in {folder}; set HEIRLOOM_DATA to the folder that holds fashion_mnist/")
    return FashionMnistProblem(str(folder), space="blocks", n_search_images=3_000)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Writes nothing."""


class Busy(Quiet):
    """Lists files, but fails to send them."""

    def do_GET(self) -> None:
        self.send_error(503)


class Torn(Quiet):
    """Closes the connection after the first bytes."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Length", "1000")
        self.end_headers()
        self.wfile.write(b"few")


@contextmanager
def serving(folder: Path, handler: type[Quiet]) -> Iterator[str]:
    """Yields the URL of a folder."""
    pytest.importorskip("aiohttp", reason="fsspec needs it for http://")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@pytest.fixture
def server(tiny: Path) -> Iterator[str]:
    """Returns the URL of the tiny folder."""
    with serving(tiny, Quiet) as url:
        yield url


def test_validation_is_a_part_of_the_training_images(tiny: Path) -> None:
    """A sixth of the training file is for validation by the split seed, and no image is in two parts."""
    same, other = FashionMnistProblem(str(tiny)), FashionMnistProblem(str(tiny), split_seed=1)
    train, validation = ({int(image[0, 0, 0]) for image in part.pixels} for part in same.data)

    assert (len(train), len(validation)) == (50, 10)
    assert train | validation == set(range(60))
    assert torch.equal(same.data[0].labels, same.data[0].pixels[:, 0, 0, 0].long() % 10)
    assert {int(image[0, 0, 0]) for image in same.load_test().pixels} == set(range(246, 256))
    assert {int(image[0, 0, 0]) for image in other.data[1].pixels} != validation
    assert torch.equal(FashionMnistProblem(tiny).data[0].pixels, same.data[0].pixels)


def test_wrong_test_file_is_named_before_any_training(tiny: Path, train: Train) -> None:
    """Files that only a test needs are read before the first training; later trials and tests do without."""
    problem = FashionMnistProblem(str(tiny), space="blocks", n_epochs=1)
    content = (tiny / NAMES[2]).read_bytes()
    (tiny / NAMES[2]).write_bytes(content[:-20])
    with pytest.raises(ConfigurationError, match=r"t10k-images-idx3-ubyte.gz can't be read"):
        train(problem, POINT)
    (tiny / NAMES[2]).write_bytes(content)
    trained = train(problem, POINT)
    (tiny / NAMES[2]).unlink()

    assert len(train(problem, POINT).accuracies) == 1
    assert problem.export(trained.again)[1][0].shape == (2, 1, 28, 28)
    assert len(problem.load_test()) == 10


@pytest.mark.parametrize("name", NAMES)
def test_missing_file_is_named_at_construction(tiny: Path, name: str) -> None:
    """A missing file is named at construction, with its public address and the option."""
    (tiny / name).unlink()

    with pytest.raises(ConfigurationError) as caught:
        FashionMnistProblem(str(tiny))
    assert str(caught.value) == (
        f"problem.data_root={tiny}/{name}: must be a file that exists. Download the four files of "
        "http://fashion-mnist.s3-website.eu-central-1.amazonaws.com to a folder and set problem.data_root=FOLDER."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"data_root": ""}, "problem.data_root='': must be a folder's path or URL"),
        (
            {"data_root": "nowhere://x"},
            r"nowhere://x/train-.* must be a file .*reached \(ValueError: Protocol not known",
        ),
        ({"data_root": "memory://none"}, "memory://none/train-images-idx3-ubyte.gz: must be a file that exists"),
        ({"n_epochs": 0}, r"problem.n_epochs=0: must be a whole number of at least 1"),
        ({"max_flops": 8e7}, r"max_flops=80000000.0: must be .* of at least 1\. Write 80000000"),
        (
            {"space": "blocks", "n_search_images": 0},
            r"problem.n_search_images=0: must be a whole number of at least 1",
        ),
        (
            {"n_search_images": 10},
            "problem.n_search_images=10: must be left out with problem.space=graphs; it belongs to space=blocks",
        ),
        (
            {"space": "blocks", "max_flops": 10**6},
            "problem.max_flops=1000000: must be left out with problem.space=blocks; it belongs to space=graphs",
        ),
        (
            {"max_flops": 13_720_575},
            "problem.max_flops=13720575: must be at least 13,720,576, the cost of the smallest initial network",
        ),
        (
            {"max_activations": 1000},
            r"problem.max_activations=1000: must be at least \d+,\d+, the cost of the smallest initial network",
        ),
        ({"max_activations": 0}, r"problem.max_activations=0: must be a whole number of at least 1"),
        (
            {"space": "blocks", "max_activations": 10**6},
            "problem.max_activations=1000000: must be left out with problem.space=blocks; it belongs to space=graphs",
        ),
        (
            {"space": "blocks", "flip": False},
            "problem.flip=False: must be left out with problem.space=blocks; it belongs to space=graphs",
        ),
        ({"split_seed": 2**64}, r"problem.split_seed=18446744073709551616: must be .* from 0 to below 2 \*\* 64"),
        (
            {"data_options": "x"},
            r"problem.data_options=\*\*\*: must be a dict. Write problem.data_options=\{anon:true\}",
        ),
        ({"objectives": 5}, "problem.objectives=5: must be accuracy, and any of"),
        ({"split_seed": -1}, r"problem.split_seed=-1: must be a whole number of at least 0"),
        ({"space": "cells"}, "problem.space='cells': must be graphs or blocks"),
        ({"flip": "no"}, "problem.flip='no': must be true or false"),
        ({"data_root": 2024}, "problem.data_root=2024: must be a folder's path or URL"),
        ({"rules": {"freeze": 1}}, r"rules\.freeze: must be one of .*; did you mean freeze_epochs"),
        ({"precision": "half"}, "problem.precision='half': must be auto, float32 or bfloat16"),
    ],
)
def test_wrong_arguments_are_refused(tiny: Path, arguments: dict[str, Any], message: str) -> None:
    """An invalid argument is refused at construction in one line."""
    with pytest.raises(ConfigurationError, match=message):
        FashionMnistProblem(**{"data_root": str(tiny), **arguments})


def test_torn_file_is_named_when_read(tiny: Path) -> None:
    """A cut file ends the first training with its name and the download address."""
    path = tiny / "train-images-idx3-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-20])

    with pytest.raises(ConfigurationError, match=r"train-images-.*gz can't be read: .*problem.data_root=FOLDER"):
        _ = FashionMnistProblem(str(tiny)).data


def test_labels_that_do_not_fit_are_refused(tiny: Path) -> None:
    """There must be as many labels as images, none above 9."""
    write_idx(tiny / "train-labels-idx1-ubyte.gz", np.full(60, 10, np.uint8))
    with pytest.raises(ConfigurationError, match="has 60 labels in 11 classes: must be 60 in at most 10"):
        _ = FashionMnistProblem(str(tiny)).data

    write_idx(tiny / "train-labels-idx1-ubyte.gz", np.zeros(59, np.uint8))
    with pytest.raises(ConfigurationError, match="has 59 labels in 1 classes: must be 60 in"):
        _ = FashionMnistProblem(str(tiny)).data


def test_too_few_images_are_refused(tiny: Path) -> None:
    """Five images are refused, since none would be left for validation."""
    write_idx(tiny / "train-images-idx3-ubyte.gz", np.zeros((5, 28, 28), np.uint8))
    write_idx(tiny / "train-labels-idx1-ubyte.gz", np.zeros(5, np.uint8))
    with pytest.raises(ConfigurationError, match="5 images for training and validation: must be at least 6"):
        FashionMnistProblem(str(tiny)).load_train()


def test_images_of_another_size_are_refused(tiny: Path) -> None:
    """Images must be 28x28, since FLOPs and limits depend on it, and each part must have some."""
    write_idx(tiny / "train-images-idx3-ubyte.gz", np.zeros((60, 32, 32), np.uint8))
    with pytest.raises(ConfigurationError, match=r"has 60 images of \(32, 32\): must be one or more of \(28, 28\)"):
        _ = FashionMnistProblem(str(tiny)).data

    write_idx(tiny / "train-images-idx3-ubyte.gz", np.zeros((60, 28, 28), np.uint8))
    write_idx(tiny / "t10k-images-idx3-ubyte.gz", np.zeros((0, 28, 28), np.uint8))
    with pytest.raises(ConfigurationError, match=r"t10k-images.* has 0 images of \(28, 28\): must be one or more"):
        _ = FashionMnistProblem(str(tiny)).data


def test_a_small_set_is_not_downscaled(tiny: Path, train: Train) -> None:
    """With fewer images than DOWNSCALE takes, all are trained on and counted."""
    trained = train(FashionMnistProblem(str(tiny), space="blocks"), POINT, {Policy.DOWNSCALE, Policy.EARLY_STOP})

    assert trained.run.shares["scale_share"] == 0.5  # of the width; all images


def test_files_come_over_http(server: str) -> None:
    """The four files may be behind a URL, with or without a final slash."""
    problem = FashionMnistProblem(f"{server}/")

    assert [len(part) for part in problem.data] == [50, 10]


def test_missing_url_is_named(server: str) -> None:
    """The error differs between a server without the files and an unreachable one."""
    with pytest.raises(ConfigurationError, match=r"/none/train-images-idx3-ubyte.gz: must be a file .*reached \(.*404"):
        FashionMnistProblem(f"{server}/none")
    with pytest.raises(ConfigurationError, match=r"must be a file .*reached \(ClientConnector.*Cannot connect to host"):
        FashionMnistProblem("http://127.0.0.1:1")


@pytest.mark.parametrize(("handler", "why"), [(Busy, "ClientResponseError: 503"), (Torn, "ClientPayloadError")])
def test_download_that_breaks_off_is_named(tiny: Path, handler: type[Quiet], why: str) -> None:
    """A server that lists the files but fails to send them is named in one line."""
    with serving(tiny, handler) as url:
        problem = FashionMnistProblem(url)
        with pytest.raises(ConfigurationError, match=f"{url}/train-images.*can't be read: {why}"):
            _ = problem.data


def test_silent_host_times_out(monkeypatch: pytest.MonkeyPatch) -> None:
    """A host that accepts the connection and never answers causes a timeout."""
    pytest.importorskip("aiohttp", reason="fsspec needs it for http://")
    monkeypatch.setattr(remote_file, "_TIMEOUT_S", 0.2)

    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(ConfigurationError, match=f"{url}/train-images.* must be a file .*reached .*Timeout"):
            FashionMnistProblem(url)


def test_data_paths_are_no_part_of_the_identity() -> None:
    """The arguments that only locate the data are declared as such."""
    assert FashionMnistProblem.data_arguments == {"data_root", "data_options"}


def test_yaml_holds_the_defaults() -> None:
    """conf/problem/fashion_mnist.yaml names the class and each argument with its default."""
    text = (ROOT / "conf/problem/fashion_mnist.yaml").read_text()
    arguments = yaml.safe_load(text)

    assert text.startswith("# python -m flows.search +tuner=evolution problem=fashion_mnist")
    assert arguments.pop("_target_") == "nas.problems.fashion_mnist.FashionMnistProblem"
    assert arguments == {p.name: p.default for p in inspect.signature(FashionMnistProblem).parameters.values()}


def test_every_point_can_be_built(tiny: Path) -> None:
    """Points from the whole space of blocks give networks, downscaled and in full."""
    problem, draw = FashionMnistProblem(str(tiny), space="blocks"), random.Random(0)
    scale = {"pixel_mean": problem.pixel_mean, "pixel_std": problem.pixel_std}

    for _ in range(30):
        point = problem.space.sample(draw)
        assert problem.static_metrics(point)["parameters"] == sum(p.numel() for p in problem.build(point).parameters())
        for network in (ConvNet(point, n_halves=1, **scale), problem.build(point)):
            assert network.eval()(problem.data[0].pixels[:2]).isfinite().all()


@pytest.mark.parametrize(
    ("limits", "parameters"),
    [
        ({}, [232_506, 241_898, 389_610]),
        ({"max_flops": 20_000_000}, [232_506, 241_898]),
        ({"max_flops": 13_720_576}, [232_506]),
        ({"max_flops": 20_000_000, "max_activations": 110_000}, [232_506]),
    ],
)
def test_initial_networks_over_a_limit_are_left_out(tiny: Path, limits: dict[str, int], parameters: list[int]) -> None:
    """A limit leaves the initial networks that are within it."""
    problem = FashionMnistProblem(str(tiny), **limits)
    starts = problem.space.to_json()["parameters"]["network"]["starts"]
    found = [problem.build({"network": start, "learning_rate": 0.1}) for start in starts]

    assert [sum(p.numel() for p in network.parameters()) for network in found] == parameters


def test_graphs_are_built_trained_and_exported(tiny: Path, train: Train) -> None:
    """A network graph trains under all policies but DOWNSCALE, and its child inherits everything."""
    problem, draw = FashionMnistProblem(str(tiny), n_epochs=2), random.Random(0)
    start = Variation.of(problem.space.sample(draw))
    parent = train(problem, start.point, SEARCH - {Policy.DOWNSCALE})
    child = problem.space.vary(start, draw)

    assert problem.policies == SEARCH - {Policy.DOWNSCALE} | {Policy.SKIP_TRAIN}
    assert len(parent.accuracies) == 1
    assert len(child.operations) == 1
    grown = train(problem, child.point, frozenset({Policy.SHARE_PARAMS}), donors=[parent])
    assert len(grown.accuracies) == 2
    assert grown.run.inheritance.share > 0.5
    network, (pixels,) = problem.export(grown.again)
    assert pixels.dtype is torch.uint8
    assert network(pixels).shape == (2, 10)


def test_letters_are_not_mirrored(tiny: Path, train: Train) -> None:
    """With ``flip=False`` no training image is mirrored, so the same seed gives another network."""
    points = FashionMnistProblem(str(tiny)).space
    point = points.sample(random.Random(0))
    weights = []
    for flip in (True, True, False):
        problem = FashionMnistProblem(str(tiny), n_epochs=1, flip=flip)
        trained = train(problem, point)
        assert problem.recipe.augmentation is not None
        assert problem.recipe.augmentation.flip is flip
        weights.append(trained.again.restore(problem.build(point)).state_dict())

    mirrored, again, plain = weights
    assert all(tensor.equal(again[name]) for name, tensor in mirrored.items())
    assert not all(tensor.equal(plain[name]) for name, tensor in mirrored.items())


@pytest.mark.slow
def test_real_split(problem: FashionMnistProblem) -> None:
    """The real files give 50,000 training, 10,000 validation and 10,000 test images."""
    train, validation = problem.data

    assert (len(train), len(validation), len(problem.load_test())) == (50_000, 10_000, 10_000)
    together = torch.cat([train.pixels, validation.pixels]).float()
    assert together.mean().item() == pytest.approx(problem.pixel_mean, abs=0.01)
    assert together.std().item() == pytest.approx(problem.pixel_std, abs=0.01)
    assert torch.cat([train.labels, validation.labels]).bincount().tolist() == [6_000] * 10


@pytest.mark.slow
def test_search_trials_learn_and_inherit(problem: FashionMnistProblem, train: Train) -> None:
    """After two epochs a search trial is far above chance, is repeatable, and its wider child starts ahead."""
    parent, twin = (train(problem, POINT, SEARCH, seed=1) for _ in range(2))
    child = {**POINT, "width_3": 96}
    cold, warm = (train(problem, child, SEARCH, seed=2, donors=donors) for donors in ([], [parent]))

    assert parent.accuracy > 0.7
    assert len(parent.accuracies) == 2
    assert all(torch.equal(parent.weights[name], twin.weights[name]) for name in parent.weights)
    assert 0.5 < warm.run.inheritance.share < 1.0
    assert warm.accuracies[0] > cold.accuracies[0]
    assert problem.test(warm.again)["accuracy"] > 0.7
