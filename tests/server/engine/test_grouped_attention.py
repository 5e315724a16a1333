"""Pieces that attend together against each on its own: every architecture, with prefixes and without."""

import numpy as np
import pytest
import torch
from tiny_targets import CONFIGS, random_tokens, random_tree, target

from outrider_proto.frames import Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine import grouped_attention as bunch
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import Piece
from outrider_server.engine.engine import Engine, Work
from outrider_server.engine.grouped_attention import Placed, bunches
from outrider_server.engine.sampler import Chooser
from outrider_server.engine.sequence import Held
from outrider_server.kv.memory import Memory

TOLERANCE = 1e-5


class Job:
    over = False


def sessions(name: str, beginnings: list[list[int]], lengths: list[int]) -> list[Held]:
    """Of one memory, with as many tokens each; those of one beginning share it."""
    rng, memory, engine = np.random.default_rng(0), Memory(target(name).kv, small_bytes=0), Engine(target(name))
    made = []
    for i, length in enumerate(lengths):
        held = Held(memory, None)
        begins = beginnings[i % len(beginnings)]
        held.begin(Job(), 0, begins + random_tokens(rng, length), 30)
        if held.num_lost:
            engine.commit(engine.verify([Work(held, held.lost)])[0])
        made.append(held)
    return made


@torch.inference_mode()
def logits(name: str, parts: list[tuple[Held, list[int], DraftTree]], *, bunched: bool) -> torch.Tensor:
    pieces = [Piece(held.slot, len(chain), tree, 511) for held, chain, tree in parts]
    tokens = [token for _, chain, tree in parts for token in (*chain, *tree.tokens)]
    positions = [position for piece in pieces for position in piece.positions]
    batch = FlatBatch(pieces, bunched=bunched)
    return target(name).forward(tokens, positions, batch, list(range(len(tokens))), frozenset()).logits


def placed(parts: list[tuple[Held, list[int], DraftTree]]) -> list[Placed]:
    first, answer = 0, []
    for held, chain, tree in parts:
        answer.append((first, Piece(held.slot, len(chain), tree, 511)))
        first += answer[-1][1].num_rows
    return answer


@pytest.mark.parametrize("prefixes", [0, 1, 2])
@pytest.mark.parametrize("name", CONFIGS)
def test_together_is_as_alone(name, prefixes):
    rng = np.random.default_rng(prefixes)
    beginnings = [random_tokens(rng, 64 + 32 * i) for i in range(prefixes)] or [[]]
    lengths = [9, 30, 3, 12, 20, 1, 25, 17] if prefixes else [60, 75, 50, 90, 64, 55, 80, 20]
    parts = [
        (held, random_tokens(rng, int(rng.integers(1, 4))), random_tree(rng, int(rng.integers(0, 9))))
        for held in sessions(name, beginnings, lengths)
    ]
    parts[3] = (parts[3][0], random_tokens(rng, 80), DraftTree())  # one that must go alone
    together, alone = bunches(placed(parts))
    assert together
    assert len(alone) < len(parts) / 2
    assert (parts[0][0].slot.start > 0) == (prefixes > 0)
    plain, fast = logits(name, parts, bunched=False), logits(name, parts, bunched=True)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)
    assert torch.equal(fast.argmax(-1), plain.argmax(-1))


@pytest.mark.parametrize("name", ["llama", "gemma2", "qwen2-window"])
def test_those_who_are_no_neighbours_and_of_several_slabs_go_together(name):
    rng = np.random.default_rng(3)
    lengths = [20, 130, 40, 160, 60, 200, 80, 140]
    held = sessions(name, [[]], lengths)
    parts = [(held[i], random_tokens(rng, 2), random_tree(rng, 4)) for i in (0, 1, 3, 4, 6)]
    assert len({each.slot.store.slab for each, _, _ in parts}) > 1
    together, alone = bunches(placed(parts))
    assert len(together) == 1
    assert not alone
    plain, fast = logits(name, parts, bunched=False), logits(name, parts, bunched=True)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)


def test_a_short_text_does_not_go_with_a_long_one():
    held = sessions("llama", [[]], [400, 1, 1, 1])
    together, alone = bunches(placed([(each, [5], DraftTree()) for each in held]))
    assert [len(bunch._members) for bunch in together] == [3]
    assert [piece.slot for _, piece in alone] == [held[0].slot]


def test_both_paths_give_the_same_verdicts():
    rng = np.random.default_rng(5)
    verdicts = []
    works = [
        Work(held, random_tokens(rng, 2), random_tree(rng, 12), Chooser(Sampling(0.8, seed=i) if i % 2 else Sampling()))
        for i, held in enumerate(sessions("qwen3", [random_tokens(rng, 70), []], [30] * 8))
    ]
    for attention in ("plain", "bunched"):
        outcomes = Engine(target("qwen3"), attention=attention).verify(works)
        verdicts.append([(outcome.walk.path, outcome.walk.bonus) for outcome in outcomes])
    assert verdicts[0] == verdicts[1]


def test_memory_of_an_earlier_session_is_nothing_to_the_next():
    """What a lane held before lies behind its rows, where nothing times it must be nothing."""
    rng = np.random.default_rng(7)
    held = sessions("llama", [[]], [90, 40])
    held[0].slot.store.keys.fill_(float("nan"))
    held[0].slot.store.values.fill_(float("nan"))
    held[0].distrust()
    held[0].release()
    memory = held[1]._memory
    again = Held(memory, None)
    again.begin(Job(), 0, random_tokens(rng, 40), 30)
    engine = Engine(target("llama"))
    engine.commit(engine.verify([Work(again, again.lost)])[0])
    parts = [(again, [5], DraftTree()), (held[1], [6], DraftTree())]
    assert again.slot.store.lane == 0
    assert bunches(placed(parts))[0]
    plain, fast = logits("llama", parts, bunched=False), logits("llama", parts, bunched=True)
    torch.testing.assert_close(fast, plain, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("name", ["mistral-window", "gemma2"])
def test_a_window_is_that_of_the_deepest_node_wherever_it_stands(name):
    chain, deep = [5, 6], tuple(range(10, 17))
    last_is_deep = DraftTree((9, *deep), (-1, -1, *range(1, 7)))
    last_is_shallow = DraftTree((*deep, 9), (-1, *range(6), -1))
    answers = []
    for tree, order in ((last_is_deep, [0, 1, *range(3, 10), 2]), (last_is_shallow, list(range(10)))):
        parts = [(held, chain, tree) for held in sessions(name, [[]], [2, 2])]
        for bunched in (False, True):
            rows = logits(name, parts, bunched=bunched)
            answers.append(rows.view(2, 10, -1)[:, order])
    for answer in answers[1:]:
        torch.testing.assert_close(answer, answers[0], atol=TOLERANCE, rtol=0)


def test_scores_of_one_product_have_a_bound(monkeypatch):
    held = sessions("llama", [[]], [40] * 6)
    parts = [(each, [5], DraftTree()) for each in held]
    monkeypatch.setattr(bunch, "_MOST_SCORES", 8 * 41 * 4)
    together, alone = bunches(placed(parts))
    assert [len(each._members) for each in together] == [4, 2]
    assert not alone
