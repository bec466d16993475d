"""Writes the bundled images of digits as three tables, 64 pixels and a class a row: train.csv, val.csv, test.csv."""

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits(as_frame=True).frame
order = np.random.default_rng(0).permutation(len(digits))
for name, part in {"train": order[:1000], "val": order[1000:1400], "test": order[1400:]}.items():
    digits.iloc[part].to_csv(f"{name}.csv", index=False)
