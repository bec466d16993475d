"""Trains a deeper child with several inheritance rules: python train_on.py."""

import torch
from sklearn.datasets import load_digits
from torch import nn

from nas import Rules, inherit, inherit_optimizer, optimizer_tensors, set_frozen

images, labels = load_digits(return_X_y=True)
order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
images, labels = torch.tensor(images / 16).float()[order], torch.tensor(labels)[order]


def network(depth):
    body = [nn.Sequential(nn.Linear(32, 32), nn.BatchNorm1d(32), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(nn.Linear(64, 32), nn.Sequential(*body), nn.Linear(32, 10))


def train(network, optimizer, n_epochs, rules=None, report=None):
    step = 0
    for epoch in range(n_epochs):
        if report is not None:
            set_frozen(network, report, rules, epoch)
        for batch in torch.arange(1200).split(50):
            optimizer.param_groups[0]["lr"] = 0.02 * (1 if rules is None else rules.warm_up(step))
            optimizer.zero_grad()
            nn.functional.cross_entropy(network.train()(images[batch]), labels[batch]).backward()
            optimizer.step()
            step += 1


def accuracy(network):
    return (network.eval()(images[1200:]).argmax(1) == labels[1200:]).float().mean()


torch.manual_seed(0)
parent = network(depth=2)
optimizer = torch.optim.SGD(parent.parameters(), 0.02, momentum=0.9)
train(parent, optimizer, 4)
published = {**parent.state_dict(), **optimizer_tensors(optimizer, parent)}  # as given to run.save
print(f"parent: accuracy {accuracy(parent):.3f} after four epochs")

RULES = {
    "nothing inherited": None,
    "as it comes": Rules(),
    "batch-norm statistics afresh": Rules(statistics="reset"),
    "shrunk and perturbed": Rules(shrink=0.6, perturb=0.1),
    "warm-up of 10 steps": Rules(warm_up_steps=10),
    "copied layers frozen for an epoch": Rules(freeze_epochs=1),
    "momentum inherited, too": Rules(),
}
for name, rules in RULES.items():
    torch.manual_seed(1)
    child = network(depth=3)
    optimizer = torch.optim.SGD(child.parameters(), 0.02, momentum=0.9)
    report = None if rules is None else inherit(child, [parent.state_dict()], rules=rules)
    if name.startswith("momentum"):
        inherit_optimizer(optimizer, child, [published])
    before = accuracy(child)
    train(child, optimizer, 2, rules, report)
    print(f"child, {name}: {before:.3f}, and {accuracy(child):.3f} after two epochs")
