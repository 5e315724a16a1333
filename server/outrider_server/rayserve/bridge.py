"""Runs a gRPC service's methods where Ray calls them, with Ray's context in place of gRPC's. Knows no frames.

Ray drops trailing metadata when a method raises, and with it the reason of a refusal. So nothing is raised: code, text
and metadata are set on Ray's context, and one empty message carries them to the proxy, which drops that message
(ingress.py).
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import aclosing
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

import grpc

if TYPE_CHECKING:
    from ray.serve.grpc_util import RayServegRPCContext

_END = None


class SerializedMessage:
    """A serialized message that looks like protobuf's to Ray."""

    def __init__(self, data: bytes) -> None:
        self._data = data

    def SerializeToString(self) -> bytes:  # protobuf's name
        return self._data


class _Aborted(Exception):
    """Ends a method after abort(), as gRPC's own exception would."""


class RayServicerContext:
    """The part of grpc.aio.ServicerContext that services use, for one call through Ray."""

    def __init__(self, context: RayServegRPCContext) -> None:
        self._context = context
        self._written: asyncio.Queue[Any] = asyncio.Queue()  # Any: messages of any method

    def invocation_metadata(self) -> Sequence[tuple[str, str | bytes]]:
        metadata: Sequence[tuple[str, str | bytes]] = self._context.invocation_metadata()
        return metadata

    def auth_context(self) -> dict[str, Any]:  # Any: as gRPC has it
        properties: dict[str, Any] = self._context.auth_context()
        return properties

    def peer(self) -> str:
        peer: str = self._context.peer()
        return peer

    async def write(self, message: Any) -> None:  # Any: of any method
        """Queue a message. Ray takes everything at once: the client's pace cannot be seen here."""
        self._written.put_nowait(message)

    async def abort(
        self,
        code: grpc.StatusCode,
        details: str = "",
        trailing_metadata: Iterable[tuple[str, Any]] = (),  # Any: text or bytes
    ) -> NoReturn:
        self._context.set_code(code)
        self._context.set_details(details)
        self._context.set_trailing_metadata(list(trailing_metadata))
        raise _Aborted

    async def written(self, method: Awaitable[None]) -> AsyncGenerator[Any]:  # Any: as above
        """Yield what `method` writes, until it ends; cancel it when the consumer is gone."""
        task = asyncio.ensure_future(self._to_the_end(method))
        try:
            while (message := await self._written.get()) is not _END:
                yield message
            # Raises what the method raised, an abort included; its messages have all been yielded by now.
            await task
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def _to_the_end(self, method: Awaitable[None]) -> None:
        try:
            await method
        finally:
            self._written.put_nowait(_END)


class _Details(NamedTuple):
    method: str
    invocation_metadata: Sequence[tuple[str, str | bytes]]


class ServicerBridge:
    """Runs the methods of gRPC services by their full names."""

    def __init__(self, handlers: Iterable[grpc.GenericRpcHandler]) -> None:
        self._handlers = tuple(handlers)

    async def unary(self, name: str, request: bytes, context: RayServegRPCContext) -> SerializedMessage:
        """Answer one request; with an empty message when the call was aborted."""
        call, handler = RayServicerContext(context), self._find(name)
        assert handler.unary_unary is not None
        try:
            answer = await _as_async(handler.unary_unary)(_read(handler, request), call)
        except _Aborted:
            return SerializedMessage(b"")
        return _message(handler, answer)

    async def streamed(
        self, name: str, request: bytes | AsyncIterator[bytes], context: RayServegRPCContext
    ) -> AsyncGenerator[SerializedMessage]:
        """Yield the replies of a streaming method, and an empty message when it was aborted."""
        call, handler = RayServicerContext(context), self._find(name)
        if isinstance(request, bytes):
            method = _as_async(handler.unary_stream)(_read(handler, request), call)
        else:
            method = _as_async(handler.stream_stream)(request, call)
        try:
            async with aclosing(call.written(method)) as written:
                async for message in written:
                    yield _message(handler, message)
        except _Aborted:
            yield SerializedMessage(b"")

    def _find(self, name: str) -> grpc.RpcMethodHandler[Any, Any]:  # Any: each method has its own types
        for handler in self._handlers:
            if (method := handler.service(_Details(name, ()))) is not None:  # type: ignore[arg-type] # quacks
                return method
        raise LookupError(f"no method {name}")


def _as_async(behavior: Any) -> Callable[..., Awaitable[Any]]:  # Any: types-grpcio knows no asyncio
    assert behavior is not None
    return behavior  # type: ignore[no-any-return]


def _read(handler: grpc.RpcMethodHandler[Any, Any], data: bytes) -> Any:  # Any: of any method
    return data if handler.request_deserializer is None else handler.request_deserializer(data)


def _message(handler: grpc.RpcMethodHandler[Any, Any], message: Any) -> SerializedMessage:  # Any: of any method
    return SerializedMessage(message if handler.response_serializer is None else handler.response_serializer(message))
