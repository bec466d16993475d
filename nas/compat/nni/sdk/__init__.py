"""What the processes of an NNI experiment find by ``import nni``; no other process has this folder in its path."""
