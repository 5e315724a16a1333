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


def test_a_needless_timeout_is_undone():
    wires = Wires()
    wires.a.write(60 * 1448)
    wires.run(2)
    wires.ask(1, gap_s=0.2)
    before = wires.window.cwnd
    sent = len(wires.sent)
    wires.fate = lambda n: 0.5 if n < sent + 8 else 0.0  # a delay spike, longer than the timeout
    wires.a.write(8 * 1448)
    wires.run(3)
    assert wires.there.bytes == 68 * 1448 + 100
    assert wires.window.state == State.OPEN
    assert wires.window.cwnd >= before // 2


def test_many_losses_are_repaired_without_a_timeout():
    wires = Wires(fate=lambda n: None if 60 <= n < 90 and n % 3 == 0 else 0.0)
    wires.a.write(400 * 1448)
    wires.run(5)
    assert wires.there.bytes == 400 * 1448
    assert wires.there.time_of(400 * 1448) < 1.5
    assert wires.window.num_timeouts == 0
    assert wires.sender.board.total_sent_again == 10
