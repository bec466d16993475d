"""SQuAD v1.1 (Rajpurkar et al. 2016, arXiv:1606.05250): questions with answers in a passage."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, NamedTuple, final

import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError, TrialStopped
from nas.core.metric import Metric, choose_metrics
from nas.core.point import Point
from nas.core.policy import Policy
from nas.core.validation import check_int, check_number, check_seed
from nas.inheritance.rules import Rules
from nas.problems.squad.articles import Paragraph, random_titles, read_articles, read_titles, texts_of
from nas.problems.squad.fit import Fit, answers_of, fit
from nas.problems.squad.network import ReadingNetwork
from nas.problems.squad.official import scores
from nas.problems.squad.questions import Question, inputs_of, questions_of
from nas.problems.squad.text import N_MATCHES, WORD_LENGTH, Vocabulary, tokens_of, words_of
from nas.problems.squad.vectors import read_vectors
from nas.spaces.reading.graph import MAX_LAYERS
from nas.spaces.reading.space import ReadingSpace
from nas.storage.remote_file import check_file, checked_options
from nas.training.epochs import inherit_or_resume, save_for_children
from nas.training.problem import LATENCY, Ability, Problem
from nas.training.trial_run import TrialRun

HOME = "https://rajpurkar.github.io/SQuAD-explorer/dataset/train-v1.1.json"
PREDICTIONS = "predictions.json"
"""The file of a trial's answers to the validation questions, in the official format."""
_REMEDY = f"Download {HOME} and set problem.data_file=FILE"
_N_QUICK = 1_000
_SCORES = ("f1", "exact_match")
_N_EXAMPLE = (32, 8)  # words of the passage and the question whose FLOPs and latency are counted


class SquadData(NamedTuple):
    """The known words, and the questions for training and validation."""

    vocabulary: Vocabulary
    train: list[Question]
    validation: list[Question]


@final
class SquadProblem(Problem):
    """Reading comprehension by networks of attention and recurrent layers (`nas.spaces.reading`).

    The scores are the official F1 and exact match, in percent, against all reference answers. Each trial saves its
    answers to the validation questions as ``predictions.json``, which the official program accepts. Training and
    validation have different articles.

    The search trains an epoch a trial, and children stand on the weights of their parents. A fidelity is a share of
    ``n_epochs`` and takes precedence over EARLY_STOP.

    The winner's program takes texts of one length: the longest passage and question of the data. Shorter texts are
    filled up with 0. For 300 words the export takes about 80 s of a core, since torch follows each step of LSTMs.

    Args:
        data_file: A file in SQuAD's format, as a path or fsspec URL, maybe with gzip.
        split_file: JSON with the lists ``train_articles`` and ``eval_articles`` of titles; None: a quarter of the
            articles, at random, is for validation.
        vectors_file: Word vectors: an npz of ``words`` and ``vectors``, or GloVe's text. They are not trained, and only
            those of the data's words are used. None: the network learns vectors of the words that training articles
            have twice.
        test_file: A file in SQuAD's format for ``test``; None: finalists are not tested.
        data_options: Options for fsspec.
        split_seed: The seed that chooses the validation articles and the order of validation questions.
        width: The width of all layers, even.
        max_layers: The greatest number of layers of a graph, at least 2.
        n_questions: The training questions in use, from the first; None: all.
        n_epochs: Epochs of a full training.
        learning_rate: The learning rate of Adam in the first half of a training; then it falls.
        objectives: Some of ``OBJECTIVES``, with ``f1`` or ``exact_match``; the first ranks. None: f1 alone. FLOPs and
            latency are those of 32 words and a question of 8.
        rules: Inheritance rules by name (`nas.inheritance.rules`); None: the defaults.

    Raises:
        ConfigurationError: a file does not exist, its host does not respond, or a number is out of range.
    """

    OBJECTIVES: ClassVar[tuple[Metric, ...]] = (
        *map(Metric, _SCORES),
        *(Metric(name, "minimize") for name in ("parameters", "flops", LATENCY)),
    )
    proxies = frozenset()  # words have no gradient
    policies = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP, Policy.SKIP_TRAIN, Policy.QUICK_EVAL})
    data_files: ClassVar[frozenset[str]] = frozenset({"data_file", "split_file", "vectors_file", "test_file"})
    optional_data_files: ClassVar[frozenset[str]] = frozenset({"split_file", "vectors_file"})
    data_arguments: ClassVar[frozenset[str]] = data_files | {"data_options"}

    space: ReadingSpace

    def __init__(
        self,
        data_file: str = HOME,
        *,
        split_file: str | None = None,
        vectors_file: str | None = None,
        test_file: str | None = None,
        data_options: Mapping[str, Any] | None = None,
        split_seed: int = 0,
        width: int = 64,
        max_layers: int = 6,
        n_questions: int | None = None,
        n_epochs: int = 8,
        learning_rate: float = 3e-3,
        objectives: Sequence[str] | None = None,
        rules: Mapping[str, Any] | None = None,
    ) -> None:
        check_seed("problem.split_seed", split_seed)
        check_int("problem.n_epochs", n_epochs, 1)
        check_int("problem.width", width, 2)
        if width % 2:
            raise ConfigurationError(f"problem.width={width}: must be even. Write {width + 1}.")
        if n_questions is not None:
            check_int("problem.n_questions", n_questions, 1)
        check_number("problem.learning_rate", learning_rate, 0, excluded=0)
        check_int("problem.max_layers", max_layers, 2, MAX_LAYERS)
        self.metrics = choose_metrics(objectives, self.OBJECTIVES, _SCORES)
        self.rules = Rules.of(rules)
        self.space = ReadingSpace(width, max_layers=max_layers)
        self.width, self.n_questions, self.n_epochs, self.learning_rate = width, n_questions, n_epochs, learning_rate
        self.split_seed = split_seed
        self.data_options = checked_options("problem.data_options", data_options)
        self._files = {
            "data_file": data_file,
            "split_file": split_file,
            "vectors_file": vectors_file,
            "test_file": test_file,
        }
        for name, file in self._files.items():
            if file is not None or name == "data_file":
                remedy = _REMEDY if name == "data_file" else f"Set problem.{name}=FILE, or null for none"
                check_file(f"problem.{name}", file, self.data_options, remedy)

    @property
    def abilities(self) -> frozenset[Ability]:
        """All that the class defines; ``test`` only with a test file."""
        return super().abilities if self._files["test_file"] else super().abilities - {Ability.TEST}

    @cached_property
    def data(self) -> SquadData:
        """The words and questions, loaded at first use and kept for later trials.

        Raises:
            ConfigurationError: a file can't be read or has another format, or no questions with answers.
        """
        file, split, vectors = (self._files[name] for name in ("data_file", "split_file", "vectors_file"))
        articles = read_articles("problem.data_file", str(file), self.data_options)
        if len(articles) < 2:
            raise ConfigurationError(
                f"problem.data_file={file}: must have at least 2 articles, for training and validation, not "
                f"{len(articles)}. {_REMEDY}."
            )
        tested = self._tested  # so that faults are told before any training
        titles = (
            random_titles(articles, self.split_seed)
            if split is None
            else read_titles(articles, split, self.data_options)
        )
        paragraphs = [[paragraph for title in part for paragraph in articles[title]] for part in titles]
        known = None
        if vectors is not None:
            words = words_of(texts_of([*paragraphs[0], *paragraphs[1], *tested]))
            known = read_vectors(vectors, self.data_options, words)
        vocabulary = Vocabulary.of(texts_of(paragraphs[0]), known)
        train, validation = (questions_of(part, vocabulary) for part in paragraphs)
        train = train[: self.n_questions]
        if not validation or not any(one.span for one in train):
            limit, remedy = "", _REMEDY
            if self.n_questions is not None:
                limit, remedy = f" within problem.n_questions={self.n_questions}", "Raise it, or leave it out"
            raise ConfigurationError(
                f"problem.data_file={file}: must have questions with answers for training{limit} and validation. "
                f"{remedy}."
            )
        random.Random(self.split_seed).shuffle(validation)
        return SquadData(vocabulary, train, validation)

    @cached_property
    def _tested(self) -> list[Paragraph]:
        """The paragraphs of ``test_file``; none without one.

        Raises:
            ConfigurationError: it can't be read, has another format, or no questions with answers.
        """
        if (file := self._files["test_file"]) is None:
            return []
        articles = read_articles("problem.test_file", file, self.data_options)
        found = [paragraph for part in articles.values() for paragraph in part]
        if not any(one.questions and tokens_of(one.passage) for one in found):
            raise ConfigurationError(f"problem.test_file={file}: must have questions with answers. Give dev-v1.1.json.")
        return found

    def build(self, point: Point) -> ReadingNetwork:
        """Returns the network of a point, newly initialized with torch's global generator."""
        return ReadingNetwork(self.space.graph(point), self.data.vocabulary, self.width)

    def example_inputs(self) -> tuple[Tensor, ...]:
        """Returns a passage of 32 unknown words and a question of 8."""
        passage, question = (torch.ones(1, n, dtype=torch.int64) for n in _N_EXAMPLE)
        characters = (torch.ones(1, n, WORD_LENGTH, dtype=torch.int64) for n in _N_EXAMPLE)
        return passage, next(characters), torch.zeros(1, _N_EXAMPLE[0], N_MATCHES), question, next(characters)

    def train(self, run: TrialRun) -> dict[str, float]:
        """Trains the point under its policies, saves its answers, and returns its scores.

        A network with outputs that are not finite scores NaN and fails.
        """
        validation = run.subset(self.data.validation, quick=_N_QUICK)
        network = self.build(run.point).to(run.device)
        training = self._start(run, network)
        n_epochs = run.epochs(full=self.n_epochs, early=1)
        found = {} if n_epochs else self._scored(run, network, validation)
        for epoch in fit(training, self.data.train, n_epochs, run):
            found = self._scored(run, network, validation)
            try:
                run.report(epoch, **found)
            except TrialStopped:
                save_for_children(run, network, training.optimizer, self.rules)
                raise
        save_for_children(run, network, training.optimizer, self.rules)
        return found

    def _start(self, run: TrialRun, network: ReadingNetwork) -> Fit:
        """Lets the network inherit under SHARE_PARAMS. A resumed training has inherited already."""
        optimizer = torch.optim.Adam(network.parameters(), self.learning_rate)
        report = inherit_or_resume(run, network, optimizer, self.rules)
        return Fit(
            network=network, optimizer=optimizer, learning_rate=self.learning_rate, rules=self.rules, report=report
        )

    def _scored(self, run: TrialRun, network: nn.Module, questions: Sequence[Question]) -> dict[str, float]:
        """Returns the scores, and saves the answers in the trial's folder."""
        answers = answers_of(network, questions, run.device)
        if answers is None:
            return dict.fromkeys(_SCORES, float("nan"))
        (run.save_dir / PREDICTIONS).write_text(json.dumps(answers, ensure_ascii=False), encoding="utf-8")
        return scores(answers, {one.id: one.answers for one in questions})

    def test(self, run: TrialRun) -> dict[str, float]:
        """Returns the scores on the questions of ``test_file``."""
        questions = questions_of(self._tested, self.data.vocabulary)
        answers = answers_of(run.restore(self.build(run.point)), questions, run.device)
        return scores(answers or {}, {one.id: one.answers for one in questions})

    def export(self, run: TrialRun) -> tuple[nn.Module, tuple[Tensor, ...]]:
        """Returns the trained network, and the questions with the longest passage and the longest question."""
        known = [*self.data.train, *self.data.validation]
        longest = [max(known, key=lambda one: len(one.read.words)), max(known, key=lambda one: len(one.asked.words))]
        return run.restore(self.build(run.point)).eval(), inputs_of(longest, run.device)
