"""Errors as gRPC statuses and back, with google.rpc.ErrorInfo as the detail. The one file here that needs grpc."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status

from outrider_proto.errors import DOMAIN, LinkError, OutriderError, Reason, Refusal, UsageError

DETAILS_KEY = "grpc-status-details-bin"  # where gRPC's richer error model puts google.rpc.Status
_LINK_CODES = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.CANCELLED,
    grpc.StatusCode.INTERNAL,  # without our detail: a peer that died while we wrote to it, or a broken HTTP/2 stream
}
# What the transport itself says, without our detail.
_TRANSPORT_REASONS = {
    grpc.StatusCode.RESOURCE_EXHAUSTED: Reason.FRAME_TOO_LARGE,
    grpc.StatusCode.INVALID_ARGUMENT: Reason.MALFORMED_FRAME,
}


def refusal_status(refusal: Refusal) -> tuple[grpc.StatusCode, str, tuple[tuple[str, bytes], ...]]:
    """Arguments of `context.abort(code, details, trailing_metadata)`."""
    code = grpc.StatusCode[refusal.reason.status]
    detail = AnyMessage()
    detail.Pack(ErrorInfo(reason=refusal.reason.name, domain=DOMAIN))
    status = Status(code=code.value[0], message=refusal.message, details=[detail])
    return code, refusal.message, ((DETAILS_KEY, status.SerializeToString()),)


def error_from_rpc(error: grpc.aio.AioRpcError) -> OutriderError:
    """What an RPC's failure means: the peer's refusal, a peer that speaks something else, or the link's fault."""
    reason = _reason(error)
    text = error.details() or error.code().name
    if reason is not None:
        return Refusal(reason, text)
    if error.code() in _LINK_CODES:
        return LinkError(text)
    if error.code() is grpc.StatusCode.UNIMPLEMENTED:
        return UsageError(f"the peer is not an Outrider server: {text}")
    return Refusal(_TRANSPORT_REASONS.get(error.code(), Reason.INTERNAL), text)


def _reason(error: grpc.aio.AioRpcError) -> Reason | None:
    for key, value in error.trailing_metadata() or ():
        if key == DETAILS_KEY and isinstance(value, bytes):
            return _reason_in_details(value)
    return None


def _reason_in_details(serialized: bytes) -> Reason | None:
    for detail in Status.FromString(serialized).details:
        info = ErrorInfo()
        if detail.Unpack(info) and info.domain == DOMAIN:
            return Reason.__members__.get(info.reason, Reason.INTERNAL)
    return None
