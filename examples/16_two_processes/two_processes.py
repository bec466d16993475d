"""Digits by DistributedDataParallel: the process of the trial is rank 0, and starts the other one."""

import copy
import os
import tempfile
from pathlib import Path

import torch
from sklearn.datasets import load_digits
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from nas import Int, Metric, ParameterSpace, Policy, Problem, TrialRun

N_PROCESSES = 2
N_STEPS = 40


def train_rank(rank: int, meeting: Path, network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    distributed.init_process_group(  # on GPUs: "nccl", with a GPU of the trial for each rank
        "gloo", init_method=meeting.as_uri(), rank=rank, world_size=N_PROCESSES
    )
    network = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images[rank::N_PROCESSES]), labels[rank::N_PROCESSES]).backward()
        optimizer.step()
    return network


class TwoProcesses(Problem):
    metrics = (Metric("accuracy"),)
    policies = frozenset({Policy.SHARE_PARAMS})
    space = ParameterSpace({"width": Int(8, 64)})

    def train(self, run: TrialRun) -> dict[str, float]:
        images, labels = load_digits(return_X_y=True)
        images, labels = torch.tensor(images, dtype=torch.float32) / 16, torch.tensor(labels)
        width = run.point["width"]
        network = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 10))
        run.inherit(network)
        with tempfile.TemporaryDirectory() as folder:
            arguments = (Path(folder) / "ranks", network, images[:1400], labels[:1400])
            others = multiprocessing.spawn(start, arguments, N_PROCESSES - 1, join=False)
            try:
                trained = train_rank(0, *arguments)
                while not others.join():
                    pass
            finally:  # rank 0 is the last to leave: until then the others use its connections
                distributed.destroy_process_group()
        run.save(trained)
        return {"accuracy": float((trained(images[1400:]).argmax(1) == labels[1400:]).float().mean())}


def start(index: int, meeting: Path, network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    network = copy.deepcopy(network)  # its tensors came in memory that rank 0 trains in, too
    train_rank(index + 1, meeting, network, images, labels)
    os._exit(0)  # Python's own end aborts the process if a thread of gloo is not done with its last work
