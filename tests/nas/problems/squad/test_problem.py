"""The problem of reading comprehension, on a small text that each test writes."""

from __future__ import annotations

import gzip
import inspect
import json
import os
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from torch.nn import functional

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.inheritance.inherit import inherit
from nas.problems.squad.official import scores
from nas.problems.squad.problem import PREDICTIONS, SquadProblem
from nas.problems.squad.questions import best_spans, inputs_of
from nas.problems.squad.vectors import read_vectors
from nas.spaces.reading.graph import ReadingGraph
from nas.spaces.reading.space import BIDAF, GA_SQUAD
from nas.training.export import exported_program
from nas.training.problem import Ability
from tests.support.squad_file import squad, write_squad

ROOT = Path(__file__).parents[4]
SHARE = frozenset({Policy.SHARE_PARAMS, Policy.EARLY_STOP})
Train = Callable[..., Any]
DEEPER = {"layers": [*GA_SQUAD["layers"], ["recurrent", 2]], "passage": 4, "question": 3}


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a file of 18 paragraphs in 6 articles."""
    return write_squad(tmp_path_factory.mktemp("squad") / "small.json")


@pytest.fixture(scope="module")
def problem(file: Path) -> SquadProblem:
    """Returns a small problem, warm as in a worker."""
    return SquadProblem(str(file), n_epochs=2, width=16)


def test_trial_has_scores_and_predictions(problem: SquadProblem, train: Train) -> None:
    """A trial saves the answers behind its scores, in the official format, a part of the passage each."""
    trained = train(problem, BIDAF, SHARE)
    answers = json.loads((trained.run.save_dir / PREDICTIONS).read_text(encoding="utf-8"))
    asked = {one.id: one for one in problem.data.validation}

    assert answers.keys() == asked.keys()
    assert all(answers[id] in asked[id].passage for id in asked)
    assert scores(answers, {id: one.answers for id, one in asked.items()}) == trained.metrics
    assert [step for step, _ in trained.run.curve] == [1]


def test_costs_are_known_before_training(problem: SquadProblem) -> None:
    """A recurrent layer more costs its parameters, and their FLOPs once for each word; all of them are live."""
    costs = [problem.static_metrics(point) for point in (GA_SQUAD, DEEPER)]
    more = {name: costs[1][name] - costs[0][name] for name in costs[0]}
    n_weights, n_biases = 2 * 4 * 8 * (16 + 8), 2 * 4 * 8 * 2  # two LSTMs of 16 inputs and 8 outputs

    assert more == {"parameters": n_weights + n_biases, "flops": 64 * n_weights, "live_flops": 64 * n_weights}
    assert costs[0]["parameters"] == sum(one.numel() for one in problem.build(GA_SQUAD).parameters())


def test_costs_are_objectives(file: Path, train: Train) -> None:
    """Parameters, FLOPs and latency may be objectives; training returns the scores alone."""
    problem = SquadProblem(str(file), width=16, objectives=["exact_match", "parameters", "flops", "latency_s"])

    assert [metric.direction for metric in problem.metrics] == ["maximize", "minimize", "minimize", "minimize"]
    assert train(problem, BIDAF, {Policy.SKIP_TRAIN}).metrics.keys() == {"f1", "exact_match"}
    assert problem.measure(BIDAF, "cpu")["latency_s"] > 0


def test_articles_are_apart(problem: SquadProblem) -> None:
    """Training and validation have different articles, all questions together, with answers among their words."""
    train, validation = ([one.id.partition("/")[0] for one in part] for part in problem.data[1:])

    assert {*train}.isdisjoint(validation)
    assert (len(train), len(validation)) == (45, 9)
    for one in problem.data.train:
        assert one.span is not None
        assert one.answer(*one.span) == one.answers[0]


def test_child_inherits_by_name(problem: SquadProblem, train: Train) -> None:
    """A child takes the embedding, the pointers and the layers with unchanged ancestry; others are new."""
    parent = train(problem, BIDAF, SHARE)
    point = {"layers": [["attention", 0, 1], ["recurrent", 2], ["self_attention", 3]], "passage": 4, "question": 1}
    child = train(problem, point, {*SHARE, Policy.SKIP_TRAIN}, donors=[parent])
    names = ReadingGraph.from_json(point).names(16)

    new = {name for name, tensor in child.weights.items() if not torch.equal(tensor, parent.weights.get(name, -tensor))}
    assert {name.split(".")[1] for name in new} == {names[4]}
    assert {name.partition(".")[0] for name in child.weights.keys() - new} == {"embed", "layers", "head"}


def test_training_teaches(tmp_path: Path, train: Train) -> None:
    """After some epochs the network answers most questions of a simple text."""
    file = write_squad(tmp_path / "more.json", n_articles=24, n_paragraphs=4)
    problem = SquadProblem(str(file), n_epochs=8, width=16, learning_rate=0.02)

    assert train(problem, BIDAF).metrics["exact_match"] > 80


def test_batch_mates_change_nothing(problem: SquadProblem) -> None:
    """A question has the same logits alone as in a batch with a longer passage and question."""
    torch.manual_seed(0)
    point = {
        "layers": [["attention", 0, 1], ["self_attention", 2], ["recurrent", 3], ["recurrent", 1]],
        "passage": 4, "question": 5,
    }  # fmt: skip
    network = problem.build(point).eval()
    inputs = inputs_of(problem.data.train[:1])
    length = inputs[0].shape[1]
    longer = [functional.pad(one, (0, 0) * (one.dim() - 2) + (0, 5)) for one in inputs]
    alone, padded = network(*inputs), network(*longer)

    torch.testing.assert_close(padded[:, :, :length], alone)
    assert best_spans(padded) == best_spans(alone)


@pytest.mark.slow
def test_exported_program_reads_every_question(file: Path, tmp_path: Path, train: Train) -> None:
    """The program holds the word vectors, and takes questions filled up to the longest passage and question."""
    (tmp_path / "v.txt").write_text(VECTORS)
    problem = SquadProblem(str(file), vectors_file=str(tmp_path / "v.txt"), n_epochs=2, width=16)
    network, example = problem.export(train(problem, GA_SQUAD, {Policy.SKIP_TRAIN}).again)
    program = exported_program(network, example).module()
    for one in problem.data.validation[:3]:
        inputs = inputs_of([one])
        filled = [
            functional.pad(own, (0, 0) * (own.dim() - 2) + (0, full.shape[1] - own.shape[1]))
            for own, full in zip(inputs, example, strict=True)
        ]

        assert best_spans(program(*filled)) == best_spans(network(*inputs))


def test_best_span_is_in_order_and_short() -> None:
    """The last word comes at or after the first, at most 14 words later."""
    logits = torch.zeros(1, 2, 30)
    logits[0, 0, 9], logits[0, 1, 3], logits[0, 1, 12] = 9, 9, 5
    assert best_spans(logits) == [(9, 12)]
    logits[0, 1, 29] = 8
    assert best_spans(logits) == [(9, 12)]


VECTORS = "sold 1 2 3\nnew york 4 5 6\nParis 7 8 9\nlima 1 1 1\nunused 2 2 2\n"


def test_vectors_are_of_the_data(file: Path, tmp_path: Path, train: Train) -> None:
    """Vectors of the data's words, from npz, GloVe's text, or with a header, are fixed and no part of the weights."""
    rows = [line.rsplit(" ", 3) for line in VECTORS.splitlines()]
    numbers = np.array([row[1:] for row in rows], np.float32)
    np.savez(tmp_path / "v.npz", words=np.array([row[0] for row in rows]), vectors=numbers)
    (tmp_path / "v.txt.gz").write_bytes(gzip.compress(VECTORS.encode()))
    (tmp_path / "v.vec").write_bytes(b"5 3\n" + VECTORS.replace("\n", " \r\n").encode())
    for name in ("v.npz", "v.txt.gz", "v.vec"):
        problem = SquadProblem(str(file), vectors_file=str(tmp_path / name), width=16, n_epochs=1)
        network = problem.build(BIDAF)

        assert problem.data.vocabulary.numbers == {"sold": 2, "Paris": 3, "lima": 4}
        assert network.embed.vectors.tolist() == [[0] * 3, [0] * 3, [1, 2, 3], [7, 8, 9], [1, 1, 1]]
    weights = train(problem, BIDAF).weights
    assert "embed.vectors" not in weights
    network.load_state_dict({**weights, "embed.vectors": torch.zeros(9, 3)})  # of earlier versions
    assert network.embed.vectors.shape == (5, 3)


def test_words_of_other_articles_are_new(file: Path, tmp_path: Path) -> None:
    """Learned vectors are inherited with the same vocabulary only, all other weights always."""
    content = json.loads(file.read_text().replace("sold", "lent"))
    (tmp_path / "other.json").write_text(json.dumps(content))
    first, second = (SquadProblem(str(path), width=16) for path in (file, tmp_path / "other.json"))
    parent, child = first.build(BIDAF), second.build(BIDAF)
    report = inherit(child, [parent.state_dict()])

    assert len(first.data.vocabulary) == len(second.data.vocabulary)
    new = {name for name, tensor in report.tensors.items() if tensor.how == "new"}
    assert new == {"embed.words.weight", "embed.vocabulary"}
    assert {tensor.how for tensor in inherit(first.build(BIDAF), [parent]).tensors.values()} == {"copied"}


def test_tested_words_have_vectors(file: Path, tmp_path: Path) -> None:
    """Words of the test's questions are known too."""
    (tmp_path / "v.txt").write_text("sold 1 2\nquark 3 4\n")
    content = json.loads(file.read_text())
    content["data"][0]["paragraphs"][0]["context"] += " quark"
    (tmp_path / "test.json").write_text(json.dumps(content))
    problem = SquadProblem(
        str(file), vectors_file=str(tmp_path / "v.txt"), test_file=str(tmp_path / "test.json"), width=16
    )

    assert problem.data.vocabulary.numbers == {"sold": 2, "quark": 3}


def test_large_vectors_take_little_memory(file: Path, tmp_path: Path) -> None:
    """Of a large text only the vectors of known words are kept in memory."""
    row = " ".join(["0.12345"] * 100)
    path = tmp_path / "v.txt"
    path.write_text("".join(f"w{n} {row}\n" for n in range(4000)) + f"sold {row}\n")
    tracemalloc.start()
    words, vectors = read_vectors(str(path), {}, {"Sold"})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()

    assert (words, vectors.shape, vectors.dtype) == (["sold"], (1, 100), np.float32)
    assert peak < path.stat().st_size / 4


@pytest.mark.parametrize(
    ("words", "vectors", "message"),
    [
        (np.array(["a", 1], object), np.ones((2, 3)), "allow_pickle"),
        (np.array(["a"]), np.array([None]), "allow_pickle"),
        (np.array(["a"]), np.ones((2, 3)), "1 words and vectors of shape"),
        (np.array("one"), np.ones((1, 2)), "TypeError.*Give one, or null"),
    ],
)
def test_wrong_vectors_are_refused(file: Path, tmp_path: Path, words: Any, vectors: Any, message: str) -> None:
    """An npz of other arrays is refused by a line that names it, and nothing is unpickled."""
    np.savez(tmp_path / "v.npz", words=words, vectors=vectors)

    with pytest.raises(ConfigurationError, match=rf"problem.vectors_file=\S+v.npz: must be an npz .*{message}"):
        _ = SquadProblem(str(file), vectors_file=str(tmp_path / "v.npz")).data


def test_split_file_and_gzip(tmp_path: Path) -> None:
    """The named articles, each once, are for training and validation; only a test file allows a test."""
    path = tmp_path / "small.json.gz"
    path.write_bytes(gzip.compress(json.dumps(squad()).encode()))
    split = tmp_path / "split.json"
    named = {"train_articles": ["Sales 0", "Sales 0"], "eval_articles": ["Sales 1", "Sales 2", "Sales 1"]}
    split.write_text(json.dumps(named))
    problem = SquadProblem(str(path), split_file=str(split), n_questions=4)

    assert {one.id.partition("/")[0] for one in problem.data.validation} == {"Sales 1", "Sales 2"}
    assert len({one.id for one in problem.data.validation}) == len(problem.data.validation)
    assert len(SquadProblem(str(path), split_file=str(split)).data.train) == 9
    assert [one.id for one in problem.data.train] == ["Sales 0/0/0", "Sales 0/0/1", "Sales 0/0/2", "Sales 0/1/0"]
    assert Ability.TEST not in problem.abilities
    assert Ability.TEST in SquadProblem(str(path), test_file=str(path)).abilities


FILES = ("data_file", "split_file", "vectors_file", "test_file")
TORN = gzip.compress(json.dumps(squad()).encode(), mtime=0)[:-20]


@pytest.mark.parametrize("option", FILES)
@pytest.mark.parametrize("content", [b"", b"\xff\xfe", TORN, b"\x1f\x8bno gzip", b"[]", b'{"data": [{"title": "x"}]}'])
def test_files_of_another_format_are_refused(file: Path, option: str, content: bytes, tmp_path: Path) -> None:
    """Before any training, a file that is empty, cut or of another format is refused by option, rule and remedy."""
    (tmp_path / "other").write_bytes(content)
    problem = SquadProblem(**{"data_file": str(file), "width": 16, option: str(tmp_path / "other")})

    with pytest.raises(ConfigurationError, match=rf"^problem.{option}=\S+other: must .*\. (Give|Correct) .*\.$"):
        _ = problem.data


@pytest.mark.parametrize("option", FILES)
def test_missing_files_are_refused(file: Path, option: str, tmp_path: Path) -> None:
    """A missing file and a folder are refused at construction by a line with option, rule and remedy."""
    for path, rule in (
        (tmp_path / "gone", "a file that exists"),
        (tmp_path, "a file, not a folder"),
        ("", "a file's path"),
    ):
        with pytest.raises(ConfigurationError, match=rf"^problem.{option}=.*: must be {rule}.*problem.{option}=FILE"):
            SquadProblem(**{"data_file": str(file), option: str(path)})


def test_one_article_is_enough_for_a_test_only(file: Path, tmp_path: Path, train: Train) -> None:
    """Training and validation need two articles; the questions of a test may be of one."""
    one = write_squad(tmp_path / "one.json", n_articles=1)
    problem = SquadProblem(str(file), test_file=str(one), width=16)

    assert 0 <= problem.test(train(problem, BIDAF, {*SHARE, Policy.SKIP_TRAIN}).again)["f1"] <= 100
    with pytest.raises(ConfigurationError, match=r"problem.data_file=.*must have at least 2 articles.*not 1. Download"):
        _ = SquadProblem(str(one)).data


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("one\ntwo\n", r"line 1: 'one' is no word with two numbers or more"),
        ("sold 1 2 3\nin 1 2\n", r"line 2: 2 numbers after a word, must be 3"),
        ("9 3\nsold 1 2 3\nin 1 2 3 4\n", r"line 3: 4 numbers after a word, must be 3"),
        ("sold 1 2\n\nin 1 x\n", "line 3: something after the word is no number"),
        ("sold 1 nan\n", "some numbers are not finite"),
        ("eins 1 2\nzwei 3 4\n", "none of its words is in the passages and questions"),
    ],
)
def test_wrong_texts_of_vectors_are_refused(file: Path, tmp_path: Path, text: str, message: str) -> None:
    """A text without vectors, or with a line of another length, is refused by a line with its number."""
    (tmp_path / "v.txt").write_text(text)

    with pytest.raises(ConfigurationError, match=rf"v.txt: must be .* GloVe's text \({message}\). Give one, or null"):
        _ = SquadProblem(str(file), vectors_file=str(tmp_path / "v.txt")).data


@pytest.mark.parametrize(
    ("content", "place"),
    [
        ([1], "the file is no object with data"),
        ({"data": 3}, "the file: data is no list"),
        ({"data": [1]}, r"data\[0\] is no object with paragraphs"),
        ({"data": [{"title": "a"}]}, r"data\[0\]: paragraphs is missing"),
        ({"data": [{"title": "a", "paragraphs": [{"context": "x"}]}]}, r"data\[0\].paragraphs\[0\]: qas is missing"),
        (
            {"data": [{"title": "a", "paragraphs": [{"context": "x", "qas": [{"id": "1", "question": None}]}]}]},
            r"data\[0\].paragraphs\[0\].qas\[0\]: question is no text",
        ),
    ],
    ids=range(6),
)
def test_places_of_another_form_are_named(tmp_path: Path, content: Any, place: str) -> None:
    """JSON of another form is refused by a line that says where, in words."""
    (tmp_path / "other.json").write_text(json.dumps(content))

    with pytest.raises(ConfigurationError, match=rf"must be JSON .*, maybe with gzip \({place}\). Give train-v1.1"):
        _ = SquadProblem(str(tmp_path / "other.json")).data


def test_two_questions_of_one_id_are_refused(tmp_path: Path) -> None:
    """An id that occurs twice, also in two articles, is named: one answer would count for both."""
    content = squad()
    content["data"][1]["paragraphs"][0]["qas"][0]["id"] = "Sales 0/0/1"
    (tmp_path / "twice.json").write_text(json.dumps(content))

    with pytest.raises(
        ConfigurationError, match=r"must have each question id once, but has 'Sales 0/0/1' 2 times\. Give"
    ):
        _ = SquadProblem(str(tmp_path / "twice.json")).data


def test_questions_in_use_have_an_answer_to_train_on(tmp_path: Path) -> None:
    """If no question within ``n_questions`` has its answer in the passage, nothing could be trained: it is refused."""
    content = squad()
    content["data"][0]["paragraphs"][0]["qas"][0]["answers"] = [{"text": "nowhere", "answer_start": 0}]
    for name, titles in (("file", content), ("split", {"train_articles": ["Sales 0"], "eval_articles": ["Sales 1"]})):
        (tmp_path / name).write_text(json.dumps(titles))
    options: Any = {"data_file": str(tmp_path / "file"), "split_file": str(tmp_path / "split")}

    assert len(SquadProblem(**options, n_questions=2).data.train) == 2
    with pytest.raises(ConfigurationError, match=r"answers for training within problem.n_questions=1 and validation"):
        _ = SquadProblem(**options, n_questions=1).data


def test_files_without_answers_are_refused(file: Path, tmp_path: Path) -> None:
    """Questions without answers can't be trained on or scored; an error names the file."""
    content = squad()
    for paragraph in (paragraph for article in content["data"] for paragraph in article["paragraphs"]):
        paragraph["qas"] = [{**one, "answers": []} for one in paragraph["qas"]]
    path = tmp_path / "unanswered.json"
    path.write_text(json.dumps(content))

    with pytest.raises(ConfigurationError, match=r"problem.data_file=.*must have questions with answers"):
        _ = SquadProblem(str(path)).data
    tested = SquadProblem(str(file), test_file=str(path), width=16)
    with pytest.raises(ConfigurationError, match=r"problem.test_file=.*must have questions with answers"):
        _ = tested.data


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"width": 15}, "problem.width=15: must be even. Write 16"),
        ({"n_questions": 0}, "problem.n_questions=0: must be a whole number of at least 1"),
        ({"learning_rate": 0}, "problem.learning_rate=0: must be a number greater than 0"),
        ({"objectives": ["accuracy"]}, r"problem.objectives=\['accuracy'\]: must be f1 or exact_match, and any"),
        ({"objectives": ["parameters"]}, r"problem.objectives=\['parameters'\]: must be f1 or exact_match"),
        ({"objectives": "parameters"}, "problem.objectives='parameters': must be"),
        ({"objectives": []}, r"problem.objectives=\[\]: must be"),
        ({"vectors_file": ""}, "problem.vectors_file='': must be a file's path or URL"),
        ({"max_layers": 1}, r"problem.max_layers=1: must be a whole number from 2 to 64"),
    ],
    ids=range(9),
)
def test_mistakes_are_refused(file: Path, arguments: dict[str, Any], message: str) -> None:
    """An argument that can't be is refused before anything is read."""
    with pytest.raises(ConfigurationError, match=message):
        SquadProblem(str(file), **arguments)


def test_yaml_has_the_defaults() -> None:
    """The yaml lists every argument with its default."""
    content = yaml.safe_load((ROOT / "conf" / "problem" / "squad.yaml").read_text())
    parameters = inspect.signature(SquadProblem).parameters

    assert content.pop("_target_") == "nas.problems.squad.problem.SquadProblem"
    assert content == {name: parameter.default for name, parameter in parameters.items()}


@pytest.mark.slow
def test_real_data_teaches(train: Train) -> None:
    """A network reads 1,500 real questions for three epochs, and scores better than before."""
    data = (ROOT / os.environ.get("HEIRLOOM_DATA", "../shared/data")).resolve()
    if not (data / "squad").is_dir():
        pytest.skip(f"no SQuAD in {data}; set HEIRLOOM_DATA to the folder that holds squad/ and glove/")
    problem = SquadProblem(
        str(data / "squad" / "dev-v1.1.rebuilt.json.gz"),
        split_file=str(data / "squad" / "article_split.json"),
        vectors_file=str(data / "glove" / "glove_twitter_25d_subset.npz"),
        n_questions=1500,
        n_epochs=3,
    )
    quick = {Policy.QUICK_EVAL}

    assert (len(problem.data.train), len(problem.data.validation)) == (1500, 2622)
    before = train(problem, BIDAF, {*quick, Policy.SKIP_TRAIN}).metrics["f1"]
    assert train(problem, BIDAF, quick).metrics["f1"] > before + 2
