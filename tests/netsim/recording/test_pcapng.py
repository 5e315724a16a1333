"""Captures: read back by the format's rules, and by tcpdump where it is installed."""

import shutil
import struct
import subprocess

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pcapng_reader import Seen, read_pcapng

from outrider_netsim.recording.pcapng import CLIENT_SIDE, INBOUND, OUTBOUND, SERVER_SIDE, file_start, packet_block


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    return tmp_path_factory.mktemp("captures") / "x.pcapng"


seen = st.builds(
    Seen,
    st.sampled_from([CLIENT_SIDE, SERVER_SIDE]),
    st.integers(0, 2**64 - 1),
    st.binary(max_size=70),
    st.sampled_from([INBOUND, OUTBOUND]),
    st.integers(0, 2**64 - 1),
)


@given(st.text(max_size=20), st.lists(seen, max_size=5))
def test_a_capture_reads_back(file, comment, packets):
    blocks = (packet_block(p.interface, p.flags, p.time_ns, p.packet_id, p.data) for p in packets)
    file.write_bytes(file_start(comment) + b"".join(blocks))
    section, interfaces, found = read_pcapng(file)
    assert section[1].decode() == comment
    assert [interface[2] for interface in interfaces] == [b"client side", b"server side"]
    assert {interface[9] for interface in interfaces} == {bytes([9])}  # nanoseconds
    assert found == packets


@pytest.mark.skipif(shutil.which("tcpdump") is None, reason="tcpdump is not installed")
def test_tcpdump_reads_a_capture(tmp_path):
    header = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 28, 0, 0, 64, 17, 0, bytes([10, 77, 0, 1]), bytes([10, 77, 0, 2]))
    datagram = header + struct.pack("!HHHH", 1000, 2000, 8, 0)
    file = tmp_path / "x.pcapng"
    sides = ((CLIENT_SIDE, OUTBOUND, 10**18), (SERVER_SIDE, INBOUND, 10**18 + 40_000_000))
    file.write_bytes(file_start("") + b"".join(packet_block(side, flag, at, 1, datagram) for side, flag, at in sides))
    said = subprocess.run(["tcpdump", "-n", "-ttt", "-r", file], capture_output=True, text=True, check=True).stdout
    assert said.count("10.77.0.1.1000 > 10.77.0.2.2000: UDP, length 0") == 2
    assert "00:00:00.040000" in said
