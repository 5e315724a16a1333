"""Protobuf frames of a session, both ways, and what Describe answers."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
from google.protobuf.message import DecodeError

from fuzz_targets.target import FuzzTarget, by_length
from outrider_proto import frames as f
from outrider_proto import verifier_pb2 as pb
from outrider_proto import wire
from outrider_proto.description import description_from_proto, description_to_proto
from outrider_proto.errors import Refusal
from outrider_proto.feature_codec import MAX_RAW_BYTES
from outrider_proto.tree import DraftTree

_REFUSALS = (Refusal, DecodeError)
_TREE = DraftTree((3, 4, 3), (-1, -1, 0))
_SAMPLING = f.Sampling(0.7, 40, 0.9, 5, "typical", 0.1, 0.2)
_CLIENT: dict[str, f.ClientFrame] = {
    "open": f.Open(1, "ab" * 16, "cd" * 16),
    "open-resume": f.Open(1, "ab" * 16, "none", "tap", "lean", f.Sampling(0.5, seed=7), "0" * 32, 19),
    "open-typical": f.Open(1, "ab", "none", codec="bf16", sampling=_SAMPLING),
    "draft-prompt": f.Draft(1, 0, (5, 6, 7), 8, DraftTree()),
    "draft-tree": f.Draft(2, 4, (), 9, _TREE, 3, logprobs=2, codec="leaner"),
    "draft-ahead": f.Draft(3, 6, (), 9, _TREE, 3, b"01234567"),
    "decode": f.Decode(4, 4, (300,), 5, 40),
    "decode-tree": f.Decode(4, 4, (), 5, 40, 3, f.ServerTree(4, 5, 16), 2, "int8"),
    "decode-auto": f.Decode(4, 4, (), 5, 40, 3, f.ServerTree(8, 8, 32, auto=True)),
    "cancel": f.Cancel(4),
    "ping": f.Ping(2**63),
    "close": f.Close(),
}
_LIKELY = f.TokenLogprob(-0.5, ((3, -0.5), (4, -2.0)))
_SERVER: dict[str, f.ServerFrame] = {
    "opened": f.Opened("0" * 32, False, 0, b"01234567", 512, 255, (2,)),
    "opened-resumed": f.Opened("0" * 32, True, 19, b"01234567", 512, 64, (2, 7), True),
    "verdict": f.Verdict(1, (0, 2), 7, queue_us=15, verify_us=1500),
    "verdict-eos": f.Verdict(1, (0, 2), None, f.Finish.EOS),
    "verdict-stale": f.Verdict(2, (), None, stale=True),
    "verdict-tokens": f.Verdict(3, (), 7, f.Finish.LIMIT, tokens=(5, 6), draft_us=100),
    "verdict-likely": f.Verdict(3, (1,), 7, logprobs=(_LIKELY, _LIKELY)),
    "pong": f.Pong(2**63),
}


def _client_frame(data: bytes) -> f.ClientFrame:
    return wire.client_frame_from_proto(pb.ClientFrame.FromString(data))


def _check_client_frame(frame: f.ClientFrame) -> None:
    back = wire.client_frame_to_proto(frame).SerializeToString()
    assert _client_frame(back) == frame


def _client_seeds() -> dict[str, bytes]:
    seeds = {name: wire.client_frame_to_proto(frame).SerializeToString() for name, frame in _CLIENT.items()}
    unknown = pb.ClientFrame.FromString(b"\x7a\x03abc")  # of a newer version
    return {**seeds, "newer": unknown.SerializeToString(), "two": seeds["open"] + seeds["close"], "none": b""}


def _server_frame(data: bytes) -> f.ServerFrame:
    return wire.server_frame_from_proto(pb.ServerFrame.FromString(data))


def _check_server_frame(frame: f.ServerFrame) -> None:
    (message,) = wire.server_frame_to_proto(frame, "float32")
    back = _server_frame(message.SerializeToString())
    if isinstance(frame, f.Features):
        _check_features(frame, back)
    else:
        assert back == frame


def _check_features(frame: f.Features, back: Any) -> None:
    assert frame.rows.shape == back.rows.shape
    for name in ("seq", "first", "codec"):
        assert getattr(frame, name) == getattr(back, name)
    if frame.codec in ("float32", "bf16"):
        assert np.array_equal(frame.rows, back.rows)


def _server_bound(data: bytes) -> int:
    """Features come compressed: they may take what the largest raw size that is allowed makes."""
    try:
        message = pb.ServerFrame.FromString(data)
    except DecodeError:
        return by_length(data)
    return by_length(data) + (20 * MAX_RAW_BYTES if message.HasField("features") else 0)


def _server_seeds() -> dict[str, bytes]:
    rows = np.random.default_rng(0).standard_normal((3, 70)).astype(np.float32)
    frames = dict(_SERVER)
    for codec in f.CODECS:
        frames[f"features-{codec}"] = f.Features(5, 11, rows, True, 300, codec=codec)
    frames["features-padded"] = f.Features(5, 11, rows[:1, :8], True, 300, padded_width=80, codec="float32")
    seeds = {}
    for name, frame in frames.items():
        (message,) = wire.server_frame_to_proto(frame, "int8")
        if message.features.padding:
            message.features.padding = bytes(len(message.features.padding))  # random as made
        seeds[name] = message.SerializeToString()
    return {**seeds, "many-eos": pb.ServerFrame(opened=pb.Opened(eos_token_ids=[1] * 900)).SerializeToString()}


def _description(data: bytes) -> f.ServerDescription:
    return description_from_proto(pb.Description.FromString(data))


def _check_description(description: f.ServerDescription) -> None:
    assert _description(description_to_proto(description).SerializeToString()) == description


def _description_seeds() -> dict[str, bytes]:
    taps = (f.TapInfo("ab" * 16, "moa", 96), f.TapInfo("cd" * 16, "medusa", 64, True))
    whole = f.ServerDescription(1, "0.1.0", "target", "ab" * 16, "cd" * 16, 2048, 1024, 255, (1, 2), taps)
    several = {
        "whole": whole,
        "no-taps": dataclasses.replace(whole, taps=()),
        "none": dataclasses.replace(whole, vocab_size=0, max_context=0, max_nodes=0),
        "wide": dataclasses.replace(whole, taps=(f.TapInfo("ab", "moa", 2**32 - 1),)),
    }
    return {name: description_to_proto(one).SerializeToString() for name, one in several.items()}


TARGETS = (
    FuzzTarget("client-frame", _client_frame, _client_seeds, _check_client_frame, _REFUSALS),
    FuzzTarget("server-frame", _server_frame, _server_seeds, _check_server_frame, _REFUSALS, _server_bound),
    FuzzTarget("description", _description, _description_seeds, _check_description, _REFUSALS),
)
