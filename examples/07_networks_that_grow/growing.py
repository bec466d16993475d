"""Scikit-learn's digits with network graphs. A child starts as the same function as its parent."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from nas import Float, GraphModule, GraphSpace, Metric, Network, Policy, Problem, plain_cnn


class GrowingDigits(Problem):
    metrics = (Metric("accuracy"),)
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
    space = GraphSpace([plain_cnn((1, 8, 8), 10, widths=[4, 8], pool_after=[0])], {"rate": Float(0.02, 0.5, log=True)})

    def __init__(self):
        images, labels = load_digits(return_X_y=True)
        order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
        images, labels = torch.tensor(images / 16).float().view(-1, 1, 8, 8)[order], torch.tensor(labels)[order]
        self.parts = [(images[part], labels[part]) for part in (slice(1000), slice(1000, 1400), slice(1400, None))]

    def build(self, point):
        return GraphModule(Network.from_json(point["network"]))

    def train(self, run):
        network, (x, y) = self.build(run.point), self.parts[0]
        run.inherit(network)  # replays the operations that made this network from its parent's
        optimizer = torch.optim.SGD(network.parameters(), run.point["rate"], momentum=0.9)
        for epoch in range(run.epochs(full=20, early=2)):
            for batch in torch.randperm(len(x)).split(50):
                optimizer.zero_grad()
                nn.functional.cross_entropy(network.train()(x[batch]), y[batch]).backward()
                optimizer.step()
            run.report(epoch, **self.score(network, *self.parts[1]))
        run.save(network)
        return self.score(network, *self.parts[1])

    def score(self, network, x, y):
        return {"accuracy": (network.eval().cpu()(x).argmax(1) == y).float().mean()}

    def test(self, run):
        return self.score(run.restore(self.build(run.point)), *self.parts[2])

    def export(self, run):
        return run.restore(self.build(run.point)), (self.parts[0][0][:2],)
