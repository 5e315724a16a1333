"""The run of the demo: prompts over an emulated link, with an outage during one answer."""

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
from outrider_models import FAMILIES, Sample, generate, score_all
from outrider_netsim import Link, Profile

WAIT_FOR_LINK_S = 60
PAUSE_S = 0.6  # between answers, for people who watch


@dataclass(frozen=True, slots=True)
class Plan:
    """The prompts of the demo and the time of its outage."""

    seed: int
    per_family: int
    profile: Profile
    cut_from: int  # the link is cut in the first answer from this one on, counted from 0,
    cut_after: int  # that reaches so many committed tokens
    outage_s: float

    def samples(self) -> list[Sample]:
        """Draw held-out prompts, one of each family in turn."""
        drawn = [generate(family, "test", self.seed, self.per_family) for family in FAMILIES]
        return [sample for turn in zip(*drawn, strict=True) for sample in turn]


class DemoRun:
    """One run: its link, client and recording."""

    def __init__(self, plan: Plan, link: Link, client: AsyncClient, console: Console) -> None:
        self._plan = plan
        self._link = link
        self._client = client
        self._console = console
        self._recording = Recording()
        self._started_at = time.perf_counter()

    async def run(self) -> Recording:
        """Answer every prompt; then repeat the one with the outage without it, to compare."""
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
        view.show_link("link cut")
        asyncio.get_running_loop().call_later(self._plan.outage_s, self._end_outage, view, started)

    def _end_outage(self, view: AnswerView, started: float) -> None:
        self._link.restore()
        self._recording.outages[:] = [(started, self._now())]
        view.show_link("link restored")

    async def _compare(self, sample: Sample) -> None:
        undisturbed = Answer(sample.family, "", self._now())
        async for event in self._events(sample):
            undisturbed.note(event, self._now())
        disturbed = self._recording.cut_answer
        disturbed.as_without_outage = disturbed.text == undisturbed.text

    def _now(self) -> float:
        return time.perf_counter() - self._started_at
