"""Predicts with torch alone: python program.py FOLDER."""

import sys
from pathlib import Path

import numpy
import torch

program = torch.export.load(Path(sys.argv[1]) / "program.pt2").module()
batch = torch.from_numpy(numpy.random.default_rng(0).random((5, 30), dtype=numpy.float32))
with torch.no_grad():
    for row in program(batch).tolist():
        print(*(f"{score:.3f}" for score in row))
