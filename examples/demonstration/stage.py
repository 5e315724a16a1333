"""What the demo does: prompts through an emulated link, and an outage in the midst of one answer."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass

from rich.console import Console

from demonstration.recording import Answer, Recording
from demonstration.terminal import AnswerView
from outrider_client import AsyncClient, Event, PromptMessage
from outrider_models.corpus import FAMILIES, Sample, generate
from outrider_models.corpus.check import score_all
from outrider_netsim import Link, Profile

WAIT_FOR_LINK_S = 60
PAUSE_S = 0.6  # between answers, for those who watch


@dataclass(frozen=True, slots=True)
class Plan:
    """What is asked, and when the link goes."""

    seed: int
    per_family: int
    profile: Profile
    cut_from: int  # the link goes in the first answer, counted from 0, with this number or a higher one
    cut_after: int  # that has so many committed tokens, and then
    outage_s: float

    def samples(self) -> list[Sample]:
        """Held-out prompts, the families in turn."""
        drawn = [generate(family, "test", self.seed, self.per_family) for family in FAMILIES]
        return [sample for turn in zip(*drawn, strict=True) for sample in turn]


class Stage:
    """Link, client and record of one performance."""

    def __init__(self, plan: Plan, link: Link, client: AsyncClient, console: Console) -> None:
        self._plan = plan
        self._link = link
        self._client = client
        self._console = console
        self._recording = Recording()
        self._started_at = time.perf_counter()

    async def perform(self) -> Recording:
        """Every prompt in turn; then the one with the outage again without, to compare."""
        samples = self._plan.samples()
        for number, sample in enumerate(samples):
            await self._ask(sample, may_cut=number >= self._plan.cut_from)
            await asyncio.sleep(PAUSE_S)
        if self._recording.outages:
            await self._compare(samples[self._recording.answers.index(self._recording.cut_answer)])
        rights = await asyncio.to_thread(score_all, samples, [answer.text for answer in self._recording.answers])
        for answer, right in zip(self._recording.answers, rights, strict=True):
            answer.right = right
        return self._recording

    async def _ask(self, sample: Sample, *, may_cut: bool) -> None:
        answer = Answer(sample.family, sample.messages[-1].content, self._now())
        self._recording.answers.append(answer)
        with AnswerView(self._console, answer) as view:
            async for event in self._events(sample):
                answer.note(event, self._now())
                view.refresh()
                if may_cut and answer.num_committed >= self._plan.cut_after and not self._recording.outages:
                    self._begin_outage(view)

    async def _events(self, sample: Sample) -> AsyncIterator[Event]:
        messages = [PromptMessage(role=message.role, content=message.content) for message in sample.messages]
        async with contextlib.aclosing(self._client.generate(messages, wait_for_link_s=WAIT_FOR_LINK_S)) as events:
            async for event in events:
                yield event

    def _begin_outage(self, view: AnswerView) -> None:
        self._link.cut()
        started = self._now()
        self._recording.outages.append((started, started + self._plan.outage_s))
        view.link_says("link cut")
        asyncio.get_running_loop().call_later(self._plan.outage_s, self._end_outage, view, started)

    def _end_outage(self, view: AnswerView, started: float) -> None:
        self._link.restore()
        self._recording.outages[:] = [(started, self._now())]
        view.link_says("link restored")

    async def _compare(self, sample: Sample) -> None:
        undisturbed = Answer(sample.family, "", self._now())
        async for event in self._events(sample):
            undisturbed.note(event, self._now())
        disturbed = self._recording.cut_answer
        disturbed.as_without_outage = disturbed.text == undisturbed.text

    def _now(self) -> float:
        return time.perf_counter() - self._started_at
