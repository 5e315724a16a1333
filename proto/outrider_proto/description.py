"""Server descriptions to protobuf and back, and checks of fields that other messages share. All raise Violation."""

from __future__ import annotations

from collections.abc import Sized
from dataclasses import asdict
from typing import Any

from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import ServerDescription, TapInfo
from outrider_proto.packing import MAX_TOKEN
from outrider_proto.tree import MAX_NODES

_MAX_ID_LENGTH = 256
_MAX_EOS = 256
_MAX_TAPS = 64
_NAMES = ("server_version", "target_name", "target_fingerprint", "tokenizer_fingerprint", "target_digest")
_SAME = ("protocol_version", *_NAMES, "vocab_size", "max_context", "max_nodes", "eos_token_ids")


def description_to_proto(description: ServerDescription) -> pb.Description:
    taps = [pb.Tap(**asdict(tap)) for tap in description.taps]
    return pb.Description(**same_fields(description, _SAME), taps=taps)


def description_from_proto(message: pb.Description | None) -> ServerDescription:
    """Raises Violation for values out of range, and for None, which gRPC returns for bytes that are no message."""
    if message is None:
        raise malformed("the answer is no Description")
    check_texts(message, *_NAMES)
    check_limits(message)
    if not 1 <= message.vocab_size <= MAX_TOKEN + 1:
        raise malformed(f"vocab_size={message.vocab_size}: need 1 to {MAX_TOKEN + 1}")
    check_size("taps", message.taps, _MAX_TAPS)
    for tap in message.taps:
        check_texts(tap, "fingerprint", "family")
    taps = tuple(TapInfo(tap.fingerprint, tap.family, tap.width, tap.newest_only) for tap in message.taps)
    same = same_fields(message, _SAME) | {"eos_token_ids": tuple(message.eos_token_ids)}
    return ServerDescription(**same, taps=taps)


def same_fields(source: object, names: tuple[str, ...]) -> dict[str, Any]:  # Any: each field has its own type
    """Return the fields that a frame and its message have under one name, by that name."""
    return {name: getattr(source, name) for name in names}


def check_texts(message: pb.Open | pb.Opened | pb.Description | pb.Tap, *names: str) -> None:
    for name in names:
        if len(getattr(message, name)) > _MAX_ID_LENGTH:
            raise malformed(f"{name} is longer than {_MAX_ID_LENGTH} characters")


def check_limits(message: pb.Opened | pb.Description) -> None:
    if message.max_context < 1 or not 1 <= message.max_nodes <= MAX_NODES:
        limits = f"max_context={message.max_context}, max_nodes={message.max_nodes}"
        raise malformed(f"{limits}: need 1 or more, and 1 to {MAX_NODES}")
    check_size("eos_token_ids", message.eos_token_ids, _MAX_EOS)


def check_size(name: str, items: Sized, most: int) -> None:
    """Check the length before the items become Python numbers, each ten times as large."""
    if len(items) > most:
        raise malformed(f"{name} of {len(items)}: at most {most}")


def malformed(message: str) -> Violation:
    return Violation(Reason.MALFORMED_FRAME, message)
