"""One form for all networks that are the same but for the names and the order of their nodes, and its digest.

Color refinement in both directions, then individualization (McKay and Piperno 2014, arXiv:1301.1493). Differs: both
only where inputs of an add are left that nothing else tells apart; a walk from the output leaves no other choice.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from nas.spaces.graphs.network import INPUT, Network
from nas.spaces.graphs.walking import Form, Tied, walked


def canonical_form(network: Network) -> Form:
    """The nodes as a walk from the output finds them, inputs first: equal if and only if the networks are the same.

    The inputs of an add, which have no order, go by the longest path behind them and by their layers; if that leaves
    some that tie and are not seen to be exchangeable, by all that lies behind and before them; and if that does, too,
    by the least form of those with each of them first. Only the last may take long: a second, where eight triples of
    like layers are each added in pairs and all of the sums are added up.
    """
    by_id = {node.id: node for node in network.nodes}
    found = walked(network, lambda id: by_id[id].layer.text)
    return _least(network, ()) if isinstance(found, Tied) else found


def digest(network: Network) -> str:
    """32 hexadecimal digits, the same for the same network on every machine, whatever its nodes are called."""
    places = "".join([f"{layer}{inputs}" for layer, inputs in canonical_form(network)])
    text = f"{network.input_shape}{places}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _least(network: Network, chosen: tuple[int, ...]) -> Form:
    """Returns the least form after these were chosen, of those that tied.

    Two after which some further choices give one form are exchangeable, so that one of them is enough.
    """
    found = _walked_by_color(network, chosen)
    if not isinstance(found, Tied):
        return found
    different = {_some(network, (*chosen, id)): id for id in found.inputs}
    return min(_least(network, (*chosen, id)) for id in different.values())


def _some(network: Network, chosen: tuple[int, ...]) -> Form:
    """One of the forms after these were chosen."""
    while isinstance(found := _walked_by_color(network, chosen), Tied):
        chosen = (*chosen, found.inputs[0])
    return found


def _walked_by_color(network: Network, chosen: Sequence[int]) -> Form | Tied:
    return walked(network, _colors(network, chosen).__getitem__)


def _colors(network: Network, chosen: Sequence[int]) -> dict[int, bytes]:
    """By node, a digest by which any two differ that can be told apart by what lies behind and before them.

    Args:
        network: All of it.
        chosen: These are told from all others, and from each other.
    """
    colors = {node.id: node.layer.text.encode() for node in network.nodes}
    colors |= {id: b"%d" % place for place, id in enumerate(chosen)}
    n_colors = 0
    while n_colors < len({*colors.values()}):
        n_colors = len({*colors.values()})
        colors = _refined(network, colors)
    return colors


def _refined(network: Network, colors: Mapping[int, bytes]) -> dict[int, bytes]:
    """Digests of all from the input to a node, and of all from there to the output."""
    behind = {INPUT: b"input"}
    for node in network.nodes:
        sources = [behind[source] for source in node.inputs]
        behind[node.id] = _short(colors[node.id], sorted(sources) if node.layer.is_symmetric else sources)
    uses: dict[int, list[bytes]] = {}
    found: dict[int, bytes] = {}
    for node in reversed(network.nodes):
        own = found[node.id] = _short(behind[node.id], sorted(uses.get(node.id, ())))
        for slot, source in enumerate(node.inputs):
            uses.setdefault(source, []).append(own if node.layer.is_symmetric else own + b"%d" % slot)
    return found


def _short(own: bytes, parts: Sequence[bytes]) -> bytes:
    return hashlib.blake2b(b"|".join((own, *parts)), digest_size=8).digest()
