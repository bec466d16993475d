"""Constants of ``rafiki.constants`` that model templates use."""

from __future__ import annotations


class BudgetOption:
    """Keys of a budget; docs/reference/rafiki.md explains their effect."""

    GPU_COUNT = "GPU_COUNT"
    TIME_HOURS = "TIME_HOURS"
    MODEL_TRIAL_COUNT = "MODEL_TRIAL_COUNT"


class ModelDependency:
    """Names of packages."""

    TENSORFLOW = "tensorflow"
    KERAS = "Keras"
    SCIKIT_LEARN = "scikit-learn"
    TORCH = "torch"
    TORCHVISION = "torchvision"
    SINGA = "singa"
    XGBOOST = "xgboost"
    DS_CTCDECODER = "ds-ctcdecoder"
    NLTK = "nltk"
    SKLEARN_CRFSUITE = "sklearn-crfsuite"


class TaskType:
    """Names of tasks; they have no effect here."""

    IMAGE_CLASSIFICATION = "IMAGE_CLASSIFICATION"
    POS_TAGGING = "POS_TAGGING"
    TABULAR_CLASSIFICATION = "TABULAR_CLASSIFICATION"
    TABULAR_REGRESSION = "TABULAR_REGRESSION"
    SPEECH_RECOGNITION = "SPEECH_RECOGNITION"


class Tasks:
    """Names of tasks in SINGA-Auto."""

    IMAGE_DETECTION = "IMAGE_DETECTION"
    IMAGE_SEGMENTATION = "IMAGE_SEGMENTATION"
    IMAGE_CLASSIFICATION = "IMAGE_CLASSIFICATION"
    QUESTION_ANSWERING = "QUESTION_ANSWERING"
    TEXT_CLASSIFICATION = "TEXT_CLASSIFICATION"


class ModelAccessRight:
    """Access rights of a model; they have no effect here."""

    PUBLIC = "PUBLIC"
    PRIVATE = "PRIVATE"
