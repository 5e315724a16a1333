"""The sender: slow start, idle restart, probes, timeouts, back-off."""

from wires import Wires


def test_a_transfer_starts_with_ten_packets_and_doubles():
    wires = Wires()
    wires.a.write(70 * 1448)
    wires.run(1)
    times = [when for when, _ in wires.sent]
    assert [times.count(when) for when in (0.0,)] == [10]
    assert sum(when < 0.15 for when in times) == 10 + 20
    assert sum(when < 0.25 for when in times) == 10 + 20 + 40


def test_a_window_that_is_not_used_does_not_grow():
    wires = Wires()
    wires.ask(200, gap_s=0.11)
    assert wires.window.cwnd <= 20  # twice of what was ever under way, no more


def test_after_a_pause_a_transfer_starts_with_ten_packets_again():
    wires = Wires()
    wires.a.write(100 * 1448)
    wires.run(2)
    grown = wires.window.cwnd
    assert grown >= 60
    wires.run(10)
    sent = len(wires.sent)
    wires.a.write(30 * 1448)
    assert len(wires.sent) - sent == 10
    assert wires.window.ssthresh >= grown * 3 / 4 - 1


def test_a_lone_lost_packet_is_sent_again_after_its_timeout():
    wires = Wires(fate=lambda n: None if n == 20 else 0.0)
    wires.ask(20)
    wires.a.write(100)
    lost_at = wires.clock.now
    wires.run(1)
    # SRTT + 200 ms, which Linux's timers round up by 32 ms at most
    assert lost_at + 0.3 <= wires.sent[21][0] <= lost_at + 0.34
    assert wires.there.bytes == 2100


def test_the_lost_end_of_a_burst_is_probed_after_two_round_trips():
    wires = Wires(fate=lambda n: None if n in (23, 24) else 0.0)
    wires.ask(20)
    wires.a.write(5 * 1448)
    lost_at = wires.clock.now
    wires.run(1)
    # after the last acknowledgment, which took a round trip
    assert lost_at + 0.3 <= wires.sent[25][0] <= lost_at + 0.32
    assert wires.there.bytes == 2000 + 5 * 1448
    assert wires.window.num_timeouts == 0
