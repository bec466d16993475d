"""Each projection of a fused tensor comes from the same projection, in Hugging Face's and timm's models.

The donor's rows of queries, keys and values (or of the two halves of a gated MLP) hold 1, 2 and 3. The models are made
on the spot, with random weights.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn

from nas.inheritance.inherit import inherit
from nas.inheritance.rules import Rules

OWN = Rules(rest="own")
pytestmark = pytest.mark.slow  # the libraries take many seconds to import

Numbers = Callable[[Any, int], Tensor]


class Fused(NamedTuple):
    """A fused tensor of a model.

    Attributes:
        name: The end of its name.
        numbers: Gives the number of each row's projection, from the model's config or module, and the number of rows.
        dim: The dimension of the rows.
    """

    name: str
    numbers: Numbers
    dim: int = 0


def stacked(*shares: int) -> Numbers:
    """Returns projections below one another, with these shares of the rows."""

    def numbers(_: Any, n_rows: int) -> Tensor:
        lengths = torch.tensor(shares) * (n_rows // sum(shares))
        return torch.arange(1, len(shares) + 1).repeat_interleave(lengths)

    return numbers


def by_head(config: Any, n_rows: int) -> Tensor:
    """Returns the query, key and value of each head beside one another."""
    n_heads = config.num_attention_heads
    return torch.arange(1, 4).repeat_interleave(n_rows // (3 * n_heads)).repeat(n_heads)


def one_key(config: Any, n_rows: int) -> Tensor:
    """Returns all query heads, then one key and one value head."""
    size = n_rows // (config.num_attention_heads + 2)
    return torch.cat([torch.full((n_rows - 2 * size,), 1), torch.full((size,), 2), torch.full((size,), 3)])


def in_four_groups(_: Any, n_rows: int) -> Tensor:
    """Returns queries, values and keys in each of four groups, as CodeGen has them."""
    return torch.tensor([1, 3, 2]).repeat_interleave(n_rows // 12).repeat(4)


def made(kind: str, **options: Any) -> Callable[[int, int], Any]:
    """Returns a function that makes a model of a width and a number of heads."""

    def make(width: int, n_heads: int) -> Any:
        import transformers

        sizes = {"hidden_size": width, "num_attention_heads": n_heads, "num_hidden_layers": 1}
        more = {name: value(width) if callable(value) else value for name, value in options.items()}
        config = getattr(transformers, f"{kind}Config")(**{"vocab_size": 12} | sizes | more)
        return getattr(transformers, f"{kind}Model")(config)

    return make


def double(width: int) -> int:
    return 2 * width


def of_dbrx(width: int, n_heads: int) -> Any:
    import transformers

    config = transformers.DbrxConfig(
        d_model=width, n_heads=n_heads, n_layers=1, vocab_size=12, max_seq_len=8,
        attn_config={"kv_n_heads": n_heads // 2, "rope_theta": 1e4},
        ffn_config={"ffn_hidden_size": 8, "moe_num_experts": 2},
    )  # fmt: skip
    return transformers.DbrxModel(config)


IMAGE = {"image_size": 8, "patch_size": 4, "intermediate_size": double}
LAYERS = {"intermediate_size": double, "pad_token_id": 0}
MODELS: dict[str, tuple[Callable[[int, int], Any], tuple[Fused, ...]]] = {
    "ModernBERT": (
        made("ModernBert", **LAYERS),
        (Fused("attn.Wqkv.weight", stacked(1, 1, 1)), Fused("mlp.Wi.weight", stacked(1, 1))),
    ),
    "MPT": (made("Mpt"), (Fused("attn.Wqkv.weight", stacked(1, 1, 1)),)),
    "DBRX": (of_dbrx, (Fused("attn.Wqkv.weight", stacked(2, 1, 1)),)),
    "Phi-3": (
        made("Phi3", **LAYERS, num_key_value_heads=lambda width: width // 8),
        (Fused("qkv_proj.weight", stacked(2, 1, 1)), Fused("gate_up_proj.weight", stacked(1, 1))),
    ),
    "GLM": (
        made("Glm", **LAYERS, num_key_value_heads=lambda width: width // 8, head_dim=4),
        (Fused("gate_up_proj.weight", stacked(1, 1)),),
    ),
    "GPT-2": (
        made("GPT2", n_positions=8),
        (Fused("attn.c_attn.weight", stacked(1, 1, 1), 1), Fused("attn.c_attn.bias", stacked(1, 1, 1))),
    ),
    "GPTBigCode with one key": (made("GPTBigCode", n_positions=8), (Fused("attn.c_attn.weight", one_key),)),
    "GPTBigCode with all keys": (
        made("GPTBigCode", n_positions=8, multi_query=False),
        (Fused("attn.c_attn.weight", by_head),),
    ),
    "BLOOM": (made("Bloom"), (Fused("query_key_value.weight", by_head), Fused("query_key_value.bias", by_head))),
    "GPT-NeoX": (made("GPTNeoX", intermediate_size=double), (Fused("query_key_value.weight", by_head),)),
    "Persimmon": (made("Persimmon", **LAYERS), (Fused("query_key_value.weight", by_head),)),
    "Falcon with one key": (made("Falcon"), (Fused("query_key_value.weight", one_key),)),
    "Falcon with all keys": (made("Falcon", multi_query=False), (Fused("query_key_value.weight", by_head),)),
    "CodeGen": (
        made("CodeGen", num_attention_heads=lambda width: width // 2, rotary_dim=2),
        (Fused("attn.qkv_proj.weight", in_four_groups),),
    ),
    "TimeSformer": (
        made("Timesformer", **IMAGE, num_frames=1),
        (Fused("layer.0.attention.attention.qkv.weight", stacked(1, 1, 1)),),
    ),
    "BLIP": (made("BlipVision", **IMAGE), (Fused("self_attn.qkv.weight", stacked(1, 1, 1)),)),
    "Qwen3 with experts": (
        made("Qwen3Moe", **LAYERS, moe_intermediate_size=double, num_experts=2, num_key_value_heads=1, head_dim=4),
        (Fused("experts.gate_up_proj", stacked(1, 1), 1),),
    ),
}


def rows_of(model: Any, fused: Fused) -> tuple[Tensor, Tensor]:
    """Returns the only such tensor of a model, rows first, and the number of each row."""
    [found] = [tensor for name, tensor in model.named_parameters() if name.endswith(fused.name)]
    rows = found.data.movedim(fused.dim, 0)
    return rows, fused.numbers(getattr(model, "config", model), len(rows))


def check_projections(donor: Any, child: Any, fused: Fused, *, has_module: bool) -> None:
    """Checks that each projection of the child has its own number, in as many rows as fit, and no other."""
    rows, numbers = rows_of(donor, fused)
    rows[:] = numbers.view(-1, *[1] * (rows.dim() - 1)).float()
    for parameter in child.parameters():
        nn.init.zeros_(parameter)
    inherit(child, [donor if has_module else donor.state_dict()], rules=OWN)

    found, expected = rows_of(child, fused)
    for number in numbers.unique():
        own = found[expected == number]
        assert set(own.unique().tolist()) <= {0.0, float(number)}
        if has_module:
            n_rows = int((own.flatten(1) != 0).any(1).sum()) if own.dim() > 1 else int((own != 0).sum())
            assert n_rows == min(int((numbers == number).sum()), len(own))


@pytest.mark.parametrize("has_module", [True, False], ids=["module", "state dict"])
@pytest.mark.parametrize("name", MODELS)
def test_projections_of_hugging_faces_models_are_not_mixed(name: str, has_module: bool) -> None:
    """A child of twice the width, and one of half of it, take each projection from the donor's."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    make, tensors = MODELS[name]
    for fused in tensors:
        check_projections(make(8, 2), make(16, 4), fused, has_module=has_module)
        check_projections(make(16, 4), make(8, 2), fused, has_module=has_module)


@pytest.mark.parametrize("options", [{"num_kv_heads": 2}, {"num_kv_heads": 1}])
def test_unknown_fused_layouts_stay_new(options: dict[str, int]) -> None:
    """Falcon's groups of queries, a key and a value have no parts, and the report says why."""
    pytest.importorskip("transformers", reason="transformers is not installed")
    make = made("Falcon", new_decoder_architecture=True, **options)
    donor, child = make(16, 4), make(32, 8)
    report = inherit(child, [donor])

    name = "h.0.self_attention.query_key_value.weight"
    assert report.tensors[name].how == "new"
    assert "its module has no tensor_parts" in report.tensors[name].why


def timm_layer(kind: str, width: int, n_heads: int) -> Any:
    """Returns one of timm's blocks or layers."""
    timm = pytest.importorskip("timm", reason="timm is not installed")
    makers: dict[str, Callable[[], Any]] = {
        "Attention": lambda: timm.layers.Attention(width, n_heads),
        "GluMlp": lambda: timm.layers.GluMlp(width, 4 * width),
        "SwiGLUPacked": lambda: timm.layers.SwiGLUPacked(width, 4 * width),
        "Twins": lambda: timm.models.twins.GlobalSubSampleAttn(width, n_heads),
        "PVT": lambda: timm.models.pvt_v2.Attention(width, n_heads),
        "parallel": lambda: timm.models.vision_transformer.ParallelScalingBlock(width, n_heads),
    }
    return makers[kind]()


@pytest.mark.parametrize(
    ("kind", "fused"),
    [
        ("Attention", Fused("qkv.weight", stacked(1, 1, 1))),
        ("GluMlp", Fused("fc1.weight", stacked(1, 1))),
        ("SwiGLUPacked", Fused("fc1.weight", stacked(1, 1))),
        ("Twins", Fused("kv.weight", stacked(1, 1))),
        ("PVT", Fused("kv.weight", stacked(1, 1))),
        ("parallel", Fused("in_proj.weight", lambda _, n: torch.tensor([4] * 4 + [1, 2, 3]).repeat_interleave(n // 7))),
    ],
)
def test_projections_of_timms_layers_are_not_mixed(kind: str, fused: Fused) -> None:
    """A child of twice the width takes each projection from the donor's, also from a bare state dict."""
    for has_module in (True, False):
        check_projections(timm_layer(kind, 8, 2), timm_layer(kind, 16, 4), fused, has_module=has_module)
