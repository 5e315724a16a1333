"""Recordings: what ping prints on several systems, CSVs of round trips, and what is refused."""

import math

import numpy as np
import pytest

from outrider_netsim.core.errors import ProfileError
from outrider_netsim.fitting.recordings import RoundTrips, load_recording, parse_ping

LINUX = """PING 192.0.2.1 (192.0.2.1) 56(84) bytes of data.
64 bytes from 192.0.2.1: icmp_seq=1 ttl=57 time=20.5 ms
64 bytes from 192.0.2.1: icmp_seq=2 ttl=57 time=21 ms
no answer yet for icmp_seq=3
64 bytes from 192.0.2.1: icmp_seq=4 ttl=57 time=19.5 ms
64 bytes from 192.0.2.1: icmp_seq=4 ttl=57 time=30.5 ms (DUP!)

--- 192.0.2.1 ping statistics ---
6 packets transmitted, 3 received, +1 duplicates, 50% packet loss, time 1000ms
rtt min/avg/max/mdev = 19.500/20.333/21.000/0.624 ms
"""
MAC = """PING example.org (192.0.2.1): 56 data bytes
64 bytes from 192.0.2.1: icmp_seq=0 ttl=57 time=14.123 ms
Request timeout for icmp_seq 1
64 bytes from 192.0.2.1: icmp_seq=2 ttl=57 time=15.001 ms
"""


def test_missing_numbers_are_lost_pings_also_at_the_end():
    recording = parse_ping(LINUX, "p")
    np.testing.assert_array_equal(recording.rtt_ms, [20.5, 21, math.nan, 19.5, math.nan, math.nan])
    np.testing.assert_allclose(recording.sent_s, np.arange(6) * 0.2)
    assert recording.interval_s == pytest.approx(0.2)
    assert recording.duration_s == pytest.approx(1.2)


def test_other_systems_count_from_0_and_ping_each_second():
    recording = parse_ping(MAC, "p")
    np.testing.assert_array_equal(recording.rtt_ms, [14.123, math.nan, 15.001])
    np.testing.assert_array_equal(recording.sent_s, [0, 1, 2])
    np.testing.assert_array_equal(parse_ping(MAC, "p", 0.5).sent_s, [0, 0.5, 1])


@pytest.mark.parametrize(
    "stamps", [("1716839137.5", "1716839138.75"), ("2024-05-27 15:45:37.5", "2024-05-27 15:45:38.750000")]
)
def test_stamps_tell_when_pings_were_sent(stamps):
    """A stamp is the reply's: the first ping was sent 100 ms before 37.5 s, the last one 250 ms before 38.75 s."""
    lines = "[{}] 64 bytes from h: icmp_seq=1 ttl=5 time=100 ms\n[{}] 64 bytes from h: icmp_seq=3 ttl=5 time=250 ms\n"
    recording = parse_ping(lines.format(*stamps), "p")
    np.testing.assert_allclose(recording.sent_s, [0, 0.55, 1.1], atol=1e-6)


def test_numbers_start_again_after_65535():
    lines = [f"64 bytes from h: icmp_seq={n % 65536} ttl=5 time=1 ms" for n in (65534, 65535, 65536, 65538)]
    recording = parse_ping("\n".join(lines), "p", 0.1)
    assert len(recording.rtt_ms) == 65538
    np.testing.assert_array_equal(recording.is_lost[-5:], [False, False, False, True, False])


def test_a_csv_of_round_trips_has_empty_cells_where_they_were_lost(tmp_path):
    (tmp_path / "x.csv").write_text("time_s,rtt_ms\n5,20\n5.5,\n6,30\n")
    recording = load_recording(tmp_path / "x.csv")
    assert isinstance(recording, RoundTrips)
    np.testing.assert_array_equal(recording.sent_s, [0, 0.5, 1])
    np.testing.assert_array_equal(recording.rtt_ms, [20, math.nan, 30])


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("p", "From h icmp_seq=1 Destination Host Unreachable\n", "p: no reply: need lines such as '64 bytes"),
        ("p", "5 packets transmitted, 0 received, 100% packet loss, time 4090ms\n", "p: no reply: need lines such as"),
        ("p", "1 bytes from icmp_seq=1 1 packets transmitted, time " * 15_000, "p: no reply: need lines such as"),
        ("p", "icmp_seq\n[now] 64 bytes from h: icmp_seq=1 ttl=5 time=1 ms\n", None),
        ("p", "[1-2] 64 bytes from h: icmp_seq=1 ttl=5 time=1 ms\n", r"p, line 1: \[1-2\] is not a time"),
        ("p", "64 bytes from h: icmp_seq=1 ttl=5 time=1.2.3 ms\n", "p, line 1: time='1.2.3' is not a finite number"),
        ("p", "64 bytes from h: icmp_seq=1 ttl=5 time=99999 ms\n", "p, line 1: time=99999: need 0 to 60 seconds"),
        ("p", "64 bytes from h: icmp_seq=9999999 ttl=5 time=1 ms\n", "9999999 pings and 1 replies: give each"),
        ("p.csv", "time_s,rtt_ms\n", "p.csv, line 2: the trace is empty"),
        ("p.csv", "rtt_ms\n1\n", "p.csv, line 1: no column of time beside rtt_ms"),
        ("p.csv", "time_s,rtt_ms\n1,-4\n", "p.csv, line 2: rtt_ms=-4: need 0 to 60000"),
        ("p.csv", "time_s,rtt_ms\n1,4\n0,4\n", "p.csv, line 3: time 0 s comes before 1 s: sort the lines"),
    ],
)
def test_what_is_no_recording_is_refused_with_file_and_line(tmp_path, name, text, message):
    (tmp_path / name).write_text(text)
    if message is None:  # words in brackets are not ping's, and do not hide the reply
        assert load_recording(tmp_path / name).rtt_ms.tolist() == [1]
        return
    with pytest.raises(ProfileError, match=message):
        load_recording(tmp_path / name)
