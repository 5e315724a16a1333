"""Many sessions at once: every text is the plain loop's, passes keep to their budget, a busy server asks for smaller
trees, and no client has more than its share of the places."""

import asyncio
from contextlib import AsyncExitStack
from itertools import pairwise

import numpy as np
import pytest
from talk import TAP, Clock, conversing, serving, talking
from tiny_targets import VOCAB, random_tokens, target

from outrider_proto.errors import Reason, Refusal
from outrider_proto.tree import DraftTree
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.scheduling import tree_budget
from outrider_server.security.principal import ANONYMOUS, Principal, Quota
from outrider_server.sessions.verifier import Verifier

from .test_verifier import finish

RNG = np.random.default_rng(5)
PROMPTS = [random_tokens(RNG, length) for length in (3, 290, 12, 40, 400, 33, 1, 90)]


@pytest.fixture(scope="module")
def truths() -> list[list[int]]:
    return [plain_greedy(target(), prompt, 30) for prompt in PROMPTS]


async def answer(verifier: Verifier, number: int, truth: list[int]) -> list[int]:
    prompt = PROMPTS[number]
    async with conversing(verifier, tap=TAP.info.fingerprint if number % 2 else "") as talk:
        first = await talk.prompt(prompt)
        return await finish(talk, len(prompt), [first.bonus], truth, seed=number)


async def answers(verifier: Verifier, truths: list[list[int]]) -> list[list[int]]:
    return await asyncio.gather(*(answer(verifier, number, truth) for number, truth in enumerate(truths)))


@pytest.mark.parametrize(
    "limits",
    [
        {},
        {"batch_tokens": 5},
        {"batch_tokens": 12, "chunk_tokens": 7},
        {"batch_tokens": 50, "adaptive_trees": False},
    ],
    ids=str,
)
async def test_who_waits_for_whom_changes_no_text(limits, truths):
    async with serving(**limits) as verifier:
        assert await answers(verifier, truths) == truths


@pytest.fixture
def always_busy(monkeypatch) -> None:
    """Whatever the time on this machine."""
    for name in ("_BUSY", "_AT_EASE", "_SHARED"):
        monkeypatch.setattr(tree_budget, name, float("-inf"))


async def wishes(verifier: Verifier, truth: list[int]) -> list[int]:
    async with conversing(verifier) as talk:
        verdicts = [await talk.prompt(PROMPTS[2])]
        for token, after in pairwise(truth[:26]):
            wrong = DraftTree.chain([(after + 1) % VOCAB] * 10)
            verdicts.append(await talk.verdict(len(PROMPTS[2]) + len(verdicts) - 1, (), token, wrong))
    return [verdict.tree_budget for verdict in verdicts]


@pytest.mark.usefixtures("always_busy")
async def test_verdicts_carry_the_wish_unless_told_not_to(truths):
    async with serving(batch_tokens=12) as verifier:
        asked = await wishes(verifier, truths[2])
    assert asked[0] == 0
    assert 1 <= asked[-1] <= 8
    async with serving(batch_tokens=12, adaptive_trees=False) as verifier:
        assert set(await wishes(verifier, truths[2])) == {0}


STRANGER, OTHER = Principal(address="198.51.100.7"), Principal(address="203.0.113.9")


async def opened(stack: AsyncExitStack, verifier: Verifier, principal: Principal = ANONYMOUS):
    talk = await stack.enter_async_context(talking(verifier, principal))
    await talk.open(verifier.describe())
    return talk


async def refusal_of(verifier: Verifier, principal: Principal) -> Reason:
    async with talking(verifier, principal) as talk:
        with pytest.raises(Refusal) as refused:
            await talk.open(verifier.describe())
        return refused.value.reason


@pytest.mark.parametrize(
    ("principal", "most", "limits"),
    [
        (STRANGER, 3, {}),
        (STRANGER, 1, {"client_sessions": 1}),
        (Principal("key"), 3, {}),
        (Principal("key", quota=Quota(sessions=5)), 5, {}),
        (ANONYMOUS, 6, {}),
    ],
    ids=["address", "a limit", "key", "key with a quota", "loopback"],
)
async def test_one_client_has_half_of_the_sessions_unless_it_is_told_otherwise(principal, most, limits):
    async with serving(clock=Clock(), max_sessions=6, **limits) as verifier, AsyncExitStack() as stack:
        for _ in range(most):
            await opened(stack, verifier, principal)
        full = Reason.SERVER_FULL if principal is ANONYMOUS else Reason.OVER_QUOTA
        assert await refusal_of(verifier, principal) is full
        if principal is not ANONYMOUS:
            await opened(stack, verifier, OTHER)
