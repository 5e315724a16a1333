"""gRPC's own services: health checks and server reflection. Neither needs a key, so that each call is bounded."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio
from grpc_reflection.v1alpha import reflection, reflection_pb2

from outrider_proto.errors import Reason, Refusal, Violation
from outrider_server.rpc.service import abort, caller_of, parsed, parsing, refuse_bytes
from outrider_server.security.authenticator import Authenticator
from outrider_server.telemetry.observer import ServerObserver

HEALTH = health_pb2.DESCRIPTOR.services_by_name["Health"].full_name
_Response = health_pb2.HealthCheckResponse
_MAX_QUESTIONS = 1000  # of one reflection stream
_ANSWER_S = 60.0  # a reflection stream without a question for so long ends


class Health(aio.HealthServicer):
    """The service grpc.health.v1, for the whole server ("") and for each service."""

    def __init__(self, authenticator: Authenticator) -> None:
        super().__init__()
        self._authenticator = authenticator
        self._watches: set[asyncio.Task[None]] = set()

    def handler(self, observer: ServerObserver) -> grpc.GenericRpcHandler:
        def raw(method: Any) -> Any:  # Any: as grpc has methods
            return parsing(method, health_pb2.HealthCheckRequest, self._authenticator, observer)

        answer = _Response.SerializeToString
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {  # Any: each method has its own types
            "Check": grpc.unary_unary_rpc_method_handler(raw(self.Check), response_serializer=answer),
            "Watch": grpc.unary_stream_rpc_method_handler(raw(self.Watch), response_serializer=answer),
        }
        return grpc.method_handlers_generic_handler(HEALTH, methods)

    async def Watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> None:
        # The library keeps a watch of any name, and the name with it, in case such a service should begin.
        if request.service not in self._server_status:  # type: ignore[attr-defined] # the stubs lack it
            await context.write(_Response(status=_Response.SERVICE_UNKNOWN))
            return
        try:
            with self._authenticator.watches.one_more(caller_of(context).address):
                await self._watched(super().Watch(request, context))
        except Refusal as refusal:
            await abort(context, refusal)

    async def _watched(self, watching: Any) -> None:  # Any: the library's coroutine
        # In a task of its own, which end_watches() can end without ending the call's own task.
        watch = asyncio.create_task(watching)
        self._watches.add(watch)
        try:
            await asyncio.wait((watch,))
        finally:
            watch.cancel()
            self._watches.discard(watch)

    def end_watches(self) -> bool:
        """End all watches; return whether there were any."""
        # gRPC logs a traceback for every Watch that it has to end itself when the server stops.
        for watch in self._watches:
            watch.cancel()
        return bool(self._watches)


class Reflection(reflection.aio.ReflectionServicer):
    """The service grpc.reflection.v1alpha, for callers with a key or on this machine."""

    def __init__(self, services: Sequence[str], authenticator: Authenticator, observer: ServerObserver) -> None:
        super().__init__((*services, reflection.SERVICE_NAME))
        self._authenticator = authenticator
        self._observer = observer

    def handler(self) -> grpc.GenericRpcHandler:
        info: grpc.RpcMethodHandler[Any, Any] = grpc.stream_stream_rpc_method_handler(
            self._info, response_serializer=reflection_pb2.ServerReflectionResponse.SerializeToString
        )
        return grpc.method_handlers_generic_handler(reflection.SERVICE_NAME, {"ServerReflectionInfo": info})

    # Any: without types, here and below
    async def _info(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        caller = caller_of(context)
        try:
            if not self._authenticator.admits_reflection(caller):
                raise Refusal(Reason.NO_KEY, "reflection: this server needs a key for it")
            with self._authenticator.watches.one_more(caller.address):
                async for answer in self.ServerReflectionInfo(_questions(requests), context):  # type: ignore[attr-defined] # the stubs take it for a coroutine
                    await context.write(answer)
        except Violation as violation:
            await refuse_bytes(context, violation, self._authenticator, self._observer)
        except Refusal as refusal:
            await abort(context, refusal)


class UnknownMethods(grpc.GenericRpcHandler):
    """Refuses and counts calls of methods that no other service has."""

    def __init__(self, authenticator: Authenticator, observer: ServerObserver) -> None:
        self._authenticator = authenticator
        self._observer = observer

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[Any, Any]:
        return grpc.stream_stream_rpc_method_handler(self._refuse)

    # Any: without types
    async def _refuse(self, requests: AsyncIterator[bytes], context: grpc.aio.ServicerContext[Any, Any]) -> None:
        try:
            self._authenticator.count_failure(caller_of(context))
        except Refusal as too_many:
            self._observer.refused(too_many.reason)
            await abort(context, too_many)
        self._observer.refused(Reason.MALFORMED_FRAME)
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "this server has no such method")


async def _questions(requests: AsyncIterator[bytes]) -> AsyncIterator[Any]:
    """Yield the questions of a reflection stream, up to a number and a pause. Raises Violation for other bytes."""
    for _ in range(_MAX_QUESTIONS):
        try:
            data = await asyncio.wait_for(anext(requests), _ANSWER_S)
        except (StopAsyncIteration, TimeoutError):
            return
        yield parsed(reflection_pb2.ServerReflectionRequest, data)
