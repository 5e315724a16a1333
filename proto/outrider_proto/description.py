"""Server descriptions to protobuf and back, and checks of fields that other messages share. All raise Violation."""

from __future__ import annotations

from collections.abc import Sized

from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import Reason, Violation
from outrider_proto.frames import ServerDescription, TapInfo
from outrider_proto.packing import MAX_TOKEN
from outrider_proto.tree import MAX_NODES

_MAX_ID_LENGTH = 256
_MAX_EOS = 256
_MAX_TAPS = 64


def description_to_proto(description: ServerDescription) -> pb.Description:
    taps = [
        pb.Tap(fingerprint=t.fingerprint, family=t.family, width=t.width, newest_only=t.newest_only)
        for t in description.taps
    ]
    return pb.Description(
        protocol_version=description.protocol_version,
        server_version=description.server_version,
        target_name=description.target_name,
        target_fingerprint=description.target_fingerprint,
        tokenizer_fingerprint=description.tokenizer_fingerprint,
        vocab_size=description.vocab_size,
        max_context=description.max_context,
        max_nodes=description.max_nodes,
        eos_token_ids=description.eos_token_ids,
        taps=taps,
    )


def description_from_proto(message: pb.Description) -> ServerDescription:
    """Raises Violation for values out of range."""
    check_texts(message, "server_version", "target_name", "target_fingerprint", "tokenizer_fingerprint")
    check_limits(message)
    if not 1 <= message.vocab_size <= MAX_TOKEN + 1:
        raise malformed(f"vocab_size={message.vocab_size}: need 1 to {MAX_TOKEN + 1}")
    check_size("taps", message.taps, _MAX_TAPS)
    for tap in message.taps:
        check_texts(tap, "fingerprint", "family")
    return ServerDescription(
        protocol_version=message.protocol_version,
        server_version=message.server_version,
        target_name=message.target_name,
        target_fingerprint=message.target_fingerprint,
        tokenizer_fingerprint=message.tokenizer_fingerprint,
        vocab_size=message.vocab_size,
        max_context=message.max_context,
        max_nodes=message.max_nodes,
        eos_token_ids=tuple(message.eos_token_ids),
        taps=tuple(TapInfo(t.fingerprint, t.family, t.width, t.newest_only) for t in message.taps),
    )


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
