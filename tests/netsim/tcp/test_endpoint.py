"""Both ends of a connection: handshake, end of stream, reset."""

import pytest
from wires import Wires


@pytest.mark.parametrize("delay_s", [0.05, 0.0001])
def test_a_handshake_takes_a_round_trip_and_data_follows(delay_s):
    wires = Wires(delay_s=delay_s, is_open=False)
    wires.a.write(100)
    wires.a.open()
    wires.run(1)
    assert wires.here.opened_at == pytest.approx(2 * delay_s)
    assert wires.there.opened_at == pytest.approx(3 * delay_s)
    assert wires.there.time_of(100) == pytest.approx(3 * delay_s)
    assert wires.sender.rtt.srtt_s == pytest.approx(2 * delay_s)


def test_a_server_whose_answer_got_lost_is_measured_from_the_first_syn():
    """As over tun: the timeout of what follows is three times that."""
    wires = Wires(is_open=False)
    wires.a.open()
    wires.run(0.01)
    wires.is_cut = True
    wires.run(0.1)
    wires.is_cut = False
    wires.run(2)
    assert 1.05 < wires.here.opened_at < 1.15
    assert wires.sender.rtt.srtt_s == pytest.approx(wires.here.opened_at, abs=0.002)
    assert wires.b.sender.rtt.srtt_s == pytest.approx(0.1, abs=0.002)


def test_the_end_of_the_stream_comes_last_and_takes_no_byte():
    wires = Wires(fate=lambda n: None if n == 1 else 0.0)
    wires.a.write(3 * 1448)
    wires.a.finish()
    wires.run(3)
    assert wires.there.bytes == 3 * 1448
    assert wires.there.ended_at == wires.there.time_of(3 * 1448)
    assert wires.sender.pending_bytes == 0
    wires.b.write(100)  # the other direction goes on
    wires.run(1)
    assert wires.here.bytes == 100


def test_a_reset_reaches_the_other_end_and_drops_what_waits():
    wires = Wires()
    wires.a.write(100 * 1448)
    wires.run(0.02)
    wires.a.reset()
    wires.run(5)
    assert isinstance(wires.there.error, ConnectionResetError)
    assert wires.there.bytes < 100 * 1448
    assert wires.here.error is None


def test_a_lost_reset_is_repeated_when_the_other_end_sends():
    wires = Wires()
    wires.is_cut = True
    wires.a.reset()
    wires.is_cut = False
    wires.b.write(100)
    wires.run(1)
    assert isinstance(wires.there.error, ConnectionResetError)
