"""Inheritance between two torch modules of different architectures: python hand_down.py."""

import torch
from torch import nn

from nas import Rules, inherit


def network(width, depth):
    body = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(depth)]
    return nn.Sequential(nn.Linear(20, width), nn.Sequential(*body), nn.Linear(width, 3))


torch.manual_seed(0)
parent = network(width=16, depth=2)
x = torch.randn(100, 20)
for rest in ("scaled", "own"):
    child = network(width=24, depth=2)
    report = inherit(child, [parent.state_dict()], rules=Rules(rest=rest))
    difference = (child(x) - parent(x)).abs().mean() / parent(x).abs().mean()
    print(f"wider, rest={rest}: {report.share:.0%} inherited; its outputs differ from the parent's by {difference:.0%}")

report = inherit(network(width=24, depth=3), [parent.state_dict()])
print("wider and a layer deeper, tensor by tensor:")
for name, tensor in report.tensors.items():
    print(f"  {name:14} {tensor.how:7} {tensor.share:4.0%}  {tensor.why}")
