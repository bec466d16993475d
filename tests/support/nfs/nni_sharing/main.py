"""Writes a file of random bytes through one mount of a share, or reads the father's through another."""

import hashlib
import os
import random

import nni

params = nni.get_next_parameter()
print(params)
if "prev_path" not in params:
    folder = os.path.join(os.environ["SHARE_WRITE"], nni.get_experiment_id(), str(params["id"]))
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "model.dat")
    with open(path, "wb") as file:
        file.write(os.urandom(random.randint(1024, 102400)))
    relative = os.path.relpath(path, os.environ["SHARE_WRITE"])
else:
    relative = params["prev_path"]
    path = os.path.join(os.environ["SHARE_READ"], relative)
with open(path, "rb") as file:
    digest = hashlib.md5(file.read()).hexdigest()
nni.report_final_result({"checksum": digest + str(params["prev_id"]), "path": relative})
