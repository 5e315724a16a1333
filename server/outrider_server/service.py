"""The gRPC shell around the verifier: bytes to frames, refusals to statuses. Knows nothing of what frames mean."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing
from typing import Any, NoReturn, TypeAlias

import grpc
from google.protobuf.message import DecodeError

from outrider_proto import verifier_pb2 as pb
from outrider_proto.errors import Reason, Refusal, Violation
from outrider_proto.frames import ClientFrame, Codec, Open, ServerFrame
from outrider_proto.status import refusal_status
from outrider_proto.wire import (
    MAX_FRAME_BYTES,
    client_frame_from_proto,
    description_to_proto,
    server_frame_to_proto,
)
from outrider_server.verifier import Verifier

_log = logging.getLogger(__name__)
SERVICE = pb.DESCRIPTOR.services_by_name["Verifier"].full_name

Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class VerifierService:
    """The methods of outrider.v1.Verifier."""

    def __init__(self, verifier: Verifier) -> None:
        self._verifier = verifier

    def handler(self) -> grpc.GenericRpcHandler:
        """Session takes raw bytes, so that garbage gets a status of ours and not the transport's."""
        methods = {
            "Describe": grpc.unary_unary_rpc_method_handler(
                self.describe, pb.DescribeRequest.FromString, pb.Description.SerializeToString
            ),
            "Session": grpc.stream_stream_rpc_method_handler(self.session),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def describe(self, request: pb.DescribeRequest, context: Context) -> pb.Description:
        return description_to_proto(self._verifier.describe())

    async def session(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """One stream, to its end."""
        incoming = _Incoming(requests)
        try:
            async with aclosing(self._verifier.session(incoming.frames())) as outgoing:
                async for frame in outgoing:
                    for message in _messages(frame, incoming.codec):
                        await context.write(message)
        except Refusal as refusal:
            await abort(context, refusal)
        except Exception as error:
            _log.error("a stream failed", exc_info=error)
            await abort(context, Refusal(Reason.INTERNAL, f"the server failed on this stream: {type(error).__name__}"))


class _Incoming:
    """Frames from bytes; remembers which codec the stream was opened with."""

    def __init__(self, requests: AsyncIterator[bytes]) -> None:
        self._requests = requests
        self.codec: Codec = "int8"

    async def frames(self) -> AsyncIterator[ClientFrame]:
        """Raises Violation for anything that is not a frame."""
        async for data in self._requests:
            frame = _parse(data)
            if isinstance(frame, Open):
                self.codec = frame.codec
            yield frame


def _parse(data: bytes) -> ClientFrame:
    if len(data) > MAX_FRAME_BYTES:
        raise Violation(Reason.FRAME_TOO_LARGE, f"a frame of {len(data)} bytes: at most {MAX_FRAME_BYTES}")
    try:
        message = pb.ClientFrame.FromString(data)
    except DecodeError as error:
        raise Violation(Reason.MALFORMED_FRAME, "not a ClientFrame") from error
    return client_frame_from_proto(message)


def _messages(frame: ServerFrame, codec: Codec) -> Iterator[bytes]:
    for message in server_frame_to_proto(frame, codec):
        yield message.SerializeToString()


async def abort(context: grpc.aio.ServicerContext[Any, Any], refusal: Refusal) -> NoReturn:  # Any: of any method
    """End a call with a refusal's status."""
    code, text, metadata = refusal_status(refusal)
    await context.abort(code, text, metadata)
    raise AssertionError("abort raises")
