"""Sizes of a vision transformer that timm builds, on images of digits."""

import torch
from sklearn.datasets import load_digits
from torch.nn.functional import cross_entropy

import nas

try:
    import timm
except ModuleNotFoundError as error:
    raise ImportError("vit.py needs timm. In the repository: pip install -c constraints.txt '.[timm]'") from error


def build(point):  # with random weights
    return timm.create_model(
        "vit_tiny_patch16_224", pretrained=False, img_size=8, patch_size=2, in_chans=1, num_classes=10,
        embed_dim=point["heads"] * point["head_size"], depth=point["layers"], num_heads=point["heads"],
    )  # fmt: skip


class Vit(nas.Problem):
    metrics = (nas.Metric("accuracy"),)
    policies = frozenset({nas.Policy.SHARE_PARAMS, nas.Policy.EARLY_STOP})
    space = nas.ParameterSpace({"heads": nas.Choice(1, 2, 4), "head_size": nas.Choice(8, 16), "layers": nas.Int(1, 3)})

    def build(self, point):
        return build(point)

    def train(self, run):
        model, (x, y) = build(run.point), self.part(0)
        run.inherit(model)
        n_epochs = run.epochs(full=30, early=6)
        optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1, 0.1, n_epochs)
        model.train()
        for _ in range(n_epochs):
            for batch in torch.randperm(len(x)).split(50):
                loss = cross_entropy(model(x[batch]), y[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            schedule.step()
        run.save(model)
        return {"accuracy": self.accuracy(model, 1)}

    def part(self, index):  # 0: training, 1: validation, 2: test
        x, y = load_digits(return_X_y=True)
        return torch.tensor(x[index::3]).float().view(-1, 1, 8, 8) / 16, torch.tensor(y[index::3])

    @torch.no_grad()
    def accuracy(self, model, index):
        x, y = self.part(index)
        return (model.eval()(x).argmax(1) == y).float().mean().item()

    def test(self, run):
        return {"accuracy": self.accuracy(run.restore(build(run.point)).cpu(), 2)}

    def export(self, run):
        return run.restore(build(run.point)).eval(), (self.part(0)[0][:2],)
