"""Log probabilities on the wire: round trips, refusal of nonsense, and no cost when off."""

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_proto import verifier_pb2 as pb
from outrider_proto import wire
from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import (
    MAX_TOP_LOGPROBS,
    MIN_LOGPROB,
    Decode,
    Draft,
    Finish,
    ServerTree,
    TokenLogprob,
    Verdict,
)
from outrider_proto.tree import DraftTree

logprob = st.floats(MIN_LOGPROB, 0.0, width=32)


@st.composite
def verdicts(draw) -> Verdict:
    num_top = draw(st.integers(0, MAX_TOP_LOGPROBS))
    place = st.lists(st.tuples(st.integers(0, 2**24 - 1), logprob), min_size=num_top, max_size=num_top).map(tuple)
    logprobs = draw(st.lists(st.builds(TokenLogprob, logprob, place), max_size=6))
    return Verdict(7, tuple(range(len(logprobs))), 9, logprobs=tuple(logprobs))


def to_bytes(frame) -> bytes:
    if isinstance(frame, Verdict):
        (message,) = wire.server_frame_to_proto(frame, "int8")
    else:
        message = wire.client_frame_to_proto(frame)
    return message.SerializeToString(deterministic=True)


@given(verdicts())
def test_verdicts_round_trip(verdict):
    assert wire.server_frame_from_proto(pb.ServerFrame.FromString(to_bytes(verdict))) == verdict


@given(st.none() | st.integers(0, MAX_TOP_LOGPROBS))
def test_requests_round_trip(num_top):
    for frame in (Draft(1, 0, (3,), 5, DraftTree(), logprobs=num_top), Decode(1, 0, (3,), 5, 9, logprobs=num_top)):
        assert wire.client_frame_from_proto(pb.ClientFrame.FromString(to_bytes(frame))) == frame


@pytest.mark.parametrize(
    ("frame", "as_it_was"),
    [
        (
            Draft(7, 3, (1, 2), 5, DraftTree.chain((8, 9)), 2),
            "121c080710031a0601000002000020052a06080000090000320200013802",
        ),
        (
            Decode(7, 3, (1, 2), 5, 40, 2, ServerTree(3, 4, 12)),
            "1a1a080710031a060100000200002005282830023a0608031004180c",
        ),
        (Verdict(7, (0, 1), 9, Finish.EOS, 10, 20), "120e08071202000118092001280a3014"),
        (Verdict(7, (), 9, tokens=(8,), draft_us=3), "120b0807180942030800004803"),
        (Verdict(7, (), None, stale=True), "120408073801"),
    ],
)
def test_off_costs_no_byte(frame, as_it_was):
    """The frames as they were before there were log probabilities."""
    assert to_bytes(frame).hex() == as_it_was


def test_the_longest_stays_far_below_the_limit_of_a_frame():
    place = tuple((token, -1.0) for token in range(MAX_TOP_LOGPROBS))
    verdict = Verdict(7, tuple(range(255)), 9, logprobs=(TokenLogprob(-1.0, place),) * 256)
    data = to_bytes(verdict)
    assert len(data) < wire.MAX_FRAME_BYTES / 20
    assert wire.server_frame_from_proto(pb.ServerFrame.FromString(data)) == verdict


def floats(*values: float) -> bytes:
    return struct.pack(f"<{len(values)}f", *values)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({}, "log probabilities of 0 tokens: need 1 to 256"),
        ({"chosen": floats(*[-1.0] * 257)}, "log probabilities of 257 tokens: need 1 to 256"),
        ({"chosen": b"12345"}, "5 bytes of numbers"),
        ({"chosen": floats(-1), "top": b"123"}, "3 bytes of numbers"),
        ({"chosen": floats(-1), "top_tokens": b"123"}, "1 tokens and 0 log probabilities in the places of 1"),
        ({"chosen": floats(-1), "top_tokens": b"123" * 21, "top": floats(*[-1.0] * 21)}, "more than 20 tokens"),
        ({"chosen": floats(float("nan"))}, "logprob=nan: need -9999 to 0"),
        ({"chosen": floats(0.5)}, "logprob=0.5"),
        ({"chosen": floats(-1), "top_tokens": b"123", "top": floats(float("nan"))}, "logprob=nan"),
    ],
)
def test_malformed_ones_are_refused(wrong, message):
    verdict = pb.Verdict(seq=1, bonus=2, logprobs=pb.Logprobs(**wrong))
    with pytest.raises(Violation, match=message) as caught:
        wire.server_frame_from_proto(pb.ServerFrame(verdict=verdict))
    assert caught.value.reason is Reason.MALFORMED_FRAME


@pytest.mark.parametrize("request_of", [lambda: pb.Draft(logprobs=21), lambda: pb.Decode(max_tokens=1, logprobs=21)])
def test_no_more_than_twenty_can_be_requested(request_of):
    request = request_of()
    field = "draft" if isinstance(request, pb.Draft) else "decode"
    with pytest.raises(Violation, match="logprobs=21: need 0 to 20"):
        wire.client_frame_from_proto(pb.ClientFrame(**{field: request}))
