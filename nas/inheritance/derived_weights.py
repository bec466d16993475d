"""Tensors that a donor has under another name or inside another tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nas.inheritance.attention_heads import width_of
from nas.inheritance.donor_weights import LazyWeights
from nas.storage.tensor_names import is_weight
from nas.storage.tensor_parts import TensorParts

_PROJECTIONS = ("q_proj_weight", "k_proj_weight", "v_proj_weight")
_FUSED = "in_proj_weight"


class _Origin(NamedTuple):
    """The tensor that has another one, in one of so many equal parts."""

    name: str
    part: int = 0
    n_parts: int = 1

    def of(self, tensor: Tensor) -> Tensor:
        """Returns the part of the tensor of this name."""
        return tensor.chunk(self.n_parts)[self.part]


class DerivedWeights:
    """A donor's tensors, and others that it has under other names.

    Attributes:
        shapes: All of them by name.
        parts: The heads of tensors of attentions by name, if they are known.
        origins: For each other tensor, the name of the donor's.
    """

    def __init__(self, donor: LazyWeights, origins: Mapping[str, _Origin]) -> None:
        known: Mapping[str, TensorParts] = getattr(donor, "parts", {})
        self._donor, self._origins = donor, origins
        self.shapes = {**donor.shapes, **{name: own.of(donor.shapes[own.name]) for name, own in origins.items()}}
        heads = {name: (known[own.name], own) for name, own in origins.items() if own.name in known}
        split = {name: TensorParts(all_.dim, all_.sizes[own.part :][:1]) for name, (all_, own) in heads.items()}
        self.parts = {**known, **split}
        self.origins = {name: own.name for name, own in origins.items()}

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        """Yields the tensors of these names, in any order; each is valid until the next one."""
        wanted = set(names)
        derived: dict[str, list[str]] = {}
        for name in sorted(wanted & self._origins.keys()):
            derived.setdefault(self._origins[name].name, []).append(name)
        for name, tensor in self._donor.read(sorted((wanted - self._origins.keys()) | derived.keys())):
            if name in wanted:
                yield name, tensor
            yield from ((other, self._origins[other].of(tensor)) for other in derived.get(name, ()))


def with_derived(donor: LazyWeights, model: nn.Module) -> LazyWeights:
    """Returns a donor with the tensors of the model that it has under other names."""
    names = model.state_dict().keys() - donor.shapes.keys()
    origins = {name: own for name in names if (own := _in_fused(name, donor.shapes)) is not None}
    origins |= {name: own for name, own in _tied(model, donor.shapes) if name in names}
    return DerivedWeights(donor, origins) if origins else donor


def _in_fused(name: str, shapes: Mapping[str, Tensor]) -> _Origin | None:
    """Returns the third of a donor's fused weight that a child's weight needs, or None."""
    path, dot, own = name.rpartition(".")
    fused = shapes.get(f"{path}{dot}{_FUSED}")
    if own not in _PROJECTIONS or fused is None or is_lazy(fused) or fused.dim() != 2 or fused.shape[0] % 3:
        return None
    return _Origin(f"{path}{dot}{_FUSED}", _PROJECTIONS.index(own), 3)


def _tied(model: nn.Module, shapes: Mapping[str, Tensor]) -> Iterator[tuple[str, _Origin]]:
    """Yields the last linear layer's weight, if the donor may have it only as embedding.

    It has the shape of a single embedding, and is no square. The donor has no such weight under another name.
    """
    names = model.state_dict().keys()
    layers = dict(model.named_modules())
    linear = [name for name, layer in layers.items() if isinstance(layer, nn.Linear)][-1:]
    for name in linear:
        head = (width_of(layers[name]), width_of(layers[name], inputs=True))
        embeddings = [(own, layer) for own, layer in layers.items() if isinstance(layer, nn.Embedding)]
        same = [f"{own}.weight" for own, layer in embeddings if (layer.num_embeddings, layer.embedding_dim) == head]
        if len(same) != 1 or same[0] not in shapes or head[0] == head[1]:
            continue
        others = {own: tensor for own, tensor in shapes.items() if own not in names and is_weight(own)}
        if all(is_lazy(tensor) or tensor.shape != shapes[same[0]].shape for tensor in others.values()):
            yield f"{name}.weight", _Origin(same[0])
