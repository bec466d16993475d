"""Inheritance between any two networks: one takes from others' weights what fits, however much they differ.

What follows the weights, and what does not, is said by `nas.inheritance.rules.Rules`:

* **Batch-norm statistics travel with their channels.** ``running_mean`` and ``running_var`` are copied or sliced as the
  ``weight`` beside them is, so that an inherited channel is normalized as it was; fresh channels keep mean 0 and
  variance 1. ``num_batches_tracked`` comes along (integers are copied whole or not at all).
* **Optimizer state** is inherited where a problem publishes and asks for it (`nas.inheritance.optimizer_state`).
* **Warm-up and freezing are the problem's to do**, by ``Rules.warm_up`` and `nas.inheritance.freezing`. Whether
  they pay is measured in docs/benchmarks.md.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

from nas.core.errors import ConfigurationError
from nas.inheritance.crossover import prefer_origins
from nas.inheritance.layer_alignment import execution_order, layers_of, leaders_of, renamed
from nas.inheritance.module_state import copies_in, load_refusal
from nas.inheritance.replay import replay_on_best
from nas.inheritance.report import NO_DONOR, InheritanceReport, TensorInheritance
from nas.inheritance.rules import Rules
from nas.inheritance.shape_rules import storage_refusal
from nas.inheritance.tensor_matching import ChildTensor, Weights, offers_of, settle, settle_by_leaders
from nas.inheritance.tensor_roles import Traits
from nas.inheritance.tensor_sources import Donor, listed, source_of
from nas.spaces.graphs.crossover import Crossing
from nas.spaces.graphs.derivation import Derivation
from nas.storage.tensor_names import is_weight

__all__ = ["InheritanceReport", "Rules", "TensorInheritance", "Weights", "inherit"]


def inherit(
    model: nn.Module,
    donors: Iterable[Donor],
    *,
    rules: Rules | None = None,
    derivation: Derivation | Crossing | None = None,
    parents: Sequence[int | None] = (),
) -> InheritanceReport:
    """Copies into ``model``, in place, what fits of the donors' weights, and says what was done.

    Each tensor of ``model.state_dict()`` takes the first of these that there is:

    * what a derivation makes of the parent, or of the best donor that has the tensors of the network which it begins
      with, by name and shape: its operations are replayed ("morphed"; a layer that they put in, and that computes
      nothing at first, is "inserted");
    * of a crossing, what its layer had in the parent that it is of, whatever it was called there ("copied", or "sliced"
      where the layer takes other channels now);
    * the tensor of its name and shape, of the best donor that has it ("copied");
    * the tensor of the layer that stands in the same place in a donor's network, where both have names that the other
      lacks ("copied"; see ``Rules.first``);
    * of the best donor that has its name with as many dimensions of other sizes, the part that both have ("sliced"):
      channels and features from index 0 on, kernels from the middle. ``Rules.rest`` says what the rest becomes;
    * nothing: it stays as it is ("new").

    Where several donors have what a layer's bias, or the norm behind it, may take, the one comes first that gave the
    layer's weight: scales and statistics are of its channels.

    A donor's tensor that holds a NaN or an infinity (also one that arises only in the child's dtype) gives nothing, and
    neither does one whose kind of number the child's can't hold, or that is sparse, quantized or without data. A
    parameter with two names (tied weights) is written once, by the name that fits best. Values are cast to the child's
    dtype; in the same dtype what is copied is equal to the bit, unless rules shrink or perturb it. Devices stay as they
    are. Only the tensors that are taken are read, and for a derivation all of one donor's graph. What a donor published
    of its optimizer is left out. Where hooks make the ``state_dict`` of copies, they are loaded, and stay fresh where
    the module's ``load_state_dict`` refuses them.

    Args:
        model: The child, freshly initialized.
        donors: State dicts, weights that are still to be read, or modules, whose layers are then aligned in the order
            in which they run, as far as torch.fx can trace both (the notes say where not); best first; may be empty.
        rules: The defaults where None.
        derivation: How the child's network was made of a donor's, or of two. Where no donor has the tensors that it
            says, or the result is not the child, it is left out and the report's notes say why: of the donors, about
            the first that was tried.
        parents: The places in ``donors`` of those that the derivation is of, in its order; None: not among them. They
            are tried before others.

    Raises:
        ConfigurationError: donors that are no list of such, rules that are no ``Rules``, a derivation that is none, or
            parents that are no places in the list.
    """
    rules = Rules() if rules is None else rules
    if not isinstance(rules, Rules):
        raise ConfigurationError(
            f"rules (a {type(rules).__name__}) must be nas.inheritance.rules.Rules; give Rules(...)"
        )
    donors = listed(donors)
    sources = [source_of(donor) for donor in donors]
    _check_derivation(derivation, parents, len(sources))
    state = model.state_dict()
    left_out = _statistics(model) if rules.statistics == "reset" else set()
    orders, notes = _execution_orders(model, donors)
    aligned = [_aligned(state, source.shapes, *order, rules) for source, order in zip(sources, orders, strict=True)]
    traits, shapes = Traits(model), [source.shapes for source in sources]
    children = [
        ChildTensor(names, state[own[0]], offers_of(own, state[own[0]], sources, aligned, rules), traits.of(own), rules)
        for names, own in _distinct(state, {name for given in (*aligned, *shapes) for name in given})
    ]
    copies = copies_in(state, model) if sources else set()
    copied = [child for child in children if not copies.isdisjoint(child.names)]
    refusal = load_refusal(state, model) if copied else None
    for child in copied:
        child.refusal = refusal or child.refusal
    replayed: int | None = None
    offered = [child for child in children if child.refusal is None and left_out.isdisjoint(child.names)]
    with torch.no_grad():
        if isinstance(derivation, Crossing) and sources:
            notes += prefer_origins(derivation, model, sources, offered, parents)
        elif isinstance(derivation, Derivation) and sources:
            replayed, refused = replay_on_best(derivation, model, sources, offered, parents)
            notes += refused
        left = [child for child in offered if child.done is None]
        if len(sources) > 1:
            order = next((own for own, _ in orders if own), ())
            settle_by_leaders(left, children, leaders_of(layers_of(state, order)), sources)
        else:
            settle(left, sources)
    if copied and refusal is None:
        model.load_state_dict(state)
    return replace(report_of(children, state, bool(sources), left_out), replayed=replayed, notes=tuple(notes))


def report_of(
    children: Sequence[ChildTensor],
    state: Mapping[str, Tensor],
    has_donor: bool,
    left_out: Collection[str] = (),
) -> InheritanceReport:
    """What became of the tensors of a state, of which those left out were not offered anything."""
    tensors: dict[str, TensorInheritance] = {}
    n_elements = 0
    n_given: Counter[int] = Counter()  # by the donor's place
    for child in children:
        why = child.refusal or ("no donor has this name" if has_donor else NO_DONOR)
        if any(name in left_out for name in child.names) and child.done is None:
            why = "statistics are reset"
        done = child.done or TensorInheritance(how="new", why=why)
        tensors |= dict.fromkeys(child.names, done)
        if child.trait.is_parameter and not is_lazy(child.tensor):
            n_elements += child.tensor.numel()
            if done.donor is not None:
                n_given[done.donor] += round(done.share * child.tensor.numel())
    share = n_given.total() / n_elements if n_elements else 0.0
    by_place = sorted(place for place, n in n_given.items() if n > 0)
    given = {place: n_given[place] / n_elements for place in sorted(by_place, key=n_given.__getitem__, reverse=True)}
    in_order = {name: tensors[name] for name in state if name in tensors}
    return InheritanceReport(share=share, given=given, tensors=in_order)


def _execution_orders(
    model: nn.Module, donors: Sequence[object]
) -> tuple[list[tuple[Sequence[str], Sequence[str]]], list[str]]:
    """For each donor the orders in which the child's layers and its own run; empty: as defined. What it could not."""
    found: list[tuple[Sequence[str], Sequence[str]]] = []
    notes: list[str] = []
    own: Sequence[str] = ()
    for donor in donors:
        found.append(((), ()))
        if isinstance(donor, nn.Module):
            try:
                own = own or execution_order(model)
                found[-1] = own, execution_order(donor)
            except ConfigurationError as error:
                notes.append(f"layers are aligned in the order of their definition: {error}")
    return found, list(dict.fromkeys(notes))


def _aligned(
    state: Mapping[str, Tensor],
    shapes: Mapping[str, Tensor],
    own_order: Sequence[str],
    its_order: Sequence[str],
    rules: Rules,
) -> dict[str, str]:
    """By a tensor of the child, which of the donor's stands in its place."""
    child = layers_of(state, own_order)
    other = layers_of({name: tensor for name, tensor in shapes.items() if is_weight(name)}, its_order)
    if rules.first == "name":
        own = {name for layer in child for name in layer.names}
        child = [layer for layer in child if shapes.keys().isdisjoint(layer.names)]
        other = [layer for layer in other if own.isdisjoint(layer.names)]
    return renamed(child, other)


def _check_derivation(derivation: object, parents: Sequence[object], n_donors: int) -> None:
    """Returns if it is one, and the parents are among the donors."""
    if derivation is not None and not isinstance(derivation, Derivation | Crossing):
        raise ConfigurationError(
            f"derivation (a {type(derivation).__name__}) must be a Derivation or a Crossing; "
            "nas.spaces.graphs.derivation.derivation_from_json reads what a proposal holds"
        )
    for place, parent in enumerate(parents):
        if parent is not None and not (type(parent) is int and 0 <= parent < n_donors):
            raise ConfigurationError(
                f"parents[{place}] ({parent!r}) must be None or the place of one of the {n_donors} donors, from 0"
            )


def _statistics(model: nn.Module) -> set[str]:
    """Returns the names of the statistics of batch-norms."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.modules.batchnorm._NormBase)
        for name, _ in module.named_buffers(recurse=False)
    }


def _distinct(state: Mapping[str, Tensor], offered: Container[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Each tensor once: all of its names, and those under which it is not transposed, of which some donor has one."""
    names: dict[object, list[str]] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):  # what a module's get_extra_state returns may be anything
            continue
        key: object = name
        if storage_refusal(tensor) is None and (address := tensor.untyped_storage().data_ptr()):
            dimensions = sorted(zip(tensor.stride(), tensor.shape, strict=True))
            key = (address, tensor.storage_offset(), *dimensions, tensor.dtype)
        names.setdefault(key, []).append(name)
    for group in names.values():
        first = state[next((name for name in group if name in offered), group[0])]
        yield group, [name for name in group if len(group) == 1 or state[name].stride() == first.stride()]
