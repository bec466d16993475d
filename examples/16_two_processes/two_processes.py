"""Digits by DistributedDataParallel: the process of the trial is rank 0, and starts the other one."""

import socket

import torch
from sklearn.datasets import load_digits
from torch import distributed, multiprocessing, nn
from torch.nn.parallel import DistributedDataParallel

from nas import Int, Metric, ParameterSpace, Policy, Problem, TrialRun

N_PROCESSES = 2
N_STEPS = 40


def train_rank(rank: int, port: int, network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> nn.Module:
    distributed.init_process_group(  # on GPUs: "nccl", with a GPU of the trial for each rank
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=N_PROCESSES
    )
    network = DistributedDataParallel(network)
    optimizer = torch.optim.Adam(network.parameters(), lr=0.01)
    for _ in range(N_STEPS):
        optimizer.zero_grad()
        nn.functional.cross_entropy(network(images[rank::N_PROCESSES]), labels[rank::N_PROCESSES]).backward()
        optimizer.step()
    distributed.destroy_process_group()
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
        with socket.socket() as listener:
            listener.bind(("127.0.0.1", 0))
            port = listener.getsockname()[1]
        others = multiprocessing.spawn(
            start, (port, network, images[:1400], labels[:1400]), N_PROCESSES - 1, join=False
        )
        trained = train_rank(0, port, network, images[:1400], labels[:1400])
        while not others.join():
            pass
        run.save(trained)
        return {"accuracy": float((trained(images[1400:]).argmax(1) == labels[1400:]).float().mean())}


def start(index: int, port: int, network: nn.Module, images: torch.Tensor, labels: torch.Tensor) -> None:
    train_rank(index + 1, port, network, images, labels)
