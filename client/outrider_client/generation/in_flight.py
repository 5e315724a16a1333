"""The drafts under way and what is being drafted for their outcomes.

                     committed | assumed
    flight 0   ...text, root - tree ---- ahead_draft: drafts for its outcomes
    flight 1   ...text + likeliest outcome of 0, root - tree ---- ahead_draft ...

Every flight but the first was sent for the likeliest outcome of the one before. When the first one's verdict says
otherwise, the others answer nothing, and the ahead_draft of the first may have the draft that is needed.
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
    """A draft under way below `text`, whose last token is its root."""

    request: Draft
    text: tuple[int, ...]
    ahead_draft: AheadDraft | None


class InFlight:
    """At most `width` of them."""

    def __init__(self, generation: Generation, width: int) -> None:
        self._generation = generation
        self._width = width
        self._flights: deque[DraftInFlight] = deque()
        self._ahead_tasks: set[asyncio.Future[tuple[PreDraft, ...]]] = set()

    @property
    def any(self) -> bool:
        return bool(self._flights)

    async def send_first(self) -> None:
        """Draft on what stands and send that."""
        self._send(await self._generation.draft())

    async def next_verdict(self) -> Verdict:
        """On the oldest flight; until it comes further drafts are sent as soon as they are made. Raises LinkError."""
        verdict = asyncio.ensure_future(self._generation.next_verdict())
        try:
            while (ahead_draft := self._next_to_send) is not None:
                await asyncio.wait((verdict, ahead_draft.task), return_when=asyncio.FIRST_COMPLETED)
                if verdict.done() or not self._send_ahead(ahead_draft):
                    break
            return await verdict
        finally:
            verdict.cancel()

    async def advance(self, verdict: Verdict) -> None:
        """After the verdict on the oldest flight: unless the next one is right, send what was drafted for it, if it
        was."""
        flight = self._flights.popleft()
        outcome = _outcome(verdict)
        next_is_right = bool(self._flights) and self._generation.is_awaited(self._flights[0].request)
        if not next_is_right:
            self.cancel()
        drafted = (
            None if flight.ahead_draft is None else await self._generation.take_ahead_draft(flight.ahead_draft, outcome)
        )
        if drafted is not None and not next_is_right:
            self._send(drafted)

    def cancel(self) -> None:
        """Nobody waits for any of them."""
        for flight in self._flights:
            if flight.ahead_draft is not None:
                self._generation.drop(flight.ahead_draft)
        self._flights.clear()

    async def close(self) -> None:
        """Cancel, and wait until nothing is under way."""
        self.cancel()
        await asyncio.gather(*self._ahead_tasks, return_exceptions=True)

    @property
    def _next_to_send(self) -> AheadDraft | None:
        """The newest flight's, while there may be more flights."""
        return self._flights[-1].ahead_draft if len(self._flights) < self._width else None

    def _send(self, drafted: ScoredTree) -> None:
        request, text = self._generation.send(drafted), self._generation.text
        self._put(request, text, drafted)

    def _put(self, request: Draft, text: tuple[int, ...], drafted: ScoredTree) -> None:
        ahead_draft = self._generation.draft_ahead(text, drafted)
        self._flights.append(DraftInFlight(request, text, ahead_draft))
        if ahead_draft is not None:
            self._ahead_tasks.add(ahead_draft.task)
            ahead_draft.task.add_done_callback(self._ahead_tasks.discard)

    def _send_ahead(self, ahead_draft: AheadDraft) -> bool:
        """Send the draft for the likeliest outcome of the newest flight; False when there is none."""
        likeliest = next(iter(ahead_draft.task.result()), None)
        if likeliest is None or not likeliest.drafted.tree.tokens:
            return False
        newest = self._flights[-1]
        text = _text_after(newest, likeliest.outcome)
        if not self._generation.has_room(text):
            return False
        request = self._generation.send_ahead(text, likeliest.drafted)
        self._put(request, text, likeliest.drafted)
        return True


def _outcome(verdict: Verdict) -> TreeOutcome:
    return TreeOutcome(verdict.path[-1] if verdict.path else ROOT, -1 if verdict.bonus is None else verdict.bonus)


def _text_after(flight: DraftInFlight, outcome: TreeOutcome) -> tuple[int, ...]:
    tree = flight.request.tree
    path: list[int] = []
    node = outcome.node
    while node != ROOT:
        path.append(tree.tokens[node])
        node = tree.parents[node]
    return (*flight.text, *reversed(path), outcome.bonus)
