"""Corruption: one bit of a share of packets, anywhere."""

import random

from scipy import stats

from outrider_netsim.impairments.corrupt import Corrupt
from outrider_netsim.impairments.impairment import Packet
from outrider_netsim.impairments.path import Path
from outrider_netsim.impairments.sink import Sink
from outrider_netsim.profiles.profile import Direction


def flipped_bits(data):
    return [index for index in range(8 * len(data)) if data[index // 8] >> index % 8 & 1]


def test_one_bit_of_the_share_of_packets_is_flipped_and_they_are_marked():
    link = Corrupt(Sink(), 0.1, random.Random(1))
    packets = [Packet(bytes(4), 100) for _ in range(4000)]
    for packet in packets:
        link.push(packet, 0.0)
    assert link.pop_ready(0.0) == packets
    bits = [flipped_bits(packet.data) for packet in packets]
    assert [bool(found) for found in bits] == [packet.is_corrupt for packet in packets]
    assert {len(found) for found in bits} == {0, 1}
    assert stats.binomtest(link.corrupted, 4000, 0.1).pvalue > 1e-3
    counts = [sum(found == [index] for found in bits) for index in range(32)]
    assert stats.chisquare(counts).pvalue > 1e-3


def test_a_packet_without_data_is_only_marked():
    path = Path(Direction(corrupt=1.0), 1)
    path.push(Packet(b"", 100), 0.0)
    (packet,) = path.pop_ready(0.0)
    assert packet.is_corrupt
    assert path.stats.corrupted == path.stats.packets_out == 1
