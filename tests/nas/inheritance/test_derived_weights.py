"""Tensors that a donor has under another name, or inside another tensor, are inherited."""

from __future__ import annotations

from uuid import uuid4

import pytest
import torch
from torch import nn

from nas.inheritance.attention import parts_of
from nas.inheritance.inherit import inherit
from nas.inheritance.rules import Rules
from nas.storage.checkpoints import publish_checkpoint, publish_tensors
from nas.storage.lazy_weights import StoredWeights
from nas.storage.open import open_root

OWN = Rules(rest="own")


class Words(nn.Module):
    """A language model of one layer, with a tied head or a head of its own."""

    def __init__(self, width: int, *, is_tied: bool, n_words: int = 6) -> None:
        super().__init__()
        self.embed, self.layer = nn.Embedding(n_words, width), nn.Linear(width, width)
        self.head = nn.Linear(width, n_words, bias=False)
        if is_tied:
            self.head.weight = self.embed.weight


@pytest.mark.parametrize("is_stored", [False, True])
@pytest.mark.parametrize(("width", "n_heads"), [(8, 2), (12, 3), (4, 1)])
def test_a_fused_weight_is_split_for_inputs_of_their_own(width: int, n_heads: int, is_stored: bool) -> None:
    """A child of torch's attention with other keys and values takes them from the donor's fused weight, by head."""
    donor, child = nn.MultiheadAttention(8, 2), nn.MultiheadAttention(width, n_heads, kdim=5, vdim=6)
    files = open_root(f"memory://derived/{uuid4().hex}", retry_s=0)
    tensors = publish_tensors(files, "packs/000001-ab", donor.state_dict(), parts=parts_of(donor))
    stored = StoredWeights(files, publish_checkpoint(files, "000001-ab", tensors))
    report = inherit(child, [stored if is_stored else donor], rules=OWN)

    expected = dict(zip("qkv", donor.in_proj_weight.chunk(3), strict=True))
    for name, n_inputs in (("q", width), ("k", 5), ("v", 6)):
        found = child.get_parameter(f"{name}_proj_weight")
        rows, columns = min(8, width), min(8, n_inputs)
        assert torch.equal(found[:rows, :columns], expected[name][:rows, :columns])
        assert report.tensors[f"{name}_proj_weight"].how != "new"
    assert report.summary()["n_new"] == 0


def test_an_embedding_saved_once_gives_an_untied_head() -> None:
    """A bare state dict of a tied donor has only the embedding, from which an untied child takes both."""
    donor, child = Words(4, is_tied=True), Words(7, is_tied=False)
    saved = {name: tensor for name, tensor in donor.state_dict().items() if name != "head.weight"}
    report = inherit(child, [saved], rules=OWN)

    assert torch.equal(child.embed.weight[:, :4], donor.embed.weight)
    assert torch.equal(child.head.weight[:, :4], donor.embed.weight)
    assert report.tensors["head.weight"].why == "(6, 4) into (6, 7), from embed.weight"
    same = inherit(Words(4, is_tied=False), [saved])
    assert same.tensors["head.weight"].why == "from embed.weight"


def test_a_head_of_another_name_is_not_taken_from_the_embedding() -> None:
    """The donor's own head has the shape of the embedding; it is a renamed layer."""
    donor, child = Words(4, is_tied=False), Words(4, is_tied=False)
    saved = {name.replace("head", "decoder"): tensor for name, tensor in donor.state_dict().items()}
    inherit(child, [saved])

    assert torch.equal(child.head.weight, donor.head.weight)
    assert torch.equal(child.embed.weight, donor.embed.weight)


@pytest.mark.parametrize("child", [Words(4, is_tied=False, n_words=4), Words(4, is_tied=False, n_words=5)])
def test_other_linear_layers_do_not_take_an_embedding(child: Words) -> None:
    """A linear layer within the network, or a head of a square shape, keeps its values."""
    donor = {"embed.weight": torch.ones(len(child.embed.weight), 4)}
    del child.head
    report = inherit(child, [donor])

    assert report.tensors["layer.weight"].how == "new"
