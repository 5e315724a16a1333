"""Tokens, trees and log probabilities as bytes."""

from __future__ import annotations

import struct

from fuzz_targets.target import FuzzTarget
from outrider_proto.frames import TokenLogprob
from outrider_proto.packing import (
    PackedLogprobs,
    pack_logprobs,
    pack_parents,
    pack_tokens,
    prefix_hash,
    unpack_logprobs,
    unpack_parents,
    unpack_tokens,
)
from outrider_proto.tree import ROOT, DraftTree


def _check_tokens(tokens: tuple[int, ...]) -> None:
    assert unpack_tokens(pack_tokens(tokens)) == tokens
    assert len(prefix_hash(tokens)) == 8


def _token_seeds() -> dict[str, bytes]:
    return {"none": b"", "some": pack_tokens([0, 1, 258, 2**24 - 1]), "cut": pack_tokens([7, 9])[:-1]}


def _tree(data: bytes) -> DraftTree:
    """One byte of how many parents follow, then parents, then tokens."""
    num_nodes = data[0] if data else 0
    return DraftTree(unpack_tokens(data[1 + num_nodes :]), unpack_parents(data[1 : 1 + num_nodes]))


def _check_tree(tree: DraftTree) -> None:
    again = DraftTree(unpack_tokens(pack_tokens(tree.tokens)), unpack_parents(pack_parents(tree.parents)))
    assert again == tree
    depths, ancestors = tree.depths(), tree.ancestors()
    assert ancestors.sum(1).tolist() == list(depths)
    for node in {0, len(tree) // 2, len(tree) - 1} if len(tree) else ():
        assert ROOT <= tree.parents[node] < node
        assert tree.child(tree.parents[node], tree.tokens[node]) == node
        path = ancestors[node].nonzero()[0].tolist()
        assert tree.path_tokens(path)[-1] == tree.tokens[node]


def _packed_tree(tree: DraftTree) -> bytes:
    return bytes([len(tree)]) + pack_parents(tree.parents) + pack_tokens(tree.tokens)


def _tree_seeds() -> dict[str, bytes]:
    return {
        "root-alone": _packed_tree(DraftTree()),
        "chain": _packed_tree(DraftTree.chain([5, 6, 7])),
        "branches": _packed_tree(DraftTree((3, 4, 3, 9, 3), (-1, -1, 0, 0, 1))),
        "largest": _packed_tree(DraftTree.chain(range(255))),
        "later-parent": bytes([2, 0, 3]) + bytes(6),
        "twins": bytes([2, 0, 0]) + bytes(6),
        "too-few-tokens": bytes([3, 0, 1, 2]) + bytes(6),
    }


def _likelihoods(data: bytes) -> tuple[TokenLogprob, ...]:
    """Two lengths of two bytes, then chosen, top tokens, top."""
    if len(data) < 4:
        return ()
    chosen, tokens = struct.unpack_from("<HH", data)
    rest = data[4:]
    return unpack_logprobs(PackedLogprobs(rest[:chosen], rest[chosen : chosen + tokens], rest[chosen + tokens :]))


def _check_likelihoods(likelihoods: tuple[TokenLogprob, ...]) -> None:
    if likelihoods:
        assert unpack_logprobs(pack_logprobs(likelihoods)) == likelihoods


def _likelihood_seeds() -> dict[str, bytes]:
    def framed(packed: PackedLogprobs) -> bytes:
        return struct.pack("<HH", len(packed.chosen), len(packed.top_tokens)) + b"".join(packed)

    return {
        "one": framed(pack_logprobs([TokenLogprob(-1.5)])),
        "with-top": framed(pack_logprobs([TokenLogprob(-0.5, ((3, -0.25), (9, -2.0)))] * 3)),
        "least": framed(pack_logprobs([TokenLogprob(-9999.0, ((3, 0.0),))])),
        "no-number": framed(PackedLogprobs(struct.pack("<f", float("nan")), b"", b"")),
        "uneven": framed(PackedLogprobs(bytes(8), bytes(9), bytes(12))),
    }


TARGETS = (
    FuzzTarget("tokens", unpack_tokens, _token_seeds, _check_tokens),
    FuzzTarget("tree", _tree, _tree_seeds, _check_tree, max_len=1100),
    FuzzTarget("likelihoods", _likelihoods, _likelihood_seeds, _check_likelihoods),
)
