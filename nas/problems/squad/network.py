"""Networks that read: an embedding, the layers of a reading graph, and pointers to an answer."""

from __future__ import annotations

from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.nn import functional

from nas.inheritance.vocabularies import vocabulary_digest
from nas.problems.squad.text import N_CHARACTERS, N_MATCHES, Vocabulary
from nas.spaces.reading.graph import PASSAGE, QUESTION, ReadingGraph

_CHARACTER_SIZE, _SPELLING_SIZE = 8, 24
_WORD_SIZE = 32
_DROPOUT = 0.2
_LEAST = -1e4
Inputs: TypeAlias = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]
"""Words and characters of passages, their matches, words and characters of questions."""


class ReadingNetwork(nn.Module):
    """The network of a reading graph.

    A layer's parameters are ``layers.<name>.*``; the name says what the layer reads (``ReadingGraph.names``). So a
    child takes the weights of its parent's layers by name, and always those of ``embed.*`` and ``head.*``.

    Args:
        graph: The graph.
        vocabulary: The known words.
        width: The width of all layers, even.
    """

    def __init__(self, graph: ReadingGraph, vocabulary: Vocabulary, width: int) -> None:
        super().__init__()
        self.graph = graph
        self.names = graph.names(width)
        self.embed = Embedding(vocabulary, width)
        layers = {self.names[id]: _layer(layer.kind, width) for id, layer in enumerate(graph.layers, 2)}
        self.layers = nn.ModuleDict(layers)
        self.head = Pointers(width)

    def forward(
        self, words: Tensor, characters: Tensor, matches: Tensor, asked: Tensor, asked_characters: Tensor
    ) -> Tensor:
        """Returns the logits of the answer's first and last word, ``(batch, 2, passage)``.

        Args:
            words: The numbers of the passage's words, ``(batch, passage)``; 0 after the end.
            characters: Those of their characters, ``(batch, passage, 10)``.
            matches: Whether the question has them, ``(batch, passage, 3)``.
            asked: The numbers of the question's words, ``(batch, question)``.
            asked_characters: Those of their characters, ``(batch, question, 10)``.
        """
        texts = (Text(words), Text(asked))
        none = matches.new_zeros(*asked.shape, N_MATCHES)
        read = {
            PASSAGE: self.embed(words, characters, matches, texts[0]),
            QUESTION: self.embed(asked, asked_characters, none, texts[1]),
        }
        sizes = self.graph.sizes
        for id, layer in enumerate(self.graph.layers, 2):
            inputs = [read[source] for source in layer.inputs]
            read[id] = self.layers[self.names[id]](inputs, [texts[sizes[source]] for source in layer.inputs])
        passage, question = (read[output] for output in self.graph.outputs)
        logits: Tensor = self.head(torch.cat([passage, read[PASSAGE], matches], 2), question, texts)
        return logits


class Text:
    """A batch of texts: its mask, and the order of its words from the end.

    Args:
        words: The numbers of the words, ``(batch, length)``; 0 after the end.
    """

    def __init__(self, words: Tensor) -> None:
        self.mask = words > 0
        places = torch.arange(words.shape[1], device=words.device)
        last = self.mask.sum(1, keepdim=True) - 1
        self._backward = torch.where(self.mask, last - places, places)

    def turned(self, states: Tensor) -> Tensor:
        """Returns states from the last word to the first, ``(batch, length, width)``.

        Those after the end of a text stay.
        """
        batch, length, width = states.shape
        rows = self._backward + length * torch.arange(batch, device=states.device)[:, None]
        return states.reshape(-1, width).index_select(0, rows.flatten()).view(batch, length, width)


def dropped(states: Tensor, training: bool) -> Tensor:
    """Returns states without a random fifth of the features (Gal and Ghahramani 2016, arXiv:1512.05287).

    The same features are left out for all words of a text. A mask for each word takes a quarter of the training.
    """
    if not training:
        return states
    return states * functional.dropout(states.new_ones(states.shape[0], 1, states.shape[2]), _DROPOUT)


class Recurrent(nn.Module):
    """Two LSTMs, one for each direction. Words after the end of a text change nothing.

    An LSTM takes half the time of a GRU on a CPU, since torch uses oneDNN for it.

    Args:
        n_inputs: The size of the inputs.
        width: The size of the outputs, even.
    """

    def __init__(self, n_inputs: int, width: int) -> None:
        super().__init__()
        self.ahead = nn.LSTM(n_inputs, width // 2)
        self.back = nn.LSTM(n_inputs, width // 2)

    def forward(self, inputs: list[Tensor], texts: list[Text]) -> Tensor:
        """Returns the states ``(batch, length, width)``."""
        states, text = dropped(inputs[0], self.training), texts[0]
        ahead, _ = self.ahead(states.transpose(0, 1))
        back, _ = self.back(text.turned(states).transpose(0, 1))
        return torch.cat([ahead.transpose(0, 1), text.turned(back.transpose(0, 1))], 2)


class Attention(nn.Module):
    """Attention in both directions (Seo et al. 2017, arXiv:1611.01603), mixed to the width of its inputs.

    Args:
        width: The width of inputs and outputs.
        is_self: Whether the words read the same text; then no word reads itself.
    """

    def __init__(self, width: int, *, is_self: bool = False) -> None:
        super().__init__()
        self.is_self = is_self
        self.similarity = nn.Parameter(torch.randn(3, width) * 0.05)
        self.mix = nn.Linear(4 * width, width)

    def forward(self, inputs: list[Tensor], texts: list[Text]) -> Tensor:
        """Returns the states ``(batch, length, width)`` of the first input's words."""
        own, other = inputs[0], inputs[-1]
        by_own, by_other, by_both = self.similarity
        scores = (own @ by_own)[:, :, None] + (other @ by_other)[:, None] + (own * by_both) @ other.transpose(1, 2)
        scores = scores.masked_fill(~texts[-1].mask[:, None], _LEAST)
        if self.is_self:
            scores = scores.masked_fill(torch.eye(own.shape[1], dtype=torch.bool, device=own.device), _LEAST)
        read = scores.softmax(2) @ other
        asked = scores.amax(2).masked_fill(~texts[0].mask, _LEAST).softmax(1)[:, None] @ own
        mixed = torch.cat([own, read, own * read, own * asked], 2)
        return functional.relu(self.mix(dropped(mixed, self.training)))


def _layer(kind: str, width: int) -> nn.Module:
    return Recurrent(width, width) if kind == "recurrent" else Attention(width, is_self=kind == "self_attention")


class Embedding(nn.Module):
    """Word vectors, a convolution over characters, matches, and a recurrent layer over them.

    Given vectors belong to the data, not to the weights: children and checkpoints do not have them.

    Args:
        vocabulary: The known words. Their vectors are fixed if it has them, else learned.
        width: The size of the outputs.
    """

    vectors: Tensor
    vocabulary: Tensor
    vocabulary_tensors = ("words.weight",)

    def __init__(self, vocabulary: Vocabulary, width: int) -> None:
        super().__init__()
        if vocabulary.vectors is None:
            self.register_buffer("vocabulary", vocabulary_digest([*vocabulary.numbers]))
            self.words = nn.Embedding(len(vocabulary), _WORD_SIZE, padding_idx=0)
            n_inputs = _WORD_SIZE
        else:
            self.register_buffer("vectors", torch.from_numpy(vocabulary.vectors), persistent=False)
            n_inputs = vocabulary.vectors.shape[1]
        self.characters = nn.Embedding(N_CHARACTERS, _CHARACTER_SIZE, padding_idx=0)
        self.spelling = nn.Conv1d(_CHARACTER_SIZE, _SPELLING_SIZE, 3, padding=1)
        self.project = nn.Linear(n_inputs + _SPELLING_SIZE, width)
        self.encoder = Recurrent(width + N_MATCHES, width)

    def forward(self, words: Tensor, characters: Tensor, matches: Tensor, text: Text) -> Tensor:
        """Returns the states ``(batch, length, width)``."""
        known = self.words(words) if hasattr(self, "words") else functional.embedding(words, self.vectors)
        letters = self.characters(characters).flatten(0, 1).transpose(1, 2)
        spelled = functional.relu(self.spelling(letters)).amax(2).view(*words.shape, -1)
        both = dropped(torch.cat([known, spelled], 2), self.training)
        projected = functional.relu(self.project(both))
        states: Tensor = self.encoder([torch.cat([projected, matches], 2)], [text])
        return states

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        """Loads weights; those of earlier versions have given vectors, and no vocabulary of learned ones."""
        if hasattr(self, "words"):
            state_dict.setdefault(f"{prefix}vocabulary", self.vocabulary)
        else:
            state_dict.pop(f"{prefix}vectors", None)
        super()._load_from_state_dict(state_dict, prefix, *rest)


class Pointers(nn.Module):
    """The logits of an answer's first and last word.

    Args:
        width: The width of the layers.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.summary = nn.Linear(width, 1)
        self.asked = nn.Linear(width, 2 * width)
        self.ends = nn.Linear(4 * width + N_MATCHES, 2)

    def forward(self, passage: Tensor, question: Tensor, texts: tuple[Text, Text]) -> Tensor:
        """Returns the logits ``(batch, 2, passage)``; words after the end have very small ones."""
        weights = self.summary(question).squeeze(2).masked_fill(~texts[1].mask, _LEAST).softmax(1)
        asked = self.asked(weights[:, None] @ question)  # (batch, 1, 2 * width)
        together = torch.cat([passage, passage[:, :, : asked.shape[2]] * asked], 2)
        logits: Tensor = self.ends(dropped(together, self.training)).transpose(1, 2)
        return logits.masked_fill(~texts[0].mask[:, None], _LEAST)
