"""Checks of client frames against this server, before anything reaches the model."""

from __future__ import annotations

from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_proto import PROTOCOL_VERSION
from outrider_proto.errors import Reason, Refusal, UsageError, Violation
from outrider_proto.frames import (
    CODECS,
    MAX_EXPANDED,
    MAX_TOP_LOGPROBS,
    Codec,
    Decode,
    Draft,
    Open,
    ServerDescription,
    ServerTree,
)
from outrider_proto.packing import HASH_BYTES
from outrider_server.security.principal import Principal, Scope


def check_open(frame: Open, server: ServerDescription) -> None:
    """Raise Refusal unless client and server have the same protocol, target, tokenizer and features."""
    if frame.protocol_version != PROTOCOL_VERSION:
        raise Refusal(
            Reason.VERSION_MISMATCH,
            f"the client speaks protocol version {frame.protocol_version}, the server {PROTOCOL_VERSION}",
        )
    if frame.target_fingerprint != server.target_fingerprint:
        raise _mismatch(Reason.TARGET_MISMATCH, "target", frame.target_fingerprint, server.target_fingerprint)
    if frame.tokenizer_fingerprint != server.tokenizer_fingerprint:
        raise _mismatch(
            Reason.TOKENIZER_MISMATCH, "tokenizer", frame.tokenizer_fingerprint, server.tokenizer_fingerprint
        )
    taps = [tap.fingerprint for tap in server.taps]
    if frame.tap and frame.tap not in taps:
        raise Refusal(
            Reason.UNKNOWN_TAP,
            f"the client's drafter wants features {frame.tap}, the server offers {', '.join(taps)};"
            " give both sides the same drafter and options (--drafter DIR,option=value)",
        )
    _check_codec(frame.codec)


def check_tokens(frame: Draft | Decode, server: ServerDescription) -> None:
    """Raise Refusal for numbers out of range, tokens outside the vocabulary, and text beyond the context."""
    if not 0 <= frame.seq < 2**32 or frame.base_len < 0:
        raise Violation(Reason.BAD_SEQUENCE, f"seq={frame.seq}, base_len={frame.base_len}: need 0 or more")
    vocab = server.vocab_size
    if not 0 <= frame.root < vocab:
        raise _outside("the root", frame.root, vocab)
    if frame.context and not 0 <= min(frame.context) <= max(frame.context) < vocab:
        wrong = next(token for token in frame.context if not 0 <= token < vocab)
        raise _outside("the context", wrong, vocab)
    if frame.logprobs is not None and not 0 <= frame.logprobs <= MAX_TOP_LOGPROBS:
        raise _malformed(f"logprobs={frame.logprobs}: need 0 to {MAX_TOP_LOGPROBS}")
    if frame.codec is not None:
        _check_codec(frame.codec)
    match frame:
        case Draft():
            _check_tree(frame, server)
        case Decode():
            _check_decode(frame, server)
    length = frame.base_len + len(frame.context) + 1
    if length >= server.max_context:
        raise Refusal(
            Reason.CONTEXT_FULL, f"{length} tokens leave no room for an answer: the context is {server.max_context}"
        )


def check_drafting(frame: Decode, principal: Principal, *, is_offered: bool) -> None:
    """Raise Refusal where server drafting is not allowed or not offered."""
    if frame.tree is None:
        return
    if not principal.may(Scope.SERVER_DRAFT):
        raise Refusal(Reason.OUT_OF_SCOPE, "this key does not allow server-draft: decode without a tree")
    if not is_offered:
        raise Refusal(Reason.NO_SERVER_DRAFT, "this server does not draft for this session: decode without a tree")


def _check_codec(codec: Codec) -> None:
    if codec not in CODECS:
        raise _malformed(f"codec={codec}: need one of {', '.join(CODECS)}")


def _check_tree(frame: Draft, server: ServerDescription) -> None:
    if len(frame.tree) > server.max_nodes:
        raise Violation(Reason.TREE_TOO_LARGE, f"{len(frame.tree)} nodes: this server takes {server.max_nodes}")
    if frame.features_from < 0:
        raise _malformed(f"features_from={frame.features_from}: need 0 or more")
    if frame.assumes and (len(frame.assumes) != HASH_BYTES or frame.context):
        raise _malformed(f"assumes: need {HASH_BYTES} bytes and no context")
    frame.tree.check_vocabulary(server.vocab_size)


def _check_decode(frame: Decode, server: ServerDescription) -> None:
    if frame.max_tokens < 1:
        raise _malformed(f"max_tokens={frame.max_tokens}: need at least 1")
    if frame.features_from is not None and frame.features_from < 0:
        raise _malformed(f"features_from={frame.features_from}: need 0 or more")
    if frame.tree is not None:
        _check_shape(frame.tree, server)


def _check_shape(tree: ServerTree, server: ServerDescription) -> None:
    if tree.budget > server.max_nodes:
        raise Violation(Reason.TREE_TOO_LARGE, f"budget={tree.budget}: this server takes {server.max_nodes}")
    try:
        TreeShape(tree.breadth, tree.levels, tree.budget)
    except UsageError as error:
        raise Violation(Reason.MALFORMED_TREE, str(error)) from None
    if max(tree.breadth, tree.levels) > tree.budget:
        shape = f"breadth={tree.breadth}, levels={tree.levels}"
        raise Violation(Reason.TREE_TOO_LARGE, f"{shape}: need at most budget={tree.budget} of each")
    if tree.most_expanded > MAX_EXPANDED:
        shape = f"breadth={tree.breadth}, levels={tree.levels}: a draft would run {tree.most_expanded} nodes"
        raise Violation(Reason.TREE_TOO_LARGE, f"{shape}; this server runs {MAX_EXPANDED}")


def _malformed(message: str) -> Violation:
    return Violation(Reason.MALFORMED_FRAME, message)


def _outside(what: str, token: int, vocab: int) -> Violation:
    return Violation(Reason.TOKEN_OUT_OF_VOCABULARY, f"{what} has token {token}: the vocabulary has {vocab}")


def _mismatch(reason: Reason, what: str, client: str, server: str) -> Refusal:
    return Refusal(
        reason,
        f"the client has {what} {client or '(none)'}, the server {server}; they must be the same:"
        " `outrider pull HOST:PORT` fetches what fits this server",
    )
