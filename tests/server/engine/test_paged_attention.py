"""Sessions in pages: the same tokens as in contiguous rows, and one call a layer equal to the loop over segments."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_targets import CONFIGS, FakeRequest, random_tokens, random_tree, target

from outrider_drafters.contracts.tap import LastHiddenTap
from outrider_proto.frames import Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine import grouped_attention
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import BatchSegment
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.grouped_attention import DEVICE_LIMITS, HOST_LIMITS, GroupLimits
from outrider_server.engine.paged_attention import group_pages
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.kv.memory import KVMemory
from outrider_server.kv.pages import PAGE
from outrider_server.kv.size import KVLayout

TOLERANCE = 1e-5
Work = tuple[Sequence, list[int], DraftTree]


def sessions(name: str, beginnings: list[list[int]], lengths: list[int], layout: KVLayout = "paged") -> list[Sequence]:
    """Of one memory, with as many tokens each; those of one beginning share it."""
    memory = KVMemory(target(name).kv, small_bytes=0, layout=layout)
    rng, engine, made = np.random.default_rng(0), Engine(target(name)), []
    for i, length in enumerate(lengths):
        sequence = Sequence(memory, LastHiddenTap(target(name).hidden_size))
        sequence.begin(FakeRequest(), 0, beginnings[i % len(beginnings)] + random_tokens(rng, length), 30)
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


@pytest.mark.parametrize("prefixes", [0, 1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_one_call_for_all_is_the_loop_over_segments(name, prefixes):
    rng = np.random.default_rng(prefixes)
    beginnings = [random_tokens(rng, 64 + 32 * i) for i in range(prefixes)] or [[]]
    parts = [
        (sequence, random_tokens(rng, int(rng.integers(1, 4))), random_tree(rng, int(rng.integers(0, 5))))
        for sequence in sessions(name, beginnings, [9, 30, 3, 62, 20, 1, 25, 117])
    ]
    parts[3] = (parts[3][0], random_tokens(rng, 80), DraftTree())  # too many rows to be padded to
    parts[5] = (parts[5][0], parts[5][1], random_tree(rng, 20))
    assert (parts[0][0].slot.start > 0) == (prefixes > 0)
    plain, fast = logits(name, parts, None), logits(name, parts)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)
    assert torch.equal(fast.argmax(-1), plain.argmax(-1))


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
        assert memory.used_bytes == 0


def test_what_another_session_has_left_in_its_pages_harms_nobody():
    first, second, third = sessions("llama", [[]], [90, 40, 10])
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


def placed(parts: list[Work]) -> list[tuple[int, BatchSegment]]:
    first, found = 0, []
    for sequence, chain, tree in parts:
        found.append((first, BatchSegment(sequence.slot, len(chain), tree, 511)))
        first += found[-1][1].num_rows
    return found


def test_copies_of_pages_have_a_bound():
    parts = [(each, [5], DraftTree()) for each in sessions("llama", [[]], [40] * 6)]
    assert [len(group._segments) for group in group_pages(placed(parts), HOST_LIMITS)[0]] == [6]
    few = replace(HOST_LIMITS, keys=4 * 41)
    groups, others = group_pages(placed(parts), few)
    assert [len(group._segments) for group in groups] == [4, 2]
    assert not others
    plain, fast = logits("llama", parts, None), logits("llama", parts, few)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)


def test_a_short_text_is_not_padded_to_a_long_one(monkeypatch):
    monkeypatch.setattr(grouped_attention, "_FEW_KEYS", PAGE)
    parts = [(each, [5], DraftTree()) for each in sessions("llama", [[]], [300, 1, 20, 1])]
    groups, _ = group_pages(placed(parts), HOST_LIMITS)
    assert [len(group._segments) for group in groups] == [1, 3]


def test_on_a_device_texts_of_different_length_go_together():
    """Texts within four times of each other, and a few keys more."""
    parts = [(each, [5], DraftTree()) for each in sessions("llama", [[]], [500, 95, 300, 130])]
    assert [len(group._segments) for group in group_pages(placed(parts), DEVICE_LIMITS)[0]] == [4]
    assert [len(group._segments) for group in group_pages(placed(parts), HOST_LIMITS)[0]] == [2, 2]
    plain, fast = logits("llama", parts, None), logits("llama", parts, DEVICE_LIMITS)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)
