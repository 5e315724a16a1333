"""Our messages byte for byte: against the kernel's structures, and against what iproute2 6.1's tc sent (strace)."""

import struct
import subprocess
import sys

import pytest

from outrider_netsim.engines.netem import BufferQdisc, DelayTable, Netem, Tbf, qdisc_config
from outrider_netsim.engines.qdisc_messages import buffer_message, netem_message, tbf_message
from outrider_netsim.profiles.profile import Bursts, Direction

DIST, CORRUPT, LOSS, RATE, RATE64, LATENCY64, JITTER64, SLOT, SEED = 2, 4, 5, 6, 8, 10, 11, 12, 14  # TCA_NETEM_*
PARMS, TBF_RATE64, BURST = 1, 4, 6  # TCA_TBF_*
KIND, OPTIONS = 1, 2  # TCA_*
NESTED = 0x8000
NO_DELAY = DelayTable(0, 0, ())


def netem(**changes):
    values = {"limit": 1000, "delay": NO_DELAY, "loss": 0, "bursts": None, "rate_bytes": 0, "seed": 0}
    return Netem(**(values | changes))


def encoded(message):
    message["header"] = {"type": 36, "flags": 0x605, "sequence_number": 7, "pid": 0}
    message.reset()
    message.encode()
    return bytes(message.data)


def attributes(data):
    """{type: payload} of netlink attributes one after the other, each padded to four bytes."""
    found = {}
    while data:
        length, kind = struct.unpack_from("=HH", data)
        assert kind not in found
        found[kind] = data[4:length]
        data = data[(length + 3) & ~3 :]
    return found


def options(message):
    """The head of a message behind nlmsghdr, the payload of TCA_OPTIONS."""
    data = encoded(message)
    assert struct.unpack_from("=IHHII", data) == (len(data), 36, 0x605, 7, 0)
    return struct.unpack_from("=BxxxiIII", data, 16), attributes(data[36:])[OPTIONS]


def netem_options(value):
    data = options(netem_message(3, value))[1]
    return struct.unpack_from("=6I", data), attributes(data[24:])


def test_netem_is_in_the_kernels_structures_as_the_child_of_our_tbf():
    message = netem_message(3, netem())
    assert options(message)[0] == (0, 3, 0x10_0000, 0x1_0001, 0)
    assert attributes(encoded(message)[36:])[KIND] == b"netem\0"
    delay = DelayTable(10_000_000, 3_000_000, (-32768, -28307, 9, 32767))
    head, found = netem_options(netem(limit=700, loss=4294967, delay=delay, seed=2**64 - 2, duplicate=7, corrupt=9))
    # struct tc_netem_qopt: latency, limit, loss, gap, duplicate, jitter. Times are ticks of 64 ns, as tc says them;
    # tc's loss 0.1% is 37894100.
    assert head == (156_250, 700, 4294967, 0, 7, 46_875)
    assert struct.pack("=I", head[2]) == bytes.fromhex("37894100")
    assert found[LATENCY64] + found[JITTER64] == struct.pack("=qq", 10_000_000, 3_000_000)
    assert found[DIST] == bytes.fromhex("0080 6d91 0900 ff7f")  # bare s16
    assert found[SEED] == struct.pack("=Q", 2**64 - 2)
    assert found[CORRUPT] == struct.pack("=II", 9, 0)  # struct tc_netem_corrupt
    slots = netem_options(netem(slot_ns=10_000_000))[1]
    assert slots[SLOT] == struct.pack("=qqiiqq", 10_000_000, 10_000_000, 0, 0, 0, 0)  # struct tc_netem_slot
    assert DIST not in slots
    assert found[SLOT] == bytes(40)  # said too: a change keeps what it is not told
    shaping = qdisc_config(Direction(21, 19, "normal"), 0)
    assert struct.unpack("=4096h", netem_options(shaping.netem)[1][DIST]) == shaping.netem.delay.entries


def test_burst_losses_are_what_tc_sends_for_gemodel():
    bursts = Bursts(p=0.01, r=0.1, bad=0.7, good=0.001)
    found = netem_options(qdisc_config(Direction(bursts=bursts), 0).netem)[1]
    # tc qdisc add dev lo root netem loss gemodel 1% 10% 70% 0.1%, the payload of its TCA_NETEM_LOSS
    assert found[LOSS | NESTED] == bytes.fromhex("14000200 295c8f02 9a999919 cdcccc4c 37894100")
    assert LOSS | NESTED not in netem_options(netem())[1]


@pytest.mark.parametrize(
    ("rate_bytes", "rate", "rate64"),
    [
        (0, "00000000", None),  # said too: a change keeps what it is not told
        (2_500_000, "a0252600", None),  # tc: rate 20mbit
        (12_500_000_000, "ffffffff", "00dd0ee902000000"),  # tc: rate 100gbit
    ],
)
def test_rates_are_what_tc_sends(rate_bytes, rate, rate64):
    found = netem_options(netem(rate_bytes=rate_bytes))[1]
    assert found[RATE] == bytes.fromhex(rate + "00000000" * 3)
    assert found.get(RATE64) == (bytes.fromhex(rate64) if rate64 else None)


def test_tbf_is_what_tc_sends_but_for_the_tables_of_old_kernels():
    head, data = options(tbf_message(3, Tbf(2_500_000, 3028, 1_514_000)))
    assert head == (0, 3, 0x1_0000, 0xFFFF_FFFF, 0)
    found = attributes(data)
    #                    cell log, link layer, overhead, align, mpu, rate; peak; limit, buffer, mtu
    assert found[PARMS] == struct.pack("=BBHhHI 12x III", 0, 1, 0, 0, 0, 2_500_000, 1_514_000, 0, 0)
    assert found[BURST] == bytes.fromhex("d40b0000")  # tc: burst 3028
    assert set(found) == {PARMS, BURST}
    found = attributes(options(tbf_message(3, Tbf(12_500_000_000, 3028, 1)))[1])
    assert found[PARMS][8:12] == b"\xff\xff\xff\xff"
    assert found[TBF_RATE64] == bytes.fromhex("00dd0ee902000000")


def test_a_buffer_may_hold_four_gigabytes():
    message = buffer_message(3, BufferQdisc("bfifo", 2**32 - 1), behind_losses=False)
    assert options(message)[1] == b"\xff" * 4


PLAIN = """
from pyroute2.netlink.rtnl.tcmsg import tcmsg
for kind, options in (("netem", {"limit": 1}), ("tbf", {"attrs": [("TCA_TBF_PARMS", {"rate": 1000, "mtu": 1})]})):
    message = tcmsg()
    message["attrs"] = [("TCA_KIND", kind), ("TCA_OPTIONS", options)]
    message.encode()
"""
OURS = """
from outrider_netsim.engines.netem import DelayTable, Netem, Tbf
from outrider_netsim.engines.qdisc_messages import netem_message, tbf_message
netem = Netem(1, DelayTable(2, 3, (4, 5)), 6, None, 1 << 33, 7)
for message in (netem_message(3, netem), tbf_message(3, Tbf(1 << 33, 8, 9))):
    message.encode()
    print(bytes(message.data).hex())
"""


def test_messages_are_the_same_where_pyroute2s_own_were_used_before():
    """pyroute2 compiles a class's attributes once, in the class, and a subclass made the wrong ones its own."""
    alone, after = (
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for code in (OURS, PLAIN + OURS)
    )
    assert alone == after != ""
