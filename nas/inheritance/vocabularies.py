"""Vocabularies of embeddings: rows that stand for other words are not inherited.

A module with a vocabulary has its digest as a buffer ``vocabulary``, and lists the tensors with a row for each word::

    vocabulary_tensors = ("embed.weight",)
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Container, Iterable, Mapping, Sequence

import torch
from torch import Tensor, nn

from nas.inheritance.donor_weights import LazyWeights
from nas.storage.tensor_parts import TensorParts

_BUFFER = "vocabulary"
_DIGEST_SIZE = 8


def vocabulary_digest(words: Sequence[str]) -> Tensor:
    """Returns a digest of words in order, for the buffer ``vocabulary``."""
    digest = hashlib.blake2b(json.dumps(words).encode(), digest_size=_DIGEST_SIZE).digest()
    return torch.tensor([*digest], dtype=torch.uint8)


def same_vocabularies(model: nn.Module, donors: Sequence[LazyWeights]) -> tuple[list[LazyWeights], list[str]]:
    """Returns the donors without the rows of other vocabularies than the model's, and notes.

    A donor without a digest has the model's vocabulary.
    """
    found, notes = [*donors], list[str]()
    for path, module in model.named_modules():
        name, rows = f"{path}.{_BUFFER}".lstrip("."), getattr(module, "vocabulary_tensors", ())
        own = getattr(module, _BUFFER, None)
        if not rows or not isinstance(own, Tensor):
            continue
        left_out = {name, *_names_of(model, {f"{path}.{row}".lstrip(".") for row in rows})}
        for index, donor in enumerate(found):
            if name in donor.shapes and not _is_equal(donor, name, own):
                found[index] = _Without(donor, left_out)
                notes.append(f"donor {index} has another vocabulary: the rows of {path or 'the embedding'} are new")
    return found, notes


class _Without:
    """A donor's weights without some tensors."""

    def __init__(self, donor: LazyWeights, left_out: Container[str]) -> None:
        self.shapes: Mapping[str, Tensor] = {n: tensor for n, tensor in donor.shapes.items() if n not in left_out}
        self.parts: Mapping[str, TensorParts] = getattr(donor, "parts", {})
        self.read = donor.read


def _names_of(model: nn.Module, rows: Container[str]) -> Iterable[str]:
    """Returns all names of parameters, also those of tied ones."""
    named = [*model.named_parameters(remove_duplicate=False)]
    tensors = {id(tensor) for name, tensor in named if name in rows}
    return (name for name, tensor in named if id(tensor) in tensors)


def _is_equal(donor: LazyWeights, name: str, own: Tensor) -> bool:
    return all(torch.equal(tensor.cpu(), own.cpu()) for _, tensor in donor.read([name]))
