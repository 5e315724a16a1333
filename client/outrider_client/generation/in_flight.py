"""The drafts in flight, and the drafts being made ahead for their outcomes.

                     committed | assumed
    draft 0    ...text, root - tree ---- ahead draft: drafts for its outcomes
    draft 1    ...text + likeliest outcome of 0, root - tree ---- ahead draft ...

Every draft but the first was sent for the likeliest outcome of the one before. If the first one's verdict differs, the
others are void, and the ahead draft of the first may contain the draft that is needed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from outrider_client.drafting.drafting_thread import AheadDraft
from outrider_client.generation.generation import Generation
from outrider_drafters.trees.grow import ScoredTree
from outrider_drafters.trees.predraft import PreDraft, TreeOutcome
from outrider_proto.frames import Draft, Verdict
from outrider_proto.tree import ROOT


@dataclass(frozen=True, slots=True)
class DraftInFlight:
    """A draft that was sent on `text`, whose last token is its root."""

    request: Draft
    text: tuple[int, ...]
    ahead_draft: AheadDraft | None


class InFlight:
    """Keeps up to `width` drafts in flight."""

    def __init__(self, generation: Generation, width: int) -> None:
        self._generation = generation
        self._width = width
        self._sent: deque[DraftInFlight] = deque()
        self._ahead_tasks: set[asyncio.Future[tuple[PreDraft, ...]]] = set()

    @property
    def any(self) -> bool:
        return bool(self._sent)

    async def send_first(self) -> None:
        """Draft on the committed text and send that."""
        self._send(await self._generation.draft())

    async def next_verdict(self) -> Verdict:
        """Wait for the verdict on the oldest draft; send further drafts as they get ready. Raises LinkError."""
        verdict = asyncio.ensure_future(self._generation.next_verdict())
        try:
            while (ahead_draft := self._next_to_send) is not None:
                await asyncio.wait((verdict, ahead_draft.task), return_when=asyncio.FIRST_COMPLETED)
                # Once the verdict is there nothing more may be sent on a guess: it may have made the guess wrong.
                if verdict.done() or not self._send_ahead(ahead_draft):
                    break
            return await verdict
        finally:
            verdict.cancel()

    async def advance(self, verdict: Verdict) -> None:
        """Handle the oldest draft's verdict; send what was drafted ahead for it, unless the next draft assumed it."""
        sent = self._sent.popleft()
        outcome = _outcome(verdict)
        next_is_right = bool(self._sent) and self._generation.is_awaited(self._sent[0].request)
        if not next_is_right:
            self.cancel()
        drafted = (
            None if sent.ahead_draft is None else await self._generation.take_ahead_draft(sent.ahead_draft, outcome)
        )
        if drafted is not None and not next_is_right:
            self._send(self._generation.within_rules(self._generation.text, drafted))

    def cancel(self) -> None:
        for sent in self._sent:
            if sent.ahead_draft is not None:
                self._generation.drop_ahead_draft(sent.ahead_draft)
        self._sent.clear()

    async def close(self) -> None:
        """Cancel all drafts and wait until none is being made."""
        self.cancel()
        await asyncio.gather(*self._ahead_tasks, return_exceptions=True)

    @property
    def _next_to_send(self) -> AheadDraft | None:
        """The ahead draft of the newest draft, while more may be in flight."""
        return self._sent[-1].ahead_draft if len(self._sent) < self._width else None

    def _send(self, drafted: ScoredTree) -> None:
        request, text = self._generation.send(drafted), self._generation.text
        self._put(request, text, drafted)

    def _put(self, request: Draft, text: tuple[int, ...], drafted: ScoredTree) -> None:
        ahead_draft = self._generation.draft_ahead(text, drafted)
        self._sent.append(DraftInFlight(request, text, ahead_draft))
        if ahead_draft is not None:
            self._ahead_tasks.add(ahead_draft.task)
            ahead_draft.task.add_done_callback(self._ahead_tasks.discard)

    def _send_ahead(self, ahead_draft: AheadDraft) -> bool:
        """Send the draft for the likeliest outcome of the newest draft; return False if there is none."""
        likeliest = next(iter(ahead_draft.task.result()), None)
        if likeliest is None:
            return False
        text = _text_after(self._sent[-1], likeliest.outcome)
        drafted = self._generation.within_rules(text, likeliest.drafted)
        if not drafted.tree.tokens or not self._generation.has_room(text):
            return False
        self._put(self._generation.send_ahead(text, drafted), text, drafted)
        return True


def _outcome(verdict: Verdict) -> TreeOutcome:
    return TreeOutcome(verdict.path[-1] if verdict.path else ROOT, -1 if verdict.bonus is None else verdict.bonus)


def _text_after(sent: DraftInFlight, outcome: TreeOutcome) -> tuple[int, ...]:
    tree = sent.request.tree
    path: list[int] = []
    node = outcome.node
    while node != ROOT:
        path.append(tree.tokens[node])
        node = tree.parents[node]
    return (*sent.text, *reversed(path), outcome.bonus)
