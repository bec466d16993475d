"""Grows a network by random morphisms that keep its outputs: python grow.py."""

import random

import torch

from nas import GraphModule, Limits, draw_move, morph, resnet

torch.manual_seed(0)
rng = random.Random(0)
network = resnet((3, 16, 16), 10, widths=[8, 16])
module = GraphModule(network)
module(torch.randn(32, 3, 16, 16))  # gives batch-norm some statistics
weights = module.state_dict()
images = torch.randn(8, 3, 16, 16)
before = module.eval()(images)
for _ in range(10):
    move = draw_move(network, ["widen", "deepen", "residual", "grow_kernel", "add_skip", "branch"], Limits(), rng)
    network, weights = morph(network, weights, move.operation)
    grown = GraphModule(network)
    grown.load_state_dict(weights)
    n_parameters = sum(parameter.numel() for parameter in grown.parameters())
    difference = (grown.eval()(images) - before).abs().max() / before.abs().max()
    print(f"{move.operation.to_json()['kind']:16} {n_parameters:7,} parameters, differs by {difference:.0e}")
