"""Torchvision's Python code beside a torch for the CPU, for tests of timm.

The wheel on PyPI is built for CUDA, so its operators do not load here. timm's networks use none of them.
"""

from importlib.util import find_spec
from pathlib import Path

import torch

found = find_spec("torchvision")
assert found is not None
assert found.origin is not None
try:
    torch.ops.load_library(Path(found.origin).parent / "_C.so")
except OSError:
    library = torch.library.Library("torchvision", "DEF")
    library.define("nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    library.define("qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
