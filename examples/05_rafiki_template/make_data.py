"""Writes scikit-learn's digits as train.csv, val.csv and test.csv.

A row has 64 pixels and the class.
"""

import numpy as np
from sklearn.datasets import load_digits

digits = load_digits(as_frame=True).frame
order = np.random.default_rng(0).permutation(len(digits))
for name, part in {"train": order[:1000], "val": order[1000:1400], "test": order[1400:]}.items():
    digits.iloc[part].to_csv(f"{name}.csv", index=False)
