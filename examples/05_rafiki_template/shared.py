"""A model template with an architecture: a network whose blocks share their parameters between trials."""

import torch
from rafiki.constants import ModelDependency
from rafiki.model import ArchKnob, BaseModel, FixedKnob, KnobValue, PolicyKnob, utils
from rafiki.model.dev import test_model_class
from torch import nn
from torch.nn import functional

N_BLOCKS = 3
LAYERS = ("relu", "tanh", "identity", "zero")


class Shared(BaseModel):
    @staticmethod
    def get_knob_config():
        nodes = [KnobValue(node) for node in range(N_BLOCKS)]
        layers = [KnobValue(layer) for layer in LAYERS]
        items = [candidates for block in range(N_BLOCKS) for candidates in (nodes[: block + 1], layers)]
        return {
            "arch": ArchKnob(items),  # of each block: the node that it reads, and its layer
            "epochs": FixedKnob(12),
            "share_params": PolicyKnob("SHARE_PARAMS"),
            "quick_train": PolicyKnob("EARLY_STOP"),
            "skip_train": PolicyKnob("SKIP_TRAIN"),
            "quick_eval": PolicyKnob("QUICK_EVAL"),
            "downscale": PolicyKnob("DOWNSCALE"),
        }

    def __init__(self, **knobs):
        super().__init__(**knobs)
        self.knobs = knobs
        arch = knobs["arch"]
        self.blocks = list(zip(arch[::2], arch[1::2], strict=True))
        width = 32 if knobs["downscale"] else 96
        self.network = nn.ModuleDict({"stem": nn.Linear(64, width), "head": nn.Linear(width, 10)})
        for block in range(N_BLOCKS):  # all blocks with all layers that have parameters, whatever the architecture is
            for layer in ("relu", "tanh"):
                self.network[f"{layer}_{block}"] = nn.Linear(width, width)

    def train(self, dataset_path, shared_params=None, **train_args):
        if self.knobs["share_params"] and shared_params is not None:
            self.load_parameters(shared_params)
        if self.knobs["skip_train"]:
            return
        inputs, classes = self._load(dataset_path)
        optimizer = torch.optim.SGD(self.network.parameters(), lr=0.05, momentum=0.9)
        for epoch in range(1 if self.knobs["quick_train"] else self.knobs["epochs"]):
            for batch in torch.randperm(len(inputs)).split(32):
                loss = functional.cross_entropy(self._forward(inputs[batch]), classes[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
            utils.logger.log_loss(loss.item(), epoch)

    def evaluate(self, dataset_path):
        inputs, classes = self._load(dataset_path)
        if self.knobs["quick_eval"]:
            inputs, classes = inputs[:200], classes[:200]
        with torch.no_grad():
            return float((self._forward(inputs).argmax(1) == classes).float().mean())

    def predict(self, queries):
        with torch.no_grad():
            return self._forward(torch.tensor(queries, dtype=torch.float32) / 16).softmax(1).tolist()

    def dump_parameters(self):
        return {name: tensor.numpy() for name, tensor in self.network.state_dict().items()}

    def load_parameters(self, params):
        self.network.load_state_dict({name: torch.from_numpy(array) for name, array in params.items()})

    def _forward(self, inputs):
        nodes = [functional.relu(self.network["stem"](inputs))]
        for block, (node, layer) in enumerate(self.blocks):
            nodes.append(self._layer(block, layer, nodes[node]))
        return self.network["head"](sum(nodes[1:]))

    def _layer(self, block, layer, inputs):
        if layer in ("identity", "zero"):
            return inputs * (layer == "identity")
        return getattr(torch, layer)(self.network[f"{layer}_{block}"](inputs))

    def _load(self, dataset_path):
        table = utils.dataset.load_dataset_of_tabular(dataset_path).data
        inputs = torch.tensor(table.iloc[:, :-1].to_numpy(), dtype=torch.float32) / 16  # (examples, 64), 0 to 1
        return inputs, torch.tensor(table.iloc[:, -1].to_numpy())


if __name__ == "__main__":
    test_model_class(
        model_file_path=__file__,
        model_class="Shared",
        task="TABULAR_CLASSIFICATION",
        dependencies={ModelDependency.TORCH: "2.0"},
        train_dataset_path="train.csv",
        val_dataset_path="val.csv",
        queries=[[0] * 64],
        budget={"MODEL_TRIAL_COUNT": 2},
    )
