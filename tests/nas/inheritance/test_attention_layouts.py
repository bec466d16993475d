"""Attentions of Hugging Face's and timm's models are inherited head by head.

The models are made on the spot, with random weights.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from nas.inheritance.attention import parts_of
from nas.inheritance.inherit import inherit
from nas.inheritance.rules import Rules

OWN = Rules(rest="own")
pytestmark = pytest.mark.slow  # the libraries take many seconds to import
SYMBOLS = torch.arange(6)[None]

Sizes = tuple[int, int, int]
"""Number of heads, of key and value heads, and the size of a head."""


@pytest.fixture(scope="module", autouse=True)
def transformers() -> Any:
    return pytest.importorskip("transformers", reason="transformers is not installed")


def llama(n_heads: int, n_keys: int, size: int, *, width: int = 16, kind: str = "Llama", **more: Any) -> Any:
    """Returns a small decoder with rotary positions and fewer heads of keys than of queries."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=12, hidden_size=width, intermediate_size=2 * width, num_hidden_layers=1,
        num_attention_heads=n_heads, num_key_value_heads=n_keys, head_dim=size, max_position_embeddings=16, **more,
    )  # fmt: skip
    return getattr(transformers, f"{kind}ForCausalLM")(config).eval()


def gpt2(n_heads: int, size: int, **more: Any) -> Any:
    """Returns a small GPT-2, whose weights are transposed and whose embedding is tied."""
    import transformers

    width = n_heads * size
    config = transformers.GPT2Config(vocab_size=12, n_embd=width, n_head=n_heads, n_layer=1, n_positions=16, **more)
    return transformers.GPT2LMHeadModel(config).eval()


def bert(n_heads: int, size: int, kind: str = "Bert") -> Any:
    """Returns a small encoder of BERT's layout."""
    import transformers

    config = getattr(transformers, f"{kind}Config")(
        vocab_size=12, hidden_size=n_heads * size, num_attention_heads=n_heads, num_hidden_layers=1,
        intermediate_size=2 * n_heads * size, max_position_embeddings=16,
    )  # fmt: skip
    return getattr(transformers, f"{kind}Model")(config).eval()


def perturbed(model: nn.Module) -> nn.Module:
    """Returns the model with random values in all parameters, also in biases and norms."""
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(torch.randn_like(parameter))
    return model


def blocks_of(state: dict[str, Tensor], name: str, dim: int, sizes: tuple[int, ...]) -> Tensor:
    """Returns a tensor with the dimension of its heads first, split into these sizes."""
    return state[name].movedim(dim, 0).unflatten(0, sizes)


@pytest.mark.parametrize("child", [(6, 4), (2, 4), (4, 6), (4, 2), (3, 8)])
def test_gpt2_is_split_into_queries_keys_values_and_heads(child: tuple[int, int]) -> None:
    """A fused transposed projection is split on its outputs, and the head's embedding stays tied."""
    parent, model = perturbed(gpt2(4, 4)), perturbed(gpt2(*child))
    report = inherit(model, [parent], rules=OWN)

    n, size, width = min(4, child[0]), min(4, child[1]), min(16, child[0] * child[1])
    name = "transformer.h.0.attn.c_attn.weight"
    found, expected = (blocks_of(of.state_dict(), name, 1, (3, *own)) for of, own in ((model, child), (parent, (4, 4))))
    assert torch.equal(found[:, :n, :size, :width], expected[:, :n, :size, :width])
    name = "transformer.h.0.attn.c_proj.weight"
    found, expected = (blocks_of(of.state_dict(), name, 0, own) for of, own in ((model, child), (parent, (4, 4))))
    assert torch.equal(found[:n, :size, :width], expected[:n, :size, :width])
    assert report.summary()["n_new"] == 0
    assert model.lm_head.weight is model.transformer.wte.weight
    assert torch.equal(model.lm_head.weight[:, :width], parent.lm_head.weight[:, :width])


@pytest.mark.parametrize("child", [(8, 4, 4), (8, 8, 4), (8, 1, 4), (8, 2, 8), (2, 1, 2)])
def test_query_heads_stay_with_their_key_head(child: Sizes) -> None:
    """Each key head is the donor's, with the donor's query heads, and each half of a rotary head is a half."""
    donor = (4, 2, 4)
    parent, model = perturbed(llama(*donor)), perturbed(llama(*child))
    report = inherit(model, [parent], rules=OWN)

    groups, per_key = min(donor[1], child[1]), min(donor[0] // donor[1], child[0] // child[1])
    half = min(donor[2], child[2]) // 2
    for name, dim in (("q_proj", 0), ("k_proj", 0), ("v_proj", 0), ("o_proj", 1)):
        found, expected = (
            blocks_of(of.state_dict(), f"model.layers.0.self_attn.{name}.weight", dim, (n_keys, -1, 2, size // 2))
            for of, (_, n_keys, size) in ((model, child), (parent, donor))
        )
        taken = (slice(groups), slice(per_key if name[0] in "qo" else 1), slice(None), slice(half))
        assert torch.equal(found[taken], expected[taken])
        assert found[taken].numel() == round(
            report.tensors[f"model.layers.0.self_attn.{name}.weight"].share * found.numel()
        )


@pytest.mark.parametrize("kind", ["Llama", "Qwen3", "Mistral"])
def test_more_heads_keep_the_function(kind: str) -> None:
    """With rest=scaled more heads, also of keys, leave the logits as they were."""
    parent, model = llama(4, 2, 4, kind=kind), llama(8, 4, 4, kind=kind)
    inherit(model, [parent])

    with torch.no_grad():
        torch.testing.assert_close(model(SYMBOLS).logits, parent(SYMBOLS).logits)


@pytest.mark.parametrize("n_keys", [4, 8])
def test_more_key_heads_keep_the_function(n_keys: int) -> None:
    """With as many query heads, each of the donor's key heads is repeated, and the logits stay."""
    parent, model = llama(8, 2, 4), llama(8, n_keys, 4)
    report = inherit(model, [parent])

    assert report.share == 1
    with torch.no_grad():
        torch.testing.assert_close(model(SYMBOLS).logits, parent(SYMBOLS).logits)


@pytest.mark.parametrize("kind", ["Bert", "Roberta", "Electra"])
@pytest.mark.parametrize("child", [(3, 4), (2, 8), (1, 4)])
def test_bert_is_inherited_by_head(kind: str, child: tuple[int, int]) -> None:
    """Separate projections, and the output projection beside them, are sliced by head."""
    parent, model = bert(2, 4, kind), bert(*child, kind)
    report = inherit(model, [parent], rules=OWN)

    n, size, width = min(2, child[0]), min(4, child[1]), min(8, child[0] * child[1])
    prefix = "encoder.layer.0.attention"
    for name, dim in (("self.query", 0), ("self.key", 0), ("self.value", 0), ("output.dense", 1)):
        found, expected = (
            blocks_of(of.state_dict(), f"{prefix}.{name}.weight", dim, own)
            for of, own in ((model, child), (parent, (2, 4)))
        )
        assert torch.equal(found[:n, :size, :width], expected[:n, :size, :width])
    assert report.summary()["n_new"] == 0


ROPE = {"rope_type": "default", "rope_theta": 1e4}


def neox(size: int, share: float) -> Any:
    """Returns a small GPT-NeoX with rotary positions in a share of each head."""
    import transformers

    config = transformers.GPTNeoXConfig(
        vocab_size=12, hidden_size=2 * size, num_attention_heads=2, num_hidden_layers=1, intermediate_size=8,
        max_position_embeddings=16, rope_parameters={**ROPE, "partial_rotary_factor": share},
    )  # fmt: skip
    return transformers.GPTNeoXForCausalLM(config)


def test_projections_fused_within_a_head_are_split() -> None:
    """GPT-NeoX has query, key and value of a head beside each other; a quarter of each has rotary positions."""
    parts = parts_of(neox(16, 0.25))

    assert parts["gpt_neox.layers.0.attention.query_key_value.weight"].sizes == ((2, 3, 4, 2, 2),)
    assert parts["gpt_neox.layers.0.attention.dense.weight"].sizes == ((2, 4, 2, 2),)


def test_rotary_pairs_of_neighbors_are_not_halves() -> None:
    """Cohere turns neighboring values, so a head is sliced from its first value on."""
    parts = parts_of(llama(4, 2, 4, kind="Cohere"))

    assert parts["model.layers.0.self_attn.q_proj.weight"].sizes == ((2, 2, 4),)


def of_sizes(kind: str, width: int, n_heads: int) -> Any:
    """Returns a small model of a kind with a width and a number of heads."""
    import transformers

    sizes = {"hidden_size": width, "num_attention_heads": n_heads, "num_hidden_layers": 1, "intermediate_size": 8}
    both = {f"{side}_{name}": n for side in ("encoder", "decoder") for name, n in
            (("layers", 1), ("attention_heads", n_heads), ("ffn_dim", 8))}  # fmt: skip
    config: Any = {
        "ViT": lambda t: t.ViTConfig(**sizes, image_size=8, patch_size=4),
        "CLIPText": lambda t: t.CLIPTextConfig(**sizes, vocab_size=12),
        "OPT": lambda t: t.OPTConfig(**sizes, vocab_size=12, ffn_dim=8, word_embed_proj_dim=width),
        "T5": lambda t: t.T5Config(
            vocab_size=12, d_model=8, d_kv=width // n_heads, num_heads=n_heads, d_ff=8, num_layers=1
        ),
        "DistilBert": lambda t: t.DistilBertConfig(vocab_size=12, dim=width, n_heads=n_heads, n_layers=1, hidden_dim=8),
        "Bart": lambda t: t.BartConfig(**both, vocab_size=12, d_model=width),
        "Whisper": lambda t: t.WhisperConfig(**both, vocab_size=12, d_model=width, pad_token_id=0),
    }[kind](transformers)
    return getattr(transformers, f"{kind}Model")(config)


SEPARATE = ("q_proj", "k_proj", "v_proj", "query", "key", "value", "q_lin", "k_lin", "v_lin", "q", "k", "v")


@pytest.mark.parametrize("kind", ["ViT", "CLIPText", "OPT", "T5", "DistilBert", "Bart", "Whisper"])
def test_heads_of_other_models_are_not_mixed(kind: str) -> None:
    """The rows of the donor's heads hold 1 and 2, and those of a child with wider heads have no other number."""
    donor, child = of_sizes(kind, 8, 2), of_sizes(kind, 16, 2)
    names = [f"{path}.weight" for path, _ in donor.named_modules() if path.rpartition(".")[2] in SEPARATE]
    for name in names:
        donor.get_parameter(name).data[:] = torch.tensor([1.0, 2.0]).repeat_interleave(4)[:, None]
        nn.init.zeros_(child.get_parameter(name))
    inherit(child, [donor], rules=OWN)

    assert names
    for name in names:
        heads = child.get_parameter(name).unflatten(0, (2, 8))
        assert [set(head.unique().tolist()) for head in heads] == [{0.0, 1.0}, {0.0, 2.0}]


def of_images(kind: str, side: int) -> Any:
    """Returns a small model of images with a grid of patches, or windows, of this side."""
    import transformers

    sizes = {"hidden_size": 8, "num_attention_heads": 2, "num_hidden_layers": 1, "intermediate_size": 8}
    patches = {"image_size": 4 * side, "patch_size": 4}
    options: dict[str, Any] = {"embed_dim": 8, "depths": [1], "num_heads": [2], "window_size": side}
    config = getattr(transformers, f"{kind}Config")(**patches, **(options if kind == "Swin" else sizes))
    return getattr(transformers, f"{kind}Model")(config)


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("ViT", "embeddings.position_embeddings"),
        ("Dinov2", "embeddings.position_embeddings"),
        ("CLIPVision", "position_embedding.weight"),
        ("SiglipVision", "position_embedding.weight"),
        ("BlipVision", "embeddings.position_embedding"),
        ("Swin", "relative_position_bias_table"),
    ],
)
def test_positions_of_images_are_resampled(kind: str, name: str) -> None:
    """Equal values in the donor's grid stay equal in a larger one of the child, and none is new."""
    donor, child = of_images(kind, 2), of_images(kind, 3)
    for parameter in donor.parameters():
        nn.init.ones_(parameter)
    report = inherit(child, [donor], rules=OWN)

    [(found, tensor)] = [item for item in report.tensors.items() if item[0].endswith(name)]
    assert tensor.why.endswith("resampled")
    assert (child.get_parameter(found) == 1).all()


def timm_attention(n_heads: int, size: int, **more: Any) -> nn.Module:
    """Returns timm's attention with a norm of queries and keys."""
    layers = pytest.importorskip("timm.layers", reason="timm is not installed")
    attention: nn.Module = layers.Attention(8, n_heads, size, qkv_bias=True, qk_norm=True, norm_layer=nn.LayerNorm)
    return attention


@pytest.mark.parametrize("child", [(3, 4), (2, 6), (1, 2)])
def test_timms_fused_projection_is_split(child: tuple[int, int]) -> None:
    """The parts and heads of ``qkv`` and the columns of ``proj`` come from the donor's."""
    parent, model = perturbed(timm_attention(2, 4)), perturbed(timm_attention(*child))
    report = inherit(model, [parent], rules=OWN)

    n, size = min(2, child[0]), min(4, child[1])
    for name, dim, n_parts in (("qkv.weight", 0, (3,)), ("qkv.bias", 0, (3,)), ("proj.weight", 1, (1,))):
        found, expected = (
            blocks_of(of.state_dict(), name, dim, (*n_parts, *own)) for of, own in ((model, child), (parent, (2, 4)))
        )
        assert torch.equal(found[:, :n, :size], expected[:, :n, :size])
    assert report.summary()["n_new"] == 0


@pytest.mark.parametrize("rotates_halves", [False, True])
def test_timms_rotary_heads_are_known(rotates_halves: bool) -> None:
    """Heads that rotate by halves are sliced within each half."""
    layers = pytest.importorskip("timm.layers", reason="timm is not installed")
    parts = parts_of(layers.AttentionRope(8, 2, rotate_half=rotates_halves))

    keys = parts["qkv.weight"].sizes[1]
    assert keys[0] == 2
    assert keys[-2:] == ((2, 2) if rotates_halves else (1, 4))


def test_timms_vision_transformer_gets_wider() -> None:
    """No tensor of a vision transformer stays new, and its position embeddings are sliced by position and width."""
    timm = pytest.importorskip("timm", reason="timm is not installed")
    sizes = {"img_size": 8, "patch_size": 4, "depth": 1, "num_classes": 3}
    parent, model = (
        timm.models.VisionTransformer(**sizes, embed_dim=width, num_heads=n_heads)
        for width, n_heads in ((8, 2), (12, 3))
    )
    report = inherit(model, [parent], rules=OWN)

    assert report.summary()["n_new"] == 0
    assert torch.equal(model.pos_embed[..., :8], parent.pos_embed)
