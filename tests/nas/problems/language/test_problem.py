"""Prediction of the next symbol of a text."""

from __future__ import annotations

import gzip
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from nas.core.errors import ConfigurationError
from nas.core.policy import Policy
from nas.inheritance.inherit import inherit
from nas.problems.language.problem import LanguageProblem, loss_of, rate_share
from nas.problems.language.text import Corpus, windows
from nas.spaces.growth import Growth, InsertBlock, Sizes, WidenHeads

POINT = {"n_layers": 1, "n_heads": 2, "width": 32, "mlp_ratio": 2, "learning_rate": 0.005}
SHARE, STILL = frozenset({Policy.SHARE_PARAMS}), frozenset({Policy.SHARE_PARAMS, Policy.SKIP_TRAIN})
TEXT = Path(__file__).parents[4] / "LICENSE"  # the bundled text depends on Python's version
SMALL: dict[str, Any] = {"context": 16, "batch_size": 16, "epoch_steps": 25, "n_epochs": 4, "precision": "float32"}


@pytest.fixture(scope="module")
def problem() -> LanguageProblem:
    """Returns one warm problem for all tests, as in a worker."""
    return LanguageProblem(str(TEXT), **SMALL)


def test_a_short_training_beats_the_frequencies(problem: LanguageProblem, train: Callable[..., Any]) -> None:
    """After 100 steps the loss is below that of the characters' frequencies, which know no context."""
    trained = train(problem, POINT)
    counts = torch.bincount(problem.corpus.train, minlength=problem.corpus.n_symbols).double() + 1
    scores = -(counts / counts.sum()).log()
    unigram = scores[problem.corpus.validation].mean().item()

    assert [step for step, _ in trained.run.curve] == [1, 2, 3, 4]
    assert trained.metrics == trained.run.curve[-1][1]
    assert trained.metrics["loss"] < unigram - 0.2 < math.log(problem.corpus.n_symbols)
    assert abs(problem.test(trained.again)["loss"] - trained.metrics["loss"]) < 0.3


def test_a_grown_child_starts_at_its_parents_loss(problem: LanguageProblem, train: Callable[..., Any]) -> None:
    """Operations of the derivation keep the loss, and a child with other sizes alone does not."""
    parent = train(problem, POINT)
    growth = Growth(Sizes.of(POINT), (WidenHeads(1), InsertBlock(0)))
    point = {**POINT, **growth.grown.to_json()}
    child = train(problem, point, STILL, donors=[parent], derivation=growth.to_json())
    sliced = train(problem, point, STILL, donors=[parent])

    assert child.run.inheritance.replayed == 0
    assert abs(child.metrics["loss"] - parent.metrics["loss"]) < 1e-5
    assert sliced.metrics["loss"] > parent.metrics["loss"] + 0.01


def test_a_part_of_a_training_is_continued(problem: LanguageProblem, train: Callable[..., Any]) -> None:
    """A child of the same point continues the optimizer's steps; a grown child starts without."""
    first = train(problem, POINT, SHARE, fidelity=0.25)
    second = train(problem, POINT, SHARE, fidelity=0.25, donors=[first])
    growth = Growth(Sizes.of(POINT), (InsertBlock(0),))
    grown = train(problem, {**POINT, "n_layers": 2}, SHARE, fidelity=0.25, donors=[first], derivation=growth.to_json())

    assert [trained.weights["optimizer/step/norm.weight"].item() for trained in (first, second, grown)] == [25, 50, 25]
    assert second.metrics["loss"] < first.metrics["loss"]


def test_rules_hold_what_a_child_inherited(problem: LanguageProblem, train: Callable[..., Any]) -> None:
    """Copied tensors stay for the rule's epochs, and hardly change in a long warm-up; new ones learn."""
    parent = train(problem, POINT, fidelity=0.25)
    held, slow = (
        train(
            LanguageProblem(str(TEXT), **SMALL, rules=rules),
            {**POINT, "mlp_ratio": 4},
            SHARE,
            fidelity=0.25,
            donors=[parent],
        )
        for rules in ({"freeze_epochs": 9}, {"warm_up_steps": 10**9})
    )
    copied = {name for name, tensor in held.run.inheritance.tensors.items() if tensor.how == "copied"}

    assert "embed.weight" in copied < parent.weights.keys()
    assert all(torch.equal(held.weights[name], parent.weights[name]) for name in copied)
    assert all(torch.allclose(slow.weights[name], parent.weights[name], atol=1e-5) for name in copied)
    assert not any(
        torch.equal(held.weights[name], slow.weights[name]) for name in held.run.inheritance.tensors.keys() - copied
    )


def test_the_learning_rate_falls_at_the_end_of_a_whole_training_only() -> None:
    """The rate rises in 20 steps and falls in the last 30 %; without decay it stays."""
    assert [rate_share(step, 100, 0.3) for step in (0, 19, 70, 85, 99)] == pytest.approx([0.05, 1, 1, 0.5, 1 / 30])
    assert [rate_share(step, 100, 0.0) for step in (0, 19, 99)] == pytest.approx([0.05, 1, 1])
    assert rate_share(0, 5, 0.3) == pytest.approx(0.2)


def test_the_loss_is_the_mean_of_all_symbols(problem: LanguageProblem) -> None:
    """The loss is the cross-entropy in nats, whatever the number of windows in a batch."""
    network = problem.build(POINT)
    texts = windows(problem.corpus.test, 16)[:70]
    logits = network(texts[:, :-1]).log_softmax(-1)
    expected = -logits.gather(2, texts[:, 1:, None]).mean().item()

    assert loss_of(network, texts, "float32") == pytest.approx(expected, rel=1e-5)


def test_parts_of_a_text_follow_one_another() -> None:
    """Training, validation and test are 80, 10 and 10 % in order; a character that is not in training is 0."""
    corpus = Corpus.of("ab" * 40 + "ac" * 5 + "ba" * 5, None)

    assert (len(corpus.train), len(corpus.validation), len(corpus.test)) == (80, 10, 10)
    assert corpus.n_symbols == 3
    assert corpus.validation.tolist() == [1, 0] * 5
    assert sorted(windows(corpus.train, 3)[:, 0].tolist()).count(1) == 13
    assert windows(corpus.train, 3).shape == (26, 4)


def test_files_are_read(tmp_path: Path) -> None:
    """A text, a text in gzip and SQuAD's json give the same symbols."""
    text = "one passage\nand another one\n" * 30
    squad = {"data": [{"paragraphs": [{"context": text[: len(text) // 2]}, {"context": text[len(text) // 2 + 1 :]}]}]}
    cut = text[: len(text) // 2] + "\n" + text[len(text) // 2 + 1 :]
    (tmp_path / "a.txt").write_text(cut)
    (tmp_path / "b.gz").write_bytes(gzip.compress(cut.encode()))
    (tmp_path / "c.json").write_text(json.dumps(squad))
    found = [LanguageProblem(str(path), context=8).corpus for path in sorted(tmp_path.iterdir())]

    assert all(torch.equal(corpus.train, found[0].train) for corpus in found)


def test_byte_pairs_are_shorter_than_characters() -> None:
    """Byte pairs keep all of the text in fewer symbols, the same ones each time."""
    pytest.importorskip("tokenizers")
    text = "the theory of the other things, über alles " * 200
    corpus, again, characters = Corpus.of(text, 280), Corpus.of(text, 280), Corpus.of(text, None)

    assert torch.equal(corpus.test, again.test)
    assert len(corpus.test) < len(characters.test) / 2
    assert corpus.n_symbols == 280


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"text": "nowhere.txt"},
            r"problem.text=nowhere.txt: must be a file that exists. Give .*, or null",
        ),
        ({"text": "/"}, r"problem.text=/: must be a file, not a folder. Give"),
        ({"text": ""}, r"problem.text='': must be a file's path or URL. Give"),
        ({"vocabulary": 100}, "problem.vocabulary=100: must be"),
        ({"context": 0}, "problem.context=0: must be"),
        ({"objectives": ["parameters"]}, "must be loss, and any of parameters"),
        ({"n_heads": []}, r"^problem.n_heads=\[\]: must be different whole numbers from 1 .* Write"),
        ({"head_sizes": 16}, r"^problem.head_sizes=16: must be"),
        ({"n_layers": [2, 1]}, r"^problem.n_layers=\[2, 1\]: must be the least and the greatest"),
        ({"objectives": 5}, "problem.objectives=5: must be loss, and any of parameters"),
        ({"precision": "int8"}, "problem.precision='int8'"),
        ({"rules": {"bogus": 1}}, r"rules\.bogus: must be one of"),
    ],
)
def test_wrong_options_are_refused(options: dict[str, Any], message: str) -> None:
    """A wrong option raises before any trial, with its name and a remedy."""
    with pytest.raises(ConfigurationError, match=message):
        LanguageProblem(**options)


def test_a_rule_leaves_the_others_as_they_are() -> None:
    """The optimizer is inherited unless its own rule says otherwise."""
    found = [LanguageProblem(str(TEXT), rules=rules).rules for rules in (None, {"shrink": 0.8}, {"optimizer": "fresh"})]

    assert [(rules.optimizer, rules.shrink) for rules in found] == [("inherit", 1.0), ("inherit", 0.8), ("fresh", 1.0)]


def test_wrong_files_are_refused(tmp_path: Path) -> None:
    """A file that is no text, or too short, raises with a remedy."""
    for name, content, message in (
        ("bytes.txt", b"\xff\xfe\x00", "UnicodeDecodeError.*Give another file, or null"),
        ("other.json", b'{"a": 1}', "data must list articles.*Give another file, or null"),
        ("broken.gz", b"\x1f\x8b\x08", "EOFError.*Give another file, or null"),
        ("damaged.gz", b"\x1f\x8b\x08" + bytes(7) + b"\xff" * 9, "error: .*Give another file, or null"),
        ("deep.json", b"[" * 99_999, "RecursionError.*Give another file, or null"),
        ("short.txt", b"short", r"have more than 640 symbols, .*not 5\. Give a longer text"),
        ("empty.txt", b"", r"have more than 640 symbols, .*not 0\. Give"),
    ):
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ConfigurationError, match=rf"^problem.text=\S+{name}: must .*{message}"):
            _ = LanguageProblem(str(tmp_path / name)).corpus


def test_byte_pairs_need_a_library(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Hugging Face's tokenizers the error names the extra to install."""
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)

    with pytest.raises(ConfigurationError, match=r"pip install 'heirloom-nas\[language\]'"):
        Corpus.of("a text" * 100, 300)


def test_symbols_of_another_text_are_new(tmp_path: Path) -> None:
    """A child on another text takes the layers, but not rows that stand for other characters; growth is refused."""
    networks = []
    for name, text in (("a", "abcab"), ("b", "cbacb"), ("c", "abcab")):
        (tmp_path / name).write_text(text * 400)
        networks.append(LanguageProblem(str(tmp_path / name), context=8).build(POINT))
    parent, other, same = networks
    report = inherit(other, [parent])

    assert {name for name, tensor in report.tensors.items() if tensor.how == "new"} == {
        "embed.weight", "head.weight", "vocabulary",
    }  # fmt: skip
    assert "donor 0 has another vocabulary" in " ".join(report.notes)
    assert not torch.equal(other.embed.weight, parent.embed.weight)
    assert {tensor.how for tensor in inherit(same, [parent]).tensors.values()} == {"copied"}
    without = {name: tensor for name, tensor in parent.state_dict().items() if name != "vocabulary"}
    other.load_state_dict(without)  # of earlier versions
    assert not torch.equal(other.vocabulary, parent.vocabulary)


@pytest.mark.parametrize("vocabulary", [None, 300])
def test_vocabularies_follow_their_order(vocabulary: int | None) -> None:
    """Equal texts have equal digests, and other symbols or byte pairs other ones."""
    if vocabulary is not None:
        pytest.importorskip("tokenizers")
    digests = [Corpus.of(text * 300, vocabulary).vocabulary.tolist() for text in ("abcab ", "cbacb ", "abcab ")]

    assert digests[0] == digests[2] != digests[1]
