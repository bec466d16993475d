from sklearn.datasets import load_breast_cancer
from torch import nn, optim, tensor

from nas import Float, Int, Metric, ParameterSpace, Policy, Problem


class MyProblem(Problem):
    metrics = (Metric("accuracy"),)
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})  # those that `train` implements

    def __init__(self, width=32):
        self.space = ParameterSpace({"depth": Int(1, 4), "width": Int(8, width), "lr": Float(0.001, 0.1, log=True)})
        x, y = load_breast_cancer(return_X_y=True)
        self.parts = [(tensor(x[i::3]).float(), tensor(y[i::3])) for i in range(3)]  # training, validation, test

    def build(self, point):
        w = point["width"]
        body = [nn.Sequential(nn.Linear(w, w), nn.ReLU()) for _ in range(point["depth"])]
        return nn.Sequential(nn.BatchNorm1d(30, momentum=None), nn.Linear(30, w), nn.Sequential(*body), nn.Linear(w, 2))

    def train(self, run):
        network, (x, y) = self.build(run.point), self.parts[0]
        run.inherit(network)  # copies the parent's weights that fit
        optimizer = optim.Adam(network.parameters(), run.point["lr"])
        for step in range(run.epochs(full=100, early=10)):
            optimizer.zero_grad()
            nn.functional.cross_entropy(network.train()(x), y).backward()
            optimizer.step()
            run.report(step, **self.score(network, *self.parts[1]))
        run.save(network)
        return self.score(network, *self.parts[1])

    def score(self, network, x, y):
        return {"accuracy": (network.eval().cpu()(x).argmax(1) == y).float().mean()}

    def test(self, run):
        return self.score(run.restore(self.build(run.point)), *self.parts[2])

    def export(self, run):
        return run.restore(self.build(run.point)), (self.parts[0][0][:2],)
