from sklearn.datasets import load_digits
from torch import nn, optim, randperm, tensor

import nas
from nas.supernets.statistics import score


def layer(label, own):
    options = {f"conv_{size}x{size}": nn.Conv2d(16, 16, size, padding="same") for size in (1, 3, 5)}
    choice = nas.LayerChoice({**options, "skip": nn.Identity()}, label)
    return nn.Sequential(choice, nn.BatchNorm2d(16, affine=own, track_running_stats=own), nn.ReLU())


def supernet(own=False):  # paths share no scales and statistics of norms; a network of its own has them
    one, two, three, four = (layer(label, own) for label in ("first", "second", "third", "fourth"))
    body = nn.Sequential(one, two, nn.MaxPool2d(2), three, nn.MaxPool2d(2), four, nn.AdaptiveAvgPool2d(1))
    return nn.Sequential(nn.Conv2d(1, 16, 3, padding="same"), body, nn.Flatten(), nn.Linear(16, 10))


class MySupernet(nas.Problem):
    metrics = (nas.Metric("accuracy"),)
    policies = frozenset({nas.Policy.SHARE_PARAMS, nas.Policy.SKIP_TRAIN, nas.Policy.EARLY_STOP})
    space = nas.SupernetSpace(nas.space_of(supernet()))

    def build(self, run):
        network = supernet(own=nas.Policy.SHARE_PARAMS not in run.policies)
        return network if nas.epoch_of(run.point) is not None else nas.subnet(network, run.point)

    def train(self, run):
        network, (x, y), is_epoch = self.build(run), self.part(0), nas.epoch_of(run.point) is not None
        paths = nas.UniformPaths(self.space, run.seed) if is_epoch else nas.ListedPaths([run.point])
        run.inherit(network, rules=nas.Rules(rest="own"))  # all weights of the newest supernet epoch
        batches = [i for _ in range(run.epochs(full=40, early=10)) for i in randperm(len(x)).split(50)]
        optimizer = optim.SGD(network.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)
        nas.train_epoch(network, ((x[i], y[i]) for i in batches), optimizer, paths)
        run.save(network)
        if not is_epoch:
            return score(network, [self.part(1)])
        points = [nas.UniformPaths(self.space, seed=0)(index)[0] for index in range(16)]  # the same in each epoch
        return nas.panel_score(network, points, [self.part(1)])

    def part(self, index):  # 0: training, 1: validation, 2: test
        x, y = load_digits(return_X_y=True)
        return tensor(x[index::3]).float().view(-1, 1, 8, 8) / 16, tensor(y[index::3])

    def test(self, run):
        return score(run.restore(self.build(run)).cpu(), [self.part(2)])

    def export(self, run):
        return run.restore(self.build(run)).cpu(), (self.part(0)[0][:2],)
