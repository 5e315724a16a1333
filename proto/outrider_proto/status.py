"""Errors to gRPC statuses and back, with google.rpc.ErrorInfo as the detail, and RetryInfo where the time is known.

The only module here that needs grpc.
"""

from __future__ import annotations

from collections.abc import Sequence

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.protobuf.message import DecodeError, Message
from google.rpc.error_details_pb2 import ErrorInfo, RetryInfo
from google.rpc.status_pb2 import Status

from outrider_proto.errors import DOMAIN, LinkError, OutriderError, Reason, Refusal, UsageError

DETAILS_KEY = "grpc-status-details-bin"  # where gRPC's richer error model puts google.rpc.Status
MAX_RETRY_S = 24 * 3600.0  # cap on what either side sends and believes
_LINK_CODES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    # Without our detail, INTERNAL is a peer that died while we wrote to it, or a broken HTTP/2 stream.
    grpc.StatusCode.INTERNAL,
}
# Sent by the transport itself, without our detail.
_TRANSPORT_REASONS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.FRAME_TOO_LARGE,
    grpc.StatusCode.INVALID_ARGUMENT: Reason.MALFORMED_FRAME,
}


def refusal_status(refusal: Refusal) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Return the arguments of `context.abort(code, details, trailing_metadata)`."""
    code = grpc.StatusCode[refusal.reason.status]
    detail = AnyMessage()
    detail.Pack(ErrorInfo(reason=refusal.reason.name, domain=DOMAIN))
    status = Status(code=code.value[0], message=refusal.message, details=[detail])
    if refusal.retry_after_s is not None:
        retry = RetryInfo()
        retry.retry_delay.FromMilliseconds(round(min(refusal.retry_after_s, MAX_RETRY_S) * 1000))
        status.details.add().Pack(retry)
    return code, refusal.message, ((DETAILS_KEY, status.SerializeToString()),)


def error_from_rpc(error: grpc.aio.AioRpcError) -> OutriderError:
    """Translate a failed RPC: the peer's refusal, a peer that is no Outrider server, or the link's fault."""
    details = _details(error)
    reason = _reason(details)
    text = error.details() or error.code().name
    if reason is not None:
        return Refusal(reason, text, _retry_after_s(details))
    if error.code() in _LINK_CODES:
        return LinkError(text)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return UsageError(f"the peer is not an Outrider server: {text}")
    return Refusal(_TRANSPORT_REASONS.get(error.code(), Reason.INTERNAL), text)


def _details(error: grpc.aio.AioRpcError) -> Sequence[AnyMessage]:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            try:
                return tuple(Status.FromString(value).details)
            except DecodeError:
                return ()
    return ()


def _reason(details: Sequence[AnyMessage]) -> Reason | None:
    for detail in details:
        info = ErrorInfo()
        if _unpacks(detail, info) and info.domain == DOMAIN:
            return Reason.__members__.get(info.reason, Reason.INTERNAL)
    return None


def _retry_after_s(details: Sequence[AnyMessage]) -> float | None:
    for detail in details:
        retry = RetryInfo()
        if _unpacks(detail, retry):
            seconds: float = retry.retry_delay.seconds + retry.retry_delay.nanos / 1e9
            return min(max(seconds, 0.0), MAX_RETRY_S)
    return None


def _unpacks(detail: AnyMessage, into: Message) -> bool:
    try:
        return detail.Unpack(into)
    except DecodeError:
        return False
