"""Digits by the Trainer of Hugging Face: children inherit, trials stop and resume."""

import numpy as np
import torch
from sklearn.datasets import load_digits
from transformers import Trainer, TrainingArguments, ViTConfig, ViTForImageClassification

from nas import Choice, Float, Metric, ParameterSpace, Policy, Problem, TrialRun
from nas.integrations.transformers import TransformersTrialCallback


class TrainerDigits(Problem):
    metrics = (Metric("accuracy"),)
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
    space = ParameterSpace({"width": Choice(16, 32), "rate": Float(1e-3, 1e-2, log=True)})

    def __init__(self) -> None:
        images, labels = load_digits(return_X_y=True)
        pixels = torch.tensor(images, dtype=torch.float32).view(-1, 1, 8, 8) / 16
        self.data = [{"pixel_values": image, "labels": int(label)} for image, label in zip(pixels, labels, strict=True)]

    def train(self, run: TrialRun) -> dict[str, float]:
        width = run.point["width"]
        model = ViTForImageClassification(
            ViTConfig(
                image_size=8, patch_size=2, num_channels=1, num_labels=10, hidden_size=width, num_hidden_layers=1,
                num_attention_heads=2, intermediate_size=2 * width,
            )
        )  # fmt: skip
        callback = TransformersTrialCallback(run, {"accuracy": "eval_accuracy"})
        checkpoint = callback.checkpoint
        if checkpoint is None:
            run.inherit(model)
        arguments = TrainingArguments(
            output_dir=str(run.log_dir), num_train_epochs=run.epochs(full=4, early=2), eval_strategy="epoch",
            save_strategy="no", report_to=[], learning_rate=run.point["rate"], per_device_train_batch_size=64,
            use_cpu=run.device == "cpu", disable_tqdm=True, seed=run.seed % 2**31,
        )  # fmt: skip
        trainer = Trainer(
            model, arguments, train_dataset=self.data[:1400], eval_dataset=self.data[1400:], callbacks=[callback],
            compute_metrics=lambda found: {"accuracy": float(np.mean(found.predictions.argmax(1) == found.label_ids))},
        )  # fmt: skip
        trainer.train(resume_from_checkpoint=checkpoint)
        return {"accuracy": trainer.evaluate()["eval_accuracy"]}
