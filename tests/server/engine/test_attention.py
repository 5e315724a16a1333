"""Slots against every architecture's own eager attention: chains, trees, windows, soft caps, several sessions; and the
last layer's output before the final norm, which hidden_states do not hold."""

import numpy as np
import pytest
import torch
from tiny_targets import CONFIGS, DEVICE, build, random_tokens, random_tree, target
from torch import nn
from torch.nn.functional import scaled_dot_product_attention

from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_proto.errors import UsageError
from outrider_proto.tree import DraftTree
from outrider_server.engine import attention, grouped_attention
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import BatchSegment
from outrider_server.engine.grouped_attention import HOST_LIMITS, GroupLimits
from outrider_server.engine.hf_model import eager_attention
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target, TargetOutput
from outrider_server.kv.memory import KVMemory
from outrider_server.kv.slot import KVSlot

TOLERANCE = 2e-5 if DEVICE != "cpu" else 1e-5


@torch.inference_mode()
def own_logits(name: str, tokens: list[int]) -> torch.Tensor:
    with eager_attention(target(name).model):
        return target(name).model(torch.tensor([tokens], device=DEVICE), use_cache=False).logits[0]


@torch.inference_mode()
def slot_logits(
    name: str, parts: list[tuple[KVSlot, list[int], DraftTree]], limits: GroupLimits | None = None
) -> torch.Tensor:
    segments = [BatchSegment(slot, len(chain), tree, 511) for slot, chain, tree in parts]
    tokens = [token for _, chain, tree in parts for token in (*chain, *tree.tokens)]
    positions = [position for segment in segments for position in segment.positions]
    rows = list(range(len(tokens)))
    return target(name).forward(tokens, positions, FlatBatch(segments, limits=limits), rows, frozenset()).logits


@pytest.mark.parametrize("name", CONFIGS)
def test_a_chain_in_uneven_chunks(name):
    tokens = random_tokens(np.random.default_rng(1), 150)
    slot, logits, first = KVSlot(target(name).kv), [], 0
    for size in (1, 2, 5, 100, 1, 41):
        chunk = tokens[first : first + size]
        logits.append(slot_logits(name, [(slot, chunk, DraftTree())]))
        slot.commit(len(chunk))
        first += size
    torch.testing.assert_close(torch.cat(logits), own_logits(name, tokens), atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("num_nodes", [1, 12, 70])
@pytest.mark.parametrize("name", CONFIGS)
def test_every_branch_of_a_tree_sees_what_a_text_of_its_own_would(name, num_nodes):
    rng = np.random.default_rng(num_nodes)
    prompt, tree = random_tokens(rng, 20), random_tree(rng, num_nodes)
    slot = KVSlot(target(name).kv)
    slot_logits(name, [(slot, prompt[:9], DraftTree())])
    slot.commit(9)
    logits = slot_logits(name, [(slot, prompt[9:], tree)])
    ancestors = tree.ancestors()
    for node in rng.choice(num_nodes, size=min(num_nodes, 8), replace=False):
        branch = [tree.tokens[i] for i in np.flatnonzero(ancestors[node])]
        expected = own_logits(name, prompt + branch)[-1]
        torch.testing.assert_close(logits[11 + node], expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", CONFIGS)
def test_sessions_side_by_side_do_not_see_each_other(name):
    rng = np.random.default_rng(3)
    texts = [random_tokens(rng, n) for n in (3, 30, 11)]
    slots = [KVSlot(target(name).kv) for _ in texts]
    tree = random_tree(rng, 6)
    flat = slot_logits(name, [(slot, text, tree) for slot, text in zip(slots, texts, strict=True)])
    first = 0
    for text in texts:
        alone = slot_logits(name, [(KVSlot(target(name).kv), text, tree)])
        torch.testing.assert_close(flat[first : first + len(alone)], alone, atol=TOLERANCE, rtol=0)
        torch.testing.assert_close(alone[: len(text)], own_logits(name, text), atol=TOLERANCE, rtol=0)
        first += len(alone)


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
@pytest.mark.parametrize("name", ["llama", "mistral-window"])
def test_kernels_may_answer_in_another_order_of_memory(name, layout, monkeypatch):
    """On a GPU some lay their answer out as [batch, rows, heads, dim]: no target loaded there in float32."""

    def reordered(*tensors, **how):
        return scaled_dot_product_attention(*tensors, **how).transpose(1, 2).contiguous().transpose(1, 2)

    rng = np.random.default_rng(4)
    texts, tree = [random_tokens(rng, n) for n in (40, 5)], random_tree(rng, 12)

    def logits() -> torch.Tensor:
        memory = KVMemory(target(name).kv, layout=layout)
        slots = [Sequence(memory, None).slot for _ in texts]
        for slot, text in zip(slots, texts, strict=True):
            slot.reserve(len(text) + len(tree))
        parts = list(zip(slots, texts, [tree, tree], strict=True))
        return torch.cat([slot_logits(name, parts, HOST_LIMITS), *(slot_logits(name, [part]) for part in parts)])

    expected = logits()
    for module in (attention, grouped_attention):
        monkeypatch.setattr(module, "scaled_dot_product_attention", reordered)
    torch.testing.assert_close(logits(), expected, atol=TOLERANCE, rtol=0)


def test_nodes_beyond_the_context_get_a_position_that_exists():
    segment = BatchSegment(KVSlot(target().kv), 2, DraftTree.chain([5, 6, 7]), max_position=2)
    assert segment.positions == [0, 1, 2, 2, 2]


TOKENS = [3, 41, 7, 7, 59, 12]


@torch.inference_mode()
def run(served: Target, wanted: frozenset[int]) -> TargetOutput:
    segment = BatchSegment(KVSlot(served.kv), len(TOKENS), DraftTree(), max_position=511)
    return served.forward(TOKENS, list(segment.positions), FlatBatch([segment]), [len(TOKENS) - 1], wanted)


@pytest.mark.parametrize("name", list(CONFIGS))
def test_is_what_the_final_norm_reads(name):
    served, read = target(name), []
    hook = served.model.model.norm.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0][0]))
    try:
        with eager_attention(served.model), torch.inference_mode():
            served.model(torch.tensor([TOKENS], device=DEVICE))
    finally:
        hook.remove()
    hidden = run(served, frozenset({BEFORE_NORM, -1, 2})).hidden
    assert set(hidden) == {BEFORE_NORM, -1, 2}
    torch.testing.assert_close(hidden[BEFORE_NORM], read[0], atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(served.model.model.norm(hidden[BEFORE_NORM]), hidden[-1])
    assert not torch.allclose(hidden[BEFORE_NORM], hidden[-1], atol=1e-2)


def test_a_model_whose_layers_are_not_found_is_refused():
    served = Target.of(build("llama"), fused=False)
    served.model.model.layers = nn.ModuleList([*served.model.model.layers, nn.Identity()])
    with pytest.raises(UsageError, match="llama: its 4 layers are not found"):
        run(served, frozenset({BEFORE_NORM}))
