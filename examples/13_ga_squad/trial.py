"""The trial of ga_squad in torch: restores shared layers, trains and saves all layers."""

import argparse
import os
import sys

import nni
import torch
from graph import WIDTH
from torch.nn import functional

from nas.core.errors import ConfigurationError
from nas.problems.squad.fit import BATCH_SIZE, answers_of
from nas.problems.squad.official import scores
from nas.problems.squad.problem import SquadProblem
from nas.problems.squad.questions import epoch_batches, inputs_of


def restore(network, folder, shared_id):
    """Loads the shared layers, the embedding and the pointers."""
    parent = torch.load(os.path.join(folder, "model.pt"), weights_only=True)
    shared = ("embed.", "head.", *(f"layers.{name}." for name in shared_id))
    state = {name: tensor for name, tensor in parent.items() if name.startswith(shared)}
    network.load_state_dict(state, strict=False)


def train_epoch(network, optimizer, questions):
    network.train()
    lengths = [len(one.read.words) for one in questions]
    for batch in epoch_batches(lengths, BATCH_SIZE, torch.Generator().manual_seed(0)):
        chosen = [questions[index] for index in batch]
        right = torch.tensor([one.span for one in chosen]).flatten()
        loss = functional.cross_entropy(network(*inputs_of(chosen)).flatten(0, 1), right)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def main(arguments, parameters):
    torch.manual_seed(0)
    problem = SquadProblem(
        arguments.input_file, split_file=arguments.split_file, vectors_file=arguments.vectors_file, width=WIDTH
    )
    network = problem.build(parameters["graph"])
    if parameters["restore_dir"] is not None:
        restore(network, parameters["restore_dir"], parameters["shared_id"])
    questions = [one for one in problem.data.train if one.span is not None]
    references = {one.id: one.answers for one in problem.data.validation}
    optimizer = torch.optim.Adam(network.parameters(), 3e-3)
    best = 0.0
    for _ in range(arguments.max_epoch):
        train_epoch(network, optimizer, questions)
        found = scores(answers_of(network, problem.data.validation), references)
        nni.report_intermediate_result(found["exact_match"])
        best = max(best, found["exact_match"])
    os.makedirs(parameters["save_dir"], exist_ok=True)
    torch.save(network.state_dict(), os.path.join(parameters["save_dir"], "model.pt"))
    nni.report_final_result(best)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--input_file", required=True)
    parser.add_argument("--split_file")
    parser.add_argument("--vectors_file")
    parser.add_argument("--max_epoch", type=int, default=1)
    given = parser.parse_args()
    for option, path in vars(given).items():
        if option.endswith("_file") and path is not None and not os.path.isfile(path):
            sys.exit(f"--{option} {path}: must be a file. Copy one to {os.getcwd()} or give another path.")
    try:
        main(given, nni.get_next_parameter())
    except ConfigurationError as error:
        sys.exit(str(error))
