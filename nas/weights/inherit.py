"""Inheritance between any two networks: one takes from others' weights what fits, however much they differ.

What follows the weights, and what does not, is said by `nas.weights.rules.Rules`:

* **Batch-norm statistics travel with their channels.** ``running_mean`` and ``running_var`` are copied or sliced as the
  ``weight`` beside them is, so that an inherited channel is normalised as it was; fresh channels keep mean 0 and
  variance 1. ``num_batches_tracked`` comes along (integers are copied whole or not at all).
* **Optimiser state** is inherited where a problem publishes and asks for it (`nas.weights.optimizer`).
* **Warm-up and freezing are the problem's to do**, by ``Rules.warm_up`` and `nas.weights.freezing`: a full learning
  rate in the first steps undoes what was inherited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nas.errors import ConfigurationError, PointError
from nas.spaces.graphs.crossover import Crossing
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.graphs.module import graph_in
from nas.store.tensor_names import is_weight
from nas.weights.carrying import node_of
from nas.weights.child import ChildTensor, Traits, Weights, all_finite, offers_of, settle
from nas.weights.crossing import prefer_origins
from nas.weights.morphism import check_weights, outcome, replay
from nas.weights.report import NO_DONOR, InheritanceReport, TensorInheritance
from nas.weights.rules import Rules
from nas.weights.structure import layers_of, renamed

__all__ = ["InheritanceReport", "Rules", "TensorInheritance", "Weights", "inherit"]


class _Loaded:
    """A state dict."""

    def __init__(self, tensors: Mapping[str, Tensor]) -> None:
        self.shapes = tensors

    def read(self, names: Iterable[str]) -> Iterator[tuple[str, Tensor]]:
        return ((name, self.shapes[name]) for name in names)


def inherit(
    model: nn.Module,
    donors: Sequence[Mapping[str, Tensor] | Weights | nn.Module],
    *,
    rules: Rules | None = None,
    derivation: Derivation | Crossing | None = None,
) -> InheritanceReport:
    """Copies into ``model``, in place, what fits of the donors' weights, and says what was done.

    Each tensor of ``model.state_dict()`` takes the first of these that there is:

    * what a derivation makes of the best donor that has the network which it begins with: its operations are replayed
      ("morphed"; a layer that they put in, and that computes nothing at first, is "made");
    * of a crossing, what its layer had in the parent that it is of, whatever it was called there: of the best donor
      that has that parent's network ("copied", or "sliced" where the layer takes other channels now);
    * the tensor of its name and shape, of the best donor that has it ("copied");
    * the tensor of the layer that stands in the same place in a donor's network, where both have names that the other
      lacks ("copied"; see ``Rules.first``);
    * of the best donor that has its name with as many dimensions of other sizes, the part that both have ("sliced"):
      channels and features from index 0 on, kernels from the middle. ``Rules.rest`` says what the rest becomes;
    * nothing: it stays as it is ("fresh").

    A donor's tensor that holds a NaN or an infinity (also one that arises only in the child's dtype) gives nothing, and
    neither does one whose kind of number the child's can't hold. A parameter with two names (tied weights) is written
    once, by the name that fits best. Values are cast to the child's dtype; in the same dtype what is copied is equal to
    the bit, unless rules shrink or perturb it. Devices stay as they are. Only the tensors that are taken are read, and
    for a derivation all of one donor's graph. What a donor published of its optimiser is left out.

    Args:
        model: The child, freshly initialised.
        donors: State dicts, weights that are still to be read, or modules, whose layers are then aligned in the order
            in which they run; best first; may be empty.
        rules: The defaults where None.
        derivation: How the child's network was made of a donor's, or of two. Where no donor has the network that it
            says, or the result is not the child, it is left out and the report's notes say why: of the donors, about
            the best.
    """
    rules = rules or Rules()
    sources = [source_of(donor) for donor in donors]
    state = model.state_dict()
    left_out = _statistics(model) if rules.statistics == "reset" else set()
    aligned = [_aligned(model, donor, source.shapes, rules) for donor, source in zip(donors, sources, strict=True)]
    traits = Traits(model)
    children = [
        ChildTensor(names, tensor, offers_of(names, tensor, sources, aligned, rules), traits.of(names), rules)
        for names, tensor in _distinct(state)
    ]
    offered = [child for child in children if left_out.isdisjoint(child.names)]
    notes: list[str] = []
    with torch.no_grad():
        if isinstance(derivation, Crossing):
            notes += prefer_origins(derivation, model, sources, offered) if sources else []
        elif derivation is not None and sources:
            notes += _replay(derivation, model, sources, offered)
        settle([child for child in offered if child.done is None], sources)
    return report_of(children, state, bool(sources), left_out, notes)


def _replay(
    derivation: Derivation, model: nn.Module, sources: Sequence[Weights], children: Sequence[ChildTensor]
) -> list[str]:
    """Writes what the derivation makes of the best donor that has its network; what stood against it, if anything."""
    try:
        prefix, own = graph_in(model)
        network, new = outcome(derivation.network, derivation.operations)
    except PointError as error:
        return [f"not replayed: {error}"]
    if network != own:
        return ["not replayed: the operations make another network than the child's"]
    refusals: list[str] = []
    for place, source in enumerate(sources):
        inner = {name: tensor for name, tensor in source.shapes.items() if name.startswith(f"{prefix}layers.")}
        try:
            check_weights(derivation.network, {name.removeprefix(prefix): tensor for name, tensor in inner.items()})
        except ConfigurationError as error:
            refusals.append(str(error))
            continue
        donor = {name: tensor.clone() for name, tensor in source.read(inner)}
        if _write(derivation, donor, prefix, place, new, children):
            return []
        refusals.append("not finite")
    return [f"not replayed: {refusals[0]}"]  # of the best


def _write(
    derivation: Derivation,
    donor: Mapping[str, Tensor],
    prefix: str,
    place: int,
    new: Collection[int],
    children: Sequence[ChildTensor],
) -> bool:
    """Writes what becomes of a donor's tensors, where all of it is finite in the child; whether it was."""
    own = {name.removeprefix(prefix): tensor for name, tensor in donor.items()}
    _, morphed = replay(derivation.network, own, derivation.operations)
    values = {f"{prefix}{name}": tensor for name, tensor in morphed.items()}
    found = [(child, name) for child in children if (name := next((n for n in child.names if n in values), None))]
    cast = [values[name].to(child.tensor.device, child.tensor.dtype) for child, name in found]
    if not all(map(all_finite, cast)):
        return False
    for (child, name), tensor in zip(found, cast, strict=True):
        child.write(tensor)
        if node_of(name.removeprefix(prefix)) in new:
            child.done = TensorInheritance(how="made", donor=place, why="operations")
        elif values[name] is donor.get(name):
            child.done = TensorInheritance(how="copied", share=1.0, donor=place)
        else:
            child.done = TensorInheritance(how="morphed", share=1.0, donor=place, why="operations")
    return True


def report_of(
    children: Sequence[ChildTensor],
    state: Mapping[str, Tensor],
    has_donor: bool,
    left_out: Collection[str] = (),
    notes: Sequence[str] = (),
) -> InheritanceReport:
    """What became of the tensors of a state, of which those left out were not offered anything."""
    tensors: dict[str, TensorInheritance] = {}
    n_elements = 0
    n_given: Counter[int] = Counter()  # by the donor's place
    for child in children:
        why = child.refusal or ("no donor has this name" if has_donor else NO_DONOR)
        if any(name in left_out for name in child.names) and child.done is None:
            why = "statistics are reset"
        done = child.done or TensorInheritance(how="fresh", why=why)
        tensors |= dict.fromkeys(child.names, done)
        if child.trait.is_parameter and not is_lazy(child.tensor):
            n_elements += child.tensor.numel()
            if done.donor is not None:
                n_given[done.donor] += round(done.share * child.tensor.numel())
    share = n_given.total() / n_elements if n_elements else 0.0
    main = max(sorted(+n_given), key=n_given.__getitem__, default=None)
    in_order = {name: tensors[name] for name in state if name in tensors}
    return InheritanceReport(share=share, main_donor=main, tensors=in_order, notes=tuple(notes))


def source_of(donor: Mapping[str, Tensor] | Weights | nn.Module) -> Weights:
    """A donor's tensors, read when they are wanted."""
    if isinstance(donor, nn.Module):
        return _Loaded(donor.state_dict())
    return _Loaded(donor) if isinstance(donor, Mapping) else donor


def _aligned(model: nn.Module, donor: object, shapes: Mapping[str, Tensor], rules: Rules) -> dict[str, str]:
    """By a tensor of the child, which of the donor's stands in its place."""
    child = layers_of(model if isinstance(donor, nn.Module) else model.state_dict())
    weights = {name: tensor for name, tensor in shapes.items() if is_weight(name)}
    other = layers_of(donor if isinstance(donor, nn.Module) else weights)
    if rules.first == "name":
        own = {name for layer in child for name in layer.names}
        child = [layer for layer in child if shapes.keys().isdisjoint(layer.names)]
        other = [layer for layer in other if own.isdisjoint(layer.names)]
    return renamed(child, other)


def _statistics(model: nn.Module) -> set[str]:
    """The names of the statistics of batch-norms."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.modules.batchnorm._NormBase)
        for name, _ in module.named_buffers(recurse=False)
    }


def _distinct(state: Mapping[str, Tensor]) -> Iterator[tuple[list[str], Tensor]]:
    """Each tensor once, with all of its names."""
    names: dict[object, list[str]] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):  # what a module's get_extra_state returns may be anything
            continue
        key: object = name
        if not is_lazy(tensor) and (address := tensor.untyped_storage().data_ptr()):
            key = (address, tensor.storage_offset(), tensor.shape, tensor.stride(), tensor.dtype)
        names.setdefault(key, []).append(name)
    return ((group, state[group[0]]) for group in names.values())
