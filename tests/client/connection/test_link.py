"""What no request asked for: dropped as it arrives, and hung up on once there is much of it."""

import asyncio
import contextlib

import numpy as np
import pytest

from outrider_client.connection.asked_for import AskedFor
from outrider_client.connection.heartbeat import Heartbeat, RttEstimator
from outrider_client.connection.link import ServerLink
from outrider_client.connection.policy import Patience
from outrider_proto.errors import Violation
from outrider_proto.frames import Draft, Features, Open, Opened, Pong, TokenLogprob, Verdict
from outrider_proto.tree import DraftTree

LIKELIEST = tuple((token, -1.0) for token in range(20))
OPENED = Opened("x", False, 0, bytes(8), 9, 9, ())
UNASKED = {
    "verdicts with log probabilities": (Verdict(9, (), 5, logprobs=(TokenLogprob(-1.0, LIKELIEST),) * 256), 30),
    "features": (Features(9, 0, np.ones((2048, 256), np.float32), last=False), 10),
    "pongs": (Pong(2**63), 20_000),
}


@pytest.mark.parametrize(
    ("asked", "sent", "taken"),
    [(None, None, True), (None, 0, False), (None, 5, False), (2, 2, True), (2, 1, True), (0, 1, False)],
)
def test_log_probabilities_are_taken_as_asked_for(asked, sent, taken):
    due = AskedFor()
    due.takes(OPENED)
    due.add(Draft(1, 0, (), 5, DraftTree(), logprobs=asked), 8)
    told = () if sent is None else (TokenLogprob(-1.0, LIKELIEST[:sent]),)
    with contextlib.nullcontext() if taken else pytest.raises(Violation, match="other log probabilities"):
        assert due.takes(Verdict(1, (), 5, logprobs=told))


def test_features_that_a_server_left_out_are_not_due_for_ever():
    due, row = AskedFor(), np.ones((1, 8), np.float32)
    due.takes(OPENED)
    for seq in range(1, 9):
        due.add(Draft(seq, 0, (), 5, DraftTree.chain((1, 2, 3)), 0), 8)
        assert due.takes(Features(seq, 0, row, last=True))
    assert not due.takes(Features(8, 0, row, last=False))


class Flood:
    """A connection that says one thing over and over."""

    def __init__(self, frame) -> None:
        self.num_sent = -1
        self.is_closed = asyncio.Event()
        self._frame = frame

    def send(self, frame) -> None: ...

    async def receive(self):
        self.num_sent += 1
        await asyncio.sleep(0)
        return self._frame if self.num_sent else OPENED

    async def close(self) -> None:
        self.is_closed.set()


@pytest.mark.parametrize("what", UNASKED)
async def test_a_flood_at_rest_is_hung_up_on(what):
    frame, most = UNASKED[what]
    flood, rtt = Flood(frame), RttEstimator()
    link = ServerLink(flood, rtt, Heartbeat(rtt, Patience()), lambda: 0.0)
    await link.open(Open(1, "", ""))
    async with asyncio.timeout(60):
        await flood.is_closed.wait()
    assert flood.num_sent <= most
    with pytest.raises(Violation, match="no request asked for"):
        link.receive_nowait()  # the first that is there: nothing was kept
    await link.close()
