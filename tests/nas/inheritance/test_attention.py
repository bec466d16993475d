"""Attentions are inherited head by head."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any
from uuid import uuid4

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional

from nas.core.errors import ConfigurationError
from nas.inheritance.attention import parts_of
from nas.inheritance.inherit import inherit
from nas.inheritance.optimizer_state import inherit_optimizer, optimizer_tensors
from nas.inheritance.rules import Rules
from nas.storage.checkpoints import publish_checkpoint, publish_tensors
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root

OWN = Rules(rest="own")
heads = st.tuples(st.integers(1, 5), st.integers(1, 6))


class OwnAttention(nn.Module):
    """An attention of a user, with fused queries, keys and values, and rotary positions or none."""

    def __init__(self, width: int, n_heads: int, head_size: int, *, has_halves: bool = False) -> None:
        super().__init__()
        self.n_heads, self.head_size, self.has_halves = n_heads, head_size, has_halves
        self.project = nn.Linear(width, 3 * n_heads * head_size)
        self.back = nn.Linear(n_heads * head_size, width)

    def tensor_parts(self) -> dict[str, Any]:
        """Returns the heads of each projection."""
        sizes = (self.n_heads, 2, self.head_size // 2) if self.has_halves else (self.n_heads, self.head_size)
        return {
            "project.weight": (0, [sizes] * 3),
            "project.bias": (0, [sizes] * 3),
            "back.weight": (1, [sizes]),
        }

    def forward(self, x: Tensor) -> Tensor:
        """Returns the attended values of ``(batch, tokens, width)``."""
        queries, keys, values = self.project(x).unflatten(-1, (3, self.n_heads, self.head_size)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(queries, keys, values)
        projected: Tensor = self.back(attended.transpose(1, 2).flatten(2))
        return projected


class LanguageModel(nn.Module):
    """A small causal language model of torch's layers, with a tied head."""

    def __init__(self, width: int, n_heads: int, n_positions: int = 8) -> None:
        super().__init__()
        self.embed = nn.Embedding(20, width)
        self.positions = nn.Embedding(n_positions, width)
        layer = nn.TransformerEncoderLayer(width, n_heads, 4 * width, dropout=0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, 2, nn.LayerNorm(width), enable_nested_tensor=False)
        self.head = nn.Linear(width, 20, bias=False)
        self.head.weight = self.embed.weight


def stored(model: nn.Module) -> StoredWeights:
    """Returns the weights of a published checkpoint of a model."""
    files = open_root(f"memory://attention/{uuid4().hex}", retry_s=0)
    tensors = publish_tensors(files, "packs/000001-ab", model.state_dict(), parts=parts_of(model))
    return StoredWeights(files, publish_checkpoint(files, "000001-ab", tensors))


def copy_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.clone() for name, tensor in model.state_dict().items()}


@settings(max_examples=15)
@example(donor_heads=(2, 3), child_heads=(3, 2), has_own_inputs=True)
@given(donor_heads=heads, child_heads=heads, has_own_inputs=st.booleans())
def test_every_head_takes_its_donors_head(
    donor_heads: tuple[int, int], child_heads: tuple[int, int], has_own_inputs: bool
) -> None:
    """Queries, keys, values and outputs of a head come from the same head, to the bit; the rest stays.

    In equal shapes all values are copied, whatever the heads.
    """

    def attention(n_heads: int, head_size: int) -> nn.MultiheadAttention:
        inputs = {"kdim": 7, "vdim": 5} if has_own_inputs else {}
        return nn.MultiheadAttention(n_heads * head_size, n_heads, add_bias_kv=True, **inputs)

    donor, child = attention(*donor_heads), attention(*child_heads)
    nn.init.normal_(donor.in_proj_bias)
    before = copy_of(child)
    report = inherit(child, [donor], rules=OWN)

    after, given_ = child.state_dict(), donor.state_dict()
    if donor.embed_dim == child.embed_dim:  # of equal shape
        assert all(torch.equal(tensor, given_[name]) for name, tensor in after.items())
        return
    n, size = (min(pair) for pair in zip(donor_heads, child_heads, strict=True))
    width = min(donor.embed_dim, child.embed_dim)
    n_parts = {"in_proj_weight": 3, "in_proj_bias": 3}
    for name, tensor in after.items():
        if name in ("out_proj.bias", "out_proj.weight"):
            continue
        rows = tensor.dim() - 1 if name in ("bias_k", "bias_v") else 0
        views = [
            state[name].movedim(rows, 0).reshape(n_parts.get(name, 1), *own, -1)
            for state, own in ((after, child_heads), (given_, donor_heads), (before, child_heads))
        ]
        found, expected, old = views
        taken = (slice(None), slice(n), slice(size), slice(min(found.shape[-1], expected.shape[-1])))
        assert torch.equal(found[taken], expected[taken])
        old[taken] = expected[taken]
        assert torch.equal(found, old)
        assert report.tensors[name].share == expected[taken].numel() / found.numel()
    columns, expected = (
        state["out_proj.weight"].unflatten(1, own) for state, own in ((after, child_heads), (given_, donor_heads))
    )
    assert torch.equal(columns[:width, :n, :size], expected[:width, :n, :size])


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
@pytest.mark.parametrize(("donor", "child"), [((8, 2), (12, 3)), ((12, 3), (8, 2)), ((8, 2), (16, 2))])
def test_no_tensor_of_torchs_layers_stays_new(
    kind: type[nn.Module], donor: tuple[int, int], child: tuple[int, int]
) -> None:
    """A change of the width, of the heads or of their size leaves no tensor without a donor."""
    report = inherit(kind(*child, 4 * child[0]), [kind(*donor, 4 * donor[0])])

    assert {tensor.how for tensor in report.tensors.values()} <= {"copied", "sliced"}
    assert "by head" in report.tensors["self_attn.in_proj_weight"].why


@pytest.mark.parametrize(("more_heads", "more_inputs"), [(1, 0), (0, 3), (2, 5)])
def test_new_heads_and_inputs_change_nothing(more_heads: int, more_inputs: int) -> None:
    """With rest=scaled a child with more heads and more inputs computes what its donor does."""
    torch.manual_seed(0)
    donor, child = OwnAttention(6, 2, 4), OwnAttention(6 + more_inputs, 2 + more_heads, 4)
    x = torch.randn(2, 5, 6)
    wide = torch.cat([x, torch.randn(2, 5, more_inputs)], -1)
    with torch.no_grad():
        inherit(child, [donor])
        torch.testing.assert_close(child(wide)[..., :6], donor(x))

        own = OwnAttention(6 + more_inputs, 2 + more_heads, 4)
        inherit(own, [donor], rules=OWN)
        assert not torch.allclose(own(wide)[..., :6], donor(x), atol=1e-3)


@pytest.mark.parametrize(("donor_heads", "child_heads"), [((3, 8), (3, 12)), ((3, 12), (3, 8)), ((2, 8), (4, 4))])
def test_halves_of_a_head_stay_halves(donor_heads: tuple[int, int], child_heads: tuple[int, int]) -> None:
    """With rotary positions each half of a head takes the first values of the donor's half, also in equal shapes."""
    donor, child = (OwnAttention(4, *own, has_halves=True) for own in (donor_heads, child_heads))
    inherit(child, [donor], rules=OWN)

    n, half = min(donor_heads[0], child_heads[0]), min(donor_heads[1], child_heads[1]) // 2
    found, expected = (own.project.weight.view(3, own.n_heads, 2, -1, 4) for own in (child, donor))
    assert torch.equal(found[:, :n, :, :half], expected[:, :n, :, :half])


@pytest.mark.parametrize("rules", [OWN, Rules()])
@pytest.mark.parametrize(("donor", "child"), [((8, 2), (12, 3)), ((12, 3), (8, 2))])
def test_tied_embeddings_stay_tied(donor: tuple[int, int], child: tuple[int, int], rules: Rules) -> None:
    """Embedding and head are one tensor afterwards, inherited once, also of a donor in storage."""
    parent, model = LanguageModel(*donor), LanguageModel(*child, n_positions=6)
    report = inherit(model, [stored(parent)], rules=rules)

    width = min(donor[0], child[0])
    assert model.head.weight is model.embed.weight
    assert report.tensors["head.weight"] == report.tensors["embed.weight"]
    assert report.summary()["n_new"] == 0
    kept = parent.embed.weight[:, :width] if rules == OWN or child > donor else model.embed.weight
    assert torch.equal(model.embed.weight[:, :width], kept)
    assert torch.equal(model.positions.weight[:, :width], parent.positions.weight[:6, :width])


def test_untied_donors_give_a_tied_child_one_tensor() -> None:
    """If a donor's embedding and head differ, a tied child takes one of them."""
    parent, model = LanguageModel(8, 2), LanguageModel(8, 2)
    parent.head.weight = nn.Parameter(torch.randn(20, 8))
    inherit(model, [parent])

    assert model.head.weight is model.embed.weight
    assert torch.equal(model.embed.weight, parent.embed.weight)


def test_stored_heads_are_inherited_as_a_modules() -> None:
    """A published checkpoint gives the same weights and the same report as the module."""
    parent = LanguageModel(8, 2)
    torch.manual_seed(1)
    by_module = LanguageModel(12, 3)
    torch.manual_seed(1)
    by_storage = LanguageModel(12, 3)

    reports = inherit(by_module, [parent]), inherit(by_storage, [stored(parent)])
    assert reports[0].tensors == reports[1].tensors
    assert all(map(torch.equal, by_module.state_dict().values(), by_storage.state_dict().values()))


def test_a_state_dicts_projections_are_equal_parts() -> None:
    """Without the donor's heads each third of a fused projection comes from the donor's third, and the report says so.

    It stays new if the thirds are no multiple of the child's head size.
    """
    donor, child = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(16, 4)
    report = inherit(child, [donor.state_dict()], rules=OWN)

    assert report.tensors["in_proj_weight"].why == "(24, 8) into (48, 16), in 3 equal parts"
    found, expected = (model.in_proj_weight.unflatten(0, (3, -1)) for model in (child, donor))
    assert torch.equal(found[:, :8, :8], expected)
    report = inherit(nn.MultiheadAttention(16, 2), [nn.MultiheadAttention(12, 3).state_dict()])
    assert report.tensors["in_proj_weight"].how == "new"
    assert "stacked parts of other sizes" in report.tensors["in_proj_weight"].why


class ByHead(OwnAttention):
    """An attention with each head's query, key and value beside one another."""

    def tensor_parts(self) -> dict[str, Any]:
        """Returns the heads of each projection."""
        heads = (self.n_heads, self.head_size)
        return {"project.weight": (0, [(self.n_heads, 3, self.head_size)]), "back.weight": (1, [heads])}


def test_a_state_dicts_interleaved_projections_stay_new() -> None:
    """Rows that go from head to head can't be told apart without the donor's heads."""
    report = inherit(ByHead(8, 2, 8), [ByHead(8, 2, 4).state_dict()], rules=OWN)

    assert report.tensors["project.weight"].how == "new"
    assert report.tensors["project.weight"].why.startswith("donor at index 0: stacks projections, and the donor's are")
    assert inherit(ByHead(8, 2, 4), [ByHead(8, 4, 2).state_dict()]).tensors["project.weight"].how == "copied"


@pytest.mark.parametrize("kinds", [(ByHead, OwnAttention), (OwnAttention, ByHead)])
@pytest.mark.parametrize("size", [4, 6])
def test_other_layouts_of_heads_stay_new(kinds: tuple[type[OwnAttention], type[OwnAttention]], size: int) -> None:
    """A fused projection is not taken from a donor that stacks its heads in another order, in any shape."""
    report = inherit(kinds[0](8, 2, size), [kinds[1](8, 2, 4)])

    assert report.tensors["project.weight"].how == "new"
    assert "other layout of heads" in report.tensors["project.weight"].why
    assert report.tensors["back.weight"].how != "new"


class UnknownBlock(nn.Module):
    """A block whose fused projection has a name that nobody knows."""

    def __init__(self, width: int, n_parts: int = 3) -> None:
        super().__init__()
        self.n_heads = width // 4
        self.everything, self.back = nn.Linear(width, n_parts * width), nn.Linear(width, width)
        self.wide, self.narrow = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)


@pytest.mark.parametrize("n_parts", [2, 3])
@pytest.mark.parametrize("has_module", [True, False])
def test_fused_projections_of_unknown_layout_stay_new(n_parts: int, has_module: bool) -> None:
    """Two or three times the outputs that any layer reads may be queries, keys and values; an MLP is sliced."""
    donor = UnknownBlock(8, n_parts)
    report = inherit(UnknownBlock(16, n_parts), [donor if has_module else donor.state_dict()])

    hows = {name: tensor.how for name, tensor in report.tensors.items()}
    assert {name for name, how in hows.items() if how == "new"} == {"everything.weight", "everything.bias"}
    assert "its module has no tensor_parts" in report.tensors["everything.weight"].why
    same = inherit(UnknownBlock(8, n_parts), [donor if has_module else donor.state_dict()])
    assert same.share == 1


class GatedMlp(nn.Module):
    """An MLP with its gate and values from one layer."""

    def __init__(self, n_hidden: int) -> None:
        super().__init__()
        self.gate_up_proj, self.down_proj = nn.Linear(4, 2 * n_hidden), nn.Linear(n_hidden, 4)


@pytest.mark.parametrize("has_module", [True, False])
@pytest.mark.parametrize("sizes", [(3, 5), (5, 3)])
def test_halves_of_a_gated_mlp_stay_halves(has_module: bool, sizes: tuple[int, int]) -> None:
    """The child's gate comes from the donor's gate, and its values from the donor's values."""
    donor, child = map(GatedMlp, sizes)
    inherit(child, [donor if has_module else donor.state_dict()], rules=OWN)

    for name in ("weight", "bias"):
        found, expected = (model.gate_up_proj.get_parameter(name).unflatten(0, (2, -1)) for model in (child, donor))
        assert torch.equal(found[:, :3], expected[:, :3])


def test_momentum_follows_the_heads() -> None:
    """Optimizer state is sliced head by head, as its parameter."""
    donor, child = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(12, 3)
    optimizers = [torch.optim.SGD(model.parameters(), 0.1, momentum=0.9) for model in (donor, child)]
    for parameter in donor.parameters():
        parameter.grad = torch.randn_like(parameter)
    optimizers[0].step()
    files = open_root(f"memory://attention/{uuid4().hex}", retry_s=0)
    tensors = {**donor.state_dict(), **optimizer_tensors(optimizers[0], donor)}
    saved = publish_tensors(files, "packs/000001-ab", tensors, parts=parts_of(donor))
    weights = StoredWeights(files, publish_checkpoint(files, "000001-ab", saved))
    inherit_optimizer(optimizers[1], child, [weights])

    found = optimizers[1].state[child.in_proj_weight]["momentum_buffer"].view(3, 3, 4, 12)
    assert donor.in_proj_weight.grad is not None
    assert torch.equal(found[:, :2, :, :8], donor.in_proj_weight.grad.view(3, 2, 4, 8))
    assert not found[:, 2].any()


@pytest.mark.parametrize(
    ("declared", "message"),
    [
        ([], r"tensor_parts=\[\]: must be a dict"),
        ({"other.weight": (0, [(2, 4)])}, "must be a parameter of the module"),
        ({"back.weight": (1, [(2, 3)])}, r"must add up to dimension 1 of \(6, 8\)"),
        ({"back.weight": (2, [(2, 4)])}, "must add up to dimension 2"),
        ({"back.weight": [(2, 4)]}, "must be a dimension and the sizes of each part"),
        ({"back.weight": (1, [(2, -4)])}, r"sizes\[0\]\[1\]=-4: must be .int. >= 1"),
        ({"back.weight": (1, [(2, 2.0)])}, r"sizes\[0\]\[1\]=2.0: must be .int., not .float."),
        ({"back.weight": (1, [8])}, "must be a dimension and the sizes of each part"),
        ({"back.weight": (1, [])}, r"sizes=\[\]: must be .array. of length >= 1"),
    ],
)
def test_invalid_heads_of_an_own_attention_are_refused(declared: Any, message: str) -> None:
    """The error names the module, the tensor and what is allowed."""
    model = nn.Sequential(OwnAttention(6, 2, 4))
    model[0].tensor_parts = lambda: declared

    with pytest.raises(ConfigurationError, match=message):
        inherit(model, [])


NO_ATTENTIONS: dict[str, Callable[[], nn.Module]] = {
    "another linear layer called qkv": lambda: nn.ModuleDict({"qkv": nn.Linear(4, 12), "proj": nn.Linear(4, 4)}),
    "a lazy attention": lambda: with_heads(nn.ModuleDict({"qkv": nn.LazyLinear(12), "proj": nn.Linear(4, 4)}), 2),
    "heads that do not divide": lambda: with_heads(
        nn.ModuleDict({"qkv": nn.Linear(4, 12), "proj": nn.Linear(4, 4)}), 3
    ),
    "projections of other sizes": lambda: with_heads(
        nn.ModuleDict({"q": nn.Linear(4, 4), "k": nn.Linear(4, 2), "v": nn.Linear(4, 4), "o": nn.Linear(4, 4)}), 2
    ),
}


def with_heads(module: nn.Module, n_heads: int) -> nn.Module:
    """Returns the module with an attribute for its number of heads."""
    module.num_heads = n_heads  # type: ignore[assignment]
    return module


@pytest.mark.parametrize("kind", NO_ATTENTIONS)
def test_other_modules_have_no_heads(kind: str) -> None:
    """Modules that only resemble an attention are inherited as any other."""
    assert parts_of(NO_ATTENTIONS[kind]()) == {}


def test_fused_projections_of_minimal_models_are_known() -> None:
    """A fused linear layer ``c_attn`` with ``n_head`` heads is split into queries, keys and values."""
    module = nn.ModuleDict({"c_attn": nn.Linear(8, 24), "c_proj": nn.Linear(8, 8)})
    module.n_head = 2  # type: ignore[assignment]

    parts = parts_of(nn.Sequential(module))
    assert parts["0.c_attn.weight"].lengths == [8, 8, 8]
    assert parts["0.c_attn.weight"].sizes[0] == (2, 4)
    assert parts["0.c_proj.weight"].dim == 1


class Conv1D(nn.Module):
    """A linear layer with a transposed weight, as Hugging Face's."""

    def __init__(self, nf: int, nx: int) -> None:
        super().__init__()
        self.nf = nf
        self.weight = nn.Parameter(torch.randn(nx, nf))
        self.bias = nn.Parameter(torch.randn(nf))


@pytest.mark.parametrize("rules", [OWN, Rules()])
def test_transposed_projections_are_sliced_by_output(rules: Rules) -> None:
    """A weight of shape ``(inputs, outputs)`` is split on its outputs; with rest=scaled new inputs count nothing."""

    def attention(n_heads: int) -> nn.Module:
        width = 4 * n_heads
        return with_heads(nn.ModuleDict({"c_attn": Conv1D(3 * width, width), "c_proj": Conv1D(width, width)}), n_heads)

    donor, child = attention(2), attention(3)
    inherit(child, [donor], rules=rules)

    found, expected = (
        model.get_parameter("c_attn.weight").unflatten(1, (3, n_heads, 4))
        for model, n_heads in ((child, 3), (donor, 2))
    )
    assert torch.equal(found[:8, :, :2], expected)
    assert found[8:, :, :2].any() == (rules == OWN)
    found, expected = (model.get_parameter("c_proj.weight") for model in (child, donor))
    assert torch.equal(found[:8, :8], expected)
    assert found[8:, :8].any() == (rules == OWN)


def grouped(n_heads: int, n_keys: int, size: int = 4, *, is_fused: bool = False) -> nn.Module:
    """Returns the projections of an attention with fewer key heads than query heads."""
    sizes = {"q_proj": n_heads * size, "k_proj": n_keys * size, "v_proj": n_keys * size}
    layers = {"qkv": nn.Linear(8, sum(sizes.values()))} if is_fused else {n: nn.Linear(8, s) for n, s in sizes.items()}
    module = with_heads(nn.ModuleDict({**layers, "o_proj": nn.Linear(n_heads * size, 8)}), n_heads)
    module.num_key_value_heads = n_keys  # type: ignore[assignment]
    return module


def test_layers_with_computed_weights_have_no_heads() -> None:
    """An attention and a gated MLP under weight_norm are copied whole, and stay new in another size."""

    def model(n_heads: int) -> nn.Sequential:
        found = nn.Sequential(grouped(n_heads, n_heads), GatedMlp(n_heads))
        nn.utils.parametrizations.weight_norm(found[0].get_submodule("q_proj"))
        nn.utils.parametrizations.weight_norm(found[1].gate_up_proj)
        return found

    assert inherit(model(2), [model(2)]).share == 1
    report = inherit(model(3), [model(2)])
    assert report.tensors["1.gate_up_proj.parametrizations.weight.original1"].how == "new"


def test_query_heads_in_groups_of_another_size_stay_with_their_key_head() -> None:
    """With fewer query heads for each key head, a query head comes from the donor's with the same key head."""
    donor, child = grouped(4, 2), grouped(3, 3)
    inherit(child, [donor], rules=OWN)

    queries, expected = (model.get_parameter("q_proj.weight").view(-1, 4, 8) for model in (child, donor))
    assert torch.equal(queries[:2], expected[::2])
    keys, expected = (model.get_parameter("k_proj.weight").view(-1, 4, 8) for model in (child, donor))
    assert torch.equal(keys[:2], expected)


@pytest.mark.parametrize("is_fused", [False, True])
@pytest.mark.parametrize(("donor_keys", "child_keys"), [(2, 4), (1, 4), (4, 2), (4, 1)])
def test_key_heads_are_repeated_or_averaged(donor_keys: int, child_keys: int, is_fused: bool) -> None:
    """With as many query heads, these stay whole; key heads are repeated for more of them and averaged for fewer."""
    donor, child = grouped(4, donor_keys, is_fused=is_fused), grouped(4, child_keys, is_fused=is_fused)
    report = inherit(child, [donor])

    found, expected = (list(rows_of_projections(model, n)) for model, n in ((child, child_keys), (donor, donor_keys)))
    assert torch.equal(found[0], expected[0])
    for own, theirs in zip(found[1:], expected[1:], strict=True):
        more = theirs.repeat_interleave(max(child_keys // donor_keys, 1), 0)
        torch.testing.assert_close(own, more.unflatten(0, (child_keys, -1)).mean(1))
    assert torch.equal(child.get_parameter("o_proj.weight"), donor.get_parameter("o_proj.weight"))
    assert report.share == 1
    name = "qkv.weight" if is_fused else "k_proj.weight"
    assert report.tensors[name].why.endswith(f"by head, {donor_keys} key heads for {child_keys}")


def rows_of_projections(model: nn.Module, n_keys: int) -> Iterator[Tensor]:
    """Yields the weights of queries, keys and values, each with its heads first."""
    parameters = dict(model.named_parameters())
    fused = parameters.get("qkv.weight")
    names = [f"{name}_proj.weight" for name in "qkv"]
    split = [parameters[name] for name in names] if fused is None else fused.split([16, 4 * n_keys, 4 * n_keys])
    yield from (part.unflatten(0, (-1, 4)) for part in split)
