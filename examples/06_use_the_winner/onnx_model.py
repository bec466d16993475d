"""Predicts without torch: python onnx_model.py FOLDER."""

import sys
from pathlib import Path

import numpy
import onnxruntime

session = onnxruntime.InferenceSession(Path(sys.argv[1]) / "model.onnx", providers=["CPUExecutionProvider"])
batch = numpy.random.default_rng(0).random((5, 30), dtype=numpy.float32)
[scores] = session.run(None, {session.get_inputs()[0].name: batch})
for row in scores.tolist():
    print(*(f"{score:.3f}" for score in row))
