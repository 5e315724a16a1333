"""The netlink client: with a socket of prepared answers, and with the kernel."""

import contextlib
import errno
import socket
import struct

import pytest

from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.netem import qdisc_config
from outrider_netsim.engines.qdisc_messages import QdiscMessage, root_message, tbf_message
from outrider_netsim.engines.rtnetlink import (
    NLM_F_ACK_TLVS,
    NLM_F_CAPPED,
    NLM_F_CREATE,
    NLM_F_REPLACE,
    NetlinkClient,
    NetlinkError,
)
from outrider_netsim.namespaces.namespaces import Namespaces
from outrider_netsim.profiles.profile import Direction

RTM_NEWQDISC, RTM_DELQDISC, RTM_GETQDISC = 36, 37, 38
ERROR, DONE = 2, 3


class Rote:
    """A socket with prepared answers."""

    def __init__(self, *answers):
        self.answers = list(answers)
        self.sent = []

    def settimeout(self, _seconds): ...
    def setsockopt(self, *_): ...
    def close(self): ...

    def send(self, data):
        self.sent.append(bytes(data))

    def recv(self, _size):
        if not self.answers:
            raise TimeoutError
        return self.answers.pop(0)


def message(kind, payload=b"", *, sequence=1, flags=0):
    head = struct.pack("=IHHII", 16 + len(payload), kind, flags, sequence, 0)
    return head + payload + bytes(-len(payload) % 4)


def verdict(code, *, sequence=1, flags=0, rest=b""):
    return message(ERROR, struct.pack("=i", -code) + struct.pack("=IHHII", 16, 36, 0, sequence, 0) + rest, flags=flags)


def reason(text):
    return struct.pack("=HH", 4 + len(text) + 1, 1) + text + b"\0"


def asked(*answers):
    return NetlinkClient(Rote(*answers))


def test_an_acknowledgement_ends_a_request():
    rote = Rote(verdict(0))
    NetlinkClient(rote).request(root_message(5), RTM_DELQDISC)
    length, kind, flags, sequence, _ = struct.unpack_from("=IHHII", rote.sent[0])
    assert (length, kind, flags, sequence) == (36, RTM_DELQDISC, 0x5, 1)


def test_a_refusal_comes_with_the_kernels_words():
    answer = verdict(errno.ENOENT, flags=NLM_F_CAPPED | NLM_F_ACK_TLVS, rest=reason(b"Specified qdisc kind is unknown"))
    with pytest.raises(NetlinkError, match="Specified qdisc kind is unknown") as caught:
        asked(answer).request(root_message(5), RTM_NEWQDISC)
    assert caught.value.errno == errno.ENOENT


def test_a_refusal_without_words_has_the_errors_name():
    with pytest.raises(NetlinkError, match="not permitted"):
        asked(verdict(errno.EPERM)).request(root_message(5), RTM_NEWQDISC)


def test_answers_to_earlier_requests_are_passed_over():
    late = struct.pack("=IHHII", 36, ERROR, 0, 99, 0) + struct.pack("=i", -errno.EPERM) + bytes(16)
    asked(late + verdict(0)).request(root_message(5), RTM_NEWQDISC)


def test_a_dump_goes_on_over_several_datagrams():
    first, second = message(36, b"one"), message(36, b"two!")
    found = asked(first, second, message(DONE, bytes(4))).dump(QdiscMessage(), RTM_GETQDISC)
    assert [data[16:].rstrip(b"\0") for data in found] == [b"one", b"two!"]


def test_a_silent_kernel_is_an_engine_error():
    with pytest.raises(EngineError, match="did not answer"):
        asked().request(root_message(5), RTM_NEWQDISC)


async def test_the_kernel_takes_our_tbf_and_gives_it_back():
    namespaces = Namespaces()
    try:
        await namespaces.start()
    except EngineError as error:
        pytest.skip(str(error))
    async with contextlib.aclosing(namespaces):
        descriptor = await namespaces.call("A", "outrider_netsim.engines.rtnetlink:open_netlink_descriptor")
        conversation = NetlinkClient(socket.socket(fileno=descriptor))
        index = conversation.interface_index("lo")
        tbf = qdisc_config(Direction(10, 5, "normal", 20e6), 0).tbf
        try:
            conversation.request(tbf_message(index, tbf), RTM_NEWQDISC, NLM_F_CREATE | NLM_F_REPLACE)
        except NetlinkError as error:
            pytest.skip(f"tbf: {error}")
        (found,) = [QdiscMessage(data) for data in conversation.dump(QdiscMessage(), RTM_GETQDISC)]
        found.decode()
        assert found.get_attr("TCA_OPTIONS").get_attr("TCA_TBF_PARMS")["rate"] == 2_500_000
        conversation.request(root_message(index), RTM_DELQDISC)
        conversation.close()
