"""What the sender does about losses, real and apparent; RACK's reordering window and its counters."""

import pytest
from wires import Wires

from outrider_netsim.tcp.recovery import State


def test_a_loss_in_the_middle_is_repaired_within_two_round_trips_and_shrinks_the_window():
    wires = Wires(fate=lambda n: None if n == 40 else 0.0)
    wires.a.write(400 * 1448)
    wires.run(0.26)
    before = wires.window.cwnd
    wires.run(5)
    assert wires.there.bytes == 400 * 1448
    assert wires.sender.board.total_sent_again == 1
    lost_at = wires.sent[40][0]
    assert wires.there.time_of(41 * 1448) - lost_at < 0.3
    assert wires.window.ssthresh < 0.75 * max(before, 70)


def test_a_packet_that_was_only_late_costs_no_window():
    wires = Wires(fate=lambda n: 0.012 if n == 40 else 0.0)  # after the next ones, and later than they wait for it
    wires.a.write(400 * 1448)
    seen = []
    while wires.there.bytes < 400 * 1448:
        wires.clock.step()
        seen.append(wires.window.state)
    assert State.RECOVERY in seen
    assert wires.sender.board.saw_reordering
    assert wires.window.cwnd >= 80  # undone by the timestamps
    assert wires.window.ssthresh > 80


@pytest.mark.parametrize("size", [100, 1448])  # small ones are joined when they are sent again
def test_the_counters_agree_with_the_segments_at_every_step(size):
    wires = Wires(fate=lambda n: None if n % 17 == 5 or 50 < n < 60 else (0.03 if n % 5 == 0 else 0.0))
    for n in range(300):
        wires.clock.call_at(n * 0.005, lambda: wires.a.write(size))
    board = wires.sender.board
    while wires.there.bytes < 300 * size:
        wires.clock.step()
        assert [segment.seq for segment in board.segments] == sorted(board.by_seq)
        assert board.sacked == sum(segment.is_sacked for segment in board.segments)
        assert board.lost == sum(segment.is_lost for segment in board.segments)
        assert board.sent_again == sum(segment.is_sent_again for segment in board.segments)


def test_needless_retransmissions_widen_the_reordering_window():
    wires = Wires(fate=lambda n: 0.06 if n % 10 == 5 else 0.0)  # more than a quarter of the round trip
    wires.a.write(2000 * 1448)
    wires.run(60)
    board = wires.sender.board
    assert wires.there.bytes == 2000 * 1448
    assert board.saw_reordering
    assert board.window_s(recovering=True) > 0.05
