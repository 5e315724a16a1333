"""Drafting ahead, step by step, on a script: which drafts leave when, and what is counted of them.

The drafter is sure of itself, and wrong where the script says so. Verdicts are held until all that can be drafted
meanwhile has been, so that nothing depends on how fast anything is.
"""

from __future__ import annotations

import asyncio

import pytest
import torch

from outrider_client.async_client import AsyncClient
from outrider_client.connection.transport import LocalConnection, LocalTransport
from outrider_client.drafting.drafting_thread import DraftingThread
from outrider_drafters.contracts.drafter import UNLIMITED
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto.frames import Draft, Verdict

from ..conftest import VOCAB, FakeDrafter, FakeDraftState

PROMPT = (5, 9, 12, 3)
LEVELS = 3
CYCLE = LEVELS + 1  # tokens a verdict, where all is right
OUTCOMES = 2
CYCLES = 5
NEW = 1 + CYCLES * CYCLE
SECOND, NEVER = "second", "never"  # what the drafter makes of the token where it is wrong
FIRST_ROOT = len(PROMPT)  # position of the first draft's root


class SureState(FakeDraftState):
    """After every text it is sure of the language's next token, but at the positions of `wrong` of another one."""

    def __init__(self, drafter) -> None:
        super().__init__(drafter.language)
        self._wrong = drafter.wrong
        self.max_levels = drafter.max_levels

    def _logits(self, path):
        text = [*self.tokens, *path]
        right = self._language.following(text)
        logits = torch.full((VOCAB,), -30.0)
        logits[right] = 30.0
        if (how := self._wrong.get(len(text))) is not None:
            logits[1 + right % (VOCAB - 1)] = 31.0
            logits[right] = 30.0 if how == SECOND else -torch.inf
        return logits


class SureDrafter(FakeDrafter):
    def __init__(self, language, wrong, reach=UNLIMITED):
        super().__init__(language)
        self.wrong = wrong
        self.max_levels = reach

    def new_state(self):
        return SureState(self)


class CountingThread(DraftingThread):
    """Notes what was asked of it."""

    def __init__(self, drafter):
        super().__init__(drafter)
        self.num_grown = 0
        self.ahead_drafts = []

    async def grow(self, tokens, plan, head=None):
        self.num_grown += 1
        return await super().grow(tokens, plan, head)

    def draft_ahead(self, tokens, tree, wanted, ready=None):
        self.ahead_drafts.append(super().draft_ahead(tokens, tree, wanted, ready))
        return self.ahead_drafts[-1]

    async def at_rest(self):
        """Wait until all possible drafts are made and the tasks that waited for them have run."""
        for _ in range(20):
            if under_way := [ahead_draft.task for ahead_draft in self.ahead_drafts if not ahead_draft.task.done()]:
                await asyncio.wait(under_way)
            await asyncio.sleep(0)


class WatchedConnection(LocalConnection):
    """Logs drafts as they leave and verdicts as they arrive, which they do when all is at rest; a stale one not before
    a draft on what stands has left."""

    def __init__(self, session, log, drafting):
        super().__init__(session)
        self._log = log
        self._drafting = drafting

    def send(self, frame):
        if isinstance(frame, Draft):
            self._log.append(frame)
        super().send(frame)

    async def receive(self):
        frame = await super().receive()
        if isinstance(frame, Verdict):
            await self._drafting.at_rest()
            while frame.stale and not self._has_set_out_after(frame.seq):  # noqa: ASYNC110  # no time passes
                await asyncio.sleep(0)
            self._log.append(frame)
        return frame

    def _has_set_out_after(self, seq):
        return any(isinstance(sent, Draft) and sent.seq > seq and not sent.assumes for sent in self._log)


class Transport(LocalTransport):
    def __init__(self, verifier, connection, *watched):
        super().__init__(verifier.describe, verifier.session)
        self._connection = lambda: connection(verifier.session, *watched)

    async def connect(self):
        return self._connection()


class ObservedAnswer:
    """The frames and drafts of one answer."""

    def __init__(self, log, drafting, completion):
        self.log = log
        self.drafts = [frame for frame in log if isinstance(frame, Draft)]
        self.verdicts = [frame for frame in log if isinstance(frame, Verdict)]
        self.num_grown = drafting.num_grown
        self.ahead_drafts = drafting.ahead_drafts
        self.tokens = completion.token_ids
        self.statistics = completion.statistics

    def sent_before(self, draft, verdict_number):
        """True if a draft was sent before that verdict arrived."""
        return self.log.index(draft) < self.log.index(self.verdicts[verdict_number])


@pytest.fixture
async def observe(fast, models, verifier, language):
    """Rides a mode on a script, with the chain of LEVELS as every draft."""
    clients = []

    async def mode_run(mode, wrong=(), reach=UNLIMITED, max_new_tokens=NEW, **choices):
        log, drafting = [], CountingThread(SureDrafter(language, dict(wrong), reach))
        transport = Transport(verifier, WatchedConnection, log, drafting)
        clients.append(AsyncClient(fast, models=models, transport=transport, drafting=drafting))
        asked = {"shape": TreeShape.chain(LEVELS), "outcomes": OUTCOMES, "max_new_tokens": max_new_tokens}
        completion = await clients[-1].complete(PROMPT, mode=mode, **(asked | choices))
        assert completion.token_ids == language.answer(PROMPT, max_new_tokens)
        assert completion.statistics.outages == 0
        assert all(ahead_draft.task.done() for ahead_draft in drafting.ahead_drafts)
        return ObservedAnswer(log, drafting, completion)

    yield mode_run
    for client in clients:
        await client.close()


# -- always right -----------------------------------------------------------------------------------------------------


async def test_proactive_drafts_only_once_while_nothing_is_under_way(observe):
    seen = await observe("proactive")
    assert seen.num_grown == 1
    assert seen.statistics.target_calls == 1 + CYCLES
    assert not any(draft.assumes for draft in seen.drafts)
    for number, draft in enumerate(seen.drafts[1:]):  # one at a time: each after the verdict before it
        assert not seen.sent_before(draft, number)
    assert seen.statistics.forecasts == CYCLES - 1  # the last verdict ends the answer
    assert seen.statistics.hit_rate == 1.0


@pytest.mark.parametrize("width", [1, 2, 3, 4])
async def test_never_more_in_flight_than_allowed_and_nothing_for_what_the_limit_cuts_off(observe, verifier, width):
    """A target call for a text that the answer will not reach is the server's time wasted."""
    seen = await observe("pipelined", in_flight=width)
    most = under_way = 0
    for frame in seen.log:
        under_way += 1 if isinstance(frame, Draft) else -1
        most = max(most, under_way)
    assert most == min(width, CYCLES)
    assert all(request.base_len + 1 < len(PROMPT) + NEW for request in verifier.requests)


# -- wrong once: the second token of the second draft -----------------------------------------------------------------

WRONG_AT = FIRST_ROOT + CYCLE + 2
CALLS = 1 + 1 + 1 + 4  # the prompt, right, two tokens, and the fifteen that are left


@pytest.mark.parametrize(("how", "outcomes", "num_grown"), [(NEVER, 2, 2), (SECOND, 2, 1), (SECOND, 1, 2)])
async def test_proactive_has_a_draft_for_the_second_likeliest_or_misses_and_drafts_again(
    observe, how, outcomes, num_grown
):
    seen = await observe("proactive", {WRONG_AT: how}, outcomes=outcomes)
    assert seen.num_grown == num_grown
    assert (seen.statistics.target_calls, seen.statistics.forecasts) == (CALLS, CALLS - 2)
    assert seen.statistics.hit_rate == (CALLS - 1 - num_grown) / (CALLS - 2)


@pytest.mark.parametrize("how", [SECOND, NEVER])
@pytest.mark.parametrize("width", [2, 3, 4])
async def test_a_miss_costs_no_extra_round_trip(observe, verifier, how, width):
    """The draft for what came true leaves at once, before the server has passed over the others."""
    seen = await observe("pipelined", {WRONG_AT: how}, in_flight=width)
    truth = 2  # number of the verdict that says something else
    stale = [number for number, verdict in enumerate(seen.verdicts) if verdict.stale]
    assert stale == list(range(truth + 1, truth + width))
    redrafted = next(draft for draft in seen.drafts[3:] if not draft.assumes)
    assert seen.sent_before(redrafted, truth + 1)
    assert seen.num_grown == (1 if how == SECOND else 2)
    assert seen.statistics.stale_drafts == verifier.num_stale == width - 1
    assert seen.statistics.target_calls == CALLS


@pytest.mark.parametrize("mode", ["proactive", "pipelined"])
@pytest.mark.parametrize("wrong", [{}, {WRONG_AT: NEVER}, {WRONG_AT: SECOND}])
async def test_features_are_sent_once(observe, verifier, mode, wrong):
    """But for the root's, without which a draft would get no frame of them at all."""
    await observe(mode, wrong)
    known = 0
    for request in verifier.requests:
        assert min(known, request.base_len) <= request.features_from
        known = max(known, request.base_len + len(request.context) + 1)
