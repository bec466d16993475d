"""Loads a winner with the library's own class: python use.py FOLDER."""

import json
import sys
from pathlib import Path

from safetensors.torch import load_file

RULE = "must be the folder of one winner. Give the folder after `export:` in the search's output."

if len(sys.argv) != 2 or not (Path(sys.argv[1]) / "architecture.json").is_file():
    sys.exit(f"FOLDER={' '.join(sys.argv[1:])}: {RULE}")
folder = Path(sys.argv[1])
architecture = json.loads((folder / "architecture.json").read_text())
if architecture["problem"] not in ("gpt.Gpt", "vit.Vit"):
    sys.exit(f"FOLDER={folder}: must be a winner of gpt.Gpt or vit.Vit. Give another.")
if not (folder / "model.safetensors").is_file():
    sys.exit(f"FOLDER={folder}: must have model.safetensors. Give the folder of a trial that saved its weights.")
weights, point = load_file(folder / "model.safetensors"), architecture["point"]

if architecture["problem"] == "gpt.Gpt":
    from gpt import build
    from transformers import GPT2LMHeadModel

    model = build(point)
    model.load_state_dict(weights)
    model.save_pretrained("winner")  # config.json and model.safetensors, for any program of Hugging Face
    model = GPT2LMHeadModel.from_pretrained("winner")
else:
    from vit import build

    model = build(point)  # timm.create_model
    model.load_state_dict(weights)
print(type(model).__name__, point, sum(tensor.numel() for tensor in model.parameters()), "parameters")
