"""A problem with short trials and a long preparation."""

import torch
from torch.nn import functional

from nas import Choice, Float, Metric, ParameterSpace, Problem
from nas.problems.digits import DigitsProblem

N_CHANNELS = 64


class CostlyStart(Problem):
    metrics = (Metric("accuracy"),)
    space = ParameterSpace({"n_features": Choice(32, 64, 128, 256), "decay": Float(1e-4, 1e2, log=True)})

    def train_many(self, job):
        tables = self.prepare(job.device)  # once per job, for all its trials
        for run in job.trials():
            run.finish(accuracy=self.train_readout(run.point, *tables))

    def prepare(self, device):
        """Returns the features of all images by a random network. Training images are shifted nine ways."""
        generator = torch.Generator().manual_seed(0)  # the same table in every job
        shapes = [(N_CHANNELS, 1, 3, 3), *[(N_CHANNELS, N_CHANNELS, 3, 3)] * 2]
        filters = [torch.randn(shape, generator=generator).to(device) / (9 * shape[1]) ** 0.5 for shape in shapes]
        train, validation = DigitsProblem().load_train()
        shifts = [(down, right) for down in (-1, 0, 1) for right in (-1, 0, 1)]
        pixels = torch.cat([train.pixels.roll(shift, (2, 3)) for shift in shifts])
        labels = functional.one_hot(train.labels.repeat(len(shifts)), 10).double()
        features = self.features(pixels.to(device), filters)
        return features, labels.to(device), self.features(validation.pixels.to(device), filters), validation.labels

    def features(self, pixels, filters):
        parts = []
        for batch in pixels.split(256):
            x = batch.float() / 16  # (batch, 1, 8, 8)
            for weight in filters:
                x = functional.conv2d(x, weight, padding=1).relu()
            parts.append(functional.avg_pool2d(x, 4).flatten(1).double())  # (batch, 4 * N_CHANNELS)
        return torch.cat(parts)

    def train_readout(self, point, x, y, x_validation, labels):
        """Returns the accuracy of a ridge regression on the first ``n_features`` features."""
        n = point["n_features"]
        x, x_validation = x[:, :n], x_validation[:, :n]
        weights = torch.linalg.solve(x.T @ x + point["decay"] * torch.eye(n, dtype=x.dtype, device=x.device), x.T @ y)
        return int(((x_validation @ weights).argmax(1).cpu() == labels).sum()) / len(labels)
