"""The gRPC service of the verifier: bytes to frames, refusals to statuses. Does not interpret frames."""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import aclosing, suppress
from typing import Any, NoReturn, TypeAlias, TypeVar

import grpc
from google.protobuf.message import DecodeError, Message

from outrider_proto import verifier_pb2 as pb
from outrider_proto.description import description_to_proto
from outrider_proto.errors import Reason, Refusal, Violation
from outrider_proto.frames import ClientFrame, Codec, Open
from outrider_proto.status import refusal_status
from outrider_proto.wire import MAX_FRAME_BYTES, client_frame_from_proto, server_frame_to_proto
from outrider_server.security.address import PeerAddress
from outrider_server.security.authenticator import Authenticator, Caller
from outrider_server.security.principal import Principal, Scope
from outrider_server.sessions.verifier import Verifier
from outrider_server.telemetry.observer import ServerObserver

_log = logging.getLogger(__name__)
_MAX_UNREAD = 128  # ended streams of one address whose client does not read that they have ended
_UNREAD_IN_ALL = 8  # times as many of all addresses
SERVICE = pb.DESCRIPTOR.services_by_name["Verifier"].full_name

_MAX_REQUEST_BYTES = 4096  # of all but a Session's frames: names, fingerprints and numbers

_Request = TypeVar("_Request", bound=Message)
Context: TypeAlias = "grpc.aio.ServicerContext[bytes, bytes]"


class VerifierService:
    """The methods of outrider.v1.Verifier."""

    def __init__(self, verifier: Verifier, authenticator: Authenticator) -> None:
        self._verifier = verifier
        self._authenticator = authenticator
        self._unread = Counter[str]()  # by address
        # Raw bytes: with a deserializer, gRPC itself would answer malformed or oversized frames, in its own words, and
        # log a traceback for each. Ray has none either.
        self.describe = parsing(self._describe, pb.DescribeRequest, authenticator, verifier.observer)

    def handler(self) -> grpc.GenericRpcHandler:
        """Return the handlers of both methods."""
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {  # Any: each method has its own types
            "Describe": grpc.unary_unary_rpc_method_handler(
                self.describe, response_serializer=pb.Description.SerializeToString
            ),
            "Session": grpc.stream_stream_rpc_method_handler(self.session),
        }
        return grpc.method_handlers_generic_handler(SERVICE, methods)

    async def _describe(self, request: pb.DescribeRequest, context: Context) -> pb.Description:
        try:
            self._authenticator.admit(caller_of(context), Scope.DESCRIBE)
        except Refusal as refusal:
            self._verifier.observer.refused(refusal.reason)
            await abort(context, refusal)
        return description_to_proto(self._verifier.describe())

    async def session(self, requests: AsyncIterator[bytes], context: Context) -> None:
        """Serve one stream to its end."""
        observer, caller = self._verifier.observer, caller_of(context)
        incoming: _Incoming | None = None
        try:
            if self._unread[caller.address.name] >= _MAX_UNREAD or self._unread.total() >= _UNREAD_IN_ALL * _MAX_UNREAD:
                raise Refusal(Reason.SERVER_FULL, "too many streams have ended and are not read; try again later")
            principal = self._authenticator.admit_stream(caller)
            with self._authenticator.unopened.one_more(caller.address) as opened:
                incoming = _Incoming(requests, observer, opened)
                await self._answer(incoming, principal, context)
        except TimeoutError:
            # The timeout in _answer(): the client does not read.
            observer.refused(Reason.STALLED)
            await self._end_unread(caller.address.name, context)
        except Refusal as refusal:
            if incoming is None:  # else the verifier has counted it
                observer.refused(refusal.reason)
            await abort(context, refusal)
        except Exception as error:
            _log.error("a stream failed", exc_info=error)
            await abort(context, Refusal(Reason.INTERNAL, f"the server failed on this stream: {type(error).__name__}"))

    async def _end_unread(self, address: str, context: Context) -> None:
        """End a stream whose client does not read, and count it until it is gone.

        gRPC holds the stream, and the frame that was not taken, until then.
        """
        self._unread[address] += 1
        try:
            with suppress(grpc.aio.InternalError):  # the client is gone
                await abort(context, Refusal(Reason.STALLED, "nothing was read for too long: connect and resume"))
        finally:
            self._unread -= Counter([address])

    async def _answer(self, incoming: _Incoming, principal: Principal, context: Context) -> None:
        """Send the verifier's frames. Raises Refusal, and TimeoutError for a client that does not read."""
        async with aclosing(self._verifier.session(incoming.frames(), principal)) as outgoing:
            async for frame in outgoing:
                for message in server_frame_to_proto(frame, incoming.codec):
                    data = message.SerializeToString()
                    async with asyncio.timeout(self._verifier.stall_s):
                        await context.write(data)
                    self._verifier.observer.sent(len(data))


class _Incoming:
    """Parses frames; keeps the codec of Open, and calls `opened` then."""

    def __init__(self, requests: AsyncIterator[bytes], observer: ServerObserver, opened: Callable[[], None]) -> None:
        self._opened = opened
        self._requests = requests
        self._observer = observer
        self.codec: Codec = "int8"

    async def frames(self) -> AsyncIterator[ClientFrame]:
        """Yield frames. Raises Violation for anything else."""
        async for data in self._requests:
            self._observer.received(len(data))
            frame = _parse(data)
            if isinstance(frame, Open):
                self.codec = frame.codec
                self._opened()
            yield frame


def _parse(data: bytes) -> ClientFrame:
    if len(data) > MAX_FRAME_BYTES:
        raise Violation(Reason.FRAME_TOO_LARGE, f"a frame of {len(data)} bytes: at most {MAX_FRAME_BYTES}")
    try:
        message = pb.ClientFrame.FromString(data)
    except DecodeError as error:
        raise Violation(Reason.MALFORMED_FRAME, "not a ClientFrame") from error
    return client_frame_from_proto(message)


def parsing(
    method: Callable[[_Request, Any], Awaitable[Any]],  # Any: the contexts and answers of any method
    kind: type[_Request],
    authenticator: Authenticator,
    observer: ServerObserver,
) -> Callable[[bytes, Any], Awaitable[Any]]:
    """Return a handler of raw bytes, which calls `method` with the request in them, or refuses and counts them."""

    async def handle(data: bytes, context: Any) -> Any:
        try:
            return await method(parsed(kind, data), context)
        except Violation as violation:
            await refuse_bytes(context, violation, authenticator, observer)

    return handle


def parsed(kind: type[_Request], data: bytes) -> _Request:
    """Return the request in `data`. Raises Violation."""
    if len(data) > _MAX_REQUEST_BYTES:
        raise Violation(Reason.FRAME_TOO_LARGE, f"a request of {len(data)} bytes: at most {_MAX_REQUEST_BYTES}")
    try:
        return kind.FromString(data)
    except DecodeError as error:
        raise Violation(Reason.MALFORMED_FRAME, f"not a {kind.__name__}") from error


async def refuse_bytes(
    context: grpc.aio.ServicerContext[Any, Any],  # Any: of any method
    violation: Violation,
    authenticator: Authenticator,
    observer: ServerObserver,
) -> NoReturn:
    """End a call whose bytes are no request, counted by address."""
    refusal: Refusal = violation
    try:
        authenticator.count_failure(caller_of(context))
    except Refusal as too_many:
        refusal = too_many
    observer.refused(refusal.reason)
    await abort(context, refusal)


def caller_of(context: grpc.aio.ServicerContext[Any, Any]) -> Caller:  # Any: of any method
    """Return what gRPC knows of a caller."""
    about = context.auth_context()
    names = about.get("x509_common_name", ())
    certificate = b"".join(names).decode(errors="replace")
    # Names are optional, but clients without one must not share an account: the certificate itself names them.
    if not certificate and (pem := b"".join(about.get("x509_pem_cert", ()))):
        certificate = f"sha256-{hashlib.sha256(pem).hexdigest()[:32]}"
    return Caller(context.invocation_metadata() or (), PeerAddress.of(context.peer()), certificate)


async def abort(context: grpc.aio.ServicerContext[Any, Any], refusal: Refusal) -> NoReturn:  # Any: of any method
    """End a call with a refusal's status."""
    code, text, metadata = refusal_status(refusal)
    await context.abort(code, text, metadata)
    raise AssertionError("abort raises")
