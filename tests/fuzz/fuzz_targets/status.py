"""What a peer says of an RPC's failure: a status code, a text, and google.rpc.Status in the trailing metadata."""

from __future__ import annotations

import grpc
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.error_details_pb2 import ErrorInfo
from google.rpc.status_pb2 import Status
from grpc.aio import AioRpcError, Metadata

from fuzz_targets.target import FuzzTarget
from outrider_proto.errors import OutriderError, Reason, Refusal
from outrider_proto.status import DETAILS_KEY, error_from_rpc, refusal_status

_CODES = tuple(grpc.StatusCode)


def _error(data: bytes) -> OutriderError | None:
    if not data:
        return None
    code = _CODES[data[0] % len(_CODES)]
    return error_from_rpc(AioRpcError(code, Metadata(), Metadata((DETAILS_KEY, data[1:])), "as it says"))


def _check(error: OutriderError) -> None:
    assert isinstance(error, OutriderError)
    if isinstance(error, Refusal):
        code, text, trailing = refusal_status(error)
        again = error_from_rpc(AioRpcError(code, Metadata(), Metadata(*trailing), text))
        assert isinstance(again, Refusal)
        assert again.reason is error.reason


def _seeds() -> dict[str, bytes]:
    seeds = {}
    for reason in (Reason.SERVER_FULL, Reason.MALFORMED_TREE, Reason.INTERNAL):
        _, _, ((_, details),) = refusal_status(Refusal(reason, "because"))
        seeds[reason.name.lower()] = b"\x08" + details
    strange = AnyMessage()
    strange.Pack(ErrorInfo(reason="OF_ANOTHER", domain="example.org"))
    broken = AnyMessage(type_url="type.googleapis.com/google.rpc.ErrorInfo", value=b"\x0a\x7f")
    seeds["of-another"] = b"\x03" + Status(code=3, details=[strange]).SerializeToString()
    seeds["broken-detail"] = b"\x03" + Status(code=3, details=[broken]).SerializeToString()
    seeds["broken"] = b"\x03\x12\x7f"
    seeds["none"] = b"\x0e"
    return seeds


TARGETS = (FuzzTarget("status", _error, _seeds, _check, refusals=()),)
