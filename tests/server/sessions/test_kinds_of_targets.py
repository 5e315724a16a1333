"""Targets whose attention is not Llama's, as clients meet them: sessions of one beginning, and memory for few."""

import asyncio
from functools import cache

import numpy as np
import pytest
from talk import conversing, started
from tiny_targets import random_tokens, target, tree_around

from outrider_drafters.contracts.tap import LastHiddenTap
from outrider_proto.frames import Features, Finish, Verdict
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.sessions import verifier as verifier_module
from outrider_server.sessions.verifier import Verifier

NAMES = ["gpt-oss", "gemma4", "gemma4-shared"]
NEW_TOKENS = 40
BEGINNING = random_tokens(np.random.default_rng(0), 70)
PROMPTS = [BEGINNING + random_tokens(np.random.default_rng(seed), 20 + 9 * seed) for seed in range(1, 6)]


@cache
def truth(name: str, which: int) -> tuple[int, ...]:
    return tuple(plain_greedy(target(name), PROMPTS[which], NEW_TOKENS))


async def conversation(verifier: Verifier, name: str, which: int, tap: str) -> list[int]:
    """The answer by drafts of trees, some of whose branches are right; it waits between them, as over a link."""
    rng, said = np.random.default_rng(which), list[int]()
    async with conversing(verifier, tap=tap) as talk:
        prompt = PROMPTS[which]
        text, context, root, finish = [], prompt[:-1], prompt[-1], Finish.NOT_YET
        while len(said) < NEW_TOKENS and finish is Finish.NOT_YET:
            rest = list(truth(name, which)[len(said) :])
            tree = tree_around(rng, rest, int(rng.integers(0, 4)), int(rng.integers(0, 6)))
            await talk.draft(len(text), context, root, tree, features_from=0)
            while not isinstance(frame := await talk.receive(), Verdict):
                assert isinstance(frame, Features)
            accepted = tree.path_tokens(frame.path)
            text += [*context, root, *accepted]
            said += [*accepted, *([] if frame.bonus is None else [frame.bonus])]
            context, root, finish = [], frame.bonus, frame.finish
            await asyncio.sleep(0)
    return said[:NEW_TOKENS]


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
@pytest.mark.parametrize("name", NAMES)
async def test_sessions_say_what_the_plain_loop_says(name, layout, monkeypatch):
    """Features are on for half of them: their rows are no one else's."""
    monkeypatch.setattr(verifier_module, "_HOLD_S", 0.0)
    served = target(name)
    truths = [list(truth(name, which)) for which in range(len(PROMPTS))]  # before it serves: they change its attention
    tap = LastHiddenTap(served.hidden_size)
    rows = 360 * (served.kv.bytes_per_token + 4 * tap.info.width)
    limits = LimitsConfig(kv_memory=str(rows), kv_layout=layout, kv_swap=str(rows), room_wait_s=60)
    verifier = Verifier(served, [tap], limits)
    async with started(verifier):
        taps = [tap.info.fingerprint if which % 2 else "" for which in range(len(PROMPTS))]
        answers = await asyncio.gather(*(conversation(verifier, name, which, own) for which, own in enumerate(taps)))
        again = await conversation(verifier, name, 0, "")
        memory = verifier.memory
        assert memory.prefix_hits_tokens > 0
        assert memory.evictions > 0
    assert [*answers, again] == [*truths, truths[0]]
