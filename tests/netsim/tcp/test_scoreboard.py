"""RACK's reordering window and its counters."""

import pytest
from wires import Wires


@pytest.mark.parametrize("size", [100, 1448])  # small ones are joined when they are sent again
def test_the_counters_agree_with_the_segments_at_every_step(size):
    wires = Wires(fate=lambda n: None if n % 17 == 5 or 50 < n < 60 else (0.03 if n % 5 == 0 else 0.0))
    for n in range(300):
        wires.clock.call_at(n * 0.005, lambda: wires.a.write(size))
    board = wires.sender.board
    while wires.there.bytes < 300 * size:
        wires.clock.step()
        assert [segment.seq for segment in board.segments] == sorted(board._by_seq)
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
