"""The causal transformer of problem=language."""

from __future__ import annotations

import torch
from torch.nn import functional

from nas.problems.language.network import LanguageModel


def model(**sizes: int) -> LanguageModel:
    """Returns a small model with fixed weights."""
    torch.manual_seed(0)
    return LanguageModel(**{"n_symbols": 11, "n_layers": 2, "n_heads": 2, "width": 16, "context": 8} | sizes)


def test_a_symbol_does_not_see_later_ones() -> None:
    """Logits up to a place stay the same if the symbols after it change, in train mode and in eval mode."""
    symbols = torch.randint(11, (3, 8), generator=torch.Generator().manual_seed(1))
    changed = symbols.clone()
    changed[:, 5:] = (changed[:, 5:] + 1) % 11
    for network in (model().train(), model().eval()):
        with torch.no_grad():
            before, after = network(symbols), network(changed)

        torch.testing.assert_close(before[:, :5], after[:, :5])
        assert not torch.allclose(before[:, 5:], after[:, 5:])


def test_head_and_embedding_are_one_tensor() -> None:
    """The head shares the embedding's weights, and the state dict has them under both names."""
    network = model()

    assert network.head.weight is network.embed.weight
    assert {"embed.weight", "head.weight", "positions.weight", "layers.1.self_attn.in_proj_weight", "norm.bias"} <= set(
        network.state_dict()
    )


def test_the_untrained_loss_is_that_of_equal_chances() -> None:
    """Before training the loss is near log(n_symbols), whatever the width."""
    symbols = torch.randint(11, (16, 8), generator=torch.Generator().manual_seed(1))
    for width in (16, 256):
        logits = model(width=width)(symbols[:, :-1])
        loss = functional.cross_entropy(logits.flatten(0, 1), symbols[:, 1:].flatten())

        assert abs(loss.item() - torch.tensor(11.0).log().item()) < 0.2
