"""What the sender does about losses, real and apparent."""

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
