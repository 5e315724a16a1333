"""Every refusal crosses gRPC as itself; which of them pass."""

import grpc
import pytest
from google.protobuf.any_pb2 import Any as AnyMessage
from google.rpc.status_pb2 import Status
from grpc.aio import AioRpcError, Metadata

from outrider_proto.errors import LinkError, Reason, Refusal, UsageError, is_transient
from outrider_proto.status import DETAILS_KEY, error_from_rpc, refusal_status

ERROR_INFO = "type.googleapis.com/google.rpc.ErrorInfo"


@pytest.mark.parametrize("reason", Reason)
def test_reason_survives(reason):
    code, text, trailing = refusal_status(Refusal(reason, "because"))
    error = error_from_rpc(AioRpcError(code, Metadata(), Metadata(*trailing), text))
    assert isinstance(error, Refusal)
    assert (error.reason, error.message) == (reason, "because")
    assert code.name == reason.status


@pytest.mark.parametrize(
    "details",
    [b"\x12\x7f", Status(details=[AnyMessage(type_url=ERROR_INFO, value=b"\x0a\x7f")]).SerializeToString()],
)
def test_broken_details_are_no_details(details):
    trailing = Metadata((DETAILS_KEY, details))
    error = error_from_rpc(AioRpcError(grpc.StatusCode.UNAVAILABLE, Metadata(), trailing, "text"))
    assert isinstance(error, LinkError)


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        (grpc.StatusCode.UNAVAILABLE, LinkError),
        (grpc.StatusCode.DEADLINE_EXCEEDED, LinkError),
        (grpc.StatusCode.INTERNAL, LinkError),  # how a peer's death shows to one who is writing to it
        (grpc.StatusCode.UNIMPLEMENTED, UsageError),
        (grpc.StatusCode.RESOURCE_EXHAUSTED, Refusal),
        (grpc.StatusCode.UNKNOWN, Refusal),
    ],
)
def test_errors_of_the_transport_itself(code, kind):
    assert isinstance(error_from_rpc(AioRpcError(code, Metadata(), Metadata(), "text")), kind)


TRANSIENT = ["SHUTTING_DOWN", "SERVER_FULL", "STALLED", "OVER_QUOTA"]


@pytest.mark.parametrize("reason", Reason)
def test_refusals_pass_when_the_server_is_away_for_now(reason):
    assert is_transient(Refusal(reason, "no")) == (reason.name in TRANSIENT)
