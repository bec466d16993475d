"""The canonical form of a network and its digest, independent of ids and order of nodes.

Color refinement in both directions, then individualization (McKay and Piperno 2014, arXiv:1301.1493). Differs: both are
used only for inputs of an add that nothing else distinguishes. A traversal from the output orders everything else.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence

from nas.spaces.graphs.network import INPUT, Network
from nas.spaces.graphs.traversal import Form, Tie, traverse


def canonical_form(network: Network) -> Form:
    """Returns the nodes, inputs first, in an order that depends on the graph alone.

    Two forms are equal if and only if the networks are the same. The inputs of an add, which have no order, are sorted
    by the longest path to them and by their layers. If some of them tie and are not known to be exchangeable, all nodes
    before and after them are compared. If they still tie, the least form with each of them first is used. Only this
    last step can take long: a second for eight triples of equal layers, added in pairs and then all together.
    """
    by_id = {node.id: node for node in network.nodes}
    found = traverse(network, lambda id: by_id[id].layer.text)
    return _least(network, ()) if isinstance(found, Tie) else found


def digest(network: Network) -> str:
    """Returns 32 hexadecimal digits, equal for equal networks on every machine, whatever the node ids."""
    places = "".join([f"{layer}{inputs}" for layer, inputs in canonical_form(network)])
    text = f"{network.input_shape}{places}"
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()


def _least(network: Network, chosen: tuple[int, ...]) -> Form:
    """Returns the least form, after these choices among tied inputs.

    Two inputs after which further choices can give the same form are exchangeable; then one of them is enough.
    """
    found = _traverse_by_color(network, chosen)
    if not isinstance(found, Tie):
        return found
    different = {_some(network, (*chosen, id)): id for id in found.inputs}
    return min(_least(network, (*chosen, id)) for id in different.values())


def _some(network: Network, chosen: tuple[int, ...]) -> Form:
    """Returns one of the forms after these choices."""
    while isinstance(found := _traverse_by_color(network, chosen), Tie):
        chosen = (*chosen, found.inputs[0])
    return found


def _traverse_by_color(network: Network, chosen: Sequence[int]) -> Form | Tie:
    return traverse(network, _colors(network, chosen).__getitem__)


def _colors(network: Network, chosen: Sequence[int]) -> dict[int, bytes]:
    """Returns a digest for each node, different for nodes whose predecessors or successors differ.

    Args:
        network: The network.
        chosen: Nodes that differ from all others, and from each other.
    """
    colors = {node.id: node.layer.text.encode() for node in network.nodes}
    colors |= {id: b"%d" % place for place, id in enumerate(chosen)}
    n_colors = 0
    while n_colors < len({*colors.values()}):
        n_colors = len({*colors.values()})
        colors = _refined(network, colors)
    return colors


def _refined(network: Network, colors: Mapping[int, bytes]) -> dict[int, bytes]:
    """Returns digests of each node's paths from the input and to the output."""
    before = {INPUT: b"input"}
    for node in network.nodes:
        sources = [before[source] for source in node.inputs]
        before[node.id] = _short(colors[node.id], sorted(sources) if node.layer.is_symmetric else sources)
    uses: dict[int, list[bytes]] = {}
    found: dict[int, bytes] = {}
    for node in reversed(network.nodes):
        own = found[node.id] = _short(before[node.id], sorted(uses.get(node.id, ())))
        for slot, source in enumerate(node.inputs):
            uses.setdefault(source, []).append(own if node.layer.is_symmetric else own + b"%d" % slot)
    return found


def _short(own: bytes, parts: Sequence[bytes]) -> bytes:
    return hashlib.blake2b(b"|".join((own, *parts)), digest_size=8).digest()
