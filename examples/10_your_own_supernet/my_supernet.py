from sklearn.datasets import load_digits
from torch import nn, optim, randperm, tensor

import nas


def layer(label):  # one of four layers; the norm keeps no statistics or scales, which all paths would share
    options = {f"conv_{size}x{size}": nn.Conv2d(16, 16, size, padding="same") for size in (1, 3, 5)}
    choice = nas.LayerChoice({**options, "skip": nn.Identity()}, label)
    return nn.Sequential(choice, nn.GroupNorm(4, 16, affine=False), nn.ReLU())


def supernet():
    body = layer("first"), layer("second"), nn.MaxPool2d(2), layer("third"), nn.MaxPool2d(2), layer("fourth")
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding="same"), *body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)
    )


class MySupernet(nas.Problem):
    metrics = (nas.Metric("accuracy"),)
    policies = frozenset({nas.Policy.SHARE_PARAMS, nas.Policy.SKIP_TRAIN})
    space = nas.SupernetSpace(nas.space_of(supernet()))

    def build(self, point):
        return supernet() if nas.epoch_of(point) is not None else nas.subnet(supernet(), point)

    def train(self, run):
        network = self.build(run.point)
        run.inherit(network, rules=nas.Rules(rest="own"))  # all weights of the newest supernet epoch
        paths, scored = nas.ListedPaths([run.point]), [run.point]
        if nas.epoch_of(run.point) is not None:  # trains all subnets, scored by the mean of 16 fixed ones
            paths = nas.UniformPaths(self.space, run.seed)
            scored = [nas.UniformPaths(self.space, seed=0)(index)[0] for index in range(16)]
        x, y = self.part(0)
        batches = [i for _ in range(run.epochs(full=10, early=10)) for i in randperm(len(x)).split(50)]
        optimizer = optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
        nas.train_epoch(network, ((x[i], y[i]) for i in batches), optimizer, paths)
        run.save(network)
        return nas.panel_score(network, scored, [self.part(1)])

    def part(self, index):  # 0: training, 1: validation, 2: test
        x, y = load_digits(return_X_y=True)
        return tensor(x[index::3]).float().view(-1, 1, 8, 8) / 16, tensor(y[index::3])

    def test(self, run):
        return nas.panel_score(run.restore(self.build(run.point)).cpu(), [run.point], [self.part(2)])

    def export(self, run):
        return run.restore(self.build(run.point)).cpu(), (self.part(0)[0][:2],)
