"""Elastic transformers: a smaller block has the first features of the first heads of a larger one."""

from __future__ import annotations

import pickle
import random
import re
from copy import deepcopy
from typing import Any
from uuid import uuid4

import pytest
import torch
from torch import Tensor, nn

from nas.core.errors import ConfigurationError
from nas.core.point import Point
from nas.inheritance.attention import parts_of
from nas.inheritance.inherit import inherit
from nas.inheritance.rules import Rules
from nas.storage.checkpoints import publish_checkpoint, publish_tensors
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root
from nas.supernets.elastic_blocks import ElasticModuleList
from nas.supernets.elastic_layers import ElasticEmbedding, ElasticLinear
from nas.supernets.elastic_transformer import ElasticTransformerEncoderLayer
from nas.supernets.module import select, space_of, subnet
from nas.supernets.sizes import Elastic, ElasticProduct, Size

N_SYMBOLS = 7


class Tokens(nn.Module):
    """An embedding, blocks with a causal mask, and a head that shares the embedding's weights."""

    def __init__(self, embed: nn.Module, layers: nn.ModuleList, head: nn.Module) -> None:
        super().__init__()
        self.embed, self.layers, self.head = embed, layers, head
        self.head.weight = self.embed.weight

    def forward(self, symbols: Tensor) -> Tensor:
        x = self.embed(symbols)
        mask = nn.Transformer.generate_square_subsequent_mask(symbols.shape[1])
        for layer in self.layers:
            x = layer(x, src_mask=mask, is_causal=True)
        found: Tensor = self.head(x)
        return found


def sizes(rng: random.Random, *allowed: int) -> tuple[int, ...]:
    """Two or more of these sizes."""
    return tuple(sorted(rng.sample(allowed, rng.randint(2, len(allowed)))))


def draw(seed: int) -> tuple[nn.Module, Point]:
    """A transformer with random sizes and values, and a point of its space."""
    rng = random.Random(seed)
    torch.manual_seed(seed)
    heads, depth = Elastic("heads", sizes(rng, 1, 2, 3, 4)), Elastic("depth", sizes(rng, 1, 2, 3))
    head_width = Elastic("head_width", sizes(rng, 2, 3, 4))
    width: Size = ElasticProduct((heads, head_width)) if rng.random() < 0.5 else heads.times(4)
    hidden = Elastic("hidden", sizes(rng, 3, 5, 8)) if rng.random() < 0.5 else width.times(2)
    norm_first, activation = rng.random() < 0.5, rng.choice(("relu", "gelu"))
    layers = [
        ElasticTransformerEncoderLayer(
            width, heads, hidden, dropout=0.0, activation=activation, norm_first=norm_first
        )
        for _ in range(depth.largest)
    ]  # fmt: skip
    embed, head = ElasticEmbedding(N_SYMBOLS, width), ElasticLinear(width, N_SYMBOLS, bias=False)
    network = Tokens(embed, ElasticModuleList(depth, layers), head)
    for parameter in network.parameters():
        nn.init.normal_(parameter)
    return network, space_of(network).sample(rng)


def check_draws(seeds: range) -> None:
    """Compares the subnets of random transformers with children that inherit from a published checkpoint."""
    for seed in seeds:
        network, point = draw(seed)
        files = open_root(f"memory://elastic-{uuid4().hex}", retry_s=0)
        published = publish_tensors(files, "packs/000001-ab", network.state_dict(), parts=parts_of(network))
        donor = StoredWeights(files, publish_checkpoint(files, "000001-ab", published))
        plain = subnet(network, point)
        child = deepcopy(plain)
        for parameter in child.parameters():
            nn.init.normal_(parameter)
        report = inherit(child, [donor], rules=Rules(rest="own"))
        assert report.share == 1.0, (seed, point)
        for name, tensor in plain.state_dict().items():
            assert child.state_dict()[name].equal(tensor), (seed, point, name)


def test_a_subnet_is_the_child_that_inherits() -> None:
    """In random transformers the tensors of a subnet are those that inheritance gives, bit for bit."""
    check_draws(range(10))


@pytest.mark.slow
def test_many_subnets() -> None:
    """The same holds in 200 random transformers."""
    check_draws(range(10, 210))


def test_a_subnet_computes_what_the_network_computes() -> None:
    """The selected network and the subnet of the same point give the same outputs, in training and in evaluation."""
    symbols = torch.randint(N_SYMBOLS, (2, 5))
    for seed in range(20):
        network, point = draw(seed)
        select(network, point)
        plain = subnet(network, point)
        for training in (True, False):
            outputs = network.train(training)(symbols)
            torch.testing.assert_close(outputs, plain.train(training)(symbols))
            with torch.no_grad():  # in evaluation by torch's other kernels
                torch.testing.assert_close(outputs, plain(symbols), atol=1e-3, rtol=1e-4)


def test_a_subnet_is_a_plain_network() -> None:
    """A subnet has torch's own layers of the point's sizes, a tied head, and survives pickling and export."""
    network, point = draw(3)
    plain = pickle.loads(pickle.dumps(subnet(network, point)))
    torch.export.export(plain.eval(), (torch.zeros(1, 4, dtype=torch.int64),))

    assert all(type(module).__module__.startswith("torch.nn.") for module in [*plain.modules()][1:])
    assert plain.head.weight is plain.embed.weight
    assert {type(layer) for layer in plain.layers} == {nn.TransformerEncoderLayer}
    assert len(plain.layers) == point["depth"]
    assert plain.layers[0].self_attn.num_heads == point["heads"]


def test_the_first_features_of_the_first_heads() -> None:
    """A smaller block has rows 0 and 1 of each of the heads 0 and 1, in queries, keys and values."""
    heads, head_width = Elastic("heads", (2, 3)), Elastic("head_width", (2, 4))
    width = ElasticProduct((heads, head_width))
    block = ElasticTransformerEncoderLayer(width, heads, 8)
    weight = block.self_attn.in_proj_weight
    weight.data = torch.arange(36.0).repeat_interleave(12).view(36, 12)
    block.self_attn.out_proj.weight.data = torch.arange(12.0).repeat(12, 1)
    plain = subnet(block, {"heads": 2, "head_width": 2})

    assert isinstance(plain, nn.TransformerEncoderLayer)
    rows = [0, 1, 4, 5]
    assert plain.self_attn.in_proj_weight[:, 0].tolist() == [part + row for part in (0, 12, 24) for row in rows]
    assert plain.self_attn.out_proj.weight[0].tolist() == rows


def test_gradients_reach_the_heads_that_ran() -> None:
    """A step of a small block has gradients in its own heads, and zeros elsewhere."""
    heads = Elastic("heads", (1, 3))
    block = ElasticTransformerEncoderLayer(heads.times(2), heads, 4, dropout=0.0)
    select(block, {"heads": 1})
    (block(torch.rand(2, 3, 2)) ** 3).sum().backward()

    gradient = block.self_attn.in_proj_weight.grad
    assert gradient is not None
    values = gradient[12:]
    assert values[:2, :2].ne(0).all()
    assert values[2:].eq(0).all()
    assert values[:, 2:].eq(0).all()


def test_a_list_has_the_chosen_depth() -> None:
    """Indices, slices and the length are those of the subnet's list, in the state of all layers."""
    layers = ElasticModuleList(Elastic("depth", (1, 2, 3)), [nn.Linear(2, 2) for _ in range(3)])
    every = [*layers]
    select(layers, {"depth": 2})

    assert (len(layers), layers[-1], [*reversed(layers)]) == (2, every[1], every[1::-1])
    assert [*layers[:5]] == every[:2]
    assert len(layers.state_dict()) == 6
    assert len(subnet(layers, {"depth": 3})) == 3  # type: ignore[arg-type]


def test_the_network_can_be_copied_and_pickled() -> None:
    """Copies of a network that has run give the same outputs."""
    network, point = draw(5)
    select(network, point)
    symbols = torch.randint(N_SYMBOLS, (2, 5))
    outputs = network(symbols)

    assert torch.equal(deepcopy(network)(symbols), outputs)
    assert torch.equal(pickle.loads(pickle.dumps(network))(symbols), outputs)


def test_heads_that_do_not_fit() -> None:
    """Heads of their own that would be wider than those of the largest block are refused with the remedy."""
    width, heads = Elastic("width", (4, 8)), Elastic("heads", (1, 2))
    with pytest.raises(ConfigurationError, match=r"d_model=8, nhead=1: must have heads of at most 4 features"):
        ElasticTransformerEncoderLayer(width, heads, 8)
    for wrong in ((heads, heads), (heads,), (heads, 2), 5):
        with pytest.raises(ConfigurationError, match=r"must be two or more .* different labels\. Give"):
            ElasticProduct(wrong)
    with pytest.raises(ConfigurationError, match="ElasticModuleList: 1 layers: must be 2, the largest size of 'heads'"):
        ElasticModuleList(heads, [nn.Identity()])


@pytest.mark.parametrize("wrong", [0, -1, True, "2", None, (1, 2)])
def test_arguments_that_are_no_sizes(wrong: Any) -> None:
    """A number below 1 and a value that is no size are refused by a line with argument, value, rule and remedy."""
    heads = Elastic("heads", (1, 2))
    for name in ("d_model", "nhead", "dim_feedforward"):
        sizes = {"d_model": heads.times(8), "nhead": heads, "dim_feedforward": 8, name: wrong}
        with pytest.raises(ConfigurationError, match=rf"^{name}={re.escape(repr(wrong))}: must be .*\. Give "):
            ElasticTransformerEncoderLayer(**sizes)
    with pytest.raises(ConfigurationError, match=r"^Elastic\('a'\): sizes=.*: must be .*\. Give "):
        Elastic("a", wrong if wrong != (1, 2) else (2, 1))
