"""A model template with policies: a network that starts from the parameters of an earlier trial."""

import numpy as np
import torch
from rafiki.constants import ModelDependency
from rafiki.model import BaseModel, FixedKnob, FloatKnob, IntegerKnob, PolicyKnob, utils
from rafiki.model.dev import test_model_class
from torch.nn import functional


class Net(BaseModel):
    @staticmethod
    def get_knob_config():
        return {
            "rate": FloatKnob(1e-3, 1e-1, is_exp=True),
            "batch_size": IntegerKnob(32, 128),
            "width": FixedKnob(64),
            "epochs": FixedKnob(12),
            "share_params": PolicyKnob("SHARE_PARAMS"),
            "quick_train": PolicyKnob("EARLY_STOP"),
            "skip_train": PolicyKnob("SKIP_TRAIN"),
            "quick_eval": PolicyKnob("QUICK_EVAL"),
        }

    def __init__(self, **knobs):
        super().__init__(**knobs)
        self.knobs = knobs
        width = knobs["width"]
        self.network = torch.nn.Sequential(torch.nn.Linear(64, width), torch.nn.ReLU(), torch.nn.Linear(width, 10))

    def train(self, dataset_path, shared_params=None, **train_args):
        if self.knobs["share_params"] and shared_params is not None:
            self.load_parameters(shared_params)
        if self.knobs["skip_train"]:
            return
        inputs, classes = self._load(dataset_path)
        optimizer = torch.optim.SGD(self.network.parameters(), lr=self.knobs["rate"], momentum=0.9)
        utils.logger.define_loss_plot()
        for epoch in range(2 if self.knobs["quick_train"] else self.knobs["epochs"]):
            losses = []
            for batch in torch.randperm(len(inputs)).split(self.knobs["batch_size"]):
                loss = functional.cross_entropy(self.network(inputs[batch]), classes[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            utils.logger.log_loss(np.mean(losses), epoch)

    def evaluate(self, dataset_path):
        inputs, classes = self._load(dataset_path)
        if self.knobs["quick_eval"]:
            inputs, classes = inputs[:100], classes[:100]
        with torch.no_grad():
            return float((self.network(inputs).argmax(1) == classes).float().mean())

    def predict(self, queries):
        with torch.no_grad():
            return self.network(torch.tensor(queries, dtype=torch.float32) / 16).softmax(1).tolist()

    def dump_parameters(self):
        return {name: tensor.numpy() for name, tensor in self.network.state_dict().items()}

    def load_parameters(self, params):
        self.network.load_state_dict({name: torch.from_numpy(array) for name, array in params.items()})

    def _load(self, dataset_path):
        table = utils.dataset.load_dataset_of_tabular(dataset_path).data
        inputs = torch.tensor(table.iloc[:, :-1].to_numpy(), dtype=torch.float32) / 16  # (examples, 64), 0 to 1
        return inputs, torch.tensor(table.iloc[:, -1].to_numpy())


if __name__ == "__main__":
    test_model_class(
        model_file_path=__file__,
        model_class="Net",
        task="TABULAR_CLASSIFICATION",
        dependencies={ModelDependency.TORCH: "2.6"},
        train_dataset_path="train.csv",
        val_dataset_path="val.csv",
        test_dataset_path="test.csv",
        queries=[[0] * 64],
    )
