"""Signatures: equal for equal layers, from any source, and short."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from nas.core.checkpoint import LETTERS, Checkpoint
from nas.core.errors import ConfigurationError, CorruptError
from nas.core.reference import Reference
from nas.inheritance.donors.similarity import common_prefix
from nas.storage.checkpoints import load_manifest, publish_checkpoint, publish_tensors
from nas.storage.open import open_root
from nas.storage.record_values import checked_exactly
from nas.storage.signature import Signature
from tests.support.donor_networks import chain, layers, n_same

chains = st.lists(st.sampled_from([4, 8]), min_size=1, max_size=6).map(lambda widths: chain(*widths))


def small_network() -> nn.Module:
    model = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))
    model[2].bias = nn.Parameter(model[2].weight[:, 0])  # a view of another tensor, as tied weights are
    return model


def test_checkpoint_has_the_signature_of_the_network_that_was_saved(tmp_path: Path) -> None:
    """Module, state dict, published checkpoint, record and manifest have the same signature."""
    files = open_root(str(tmp_path), retry_s=0)
    model = small_network()

    checkpoint = publish_checkpoint(files, "1-a", publish_tensors(files, "packs/1-a-0.safetensors", model.state_dict()))

    signature = Signature.of(model)
    assert checkpoint.signature == signature.text
    assert checked_exactly(Checkpoint, checkpoint.to_json()).signature == signature.text
    assert Signature.of(load_manifest(files, checkpoint).tensors) == Signature.of(model.state_dict()) == signature
    assert signature.n_layers == 3


def test_values_and_devices_do_not_count() -> None:
    """Networks with equal layers have one signature, on any device, even unallocated or in a wrapper."""
    with torch.device("meta"):
        empty = nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Linear(4, 2))

    assert Signature.of(empty) == Signature.of(small_network()) == Signature.of(nn.DataParallel(small_network()))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (nn.Linear(3, 4), nn.Linear(3, 5)),
        (nn.Linear(3, 4), nn.Linear(3, 4, bias=False)),
        (nn.Linear(3, 4), nn.Linear(3, 4, dtype=torch.float64)),
        (nn.Sequential(nn.Linear(3, 4)), nn.ModuleDict({"a": nn.Linear(3, 4)})),
    ],
    ids=["shape", "tensors", "type", "name"],
)
def test_names_shapes_and_types_count(one: nn.Module, other: nn.Module) -> None:
    """Layers with another name, shape, type or tensor have nothing in common."""
    assert common_prefix(Signature.of(one), Signature.of(other).text) == 0


@settings(deadline=None)
@given(chains, chains)
def test_prefix_is_counted_in_layers(one: dict[str, object], other: dict[str, object]) -> None:
    """The common prefix of two signatures is that of their networks."""
    found = common_prefix(Signature.of(one), Signature.of(other).text)

    assert found == n_same(layers(one), layers(other))


def test_prefix_of_one_network_is_a_beginning_of_the_other() -> None:
    """All layers of a network are found in a deeper one that starts with them, and vice versa."""
    shallow, deep = Signature.of(chain(4, 4)), Signature.of(chain(4, 4, 4, 8))

    assert common_prefix(shallow, deep.text) == common_prefix(deep, shallow.text) == 2


@settings(deadline=None)
@given(st.integers(1, 5000), st.integers(0, 5000))
def test_deep_networks_are_known_to_three_per_cent(n_layers: int, n_common: int) -> None:
    """Up to 128 layers each counts; signatures of thousands are under 2 kB and give the depth to 1/32."""
    n_common = min(n_common, n_layers)
    names = [str(place) for place in range(n_layers)]
    one = Signature.of_entries(names)
    other = Signature.of_entries([*names[:n_common], *("other" for _ in range(n_layers - n_common))])

    found = common_prefix(one, other.text)
    assert n_common - max(n_common, 128) / 32 - 1 < found <= n_common
    assert found == n_common or n_common > 128
    assert common_prefix(one, one.text) == one.n_layers == n_layers
    assert len(one.text) < 2000


def test_empty_network_shares_nothing() -> None:
    """A network without tensors shares nothing."""
    nothing = Signature.of({})

    assert (nothing.text, nothing.n_layers) == ("", 0)
    assert common_prefix(nothing, nothing.text) == 0


def test_extra_state_does_not_count() -> None:
    """Extra state of a module is no layer."""

    class Extra(nn.Linear):
        def get_extra_state(self) -> object:
            return {"anything": 1}

        def set_extra_state(self, state: object) -> None: ...

    assert Signature.of(Extra(3, 4)) == Signature.of(nn.Linear(3, 4))


def test_lazy_network_is_refused() -> None:
    """A network with unknown shapes is refused with the remedy."""
    with pytest.raises(ConfigurationError, match="Run one batch"):
        Signature.of(nn.LazyLinear(3))


@pytest.mark.parametrize("text", ["a", "a" * (LETTERS + 1), "a" * (LETTERS - 1) + "~", "äöüäöü", "aaaaa\n"])
def test_text_that_is_no_signature_is_corrupt(text: str) -> None:
    """A recorded signature with another length or alphabet is CorruptError."""
    manifest = Reference("manifests/000001-aa.json", 9, f"blake3:{0:064x}")

    with pytest.raises(CorruptError, match="is not a signature"):
        Checkpoint(manifest=manifest, packs=(), signature=text)
