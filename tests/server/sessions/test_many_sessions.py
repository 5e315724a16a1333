"""Many sessions at once: every text is the plain loop's, a full server refuses in time, and
clients obey when the server asks for smaller trees."""

import asyncio
from itertools import pairwise

import numpy as np
import pytest
from talk import TAP, talking
from tiny_targets import VOCAB, random_tokens, target

from outrider_proto.errors import UsageError
from outrider_proto.frames import ServerTree
from outrider_proto.tree import DraftTree
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.scheduling import tree_budget
from outrider_server.sessions.verifier import Verifier

from ..engine.test_server_drafter import Prophet, serving, text_of
from .test_verifier import finish

RNG = np.random.default_rng(5)
PROMPTS = [random_tokens(RNG, length) for length in (3, 290, 12, 40, 400, 33, 1, 90)]


@pytest.fixture(scope="module")
def truths() -> list[list[int]]:
    return [plain_greedy(target(), prompt, 30) for prompt in PROMPTS]


async def answer(verifier: Verifier, number: int, truth: list[int]) -> list[int]:
    prompt = PROMPTS[number]
    async with talking(verifier) as talk:
        await talk.open(verifier.describe(), tap=TAP.info.fingerprint if number % 2 else "")
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
    async with serving([], **limits) as verifier:
        assert await answers(verifier, truths) == truths


async def test_passes_keep_to_the_budget(truths, monkeypatch):
    """But for a draft that is larger: its rows are the root, its tree and at most so short a context."""
    async with serving([], batch_tokens=40, chunk_tokens=30) as verifier:
        rows = []
        engine = verifier._engine_loop._passes._engine
        launch = engine.launch
        monkeypatch.setattr(
            engine, "launch", lambda inputs: rows.append([w.num_rows for w in inputs]) or launch(inputs)
        )
        assert await answers(verifier, truths) == truths
    assert max(sum(of_pass) for of_pass in rows) <= 40
    assert max(map(len, rows)) > 1


@pytest.fixture
def always_busy(monkeypatch) -> None:
    """Whatever the time on this machine."""
    for name in ("_BUSY", "_AT_EASE", "_SHARED"):
        monkeypatch.setattr(tree_budget, name, float("-inf"))


async def wishes(verifier: Verifier, truth: list[int]) -> list[int]:
    async with talking(verifier) as talk:
        await talk.open(verifier.describe())
        verdicts = [await talk.prompt(PROMPTS[2])]
        for token, after in pairwise(truth[:26]):
            wrong = DraftTree.chain([(after + 1) % VOCAB] * 10)
            verdicts.append(await talk.verdict(len(PROMPTS[2]) + len(verdicts) - 1, (), token, wrong))
    return [verdict.tree_budget for verdict in verdicts]


@pytest.mark.usefixtures("always_busy")
async def test_verdicts_carry_the_wish_unless_told_not_to(truths):
    async with serving([], batch_tokens=12) as verifier:
        asked = await wishes(verifier, truths[2])
    assert asked[0] == 0
    assert 1 <= asked[-1] <= 8
    async with serving([], batch_tokens=12, adaptive_trees=False) as verifier:
        assert set(await wishes(verifier, truths[2])) == {0}


async def test_the_servers_own_drafts_obey_too(truths, monkeypatch):
    prompt, truth = PROMPTS[2], truths[2]
    async with serving([Prophet(prompt + truth, errs=1000)]) as verifier, talking(verifier) as talk:
        verifier._engine_loop._tree_budget._most = 3
        sizes = []
        engine = verifier._engine_loop._passes._engine
        launch = engine.launch
        monkeypatch.setattr(
            engine, "launch", lambda inputs: sizes.extend(len(w.tree) for w in inputs) or launch(inputs)
        )
        await talk.open(verifier.describe(), tap=TAP.info.fingerprint)
        verdicts = await talk.decode(0, prompt[:-1], prompt[-1], 25, tree=ServerTree(3, 4, 12))
    assert text_of(verdicts) == truth[:25]
    assert max(sizes[:7]) == 3  # it is never looked at anew before that


@pytest.mark.parametrize(
    ("limits", "message"),
    [
        ({"batch_tokens": 0}, "batch_tokens=0"),
        ({"batch_tokens": 16, "chunk_tokens": 17}, "chunk_tokens=17: need at most batch_tokens=16"),
    ],
)
def test_limits_out_of_range(limits, message):
    with pytest.raises(UsageError, match=message):
        LimitsConfig(**limits)


def test_a_small_pass_has_small_chunks():
    assert LimitsConfig(batch_tokens=16).chunk_rows == 16
    assert LimitsConfig(batch_tokens=16, chunk_tokens=7).chunk_rows == 7
