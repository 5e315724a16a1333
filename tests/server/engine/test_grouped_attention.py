"""Pieces that attend together, in lanes and in pages, against each on its own: every architecture, with prefixes and
without."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_targets import CONFIGS, FakeRequest, of_the_host, random_tokens, random_tree, target

from outrider_drafters.contracts.tap import LastHiddenTap
from outrider_proto.frames import Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine import attention as attention_module
from outrider_server.engine import grouped_attention as grouped_module
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import AttentionCall, BatchSegment
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.grouped_attention import (
    HOST_LIMITS,
    GroupLimits,
    Placed,
    group_segments,
)
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.budget import KVShape, MemoryBudget, RowShape
from outrider_server.kv.buffers import BufferPool
from outrider_server.kv.memory import KVMemory
from outrider_server.kv.prefix import Prefix
from outrider_server.kv.size import KVLayout
from outrider_server.kv.slot import KVSlot

TOLERANCE = 1e-5
Work = tuple[Sequence, list[int], DraftTree]


def sessions(name: str, beginnings: list[list[int]], lengths: list[int], layout: KVLayout = "auto") -> list[Sequence]:
    """Of one memory, with as many tokens each; those of one beginning share it."""
    memory = KVMemory(target(name).kv, small_bytes=0, layout=layout)
    rng, engine, made = np.random.default_rng(0), Engine(target(name)), []
    for i, length in enumerate(lengths):
        sequence = Sequence(memory, LastHiddenTap(target(name).hidden_size) if layout != "auto" else None)
        begins = beginnings[i % len(beginnings)]
        sequence.begin(FakeRequest(), 0, begins + random_tokens(rng, length), 30)
        if sequence.num_uncomputed:
            engine.commit(engine.verify([StepInput(sequence, sequence.uncomputed)])[0])
            engine.tap([sequence])
        made.append(sequence)
    return made


@torch.inference_mode()
def logits(name: str, parts: list[Work], limits: GroupLimits | None = HOST_LIMITS) -> torch.Tensor:
    segments = [BatchSegment(sequence.slot, len(chain), tree, 511) for sequence, chain, tree in parts]
    tokens = [token for _, chain, tree in parts for token in (*chain, *tree.tokens)]
    positions = [position for segment in segments for position in segment.positions]
    batch = FlatBatch(segments, limits=limits)
    return target(name).forward(tokens, positions, batch, list(range(len(tokens))), frozenset()).logits


def placed(parts: list[Work]) -> list[Placed]:
    first, answer = 0, []
    for sequence, chain, tree in parts:
        answer.append((first, BatchSegment(sequence.slot, len(chain), tree, 511)))
        first += answer[-1][1].num_rows
    return answer


@pytest.mark.parametrize("layout", [pytest.param("auto", marks=of_the_host), "paged"])
@pytest.mark.parametrize("prefixes", [0, 1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_together_is_as_alone(name, prefixes, layout):
    rng = np.random.default_rng(prefixes)
    beginnings = [random_tokens(rng, 64 + 32 * i) for i in range(prefixes)] or [[]]
    lengths = [9, 30, 3, 12, 20, 1, 25, 17] if prefixes else [60, 75, 50, 90, 64, 55, 80, 20]
    lengths, num_nodes = ([9, 30, 3, 62, 20, 1, 25, 117], 5) if layout == "paged" else (lengths, 9)
    parts = [
        (sequence, random_tokens(rng, int(rng.integers(1, 4))), random_tree(rng, int(rng.integers(0, num_nodes))))
        for sequence in sessions(name, beginnings, lengths, layout)
    ]
    parts[3] = (parts[3][0], random_tokens(rng, 80), DraftTree())  # one that must go alone: too many rows to pad to
    if layout == "paged":
        parts[5] = (parts[5][0], parts[5][1], random_tree(rng, 20))
    else:
        together, alone = group_segments(placed(parts), HOST_LIMITS)
        assert together
        assert len(alone) < len(parts) / 2
    assert (parts[0][0].slot.start > 0) == (prefixes > 0)
    plain, fast = logits(name, parts, None), logits(name, parts)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)
    assert torch.equal(fast.argmax(-1), plain.argmax(-1))


CALLS = {
    "full": AttentionCall(0.3, None, None),
    "window": AttentionCall(0.3, None, 7),
    "softcap": AttentionCall(0.3, 5.0, None),
    "sinks": AttentionCall(0.3, None, 9, torch.tensor([0.5, -1.0, 2.0, 0.0])),
}


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("prefixes", [0, 1, 2])
@pytest.mark.parametrize("layout", ["contiguous", "paged"])
@of_the_host
@torch.inference_mode()
def test_invariant_rows_have_the_same_bits_alone_and_together(layout, prefixes, call, monkeypatch):
    """In groups of one block of members and of several, over lanes of one slab and of two."""
    rng = np.random.default_rng(prefixes)
    torch.manual_seed(prefixes)
    beginnings = [random_tokens(rng, 64 + 32 * i) for i in range(prefixes)] or [[]]
    parts = [
        (sequence, random_tokens(rng, int(rng.integers(1, 4))), random_tree(rng, int(rng.integers(0, 9))))
        for sequence in sessions("llama", beginnings, [9, 30, 3, 62, 20, 1, 25, 117], layout)
    ]
    work = placed(parts)
    segments, count = [segment for _, segment in work], sum(segment.num_rows for _, segment in work)
    query, key, value = (torch.randn(1, heads, count, 8).mul(2) for heads in (4, 2, 2))

    def attended(limits: GroupLimits | None, *, invariant: bool = True) -> torch.Tensor:
        return FlatBatch(segments, limits=limits, invariant=invariant).attend(1, query, key, value, call)

    alone, rounded = attended(None), attended(None, invariant=False)
    assert group_segments(work, HOST_LIMITS, invariant=True)[0]
    assert torch.equal(attended(HOST_LIMITS), alone)
    assert torch.equal(attended(replace(HOST_LIMITS, joined=0)), alone)
    monkeypatch.setattr(grouped_module, "_WIDE_VALUES", 3000)
    assert torch.equal(attended(HOST_LIMITS), alone)
    torch.testing.assert_close(rounded, alone, atol=TOLERANCE, rtol=0)
    assert not torch.equal(rounded, alone)


@of_the_host
def test_lanes_of_many_keys_are_not_copied():
    rng = np.random.default_rng(3)
    parts = [(each, random_tokens(rng, 2), DraftTree()) for each in sessions("llama", [[]], [80, 150, 85, 140])]
    assert [len(group._segments) for group in group_segments(placed(parts), HOST_LIMITS)[0]] == [4]
    few = replace(HOST_LIMITS, joined=200)
    assert sorted(len(group._segments) for group in group_segments(placed(parts), few)[0]) == [2, 2]
    torch.testing.assert_close(logits("llama", parts, few), logits("llama", parts, None), atol=TOLERANCE, rtol=0)


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
def test_memory_of_an_earlier_session_is_nothing_to_the_next():
    """What a lane held before lies behind its rows, where nothing times it must be nothing."""
    rng = np.random.default_rng(7)
    sequence = sessions("llama", [[]], [90, 40])
    for tensor in sequence[0].slot.buffer.rows(0, None)[0]:
        tensor.fill_(float("nan"))
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


@pytest.mark.parametrize("limits", [None, HOST_LIMITS], ids=["plain", "grouped"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@torch.inference_mode()
def test_half_precision_is_as_exact_behind_a_prefix_as_in_one_piece(dtype, limits, monkeypatch):
    """Two sessions behind a prefix, scores up to about 20, against float64; the fused kernel sets the mark."""
    monkeypatch.setattr(attention_module, "_JOINED_VALUES", 0)
    torch.manual_seed(0)
    heads, kv_heads, dim, shared, own, rows = 8, 2, 64, 128, 40, 6
    pool, call = (
        BufferPool(KVShape((RowShape(kv_heads, dim, dim),), dtype, torch.device("cpu")), MemoryBudget(sys.maxsize)),
        AttentionCall(0.125, None, None),
    )
    keys, values = (torch.randn(2, kv_heads, shared + own + rows, dim).mul(2).to(dtype) for _ in range(2))
    keys[1, :, :shared], values[1, :, :shared] = keys[0, :, :shared], values[0, :, :shared]
    query = torch.randn(2, heads, rows, dim).mul(2).to(dtype)

    def attend(*, behind: bool) -> torch.Tensor:
        prefix = None
        if behind:
            buffer = pool.take(shared, 0)
            buffer.write(0, 0, keys[0, :, :shared], values[0, :, :shared])
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


def conversations(name: str, layout: KVLayout, attention: str) -> tuple[list[list[int]], KVMemory]:
    """Texts of five sessions over passes with trees, paths out of order, turns to other texts, evictions, failures."""
    rng = np.random.default_rng(4)
    beginnings = [random_tokens(rng, 70), []]
    made = sessions(name, beginnings, [20, 40, 1, 90, 33], layout)
    engine, memory = Engine(target(name), attention=attention), made[0].memory
    samplers = [Sampler(Sampling(0.8, seed=i) if i == 1 else Sampling()) for i in range(len(made))]
    roots, num_moved = [5] * len(made), 0
    for turn in range(12):
        if turn in (4, 8):
            made[turn // 4].evict()
            made[0].begin(FakeRequest(), 50 + turn, random_tokens(rng, 40), 30)
            roots[0] = 6
        if turn == 6:
            made[2].invalidate()
        for sequence in made:
            sequence.begin(FakeRequest(), len(sequence.tokens), [], 30)
        inputs = with_truth(
            engine,
            [
                StepInput(sequence, [*sequence.uncomputed, root], sampler=sampler)
                for sequence, root, sampler in zip(made, roots, samplers, strict=True)
            ],
        )
        results = engine.verify(inputs)
        if turn == 5:  # as if it had failed before its commit
            results = engine.verify(inputs)
        if attention == "plain":
            for result in results:
                engine.commit(result)
        else:
            assert engine.commit_all(results) == [None] * len(made)
        for i, result in enumerate(results):
            num_moved += result.accepted.path == (3, 6)
            roots[i] = result.accepted.bonus or 9  # the text has ended, and goes on all the same
        engine.tap(made)
    assert num_moved > 30
    return [list(sequence.tokens) for sequence in made], memory


def with_truth(engine: Engine, inputs: list[StepInput]) -> list[StepInput]:
    """Give each a tree whose nodes 3 and 6 are what the target says, found by passes that are not committed."""
    one = [result.accepted.bonus or 9 for result in engine.verify(inputs)]
    chains = [replace(each, tree=DraftTree((token,), (-1,))) for each, token in zip(inputs, one, strict=True)]
    two = [result.accepted.bonus or 9 for result in engine.verify(chains)]
    wrong = [[(token + i) % 61 for i in (1, 2, 3)] for token in one]
    return [
        replace(each, tree=DraftTree((*x, a, 5, 5 + (b == 5), b), (-1, -1, -1, -1, 0, 3, 3)))
        for each, x, a, b in zip(inputs, wrong, one, two, strict=True)
    ]


@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt-oss", "mistral-window", "gemma4", "gemma4-shared"])
def test_texts_are_those_of_contiguous_rows(name):
    truth, _ = conversations(name, "contiguous", "plain")
    for attention in ("plain", "bunched"):
        texts, memory = conversations(name, "paged", attention)
        assert texts == truth
        for sequence in list(memory._sequences):
            sequence.release()
        memory.free_all()
        assert memory.budget.used_bytes == 0


def test_what_another_session_has_left_in_its_pages_harms_nobody():
    first, second, third = sessions("llama", [[]], [90, 40, 10], "paged")
    parts = [(second, [6], DraftTree()), (third, [7, 8], DraftTree())]
    expected = logits("llama", parts)
    pool = first.slot._pool
    pool.arenas[0][:, list(first.slot.buffer.pages)] = float("nan")
    with_it = logits("llama", [*parts, (first, [5], DraftTree())])
    assert with_it[3:].isnan().all()
    torch.testing.assert_close(with_it[:3], expected, atol=TOLERANCE, rtol=0)
    first.invalidate()
    first.release()
    again = Sequence(second.memory, None)
    again.begin(FakeRequest(), 0, random_tokens(np.random.default_rng(7), 40), 30)
    assert set(again.slot.buffer.pages) & set(range(pool.num_pages))
    assert logits("llama", [(again, again.uncomputed, DraftTree()), *parts]).isfinite().all()


def test_copies_of_pages_have_a_bound():
    parts = [(each, [5], DraftTree()) for each in sessions("llama", [[]], [40] * 6, "paged")]
    assert [len(group._segments) for group in group_segments(placed(parts), HOST_LIMITS)[0]] == [6]
    few = replace(HOST_LIMITS, keys=4 * 41)
    groups, others = group_segments(placed(parts), few)
    assert [len(group._segments) for group in groups] == [4, 2]
    assert not others
    plain, fast = logits("llama", parts, None), logits("llama", parts, few)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)
