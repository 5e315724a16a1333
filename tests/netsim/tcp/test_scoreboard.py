"""RACK's reordering window and its counters."""

from wires import Wires


def test_the_counters_agree_with_the_segments_at_every_step():
    wires = Wires(fate=lambda n: None if n % 17 == 5 else (0.03 if n % 5 == 0 else 0.0))
    wires.a.write(300 * 1448)
    board = wires.sender.board
    while wires.there.bytes < 300 * 1448:
        wires.clock.step()
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
