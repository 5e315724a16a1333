"""Checks of fields that several messages share. All raise Violation."""

from __future__ import annotations

from collections.abc import Sized

from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import Reason, Violation
from outrider_proto.tree import MAX_NODES

_MAX_ID_LENGTH = 256
_MAX_EOS = 256


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
