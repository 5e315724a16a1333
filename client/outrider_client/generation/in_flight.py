"""The drafts under way and what is being drafted for their outcomes.

                     committed | assumed
    flight 0   ...text, root - tree ---- lookout: drafts for its outcomes
    flight 1   ...text + likeliest outcome of 0, root - tree ---- lookout ...

Every flight but the first was sent for the likeliest outcome of the one before. When the first one's verdict says
otherwise, the others answer nothing, and the lookout of the first may have the draft that is needed.
"""

from __future__ import annotations

import asyncio
from collections import deque
from dataclasses import dataclass

from outrider_client.drafting.drafting_thread import Lookout
from outrider_client.generation.generation import Answer
from outrider_drafters.trees.grow import Drafted
from outrider_drafters.trees.predraft import Outcome, PreDraft
from outrider_proto.frames import Draft, Verdict
from outrider_proto.tree import ROOT


@dataclass(frozen=True, slots=True)
class Flight:
    """A draft under way below `text`, whose last token is its root."""

    request: Draft
    text: tuple[int, ...]
    lookout: Lookout | None


class Flights:
    """At most `width` of them."""

    def __init__(self, answer: Answer, width: int) -> None:
        self._answer = answer
        self._width = width
        self._flights: deque[Flight] = deque()
        self._looking_out: set[asyncio.Future[tuple[PreDraft, ...]]] = set()

    @property
    def any(self) -> bool:
        return bool(self._flights)

    async def set_out(self) -> None:
        """Draft on what stands and send that."""
        self._send(await self._answer.draft())

    async def next_verdict(self) -> Verdict:
        """On the oldest flight; until it comes further drafts are sent as soon as they are made. Raises LinkError."""
        verdict = asyncio.ensure_future(self._answer.next_verdict())
        try:
            while (lookout := self._next_to_send) is not None:
                await asyncio.wait((verdict, lookout.task), return_when=asyncio.FIRST_COMPLETED)
                if verdict.done() or not self._send_ahead(lookout):
                    break
            return await verdict
        finally:
            verdict.cancel()

    async def follow(self, verdict: Verdict) -> None:
        """After the verdict on the oldest flight: unless the next one is right, send what was drafted for it, if it
        was."""
        flight = self._flights.popleft()
        outcome = _outcome(verdict)
        next_is_right = bool(self._flights) and self._answer.is_under_way(self._flights[0].request)
        if not next_is_right:
            self.cancel()
        drafted = None if flight.lookout is None else await self._answer.take_foreseen(flight.lookout, outcome)
        if drafted is not None and not next_is_right:
            self._send(drafted)

    def cancel(self) -> None:
        """Nobody waits for any of them."""
        for flight in self._flights:
            if flight.lookout is not None:
                self._answer.drop(flight.lookout)
        self._flights.clear()

    async def close(self) -> None:
        """Cancel, and wait until nothing is under way."""
        self.cancel()
        await asyncio.gather(*self._looking_out, return_exceptions=True)

    @property
    def _next_to_send(self) -> Lookout | None:
        """The newest flight's, while there may be more flights."""
        return self._flights[-1].lookout if len(self._flights) < self._width else None

    def _send(self, drafted: Drafted) -> None:
        request, text = self._answer.send(drafted), self._answer.text
        self._put(request, text, drafted)

    def _put(self, request: Draft, text: tuple[int, ...], drafted: Drafted) -> None:
        lookout = self._answer.look_out(text, drafted)
        self._flights.append(Flight(request, text, lookout))
        if lookout is not None:
            self._looking_out.add(lookout.task)
            lookout.task.add_done_callback(self._looking_out.discard)

    def _send_ahead(self, lookout: Lookout) -> bool:
        """Send the draft for the likeliest outcome of the newest flight; False when there is none."""
        likeliest = next(iter(lookout.task.result()), None)
        if likeliest is None or not likeliest.drafted.tree.tokens:
            return False
        newest = self._flights[-1]
        text = _text_after(newest, likeliest.outcome)
        if not self._answer.has_room(text):
            return False
        request = self._answer.send_ahead(text, likeliest.drafted)
        self._put(request, text, likeliest.drafted)
        return True


def _outcome(verdict: Verdict) -> Outcome:
    return Outcome(verdict.path[-1] if verdict.path else ROOT, -1 if verdict.bonus is None else verdict.bonus)


def _text_after(flight: Flight, outcome: Outcome) -> tuple[int, ...]:
    tree = flight.request.tree
    path: list[int] = []
    node = outcome.node
    while node != ROOT:
        path.append(tree.tokens[node])
        node = tree.parents[node]
    return (*flight.text, *reversed(path), outcome.bonus)
