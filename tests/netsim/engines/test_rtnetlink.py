"""The netlink client with a socket of prepared answers; with the kernel in test_kernel_vm.py."""

import errno
import struct

import pytest

from outrider_netsim.core.errors import EngineError
from outrider_netsim.engines.qdisc_messages import no_child_message
from outrider_netsim.engines.rtnetlink import NLM_F_ACK_TLVS, NLM_F_CAPPED, NetlinkClient, NetlinkError

RTM_NEWQDISC, ERROR = 36, 2


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


def test_a_refusal_comes_with_the_kernels_words():
    answer = verdict(errno.ENOENT, flags=NLM_F_CAPPED | NLM_F_ACK_TLVS, rest=reason(b"Specified qdisc kind is unknown"))
    with pytest.raises(NetlinkError, match="Specified qdisc kind is unknown") as caught:
        asked(answer).request(no_child_message(5), RTM_NEWQDISC)
    assert caught.value.errno == errno.ENOENT


def test_answers_to_earlier_requests_are_passed_over():
    late = struct.pack("=IHHII", 36, ERROR, 0, 99, 0) + struct.pack("=i", -errno.EPERM) + bytes(16)
    asked(late + verdict(0)).request(no_child_message(5), RTM_NEWQDISC)


def test_a_silent_kernel_is_an_engine_error():
    with pytest.raises(EngineError, match="did not answer"):
        asked().request(no_child_message(5), RTM_NEWQDISC)
