"""A session's frames to protobuf and back: the only module that knows both.

Every field from the other side is checked here, except what only a session can know (vocabulary, context, sequence).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import Any, assert_never

from outrider_proto import frames as f
from outrider_proto import verifier_pb2 as pb
from outrider_proto.description import check_limits, check_size, check_texts, malformed, same_fields
from outrider_proto.errors import Reason, Violation
from outrider_proto.feature_codec import decode_rows, encode_rows, padding, rows_per_frame
from outrider_proto.packing import (
    HASH_BYTES,
    TOKEN_BYTES,
    PackedLogprobs,
    pack_logprobs,
    pack_parents,
    pack_tokens,
    unpack_logprobs,
    unpack_parents,
    unpack_tokens,
)
from outrider_proto.tree import MAX_NODES, DraftTree

MAX_FRAME_BYTES = 1024 * 1024
_MAX_US = 2**32 - 1  # 71 minutes: the passes of a long text may take longer
# Our names are those of the .proto, but for the enum's own before each. Any: the enums' numbers, int to the stubs.
_CODEC_TO_PB: dict[f.Codec, Any] = {
    codec: pb.FeatureCodec.Value(f"FEATURE_CODEC_{codec.replace('-', '_').upper()}") for codec in f.CODECS
}
_CODEC_FROM_PB: dict[int, f.Codec] = {number: codec for codec, number in _CODEC_TO_PB.items()}
_FINISH_TO_PB: dict[f.Finish, Any] = {finish: pb.Finish.Value(f"FINISH_{finish.name}") for finish in f.Finish}
_FINISH_FROM_PB: dict[int, f.Finish] = {number: finish for finish, number in _FINISH_TO_PB.items()}
_ACCEPTANCE_TO_PB: dict[f.Acceptance, Any] = {
    acceptance: pb.Acceptance.Value(f"ACCEPTANCE_{acceptance.upper()}") for acceptance in f.ACCEPTANCES
}
_ACCEPTANCE_FROM_PB: dict[int, f.Acceptance] = {number: acceptance for acceptance, number in _ACCEPTANCE_TO_PB.items()}

# The fields that are the same on both sides.
_OPEN = ("protocol_version", "target_fingerprint", "tokenizer_fingerprint", "tap", "session_id", "committed_len")
_SAMPLING = ("temperature", "top_k", "top_p", "seed", "epsilon", "alpha", "min_p")
_RULES = ("answer_from", "json_schema", "frequency_penalty", "presence_penalty")
_DRAFT = ("seq", "base_len", "root", "features_from", "assumes")
_DECODE = ("seq", "base_len", "root", "max_tokens")
_OFFERS = ("server_draft", "request_sampling", "token_rules")
_OPENED = ("session_id", "resumed", "kept_len", "kept_hash", "max_context", "max_nodes", "target_digest", *_OFFERS)
_VERDICT = ("seq", "stale", "tree_budget", "draft_levels")
_TIMES = ("queue_us", "verify_us", "draft_us")


def client_frame_to_proto(frame: f.ClientFrame) -> pb.ClientFrame:
    """Raises Violation for token ids out of range."""
    match frame:
        case f.Open():
            return pb.ClientFrame(open=_open_to_proto(frame))
        case f.Draft():
            return pb.ClientFrame(draft=_draft_to_proto(frame))
        case f.Decode():
            return pb.ClientFrame(decode=_decode_to_proto(frame))
        case f.Cancel():
            return pb.ClientFrame(cancel=pb.Cancel(seq=frame.seq))
        case f.Ping():
            return pb.ClientFrame(ping=pb.Ping(nonce=frame.nonce))
        case f.Close():
            return pb.ClientFrame(close=pb.Close())
        case _:
            assert_never(frame)


def client_frame_from_proto(message: pb.ClientFrame) -> f.ClientFrame:
    """Raises Violation for anything that is not a well-formed frame."""
    match message.WhichOneof("frame"):
        case "open":
            return _open_from_proto(message.open)
        case "draft":
            return _draft_from_proto(message.draft)
        case "decode":
            return _decode_from_proto(message.decode)
        case "cancel":
            return f.Cancel(message.cancel.seq)
        case "ping":
            return f.Ping(message.ping.nonce)
        case "close":
            return f.Close()
        case _:
            raise malformed("an empty frame, or one of a newer protocol version")


def server_frame_to_proto(frame: f.ServerFrame, codec: f.Codec) -> Iterator[pb.ServerFrame]:
    """Yield one message, or several for features, so that none exceeds MAX_FRAME_BYTES. `codec` is the session's."""
    match frame:
        case f.Opened():
            yield pb.ServerFrame(opened=_opened_to_proto(frame))
        case f.Verdict():
            yield pb.ServerFrame(verdict=_verdict_to_proto(frame))
        case f.Features():
            for message in _features_to_proto(frame, frame.codec or codec):
                yield pb.ServerFrame(features=message)
        case f.Pong():
            yield pb.ServerFrame(pong=pb.Pong(nonce=frame.nonce))
        case _:
            assert_never(frame)


def server_frame_from_proto(message: pb.ServerFrame) -> f.ServerFrame:
    """Raises Violation for anything that is not a well-formed frame."""
    match message.WhichOneof("frame"):
        case "opened":
            return _opened_from_proto(message.opened)
        case "verdict":
            return _verdict_from_proto(message.verdict)
        case "features":
            return _features_from_proto(message.features)
        case "pong":
            return f.Pong(message.pong.nonce)
        case _:
            raise malformed("an empty frame, or one of a newer protocol version")


def _open_to_proto(frame: f.Open) -> pb.Open:
    same = same_fields(frame, _OPEN)
    return pb.Open(**same, codec=_CODEC_TO_PB[frame.codec], sampling=_sampling_to_proto(frame.sampling))


def _open_from_proto(message: pb.Open) -> f.Open:
    check_texts(message, "target_fingerprint", "tokenizer_fingerprint", "tap", "session_id")
    sampling = _sampling_asked(message) or f.Sampling()
    return f.Open(**same_fields(message, _OPEN), codec=_codec(message.codec), sampling=sampling)


def _sampling_to_proto(sampling: f.Sampling) -> pb.Sampling:
    return pb.Sampling(
        **same_fields(sampling, _SAMPLING),
        acceptance=_ACCEPTANCE_TO_PB[sampling.acceptance],
        rules=_rules_to_proto(sampling.rules) if sampling.rules else None,
    )


def _rules_to_proto(rules: f.TokenRules) -> pb.TokenRules:
    bias = dict(rules.logit_bias)
    return pb.TokenRules(**same_fields(rules, _RULES), logit_bias=bias, repetition_penalty=rules.repetition_penalty)


def _rules_from_proto(message: pb.TokenRules) -> f.TokenRules:
    check_size("logit_bias", message.logit_bias, f.MAX_LOGIT_BIASES)
    return f.TokenRules(
        **same_fields(message, _RULES),
        logit_bias=tuple(sorted(message.logit_bias.items())),  # a map has no order
        repetition_penalty=message.repetition_penalty or 1.0,  # 0: left out
    )


def _sampling_asked(frame: pb.Open | pb.Draft | pb.Decode) -> f.Sampling | None:
    return _sampling_from_proto(frame.sampling) if frame.HasField("sampling") else None


def _sampling_from_proto(message: pb.Sampling) -> f.Sampling:
    if message.acceptance not in _ACCEPTANCE_FROM_PB:
        raise Violation(Reason.BAD_SAMPLING, f"acceptance={message.acceptance}: unknown")
    return f.Sampling(
        **same_fields(message, _SAMPLING),
        acceptance=_ACCEPTANCE_FROM_PB[message.acceptance],
        rules=_rules_from_proto(message.rules) if message.HasField("rules") else f.TokenRules(),
    )


def _draft_to_proto(frame: f.Draft) -> pb.Draft:
    return pb.Draft(
        **same_fields(frame, _DRAFT),
        tokens=pack_tokens(frame.tree.tokens),
        parents=pack_parents(frame.tree.parents),
        **_request_to_proto(frame),
    )


def _draft_from_proto(message: pb.Draft) -> f.Draft:
    if message.assumes and (len(message.assumes) != HASH_BYTES or message.context):
        raise malformed(f"assumes: need {HASH_BYTES} bytes and no context")
    # Checked before unpacking: Python numbers take ten times the memory of the message.
    if len(message.parents) > MAX_NODES or len(message.tokens) > TOKEN_BYTES * MAX_NODES:
        raise Violation(Reason.TREE_TOO_LARGE, f"{len(message.parents)} nodes: at most {MAX_NODES}")
    tree = DraftTree(unpack_tokens(message.tokens), unpack_parents(message.parents))
    return f.Draft(**same_fields(message, _DRAFT), tree=tree, **_request_from_proto(message))


def _decode_to_proto(frame: f.Decode) -> pb.Decode:
    return pb.Decode(
        **same_fields(frame, _DECODE),
        features_from=frame.features_from,
        tree=None if frame.tree is None else pb.ServerTree(**asdict(frame.tree)),
        **_request_to_proto(frame),
    )


def _decode_from_proto(message: pb.Decode) -> f.Decode:
    if message.max_tokens < 1:
        raise malformed("max_tokens=0: need at least 1")
    tree = message.tree
    return f.Decode(
        **same_fields(message, _DECODE),
        features_from=message.features_from if message.HasField("features_from") else None,
        tree=f.ServerTree(tree.breadth, tree.levels, tree.budget, tree.auto) if message.HasField("tree") else None,
        **_request_from_proto(message),
    )


def _request_to_proto(frame: f.Draft | f.Decode) -> dict[str, Any]:  # Any: each field has its own type
    """Return what a Draft and a Decode have in common."""
    return {
        "context": pack_tokens(frame.context),
        "logprobs": frame.logprobs,
        "codec": pb.FEATURE_CODEC_UNSPECIFIED if frame.codec is None else _CODEC_TO_PB[frame.codec],
        "sampling": None if frame.sampling is None else _sampling_to_proto(frame.sampling),
    }


def _request_from_proto(message: pb.Draft | pb.Decode) -> dict[str, Any]:  # Any: each field has its own type
    return {
        "context": unpack_tokens(message.context),
        "logprobs": _num_top(message),
        "codec": _codec(message.codec) if message.codec else None,
        "sampling": _sampling_asked(message),
    }


def _num_top(message: pb.Draft | pb.Decode) -> int | None:
    if not message.HasField("logprobs"):
        return None
    if message.logprobs > f.MAX_TOP_LOGPROBS:
        raise malformed(f"logprobs={message.logprobs}: need 0 to {f.MAX_TOP_LOGPROBS}")
    return message.logprobs


def _opened_to_proto(frame: f.Opened) -> pb.Opened:
    return pb.Opened(**same_fields(frame, _OPENED), eos_token_ids=frame.eos_token_ids)


def _opened_from_proto(message: pb.Opened) -> f.Opened:
    check_texts(message, "session_id", "target_digest")
    check_limits(message)
    if len(message.kept_hash) != HASH_BYTES:
        raise malformed(f"kept_hash of {len(message.kept_hash)} bytes: need {HASH_BYTES}")
    return f.Opened(**same_fields(message, _OPENED), eos_token_ids=tuple(message.eos_token_ids))


def _verdict_to_proto(frame: f.Verdict) -> pb.Verdict:
    return pb.Verdict(
        **same_fields(frame, _VERDICT),
        **{name: min(us, _MAX_US) for name, us in same_fields(frame, _TIMES).items()},
        path=bytes(frame.path),
        bonus=frame.bonus,
        finish=_FINISH_TO_PB[frame.finish],
        tokens=pack_tokens(frame.tokens),
        logprobs=pb.Logprobs(**pack_logprobs(frame.logprobs)._asdict()) if frame.logprobs else None,
    )


def _verdict_from_proto(message: pb.Verdict) -> f.Verdict:
    if message.finish not in _FINISH_FROM_PB:
        raise malformed(f"finish={message.finish}: unknown")
    check_size("path", message.path, MAX_NODES)
    check_size("tokens", message.tokens, TOKEN_BYTES * MAX_NODES)
    for name in ("tree_budget", "draft_levels"):
        if (number := getattr(message, name)) > MAX_NODES:
            raise malformed(f"{name}={number}: need 0 to {MAX_NODES}")
    return f.Verdict(
        **same_fields(message, _VERDICT + _TIMES),
        path=tuple(message.path),
        bonus=message.bonus if message.HasField("bonus") else None,
        finish=_FINISH_FROM_PB[message.finish],
        tokens=unpack_tokens(message.tokens),
        logprobs=_logprobs_from_proto(message.logprobs) if message.HasField("logprobs") else (),
    )


def _logprobs_from_proto(message: pb.Logprobs) -> tuple[f.TokenLogprob, ...]:
    return unpack_logprobs(PackedLogprobs(message.chosen, message.top_tokens, message.top))


def _features_to_proto(frame: f.Features, codec: f.Codec) -> Iterator[pb.Features]:
    total, width = frame.rows.shape
    of_rows, wider = max(total, frame.of_rows), frame.padded_width if frame.padded_width > width > 0 else 0
    step = rows_per_frame(codec, wider or width)
    for start in range(0, total, step):
        rows = frame.rows[start : start + step]
        payload = encode_rows(rows, codec, of_rows)
        yield pb.Features(
            seq=frame.seq,
            first=frame.first + start,
            num_rows=len(rows),
            width=width,
            codec=_CODEC_TO_PB[codec],
            payload=payload,
            last=(last := frame.last and start + step >= total),
            tap_us=min(frame.tap_us, _MAX_US) if last else 0,
            padding=padding(len(payload), codec, len(rows), wider, of_rows) if wider else b"",
        )


def _features_from_proto(message: pb.Features) -> f.Features:
    codec = _codec(message.codec)
    rows = decode_rows(message.payload, codec, message.num_rows, message.width)
    return f.Features(message.seq, message.first, rows, message.last, message.tap_us, codec=codec)


def _codec(number: int) -> f.Codec:
    if number not in _CODEC_FROM_PB:
        raise malformed(f"codec={number}: need one of {sorted(_CODEC_FROM_PB)}")
    return _CODEC_FROM_PB[number]
