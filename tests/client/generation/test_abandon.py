"""Answers that nobody wants any more, left at any moment: nothing goes on behind the caller's back, and the session
serves the next one."""

from __future__ import annotations

import asyncio
import contextlib
from typing import get_args

import pytest

from outrider_client.async_client import AsyncClient
from outrider_client.connection.link_state import LinkState
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.config import Mode
from outrider_client.core.events import Cycle, LinkChanged
from outrider_client.drafting.drafting_thread import DraftingThread

PROMPT = [5, 9, 12, 3]
NEXT = [*PROMPT, 8]
NEW = 40
MODES = [mode for mode in get_args(Mode) if mode != "offline"]
MOMENTS = range(1, 30, 2)  # after so many events
THE_LINKS = {"outrider link reader", "fake server reader"}  # tasks that live as long as the session


class Watched(DraftingThread):
    """Notes its ahead_drafts, and how many jobs it has been given and has done."""

    def __init__(self, drafter):
        super().__init__(drafter)
        self.ahead_drafts = []
        self.given = self.done = 0
        run = self._worker.run

        async def counted(work):
            self.given += 1
            return await run(lambda: self._counted(work))

        self._worker.run = counted

    def _counted(self, work):
        try:
            return work()
        finally:
            self.done += 1

    def draft_ahead(self, tokens, tree, wanted, ready=None):
        self.ahead_drafts.append(super().draft_ahead(tokens, tree, wanted, ready))
        return self.ahead_drafts[-1]

    async def is_idle(self):
        """True if no job followed the one that may still have been running."""
        given = self.given
        await self._worker.run(lambda: None)
        return self.given == given + 1 and self.done == self.given


@pytest.fixture
async def client_and_drafting(verifier, models, fast):
    drafting = Watched(models.drafter)
    transport = LocalTransport(verifier.describe, verifier.session)
    async with AsyncClient(fast, models=models, transport=transport, drafting=drafting) as client:
        yield client, drafting


async def assert_rest(drafting: Watched) -> None:
    """No task is pending other than the test itself and the session's own, and no thread drafts."""
    pending = asyncio.all_tasks() - {asyncio.current_task()}
    assert not [task for task in pending if task.get_name() not in THE_LINKS]
    assert all(ahead_draft.task.done() for ahead_draft in drafting.ahead_drafts)
    assert await drafting.is_idle()


async def leave(client, after, **choices):
    """Close the generator after so many events."""
    async with contextlib.aclosing(client.generate(PROMPT, **choices)) as events:
        async for _ in events:
            after -= 1
            if after == 0:
                return


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("moment", MOMENTS)
async def test_nothing_goes_on(client_and_drafting, verifier, language, mode, moment):
    client, drafting = client_and_drafting
    await leave(client, moment, mode=mode, in_flight=3)
    await asyncio.sleep(0)
    await assert_rest(drafting)
    completion = await client.complete(NEXT, mode=mode, in_flight=3)
    assert completion.token_ids == language.answer(NEXT, NEW)
    assert completion.statistics.outages == 0
    assert len(verifier.opens) == 1


@pytest.mark.parametrize("mode", ["stream", "server-draft", "stop-and-wait"])
@pytest.mark.parametrize("length", range(3, 13))
async def test_nothing_is_asked_once_the_answer_is_over(client_and_drafting, verifier, language, mode, length):
    """After an outage the verdict on what the drafter wrote may end the answer."""
    client, _ = client_and_drafting
    await client.complete(PROMPT, mode=mode, max_new_tokens=1)
    language.eos_at = len(PROMPT) + length
    verifier.cut_before = {verifier.num_verdicts + 2}
    seen, was_online = [], True
    async with contextlib.aclosing(client.generate(PROMPT, mode=mode)) as events:
        async for event in events:
            if was_online and isinstance(event, LinkChanged) and event.state is LinkState.OFFLINE:
                verifier.down_for, was_online = 40, False  # until the drafter has gone beyond the end
            seen.append(event)
    assert seen[-1].reason == "eos"
    for _ in range(20):  # whatever else has been asked reaches the server
        await asyncio.sleep(0)
    last = verifier.requests[-1]
    assert last.seq == max(event.request.seq for event in seen if isinstance(event, Cycle))
    prompt = [*PROMPT, 9]
    language.eos_at = -1
    assert (await client.complete(prompt, mode=mode)).token_ids == language.answer(prompt, NEW)
