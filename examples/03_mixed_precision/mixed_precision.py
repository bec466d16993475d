"""Mixed-precision quantization: a search for the bits of each layer's weights, phase by phase."""

from functools import cached_property

import torch
from torch import nn
from torch.nn import functional

from nas import Choice, Metric, ParameterSpace, Policy, Problem
from nas.problems.digits import DigitsProblem

LAYERS = ("stem", "middle", "last", "head")
BITS = (2, 3, 4, 6, 8)


class MixedPrecision(Problem):
    metrics = (Metric("accuracy"), Metric("size_kb", "minimize"))
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace({layer: Choice(*BITS) for layer in LAYERS})

    def __init__(self, n_epochs=4, max_phases=None):
        self.n_epochs = n_epochs  # of one phase
        self.max_phases = max_phases  # of one job

    @cached_property
    def data(self):
        return DigitsProblem().load_train()

    def train_many(self, job):
        previous = {}  # the weights of the previous phase in this process
        for run in job.trials(self.max_phases):
            network = QuantizedNetwork(run.point).to(run.device)
            run.inherit(network, previous)  # read from storage only if not in `previous`
            self.fit(network, run)
            run.save(network)
            previous = network.state_dict()
            run.finish(accuracy=self.score(network, self.data[1].to(run.device)), size_kb=network.size_kb())

    def fit(self, network, run):
        images = self.data[0].to(run.device)
        optimizer = torch.optim.Adam(network.parameters(), 3e-3)
        for _ in range(self.n_epochs):
            for batch in torch.randperm(len(images)).split(32):
                loss = functional.cross_entropy(network(images.pixels[batch]), images.labels[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()

    @torch.no_grad()
    def score(self, network, images):
        return int((network(images.pixels).argmax(1) == images.labels).sum()) / len(images)

    def test(self, run):
        images = DigitsProblem().load_test().to(run.device)
        return {"accuracy": self.score(run.restore(QuantizedNetwork(run.point)), images)}

    def export(self, run):
        return run.restore(QuantizedNetwork(run.point)), (self.data[1].pixels[:2].to(run.device),)


class QuantizedNetwork(nn.Module):
    """Three convolutions and a linear layer with quantized weights."""

    def __init__(self, bits):
        super().__init__()
        self.bits = bits
        self.stem = nn.Conv2d(1, 16, 3, padding=1)
        self.middle = nn.Conv2d(16, 32, 3, padding=1)
        self.last = nn.Conv2d(32, 32, 3, padding=1)
        self.head = nn.Linear(32, 10)

    def forward(self, pixels):
        x = pixels.float() / 16  # (batch, 1, 8, 8)
        for layer in LAYERS[:-1]:
            convolution = getattr(self, layer)
            x = functional.conv2d(x, self.weight(layer), convolution.bias, padding=1).relu()
            x = functional.max_pool2d(x, 2)
        return functional.linear(x.flatten(1), self.weight("head"), self.head.bias)  # (batch, 10)

    def weight(self, layer):
        return quantized(getattr(self, layer).weight, self.bits[layer])

    def size_kb(self):
        """Returns the size of the quantized weights, and of scales and biases in float32."""
        n_bits = sum(getattr(self, layer).weight.numel() * self.bits[layer] for layer in LAYERS)
        n_plain = sum(getattr(self, layer).bias.numel() + 1 for layer in LAYERS)
        return (n_bits + 32 * n_plain) / 8 / 1024


def quantized(weight, bits):
    """Rounds to ``2**bits - 1`` evenly spaced values.

    The gradient is passed on unchanged (straight-through estimator, arXiv:1308.3432).
    """
    top = 2 ** (bits - 1) - 1
    scale = weight.detach().abs().amax().clamp(min=1e-8) / top
    values = (weight.detach() / scale).round() * scale
    return values + (weight - weight.detach())  # adds zeros that carry the gradient
