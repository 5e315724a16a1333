"""The run of the demo: questions over an emulated link, an outage during one answer, and the check of them all."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from rich.console import Console
from transformers import AutoModelForCausalLM
from transformers.utils import logging

from demonstration.questions import Question
from demonstration.recording import Answer, Recording
from demonstration.terminal import AnswerView
from outrider_client import AnswerText, AsyncClient, LocalModels, Mode
from outrider_netsim import Link, Profile

WAIT_FOR_LINK_S = 60
PAUSE_S = 0.3  # between answers, for people who watch
WARM_UP_TOKENS = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """How the questions are asked, and when the outage comes."""

    seed: int
    profile: Profile
    max_new_tokens: int
    cut: int  # this question, counted from 0, is asked again, and
    cut_after: int  # the link is cut once its answer has so many tokens
    outage_s: float


class DemoRun:
    """One run: its link, client and recording."""

    def __init__(
        self, plan: Plan, questions: list[Question], link: Link, client: AsyncClient, console: Console
    ) -> None:
        self._plan = plan
        self._questions = questions
        self._link = link
        self._client = client
        self._console = console
        self._recording = Recording()
        self._started_at = time.perf_counter()

    async def run(self) -> Recording:
        """Answer every question by streaming and with the drafter, then one of them again with an outage."""
        for mode in ("stream", "auto"):  # first uses of both sides would count as one mode's time
            await self._client.complete(list(self._questions[-1].messages), mode=mode, max_new_tokens=WARM_UP_TOKENS)
        # No question twice in a row: the server would still hold its prompt. And neither mode always goes first.
        orders: tuple[tuple[Mode, Mode], ...] = (("stream", "auto"), ("auto", "stream"))
        for first, second in orders:
            for number, question in enumerate(self._questions):
                await self._ask(question, first if number % 2 == 0 else second)
        await self._ask(self._questions[self._plan.cut], "auto", cut=True)
        return self._recording

    async def _ask(self, question: Question, mode: Mode, *, cut: bool = False) -> None:
        await asyncio.sleep(PAUSE_S)
        answer = Answer(question.subject, question.text, mode, self._now())
        self._recording.answers.append(answer)
        events = self._client.generate(list(question.messages), mode=mode, wait_for_link_s=WAIT_FOR_LINK_S)
        written = AnswerText()
        with AnswerView(self._console, answer) as view:
            async with contextlib.aclosing(events):
                async for event in events:
                    answer.note(event, self._now())
                    written.take(event)
                    view.refresh()
                    if cut and answer.num_committed >= self._plan.cut_after and not self._recording.outages:
                        self._begin_outage(view)
        answer.token_ids = written.token_ids

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

    def _now(self) -> float:
        return time.perf_counter() - self._started_at


@torch.inference_mode()
def check(recording: Recording, asked: Sequence[Question], directory: Path, models: LocalModels, limit: int) -> None:
    """Say of every answer whether it is the target's own, token for token.

    It is asked by transformers' `generate`, which shares no code with server and client.
    """
    logging.disable_progress_bar()  # type: ignore[no-untyped-call] # transformers'
    model = AutoModelForCausalLM.from_pretrained(str(directory), dtype=torch.float32)
    own: dict[str, tuple[int, ...]] = {}
    for question in asked:
        prompt = torch.tensor([models.encode(list(question.messages), raw=False)])
        # Without a mask, generate infers one from the pad token, which may occur in a prompt.
        output = model.generate(  # type: ignore[misc] # annotated with a doubled self
            prompt, attention_mask=torch.ones_like(prompt), do_sample=False, max_new_tokens=limit
        )
        own[question.text] = tuple(output[0, prompt.shape[1] :].tolist())
    for answer in recording.answers:
        answer.is_targets_own = answer.token_ids == own[answer.prompt]
