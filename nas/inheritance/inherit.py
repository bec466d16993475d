"""Inheritance between any two networks: a child takes from its donors' weights what fits.

`nas.inheritance.rules.Rules` decides what else is inherited:

* **Batch-norm statistics** follow their channels. ``running_mean`` and ``running_var`` are copied or sliced as the
  ``weight`` beside them; an inherited channel is normalized as before. New channels keep mean 0 and variance 1.
  ``num_batches_tracked`` is copied, as are all integers: whole or not at all.
* **Optimizer state** is inherited if a problem publishes it and asks for it (`nas.inheritance.optimizer_state`).
* **Warm-up and freezing** are up to the problem (``Rules.warm_up``, `nas.inheritance.freezing`).
  docs/benchmarks.md has measurements.
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
from nas.inheritance.derived_weights import with_derived
from nas.inheritance.donor_weights import WeightsLike, donor_list, weights_of
from nas.inheritance.layer_alignment import align, channel_weights, execution_order, layers_of
from nas.inheritance.module_state import copies_in, lazy_layers, load_refusal
from nas.inheritance.reparametrization import layers_among, reparametrized_layers
from nas.inheritance.replay import replay_on_best
from nas.inheritance.report import NO_DONOR, InheritanceReport, TensorInheritance
from nas.inheritance.rules import Rules
from nas.inheritance.shape_rules import storage_refusal
from nas.inheritance.tensor_matching import ChildTensor, inherit_by_layer, inherit_tensors
from nas.inheritance.tensor_roles import Roles
from nas.inheritance.tensor_sources import tensor_sources
from nas.inheritance.vocabularies import same_vocabularies
from nas.spaces.graphs.crossover import Crossing
from nas.spaces.graphs.derivation import Derivation
from nas.spaces.growth import Growth
from nas.storage.tensor_names import is_weight, unwrapped


def inherit(
    model: nn.Module,
    donors: Iterable[WeightsLike],
    *,
    rules: Rules | None = None,
    derivation: Derivation | Growth | Crossing | None = None,
    parents: Sequence[int | None] = (),
) -> InheritanceReport:
    """Copies into ``model``, in place, what fits of the donors' weights, and returns a report.

    Each tensor of ``model.state_dict()`` takes the first of these that exists:

    * With a derivation: the result of its operations on the parent's tensors ("morphed"). If the parent is no donor,
      the best donor with the same tensors, by name and shape, is used. A layer that the
      operations put in, and that changes nothing at first, is "inserted".
    * With a crossing: the tensor of its layer in the layer's own parent. It is "copied", or "sliced" if the layer has
      other channels now.
    * The tensor of the same name and shape, of the best donor that has it ("copied").
    * The tensor of the layer in the same position of a donor's network ("copied"). Each of the two must have a name
      that the other network lacks (see ``Rules.first``).
    * The overlap with a tensor of the same name and number of dimensions, of the best donor ("sliced"). Channels and
      features overlap from index 0 on, kernels around the middle. ``Rules.rest`` fills the rest. Queries, keys and
      values overlap head by head, if the heads of both are known (`nas.inheritance.attention`). Then groups of
      query heads and rotary heads of other sizes are sliced in tensors of equal shape, too.
    * Nothing: it stays as it is ("new").

    The tensors of a reparametrized layer (``nas.inheritance.reparametrization``) are copied from one donor that has all
    of them, or all stay new.

    With several donors, a layer's bias and the norm after it prefer the donor of the layer's weight. Scales and
    statistics belong to its channels.

    A donor's tensor is skipped if it holds a NaN or an infinity, also after the cast to the child's dtype. So
    are tensors that are sparse, quantized or without data, and kinds of number that do not fit the child's. A
    parameter with two names (tied weights) is written once, by the name that fits best. Values are cast to the child's
    dtype; in the same dtype copies are exact, unless rules shrink or perturb them. Devices do not change.

    Only the tensors in use are read; a derivation reads all of one donor's graph. Published optimizer state is ignored.
    If hooks make the ``state_dict`` of copies, they are loaded, or stay new if ``load_state_dict`` refuses them.

    Embeddings of another vocabulary stay new (`nas.inheritance.vocabularies`); a note says so.

    Lazy layers without sizes inherit nothing; a note says so. A network inside ``torch.compile`` or ``DataParallel``
    inherits as itself.

    Args:
        model: The child, newly initialized.
        donors: State dicts, weights to read, or modules, best first; may be empty. Layers of modules are aligned in the
            order in which they run if torch.fx can trace both; otherwise a note says so.
        rules: The defaults if None.
        derivation: The operations that made the child's network of a donor's, or the crossing of two. It is ignored if
            no donor has its tensors, or if its result is not the child; the notes give the reason, that of the first
            donor tried.
        parents: For each parent of the derivation, its index in ``donors`` or None. They are tried first.

    Raises:
        ConfigurationError: ``donors``, ``rules``, ``derivation`` or ``parents`` has a wrong type or index.
    """
    rules = Rules() if rules is None else rules
    if not isinstance(rules, Rules):
        raise ConfigurationError(f"rules={type(rules).__name__}: must be nas.inheritance.rules.Rules. Give Rules(...).")
    model = unwrapped(model)
    donors = [unwrapped(donor) if isinstance(donor, nn.Module) else donor for donor in donor_list(donors)]
    found, other_words = same_vocabularies(model, [weights_of(donor) for donor in donors])
    weights = [with_derived(donor, model) for donor in found]
    _check_derivation(derivation, parents, len(weights))
    state = model.state_dict()
    left_out = _statistics(model) if rules.statistics == "reset" else set()
    orders, notes = _execution_orders(model, donors)
    notes += other_words
    if lazy := lazy_layers(model):
        notes.append(
            f"lazy layers {', '.join(lazy)} have no sizes and inherit nothing: run one batch through them first"
        )
    aligned = [_aligned(state, donor.shapes, *order, rules) for donor, order in zip(weights, orders, strict=True)]
    donor_names = {name for tensors in (*aligned, *(donor.shapes for donor in weights)) for name in tensors}
    roles = Roles(model)
    children = []
    for names, own in _distinct(state, donor_names):
        role = roles.of(own)
        sources = tensor_sources(own, state[own[0]], [*zip(weights, aligned, strict=True)], rules, role)
        children.append(ChildTensor(names, state[own[0]], sources, role, rules))
    copies = copies_in(state, model) if weights else set()
    copied = [child for child in children if not copies.isdisjoint(child.names)]
    refusal = load_refusal(state, model) if copied else None
    for child in copied:
        child.refusal = refusal or child.refusal
    replayed: int | None = None
    inheriting = [child for child in children if child.refusal is None and left_out.isdisjoint(child.names)]
    with torch.no_grad():
        if isinstance(derivation, Crossing) and weights:
            notes += prefer_origins(derivation, model, weights, inheriting, parents)
        elif isinstance(derivation, Derivation | Growth) and weights:
            replayed, refusals = replay_on_best(derivation, model, weights, inheriting, parents)
            notes += refusals
        left = [child for child in inheriting if child.result is None]
        reparametrized = layers_among(reparametrized_layers(model, state), left)
        for layer in reparametrized:
            layer.choose_donor(weights)
        if len(weights) > 1:
            order = next((own for own, _ in orders if own), ())
            inherit_by_layer(left, children, channel_weights(layers_of(state, order)), weights)
        else:
            inherit_tensors(left, weights)
        while any(layer.undo_part() for layer in reparametrized):  # layers may share a tensor
            pass
    if copied and refusal is None:
        model.load_state_dict(state)
    return replace(report_of(children, state, bool(weights), left_out), replayed=replayed, notes=tuple(notes))


def report_of(
    children: Sequence[ChildTensor],
    state: Mapping[str, Tensor],
    has_donor: bool,
    left_out: Collection[str] = (),
) -> InheritanceReport:
    """Returns the report on the tensors of a state, except those that were left out."""
    tensors: dict[str, TensorInheritance] = {}
    n_elements = 0
    n_given: Counter[int] = Counter()  # elements by the donor's index
    for child in children:
        why = child.refusal or ("no donor has this name" if has_donor else NO_DONOR)
        if any(name in left_out for name in child.names) and child.result is None:
            why = "statistics are reset"
        result = child.result or TensorInheritance(how="new", why=why)
        tensors |= dict.fromkeys(child.names, result)
        if child.role.is_parameter and not is_lazy(child.tensor):
            n_elements += child.tensor.numel()
            if result.donor is not None:
                n_given[result.donor] += round(result.share * child.tensor.numel())
    share = n_given.total() / n_elements if n_elements else 0.0
    by_index = sorted(donor for donor, n in n_given.items() if n > 0)
    by_share = sorted(by_index, key=n_given.__getitem__, reverse=True)
    given = {donor: n_given[donor] / n_elements for donor in by_share}
    in_order = {name: tensors[name] for name in state if name in tensors}
    return InheritanceReport(share=share, given=given, tensors=in_order)


def _execution_orders(
    model: nn.Module, donors: Sequence[object]
) -> tuple[list[tuple[Sequence[str], Sequence[str]]], list[str]]:
    """Returns the orders in which the child's layers and each donor's layers run, and notes.

    Both orders are empty if one of the modules can't be traced: then the order of definition counts.
    """
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
    child_order: Sequence[str],
    donor_order: Sequence[str],
    rules: Rules,
) -> dict[str, str]:
    """Returns the donor's tensor in the same position, for each tensor of the child."""
    child = layers_of(state, child_order)
    own = {name for layer in child for name in layer.names}
    if rules.first == "name":
        child = [layer for layer in child if shapes.keys().isdisjoint(layer.names)]
    if not child:
        return {}
    donor = layers_of({name: tensor for name, tensor in shapes.items() if is_weight(name)}, donor_order)
    if rules.first == "name":
        donor = [layer for layer in donor if own.isdisjoint(layer.names)]
    return align(child, donor)


def _check_derivation(derivation: object, parents: Sequence[object], n_donors: int) -> None:
    """Checks the type of the derivation, and that parents are indices of donors."""
    if derivation is not None and not isinstance(derivation, Derivation | Growth | Crossing):
        raise ConfigurationError(
            f"derivation={type(derivation).__name__}: must be a Derivation, a Growth or a Crossing; "
            "nas.spaces.graphs.derivation.derivation_from_json reads what a proposal holds"
        )
    for index, parent in enumerate(parents):
        if parent is not None and not (type(parent) is int and 0 <= parent < n_donors):
            raise ConfigurationError(
                f"parents[{index}]={parent!r}: must be None or the index of one of the {n_donors} donors, from 0"
            )


def _statistics(model: nn.Module) -> set[str]:
    """Returns the names of batch-norm statistics."""
    return {
        f"{prefix}.{name}" if prefix else name
        for prefix, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, nn.modules.batchnorm._NormBase)
        for name, _ in module.named_buffers(recurse=False)
    }


def _distinct(state: Mapping[str, Tensor], donor_names: Container[str]) -> Iterator[tuple[list[str], list[str]]]:
    """Yields all names of each tensor, and those of them that are not transposed views."""
    names: dict[object, list[str]] = {}
    for name, tensor in state.items():
        if not isinstance(tensor, Tensor):  # the result of get_extra_state, of any type
            continue
        key: object = name
        if storage_refusal(tensor) is None and (address := tensor.untyped_storage().data_ptr()):
            dimensions = sorted(zip(tensor.stride(), tensor.shape, strict=True))
            key = (address, tensor.storage_offset(), *dimensions, tensor.dtype)
        names.setdefault(key, []).append(name)
    for group in names.values():
        first = state[next((name for name in group if name in donor_names), group[0])]
        yield group, [name for name in group if len(group) == 1 or state[name].stride() == first.stride()]
