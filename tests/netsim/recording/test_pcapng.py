"""Captures: read back by the format's rules."""

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
