"""Pieces that attend together against each on its own: every architecture, with prefixes and without."""

import sys
from dataclasses import replace
from types import SimpleNamespace
from typing import cast

import numpy as np
import pytest
import torch
from tiny_targets import CONFIGS, FakeRequest, of_the_host, random_tokens, random_tree, target

from outrider_proto.frames import Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine import attention as attention_module
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import AttentionCall, BatchSegment
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.grouped_attention import (
    DEVICE_LIMITS,
    HOST_LIMITS,
    GroupLimits,
    Placed,
    group_segments,
    similar,
)
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.budget import KVShape, MemoryBudget
from outrider_server.kv.buffers import BufferPool
from outrider_server.kv.memory import KVMemory
from outrider_server.kv.prefix import Prefix
from outrider_server.kv.slot import KVSlot

TOLERANCE = 1e-5


def sessions(name: str, beginnings: list[list[int]], lengths: list[int]) -> list[Sequence]:
    """Of one memory, with as many tokens each; those of one beginning share it."""
    rng, memory, engine = np.random.default_rng(0), KVMemory(target(name).kv, small_bytes=0), Engine(target(name))
    made = []
    for i, length in enumerate(lengths):
        sequence = Sequence(memory, None)
        begins = beginnings[i % len(beginnings)]
        sequence.begin(FakeRequest(), 0, begins + random_tokens(rng, length), 30)
        if sequence.num_uncomputed:
            engine.commit(engine.verify([StepInput(sequence, sequence.uncomputed)])[0])
        made.append(sequence)
    return made


@torch.inference_mode()
def logits(
    name: str, parts: list[tuple[Sequence, list[int], DraftTree]], limits: GroupLimits | None = HOST_LIMITS
) -> torch.Tensor:
    segments = [BatchSegment(sequence.slot, len(chain), tree, 511) for sequence, chain, tree in parts]
    tokens = [token for _, chain, tree in parts for token in (*chain, *tree.tokens)]
    positions = [position for segment in segments for position in segment.positions]
    batch = FlatBatch(segments, limits=limits)
    return target(name).forward(tokens, positions, batch, list(range(len(tokens))), frozenset()).logits


def placed(parts: list[tuple[Sequence, list[int], DraftTree]]) -> list[Placed]:
    first, answer = 0, []
    for sequence, chain, tree in parts:
        answer.append((first, BatchSegment(sequence.slot, len(chain), tree, 511)))
        first += answer[-1][1].num_rows
    return answer


@of_the_host
@pytest.mark.parametrize("prefixes", [0, 1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_together_is_as_alone(name, prefixes):
    rng = np.random.default_rng(prefixes)
    beginnings = [random_tokens(rng, 64 + 32 * i) for i in range(prefixes)] or [[]]
    lengths = [9, 30, 3, 12, 20, 1, 25, 17] if prefixes else [60, 75, 50, 90, 64, 55, 80, 20]
    parts = [
        (sequence, random_tokens(rng, int(rng.integers(1, 4))), random_tree(rng, int(rng.integers(0, 9))))
        for sequence in sessions(name, beginnings, lengths)
    ]
    parts[3] = (parts[3][0], random_tokens(rng, 80), DraftTree())  # one that must go alone
    together, alone = group_segments(placed(parts), HOST_LIMITS)
    assert together
    assert len(alone) < len(parts) / 2
    assert (parts[0][0].slot.start > 0) == (prefixes > 0)
    plain, fast = logits(name, parts, None), logits(name, parts)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)
    assert torch.equal(fast.argmax(-1), plain.argmax(-1))


@of_the_host
@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2-window"])
def test_those_who_are_no_neighbours_and_of_several_slabs_go_together(name):
    rng = np.random.default_rng(3)
    lengths = [20, 130, 40, 160, 60, 200, 80, 140]
    sequence = sessions(name, [[]], lengths)
    parts = [(sequence[i], random_tokens(rng, 2), random_tree(rng, 4)) for i in (0, 1, 3, 4, 6)]
    assert len({each.slot.buffer.slab for each, _, _ in parts}) > 1
    together, alone = group_segments(placed(parts), HOST_LIMITS)
    assert len(together) == 1
    assert not alone
    plain, fast = logits(name, parts, None), logits(name, parts)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)


@of_the_host
def test_a_short_text_does_not_go_with_a_long_one():
    sequence = sessions("llama", [[]], [400, 1, 1, 1])
    together, alone = group_segments(placed([(each, [5], DraftTree()) for each in sequence]), HOST_LIMITS)
    assert [len(group._members) for group in together] == [3]
    assert [segment.slot for _, segment in alone] == [sequence[0].slot]


def test_both_paths_give_the_same_verdicts():
    rng = np.random.default_rng(5)
    verdicts = []
    inputs = [
        StepInput(
            sequence,
            random_tokens(rng, 2),
            random_tree(rng, 12),
            Sampler(Sampling(0.8, seed=i) if i % 2 else Sampling()),
        )
        for i, sequence in enumerate(sessions("qwen3", [random_tokens(rng, 70), []], [30] * 8))
    ]
    for attention in ("plain", "bunched"):
        results = Engine(target("qwen3"), attention=attention).verify(inputs)
        verdicts.append([(result.accepted.path, result.accepted.bonus) for result in results])
    assert verdicts[0] == verdicts[1]


@of_the_host
def test_memory_of_an_earlier_session_is_nothing_to_the_next():
    """What a lane held before lies behind its rows, where nothing times it must be nothing."""
    rng = np.random.default_rng(7)
    sequence = sessions("llama", [[]], [90, 40])
    sequence[0].slot.buffer.keys[0].fill_(float("nan"))
    sequence[0].slot.buffer.values[0].fill_(float("nan"))
    sequence[0].invalidate()
    sequence[0].release()
    memory = sequence[1].memory
    again = Sequence(memory, None)
    again.begin(FakeRequest(), 0, random_tokens(rng, 40), 30)
    engine = Engine(target("llama"))
    engine.commit(engine.verify([StepInput(again, again.uncomputed)])[0])
    parts = [(again, [5], DraftTree()), (sequence[1], [6], DraftTree())]
    assert again.slot.buffer.lane == 0
    assert group_segments(placed(parts), HOST_LIMITS)[0]
    plain, fast = logits("llama", parts, None), logits("llama", parts)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["mistral-window", "gemma2"])
def test_a_window_is_that_of_the_deepest_node_wherever_it_stands(name):
    chain, deep = [5, 6], tuple(range(10, 17))
    last_is_deep = DraftTree((9, *deep), (-1, -1, *range(1, 7)))
    last_is_shallow = DraftTree((*deep, 9), (-1, *range(6), -1))
    answers = []
    for tree, order in ((last_is_deep, [0, 1, *range(3, 10), 2]), (last_is_shallow, list(range(10)))):
        parts = [(sequence, chain, tree) for sequence in sessions(name, [[]], [2, 2])]
        for limits in (None, HOST_LIMITS):
            rows = logits(name, parts, limits)
            answers.append(rows.view(2, 10, -1)[:, order])
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0], atol=TOLERANCE, rtol=0)


def test_scores_of_one_product_have_a_bound():
    sequence = sessions("llama", [[]], [40] * 6)
    parts = [(each, [5], DraftTree()) for each in sequence]
    together, alone = group_segments(placed(parts), replace(HOST_LIMITS, scores=41 * 4))
    assert [len(each._members) for each in together] == [4, 2]
    assert not alone


@pytest.mark.parametrize("limits", [None, HOST_LIMITS], ids=["plain", "grouped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_is_as_exact_behind_a_prefix_as_in_one_piece(dtype, limits, monkeypatch):
    """Two sessions behind a prefix, scores up to about 20, against float64; the fused kernel sets the mark."""
    monkeypatch.setattr(attention_module, "_JOINED_VALUES", 0)
    torch.manual_seed(0)
    heads, kv_heads, dim, shared, own, rows = 8, 2, 64, 128, 40, 6
    pool, call = (
        BufferPool(KVShape(1, kv_heads, dim, dim, dtype, torch.device("cpu")), MemoryBudget(sys.maxsize)),
        AttentionCall(0.125, None, None),
    )
    keys, values = (torch.randn(2, kv_heads, shared + own + rows, dim).mul(2).to(dtype) for _ in range(2))
    keys[1, :, :shared], values[1, :, :shared] = keys[0, :, :shared], values[0, :, :shared]
    query = torch.randn(2, heads, rows, dim).mul(2).to(dtype)

    def attend(*, behind: bool) -> torch.Tensor:
        prefix = None
        if behind:
            buffer = pool.take(shared, 0)
            buffer.layer_keys[0][:, :shared], buffer.layer_values[0][:, :shared] = (
                keys[0, :, :shared],
                values[0, :, :shared],
            )
            prefix = Prefix(None, [7] * buffer.capacity, [b""] * (buffer.capacity // 32), buffer)
        segments, first = [], shared if behind else 0
        for each in range(2):
            slot = KVSlot(pool)
            if prefix is not None:
                slot.attach(prefix)
            slot.reserve(shared + own - first)
            slot.write(0, keys[each, :, first : shared + own], values[each, :, first : shared + own])
            slot.commit(shared + own - first)
            segments.append(BatchSegment(slot, rows, DraftTree(), 10**6))
        new = [
            torch.cat([whole[0, :, shared + own :], whole[1, :, shared + own :]], 1)[None] for whole in (keys, values)
        ]
        flat = FlatBatch(segments, limits=limits).attend(0, torch.cat([query[0], query[1]], 1)[None], *new, call)
        return flat[0].view(2, rows, heads, dim).transpose(1, 2).double()

    wide_keys, wide_values = (whole.double().repeat_interleave(heads // kv_heads, 1) for whole in (keys, values))
    scores = query.double() @ wide_keys.transpose(2, 3) * call.scaling
    future = ~torch.ones(rows, shared + own + rows, dtype=torch.bool).tril(shared + own)
    exact = scores.masked_fill(future, -torch.inf).softmax(-1) @ wide_values
    off = {behind: (attend(behind=behind) - exact).abs().mean() / exact.abs().mean() for behind in (False, True)}
    assert off[True] < 2 * off[False]


def test_on_a_device_the_sessions_that_its_limits_were_made_for_attend_together():
    """32 sessions with 8k of context each, and trees of 16."""
    held, rows = 8192, 17
    segment = SimpleNamespace(num_rows=rows, slot=SimpleNamespace(length=held, start=0))
    kind: list[Placed] = [(0, cast(BatchSegment, segment))] * 32
    assert [len(group) for group in similar(kind, lambda _: held + rows, DEVICE_LIMITS, DEVICE_LIMITS.keys)] == [32]
    assert len(similar(kind, lambda _: held + rows, HOST_LIMITS, HOST_LIMITS.keys)) > 4
