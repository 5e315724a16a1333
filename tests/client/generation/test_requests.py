"""Verdicts and feature rows as they come, in whatever order: who waits for what, and what is asked for again."""

from __future__ import annotations

import asyncio
from collections import deque

import numpy as np
import pytest

from outrider_client.controller.mode_controller import ModeController
from outrider_client.generation.instruments import Instruments
from outrider_client.generation.requests import RequestTracker
from outrider_client.text.transcript import Transcript
from outrider_drafters.trees.grow import ScoredTree
from outrider_proto.errors import LinkError
from outrider_proto.frames import Features, TapInfo, Verdict
from outrider_proto.tree import DraftTree

PROMPT = (1, 2, 3, 4)
NO_TREE = DraftTree()
TREE = DraftTree.chain((10, 11))
VOCAB = 100
WIDTH = 2
TIMEOUT_S = 5.0


class ScriptedLink:
    """Session and link in one: replies come in the order in which they were put; it then waits for more."""

    num_bytes = (0, 0)

    def __init__(self) -> None:
        self.sent = []
        self.proofs = 0
        self._replies = deque()
        self._came = asyncio.Event()

    @property
    def link(self):
        return self

    def put(self, *replies) -> None:
        self._replies += replies
        self._came.set()

    def request(self, request, width) -> None:
        self.sent.append(request)

    async def receive(self, timeout_s):
        if not self._replies and timeout_s <= 0.01:
            return None
        while not self._replies:
            self._came.clear()
            await self._came.wait()
        return self.receive_nowait()

    def receive_nowait(self):
        if not self._replies:
            return None
        reply = self._replies.popleft()
        if isinstance(reply, Exception):
            raise reply
        return reply

    def verdict_arrived(self) -> None:
        self.proofs += 1


class Eater:
    """Takes rows as a drafting thread does."""

    names, stale_tolerant, levels_per_pass, can_draft_ahead, current = ("eater",), False, 1, True, 0

    def __init__(self, fingerprint="tap") -> None:
        self.tap = TapInfo(fingerprint, "fake", WIDTH)
        self.num_features = 0

    def add_features(self, first, rows):
        if len(rows) and first <= self.num_features:
            self.num_features = max(self.num_features, first + len(rows))


class Stage:
    """An answer in progress; `former` is the one before it."""

    def __init__(self, drafting, former=None) -> None:
        self.now = 0.0
        self.link = ScriptedLink() if former is None else former.link
        self.transcript = Transcript() if former is None else former.transcript
        self.transcript.begin(PROMPT, 50)
        self.drafting = drafting
        controller = ModeController(drafting, None, lambda: self.now)
        instruments = Instruments(self.link, controller, ("eater",), lambda: self.now)
        self.meter = instruments.meter
        self.tracker = RequestTracker(self.link, self.transcript, drafting, instruments)

    def asks(self, tree=NO_TREE):
        draft = self.transcript.next_draft(tree, self.tracker.known_features)
        self.tracker.send(draft, ScoredTree(tree))
        return draft

    def asks_ahead(self, text):
        draft = self.transcript.next_ahead(text, TREE)
        self.tracker.send(draft, ScoredTree(TREE))
        return draft

    async def hears(self, verdict):
        """It comes, and stands."""
        self.link.put(verdict)
        asked, heard = await self.tracker.next_verdict(TIMEOUT_S)
        assert heard is verdict
        self.transcript.apply(verdict, VOCAB)
        return asked

    def statistics(self):
        return self.meter.snapshot(self.now, new_tokens=1, unverified=0, bytes_up=0, bytes_down=0, rtt_s=0.0)


def rows(seq, first, count, last=True):
    return Features(seq, first, np.zeros((count, WIDTH), dtype=np.float32), last)


@pytest.fixture
async def stage():
    return Stage(Eater())


@pytest.fixture
async def begun(stage):
    """The prompt is judged, and its rows are there."""
    draft = stage.asks()
    await stage.hears(Verdict(draft.seq, (), 9))
    stage.link.put(rows(draft.seq, 0, len(PROMPT)))
    await stage.tracker.receive_rows(TIMEOUT_S)
    assert stage.drafting.num_features == len(PROMPT)
    return stage


LIKELY = (*PROMPT, 9, 10, 11, 19)  # what the likeliest outcome of TREE makes of the text
LIKELIEST = (*LIKELY, 10, 11, 19)


async def test_stale_answers_are_counted_and_passed_over_among_rows_too(begun):
    first, ahead, further = begun.asks(TREE), begun.asks_ahead(LIKELY), begun.asks_ahead(LIKELIEST)
    await begun.hears(Verdict(first.seq, (), 20))
    begun.link.put(Verdict(ahead.seq, (), None, stale=True), rows(first.seq, 4, 1))
    await begun.tracker.receive_rows(TIMEOUT_S)
    draft = begun.asks(TREE)
    begun.link.put(Verdict(further.seq, (), None, stale=True))
    await begun.hears(Verdict(draft.seq, (), 20))
    assert begun.statistics().stale_drafts == 2
    assert begun.statistics().target_calls == 3  # those that the target answered


async def test_nothing_is_waited_for_for_ever_and_a_lost_link_reaches_the_receiver_of_rows(begun):
    draft = begun.asks(TREE)
    with pytest.raises(LinkError, match="no verdict within 0 s"):
        await begun.tracker.next_verdict(0.0)
    await begun.hears(Verdict(draft.seq, (), 20))
    await begun.tracker.receive_rows(0.0)
    assert begun.drafting.num_features == len(PROMPT)
    begun.link.put(LinkError("cut"))
    with pytest.raises(LinkError, match="cut"):
        await begun.tracker.receive_rows(TIMEOUT_S)


async def test_rows_are_asked_for_once(begun):
    """Rows on their way are not requested again; the root's own row always is."""
    draft = begun.asks(TREE)
    assert draft.features_from == len(PROMPT)
    await begun.hears(Verdict(draft.seq, (0, 1), 20))
    assert begun.tracker.known_features == len(PROMPT) + 3  # not here yet
    following = begun.asks(TREE)
    assert following.features_from == following.base_len == len(PROMPT) + 3
    begun.link.put(rows(draft.seq, 4, 3))
    await begun.hears(Verdict(following.seq, (), 30))
    assert begun.drafting.num_features == len(PROMPT) + 3


async def test_rows_that_are_waited_for_elsewhere_wake_all_who_wait(begun):
    draft = begun.asks(TREE)
    await begun.hears(Verdict(draft.seq, (0,), 20))
    waiting = [asyncio.create_task(begun.tracker.await_rows()) for _ in range(3)]
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    following = begun.asks(TREE)
    begun.link.put(rows(draft.seq, 4, 1, last=False))
    await begun.hears(Verdict(following.seq, (), 30))
    await asyncio.sleep(0)
    assert not any(task.done() for task in waiting)
    begun.link.put(rows(draft.seq, 5, 1))
    begun.tracker.take_arrived()
    await asyncio.wait_for(asyncio.gather(*waiting), TIMEOUT_S)


async def test_waiting_covers_what_has_a_verdict_by_then(begun):
    """Not for the rows of verdicts that come later: those may be on the very draft that is waited for here."""
    draft = begun.asks(TREE)
    await begun.hears(Verdict(draft.seq, (0,), 20))
    waiting = asyncio.create_task(begun.tracker.await_rows())
    await asyncio.sleep(0)
    following = begun.asks(TREE)
    begun.link.put(rows(draft.seq, 4, 2))
    await begun.hears(Verdict(following.seq, (0,), 30))
    await asyncio.wait_for(waiting, TIMEOUT_S)


async def test_rows_beyond_what_stands_are_dropped(begun):
    """A server may send what it likes."""
    draft = begun.asks(TREE)
    begun.link.put(rows(draft.seq, 4, 3))
    await begun.hears(Verdict(draft.seq, (), 20))
    assert begun.drafting.num_features == len(PROMPT)


async def test_waiting_for_rows_loses_no_verdict(begun):
    """A drafter that is tried out while the server writes waits for rows; the next token comes first."""
    decode = begun.transcript.next_decode(begun.tracker.known_features)
    begun.tracker.send(decode)
    await begun.hears(Verdict(decode.seq, (), 20))
    following = Verdict(decode.seq, (), 30)
    begun.link.put(following, rows(decode.seq, 4, 1, last=False), rows(decode.seq, 5, 1))
    await begun.tracker.receive_rows(TIMEOUT_S)
    async with asyncio.timeout(TIMEOUT_S):
        assert (await begun.tracker.next_verdict(TIMEOUT_S))[1] is following


async def test_round_trips_are_kept_apart(begun):
    """Each draft's time on the wire runs from its own sending."""
    begun.now = 10.0
    draft = begun.asks(TREE)
    begun.now = 10.5
    await begun.hears(Verdict(draft.seq, (), 20, queue_us=100_000, verify_us=150_000))
    statistics = begun.statistics()
    assert statistics.split_ms.wire == pytest.approx(250.0)
    assert statistics.split_ms.queue == pytest.approx(100.0)
    assert statistics.verify_ms == pytest.approx(75.0)  # of two calls


async def test_stale_answers_of_the_answer_before_are_not_this_one_s(begun):
    begun.asks(TREE)
    ahead = begun.asks_ahead(LIKELY)
    following = Stage(begun.drafting, begun)
    draft = following.asks()
    following.link.put(Verdict(ahead.seq, (), None, stale=True))
    await following.hears(Verdict(draft.seq, (), 40))
    assert following.statistics().stale_drafts == 0


@pytest.mark.parametrize("useful", [True, False])
async def test_useful_rows_put_the_deadline_of_a_verdict_off_and_nothing_else_does(begun, useful):
    draft = begun.asks(TREE)
    await begun.hears(Verdict(draft.seq, (0, 1), 20))
    following = begun.asks(TREE)

    def two_seconds_later():
        begun.now += 2.0
        return ScriptedLink.receive_nowait(begun.link)

    begun.link.receive_nowait = two_seconds_later
    pieces = [rows(draft.seq, 4 + number if useful else 90, 1, last=False) for number in range(3)]
    begun.link.put(*pieces, Verdict(following.seq, (), 30))
    if useful:
        assert (await begun.tracker.next_verdict(TIMEOUT_S))[1].bonus == 30
    else:
        with pytest.raises(LinkError, match="no verdict within 5 s"):
            await begun.tracker.next_verdict(TIMEOUT_S)
