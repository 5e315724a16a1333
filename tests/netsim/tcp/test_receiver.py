"""When the receiver acknowledges."""

import pytest
from wires import Wires


def talk(wires, segments):
    wires.a.write(segments * 1448)
    wires.run(3)


def test_at_first_every_segment_is_acknowledged_and_then_every_second():
    wires = Wires()
    talk(wires, 16)
    assert len(wires.acks) == 16
    before = len(wires.acks)
    talk(wires, 10)
    # After three seconds of silence it is quick again; within the same stream it is not.
    assert len(wires.acks) - before == 10
    wires = Wires()
    wires.window.ssthresh = 10
    wires.a.write(300 * 1448)
    wires.run(0.9)
    # The receive window has grown to what comes, from segment to segment.
    acks, sent = len(wires.acks), len(wires.sent)
    assert acks > sent * 3 / 4
    wires.run(3)
    assert (300 - sent) / 2 <= len(wires.acks) - acks <= (300 - sent) / 2 + 15


def test_a_lone_segment_of_a_conversation_waits_40_ms_for_an_answer():
    wires = Wires()
    for _ in range(3):
        wires.a.write(100)
        wires.run(0.051)
        wires.b.write(100)  # the answer carries the acknowledgment
        wires.run(0.2)
    assert len(wires.acks) == 3 + 1  # the first is acknowledged at once
    wires.a.write(100)
    started_at = wires.clock.now
    wires.run(0.2)
    assert wires.acks[-1] == pytest.approx(started_at + 0.05 + 0.042, abs=0.003)
