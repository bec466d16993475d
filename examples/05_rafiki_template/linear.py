"""A Rafiki model template: logistic regression on a table with the class in its last column."""

import numpy as np
from rafiki.constants import ModelDependency
from rafiki.model import BaseModel, CategoricalKnob, FixedKnob, FloatKnob, IntegerKnob, utils
from rafiki.model.dev import test_model_class
from sklearn.linear_model import LogisticRegression


class Linear(BaseModel):
    @staticmethod
    def get_knob_config():
        return {
            "strength": FloatKnob(1e-4, 1e2, is_exp=True),
            "max_iter": IntegerKnob(5, 40),
            "balanced": CategoricalKnob([True, False]),
            "scale": FixedKnob(16.0),
        }

    def __init__(self, **knobs):
        super().__init__(**knobs)
        self.scale = knobs["scale"]
        weights = "balanced" if knobs["balanced"] else None
        self.model = LogisticRegression(C=knobs["strength"], max_iter=knobs["max_iter"], class_weight=weights)

    def train(self, dataset_path, shared_params=None, **train_args):
        inputs, classes = self._load(dataset_path)
        self.model.fit(inputs, classes)
        utils.logger.log("trained", train_accuracy=self.model.score(inputs, classes))

    def evaluate(self, dataset_path):
        return float(self.model.score(*self._load(dataset_path)))

    def predict(self, queries):
        return [int(label) for label in self.model.predict(np.asarray(queries) / self.scale)]

    def dump_parameters(self):
        return {
            "coefficients": self.model.coef_,
            "intercepts": self.model.intercept_,
            "classes": self.model.classes_,
            "scale": self.scale,
        }

    def load_parameters(self, params):
        self.model.coef_ = params["coefficients"]
        self.model.intercept_ = params["intercepts"]
        self.model.classes_ = params["classes"]
        self.scale = params["scale"]

    def _load(self, dataset_path):
        table = utils.dataset.load_dataset_of_tabular(dataset_path).data
        return table.iloc[:, :-1].to_numpy() / self.scale, table.iloc[:, -1].to_numpy()


if __name__ == "__main__":
    test_model_class(
        model_file_path=__file__,
        model_class="Linear",
        task="TABULAR_CLASSIFICATION",
        dependencies={ModelDependency.SCIKIT_LEARN: "1.4"},
        train_dataset_path="train.csv",
        val_dataset_path="val.csv",
        queries=[[0] * 64],
        budget={"MODEL_TRIAL_COUNT": 3},
    )
