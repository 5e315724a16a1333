"""Frames to protobuf and back, and what is refused on the way in."""

import dataclasses

import numpy as np
import pytest
from google.protobuf.message import DecodeError
from hypothesis import given
from hypothesis import strategies as st

from outrider_proto import frames as f
from outrider_proto import verifier_pb2 as pb
from outrider_proto import wire
from outrider_proto.errors import Reason, Violation
from outrider_proto.tree import DraftTree

u32 = st.integers(0, 2**32 - 1)
ids = st.lists(st.integers(0, 2**24 - 1), max_size=20).map(tuple)
samplings = st.one_of(
    st.builds(f.Sampling, st.floats(0, 100), st.integers(0, 99), st.floats(0.01, 1), st.integers(0, 2**63 - 1)),
    st.builds(
        f.Sampling,
        st.floats(0.01, 100),
        acceptance=st.just("typical"),
        epsilon=st.floats(0, 1, exclude_min=True),
        alpha=st.floats(0, 100, exclude_min=True),
    ),
    st.builds(
        f.Sampling,
        rules=st.builds(
            f.TokenRules,
            st.text(max_size=9),
            st.floats(-2, 2),
            st.floats(0.1, 2),
            st.dictionaries(u32, st.floats(-100, 100), max_size=5).map(lambda biases: tuple(sorted(biases.items()))),
            st.floats(0, 2, exclude_min=True),
            u32,
        ),
        min_p=st.floats(0, 1),
    ),
)
codecs = st.none() | st.sampled_from(f.CODECS)
hashes = st.binary(min_size=8, max_size=8)
trees = st.integers(0, 30).map(lambda n: DraftTree.chain(range(n)))
client_frames = st.one_of(
    st.builds(
        f.Open, u32, st.text("ab", max_size=9), st.just("none"), st.just("t"), st.sampled_from(f.CODECS), samplings
    ),
    st.builds(f.Draft, u32, u32, ids, u32, trees, u32, codec=codecs, sampling=st.none() | samplings),
    st.builds(f.Draft, u32, u32, st.just(()), u32, trees, u32, hashes),
    st.builds(
        f.Decode,
        u32,
        u32,
        ids,
        u32,
        st.integers(1, 2**32 - 1),
        st.none() | u32,
        st.none() | st.builds(f.ServerTree, u32, u32, u32, st.booleans()),
        codec=codecs,
        sampling=st.none() | samplings,
    ),
    st.builds(f.Cancel, u32),
    st.builds(f.Ping, st.integers(0, 2**64 - 1)),
    st.just(f.Close()),
)
server_frames = st.one_of(
    st.builds(
        f.Opened,
        st.just("s"),
        st.booleans(),
        u32,
        hashes,
        st.integers(1, 2**32 - 1),
        st.integers(1, 255),
        ids,
        st.booleans(),
        st.booleans(),
    ),
    st.builds(f.Verdict, u32, st.binary(max_size=9).map(tuple), st.none() | u32, st.sampled_from(f.Finish), u32, u32),
    st.builds(
        f.Verdict,
        u32,
        st.just(()),
        st.none() | u32,
        st.sampled_from(f.Finish),
        u32,
        u32,
        st.booleans(),
        ids,
        u32,
        draft_levels=st.integers(0, 255),
    ),
    st.builds(f.Pong, st.integers(0, 2**64 - 1)),
)


@given(client_frames)
def test_client_frames_round_trip(frame):
    data = wire.client_frame_to_proto(frame).SerializeToString()
    assert wire.client_frame_from_proto(pb.ClientFrame.FromString(data)) == frame


@given(server_frames)
def test_server_frames_round_trip(frame):
    (message,) = wire.server_frame_to_proto(frame, "int8")
    assert wire.server_frame_from_proto(pb.ServerFrame.FromString(message.SerializeToString())) == frame


def test_times_beyond_what_a_field_holds_are_the_longest_it_can():
    us = 72 * 60 * 1_000_000
    (message,) = wire.server_frame_to_proto(f.Verdict(1, (), 5, queue_us=us, verify_us=us, draft_us=us), "int8")
    verdict = wire.server_frame_from_proto(message)
    assert (verdict.queue_us, verdict.verify_us, verdict.draft_us) == (2**32 - 1,) * 3
    rows = np.zeros((1, 8), np.float32)
    (message,) = wire.server_frame_to_proto(f.Features(1, 0, rows, last=True, tap_us=us), "int8")
    assert wire.server_frame_from_proto(message).tap_us == 2**32 - 1


def test_long_features_travel_in_frames_below_the_limit():
    rows = np.random.default_rng(0).standard_normal((700, 2048)).astype(np.float32)
    messages = list(wire.server_frame_to_proto(f.Features(7, 11, rows, last=True, tap_us=5), "float32"))
    assert len(messages) > 1
    assert all(m.ByteSize() < wire.MAX_FRAME_BYTES for m in messages)
    back = [wire.server_frame_from_proto(m) for m in messages]
    assert np.array_equal(np.concatenate([b.rows for b in back]), rows)
    assert [b.last for b in back] == [False] * (len(back) - 1) + [True]
    assert [b.tap_us for b in back] == [0] * (len(back) - 1) + [5]
    assert [b.first for b in back] == [11 + sum(len(p.rows) for p in back[:i]) for i in range(len(back))]


@pytest.mark.parametrize(
    ("message", "reason"),
    [
        (pb.ClientFrame(), Reason.MALFORMED_FRAME),
        (pb.ClientFrame(open=pb.Open(protocol_version=1)), Reason.MALFORMED_FRAME),  # no codec
        (pb.ClientFrame(open=pb.Open(codec=pb.FEATURE_CODEC_INT8, tap="x" * 999)), Reason.MALFORMED_FRAME),
        (
            pb.ClientFrame(open=pb.Open(codec=pb.FEATURE_CODEC_INT8, sampling=pb.Sampling(temperature=-1, top_p=1))),
            Reason.BAD_SAMPLING,
        ),
        (
            pb.ClientFrame(
                open=pb.Open(codec=pb.FEATURE_CODEC_INT8, sampling=pb.Sampling(temperature=float("nan"), top_p=1))
            ),
            Reason.BAD_SAMPLING,
        ),
        (pb.ClientFrame(draft=pb.Draft(context=b"12")), Reason.MALFORMED_FRAME),
        (pb.ClientFrame(draft=pb.Draft(codec=99)), Reason.MALFORMED_FRAME),
        (pb.ClientFrame(draft=pb.Draft(sampling=pb.Sampling(temperature=-1, top_p=1))), Reason.BAD_SAMPLING),
        (pb.ClientFrame(decode=pb.Decode(max_tokens=1, codec=99)), Reason.MALFORMED_FRAME),
        (pb.ClientFrame(draft=pb.Draft(tokens=b"123", parents=b"\x05")), Reason.MALFORMED_TREE),
        (pb.ClientFrame(draft=pb.Draft(tokens=b"123", parents=b"")), Reason.MALFORMED_TREE),
        (pb.ClientFrame(draft=pb.Draft(tokens=bytes(900), parents=bytes(300))), Reason.TREE_TOO_LARGE),
        (pb.ClientFrame(decode=pb.Decode()), Reason.MALFORMED_FRAME),
        (pb.ClientFrame(draft=pb.Draft(assumes=b"1234567")), Reason.MALFORMED_FRAME),
        (pb.ClientFrame(draft=pb.Draft(assumes=b"12345678", context=b"\x03\0\0")), Reason.MALFORMED_FRAME),
    ],
)
def test_malformed_client_frames(message, reason):
    with pytest.raises(Violation) as caught:
        wire.client_frame_from_proto(message)
    assert caught.value.reason is reason


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"acceptance": pb.ACCEPTANCE_TYPICAL, "temperature": 0.0}, "temperature=0.0: typical acceptance needs more"),
        ({"acceptance": pb.ACCEPTANCE_TYPICAL}, "epsilon=0.0, alpha=0.0: typical acceptance needs more than 0"),
        ({"acceptance": pb.ACCEPTANCE_TYPICAL, "epsilon": 1.1}, "epsilon=1.1: need 0 to 1"),
        ({"acceptance": pb.ACCEPTANCE_TYPICAL, "alpha": -0.1}, "alpha=-0.1: need 0 to 100"),
        ({"acceptance": 2}, "acceptance=2: unknown"),
    ],
)
def test_acceptance_that_no_server_offers(wrong, message):
    sampling = pb.Sampling(**({"temperature": 0.7, "top_p": 1.0} | wrong))
    with pytest.raises(Violation, match=message) as caught:
        wire.client_frame_from_proto(pb.ClientFrame(open=pb.Open(codec=pb.FEATURE_CODEC_INT8, sampling=sampling)))
    assert caught.value.reason is Reason.BAD_SAMPLING


_OPENED = {"session_id": "s", "kept_hash": bytes(8), "max_context": 9, "max_nodes": 9}


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (pb.Opened(**(_OPENED | {"session_id": "s" * 257})), "session_id is longer"),
        (pb.Opened(**(_OPENED | {"kept_hash": bytes(7)})), "kept_hash of 7 bytes: need 8"),
        (pb.Opened(**(_OPENED | {"max_nodes": 256})), "max_nodes=256"),
        (pb.Opened(**_OPENED, eos_token_ids=[1] * 257), "eos_token_ids of 257: at most 256"),
        (pb.Verdict(path=bytes(256)), "path of 256: at most 255"),
        (pb.Verdict(tokens=bytes(768)), "tokens of 768: at most 765"),
        (
            pb.Verdict(logprobs=pb.Logprobs(chosen=bytes(4), top_tokens=bytes(63), top=bytes(84))),
            "more than 20 tokens in each",
        ),
        (pb.Features(num_rows=4, width=0, codec=pb.FEATURE_CODEC_INT8), "4 rows of 0 values"),
    ],
)
def test_malformed_server_frames(message, said):
    """Refused by their sizes, before anything is made of them."""
    field = type(message).__name__.lower()
    with pytest.raises(Violation, match=said):
        wire.server_frame_from_proto(pb.ServerFrame(**{field: message}))


@given(st.binary(max_size=200))
def test_any_bytes_make_a_frame_or_are_refused(data):
    for message_type, convert in (
        (pb.ClientFrame, wire.client_frame_from_proto),
        (pb.ServerFrame, wire.server_frame_from_proto),
    ):
        try:
            frame = convert(message_type.FromString(data))
        except (DecodeError, Violation):
            continue
        assert dataclasses.is_dataclass(frame)
