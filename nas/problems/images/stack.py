"""Training of several small networks at once, as lanes of one stack.

On a GPU, a small network leaves most of the device idle. Here networks of different points train in the same kernels.
Each has a lane: an index of the first dimension of stacked tensors (``torch.func.vmap``). One step of all lanes is one
CUDA graph. A lane has its own images, learning rate and end, so a trial joins or leaves while others train.
"""

from __future__ import annotations

import math
import queue
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional

from nas.core.point import Point
from nas.problems.images.fit import MOMENTUM, Recipe, Start, one_epochs_batches
from nas.problems.images.largest_net import LargestConvNet, lane_settings, region
from nas.problems.images.pixels import Images
from nas.training.precision import precision_of
from nas.training.trial_run import TrialRun

_STEPS_AT_ONCE = 8
"""The steps between two chances for a trial to join or leave."""
_BATCH_NORM_MOMENTUM = 0.1


class NetworkStack:
    """Trains networks of one space in ``n_lanes`` lanes, with the steps of `nas.problems.images.fit`.

    One thread owns the tensors. Trials, each in a thread of its own, ask it to add them, and wait for their epochs. If
    trials outnumber lanes, some wait for a free one.

    Args:
        largest: The network that contains all others, on the device.
        images: The training images, on the device.
        recipe: The batch size, the precision and the smoothing of labels.
        n_lanes: The number of networks trained at a time.
    """

    def __init__(self, largest: LargestConvNet, images: Images, recipe: Recipe, n_lanes: int) -> None:
        self._largest, self._images, self._recipe = largest, images, recipe
        self._device = images.pixels.device
        self._batch_size = min(recipe.batch_size, len(images))
        self._n_batches = recipe.n_batches(len(images))
        self._n_blocks, self._n_features = len(largest.blocks), largest.head.in_features
        self._lanes = _LaneTensors(largest, n_lanes, self._n_batches, self._batch_size)
        self._left = [0] * n_lanes
        self._epochs: dict[int, Future[None]] = {}
        self._noise = torch.Generator(self._device).manual_seed(0)
        self._free: queue.SimpleQueue[int] = queue.SimpleQueue()
        for lane in range(n_lanes):
            self._free.put(lane)
        self._graph: torch.cuda.CUDAGraph | None = None
        self._queued: torch.cuda.Event | None = None
        self._owner = ThreadPoolExecutor(1, thread_name_prefix="heirloom-stack")
        if self._device.type == "cuda":
            self._owner.submit(self._use_own_stream).result()
            self._owner.submit(self._capture).result()

    def close(self) -> None:
        """Ends the thread."""
        self._owner.shutdown(cancel_futures=True)

    def fit(self, network: nn.Module, *, n_steps: int, run: TrialRun, start: Start) -> Generator[int, None, None]:
        """Trains the network in place, as ``nas.problems.images.fit.fit`` without augmentation and resume points.

        Close the iterator if it is left early, so that its lane is free again.
        """
        shuffling = torch.Generator().manual_seed(run.seed)
        with self._lane() as lane:
            flat = _FlatNetwork(network, self._lanes)
            self._owner.submit(self._put, lane, flat, run.point).result()
            for epoch in range(1, math.ceil(n_steps / self._n_batches) + 1):
                first = (epoch - 1) * self._n_batches
                batches = one_epochs_batches(len(self._images), self._recipe, shuffling)[: n_steps - first]
                shares = [start.rate(step, n_steps) for step in range(first, first + len(batches))]
                rates = [run.point["learning_rate"] * share for share in shares]
                self._owner.submit(self._begin_epoch, lane, batches, rates).result().result()
                self._owner.submit(self._take, lane, flat).result()()
                flat.unpack(len(batches))
                yield epoch

    def _use_own_stream(self) -> None:
        """Lets steps run beside the trials' own work on the device.

        That work would wait for all queued steps otherwise.
        """
        torch.cuda.set_stream(torch.cuda.Stream())  # type: ignore[no-untyped-call]
        torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())

    @contextmanager
    def _lane(self) -> Iterator[int]:
        """Yields a free lane, and frees it again."""
        lane = self._free.get()
        try:
            yield lane
        finally:
            self._free.put(lane)

    @torch.no_grad()
    def _put(self, lane: int, flat: _FlatNetwork, point: Point) -> None:
        """Puts a network into a lane, with a fresh optimizer."""
        lanes = self._lanes
        if self._device.type == "cuda":
            torch.cuda.current_stream().wait_stream(torch.cuda.default_stream())  # what the trial has queued
        lanes.weights[lane].copy_(flat.weights)
        lanes.inside[lane].copy_(flat.inside)
        lanes.statistics[lane].copy_(flat.statistics)
        lanes.momentum[lane].zero_()
        for name, value in lane_settings(point, self._n_blocks).items():
            lanes.settings[name][lane].copy_(value)
        lanes.n_steps[lane] = 0  # an epoch that failed may have left some
        lanes.decay[lane].fill_(point.get("weight_decay", 5e-4))

    @torch.no_grad()
    def _take(self, lane: int, flat: _FlatNetwork) -> Callable[[], None]:
        """Copies a lane out, and returns a function that waits for the end of it."""
        flat.weights.copy_(self._lanes.weights[lane])
        flat.statistics.copy_(self._lanes.statistics[lane])
        return torch.cuda.current_stream().record_event().synchronize if self._device.type == "cuda" else lambda: None

    def _begin_epoch(self, lane: int, batches: Tensor, rates: Sequence[float]) -> Future[None]:
        """Lets a lane train on these batches, and returns the end of it."""
        lanes, n = self._lanes, len(batches)
        lanes.batches[lane, :n].copy_(batches)
        lanes.rates[lane, :n].copy_(torch.tensor(rates))
        lanes.step[lane] = 0
        lanes.n_steps[lane] = n
        if not any(self._left):
            self._owner.submit(self._advance)
        self._left[lane] = n
        epoch: Future[None] = Future()
        self._epochs[lane] = epoch
        return epoch

    def _advance(self) -> None:
        """Computes the next steps of all lanes, and after all waiting requests the steps after them."""
        try:
            for _ in range(_STEPS_AT_ONCE):
                self._step() if self._graph is None else self._graph.replay()
            self._wait_for_earlier_steps()
            self._left = [max(left - _STEPS_AT_ONCE, 0) for left in self._left]
            for lane in [lane for lane in self._epochs if not self._left[lane]]:
                self._epochs.pop(lane).set_result(None)
            if any(self._left):
                self._owner.submit(self._advance)
        except BaseException as error:  # belongs to the trials, which wait for it
            self._left = [0] * len(self._left)
            for lane in list(self._epochs):
                self._epochs.pop(lane).set_exception(error)

    def _wait_for_earlier_steps(self) -> None:
        """Waits until only the newest steps are queued, so that joining trials start soon."""
        if self._device.type == "cuda":
            if self._queued is not None:
                self._queued.synchronize()
            self._queued = torch.cuda.current_stream().record_event()

    def _capture(self) -> None:
        """Records a step as a CUDA graph.

        All lanes are at their end, so that nothing changes.
        """
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.backends.cudnn.flags(enabled=True, benchmark=True):
            with torch.cuda.stream(side):
                for _ in range(3):
                    self._step()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            graph.register_generator_state(self._noise)
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the device
                self._step()
        self._graph = graph

    def _step(self) -> None:
        """Computes a step of each lane. Those at their end stay as they are."""
        lanes = self._lanes
        active = (lanes.step < lanes.n_steps).unsqueeze(1)
        now = lanes.step.clamp(max=self._n_batches - 1)
        every = torch.arange(len(now), device=self._device)
        batch, rate = lanes.batches[every, now], lanes.rates[every, now].unsqueeze(1)
        gradient, statistics = self._gradient(batch)
        with torch.no_grad():
            gradient = gradient * lanes.inside + lanes.decay * lanes.weights
            momentum = MOMENTUM * lanes.momentum + gradient
            weights = lanes.weights - rate * (gradient + MOMENTUM * momentum)  # Nesterov
            for old, new in ((lanes.momentum, momentum), (lanes.weights, weights)):
                old.copy_(torch.where(active, new, old))
            for name, old in lanes.statistics_layout.views(lanes.statistics).items():
                old.copy_(torch.where(active, old + _BATCH_NORM_MOMENTUM * (statistics[name] - old), old))
            lanes.step.add_(active.squeeze(1))

    def _gradient(self, batch: Tensor) -> tuple[Tensor, Mapping[str, Tensor]]:
        """Returns the gradient of each lane's loss, and its statistics of batch-norm."""
        weights = self._lanes.weights.detach().requires_grad_()
        views = self._lanes.weights_layout.views(weights)
        shape = (*batch.shape, self._n_features)
        noise = torch.rand(shape, generator=self._noise, device=self._device)
        pixels, labels = self._images.pixels[batch], self._images.labels[batch]
        with precision_of(self._recipe.precision, self._device.type):
            losses, statistics = vmap(self._loss)(views, self._lanes.settings, noise, pixels, labels)
        [gradient] = torch.autograd.grad(losses.sum(), [weights])
        return gradient, statistics

    def _loss(
        self, parameters: dict[str, Tensor], settings: dict[str, Tensor], noise: Tensor, pixels: Tensor, labels: Tensor
    ) -> tuple[Tensor, dict[str, Tensor]]:
        arguments = (pixels, settings["is_last"], settings["is_batch"], settings["dropout"], noise)
        logits, statistics = functional_call(self._largest, parameters, arguments)
        loss = functional.cross_entropy(logits.float(), labels, label_smoothing=self._recipe.label_smoothing)
        return loss, statistics


class _FlatLayout:
    """The places of named tensors, one after another, in a flat one."""

    def __init__(self, tensors: Iterable[tuple[str, Tensor]]) -> None:
        self._shapes = {name: tensor.shape for name, tensor in tensors}
        self._sizes = [math.prod(shape) for shape in self._shapes.values()]
        self.n = sum(self._sizes)

    def views(self, flat: Tensor) -> dict[str, Tensor]:
        """Returns the tensors ``(..., *shape)`` as parts of ``(..., n)``."""
        parts: Sequence[Tensor] = flat.split(self._sizes, dim=-1)  # type: ignore[no-untyped-call]
        return {
            name: part.view(*flat.shape[:-1], *shape)
            for (name, shape), part in zip(self._shapes.items(), parts, strict=True)
        }


class _LaneTensors:
    """The tensors of all lanes; the first dimension is the lane.

    Attributes:
        weights: All parameters of the largest network, flat: ``(lanes, n)``.
        momentum: The optimizer's state, of the same shape.
        inside: 1 where a weight belongs to the lane's network, else 0.
        decay: The weight decay ``(lanes, 1)``.
        statistics: Running means and variances of batch-norms, flat: ``(lanes, n)``.
        settings: The arguments of ``LargestConvNet.forward`` that a point decides.
        batches: The indices of an epoch's images: ``(lanes, steps, images)``.
        rates: The learning rates of an epoch: ``(lanes, steps)``.
        step: The next step of each lane.
        n_steps: The steps of each lane's epoch.
    """

    def __init__(self, largest: LargestConvNet, n_lanes: int, n_batches: int, batch_size: int) -> None:
        device = largest.head.weight.device
        self.weights_layout = _FlatLayout(largest.named_parameters())
        self.statistics_layout = _FlatLayout(
            (name, buffer) for name, buffer in largest.named_buffers() if name.endswith(("running_mean", "running_var"))
        )
        n = self.weights_layout.n
        self.weights, self.momentum, self.inside = (torch.zeros(n_lanes, n, device=device) for _ in range(3))
        self.decay = torch.zeros(n_lanes, 1, device=device)
        self.statistics = torch.zeros(n_lanes, self.statistics_layout.n, device=device)
        self.settings = {
            "is_last": torch.zeros(n_lanes, len(largest.blocks), device=device),
            "is_batch": torch.zeros(n_lanes, dtype=torch.bool, device=device),
            "dropout": torch.zeros(n_lanes, device=device),
        }
        self.batches = torch.zeros(n_lanes, n_batches, batch_size, dtype=torch.long, device=device)
        self.rates = torch.zeros(n_lanes, n_batches, device=device)
        self.step = torch.zeros(n_lanes, dtype=torch.long, device=device)
        self.n_steps = torch.zeros(n_lanes, dtype=torch.long, device=device)


class _FlatNetwork:
    """A network's tensors as they lie in a lane.

    The trial's thread packs and unpacks them. The stack's thread, for which all lanes wait, has a few copies to do.

    Attributes:
        weights: ``(n,)``, zeros where the largest network has more.
        inside: 1 where a weight belongs to the network, else 0.
        statistics: Running means and variances ``(n,)``.
    """

    @torch.no_grad()
    def __init__(self, network: nn.Module, lanes: _LaneTensors) -> None:
        self.weights, self.inside, self.statistics = (
            torch.zeros_like(tensor[0]) for tensor in (lanes.weights, lanes.inside, lanes.statistics)
        )
        weights, inside = lanes.weights_layout.views(self.weights), lanes.weights_layout.views(self.inside)
        statistics, buffers = lanes.statistics_layout.views(self.statistics), dict(network.named_buffers())
        self._places: list[tuple[Tensor, Tensor]] = []
        for name, tensor in network.named_parameters():
            where = region(tensor.shape, weights[name].shape)
            inside[name][where].fill_(1)
            self._places.append((tensor, weights[name][where]))
        for name in statistics.keys() & buffers.keys():
            where = region(buffers[name].shape, statistics[name].shape)
            self._places.append((buffers[name], statistics[name][where]))
        for own, place in self._places:
            place.copy_(own)
        self._n_batches = [tensor for name, tensor in buffers.items() if name.endswith("num_batches_tracked")]

    @torch.no_grad()
    def unpack(self, n_steps: int) -> None:
        """Copies the tensors into the network after so many steps."""
        for own, place in self._places:
            own.copy_(place)
        for count in self._n_batches:
            count.add_(n_steps)
