"""gRPC's own services: health checks and server reflection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterable, Sequence
from typing import Any

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from outrider_proto.errors import Reason, Refusal
from outrider_server.rpc.service import abort, caller_of
from outrider_server.security.authenticator import Authenticator


class Health(aio.HealthServicer):
    """The service grpc.health.v1, for the whole server ("") and for each service."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: set[asyncio.Task[None]] = set()

    async def Watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> None:
        # In a task of its own, which end_watches() can end without ending the call's own task.
        watch = asyncio.create_task(super().Watch(request, context))
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


class _Reflection(reflection.aio.ReflectionServicer):
    def __init__(self, services: Sequence[str], authenticator: Authenticator) -> None:
        super().__init__(services)
        self._authenticator = authenticator

    async def ServerReflectionInfo(  # type: ignore[override] # the stubs take it for a coroutine
        self,
        request_iterator: AsyncIterable[Any],  # Any: without types
        unused_context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterable[Any]:
        context = unused_context
        if not self._authenticator.admits_reflection(caller_of(context)):
            await abort(context, Refusal(Reason.NO_KEY, "reflection: this server needs a key for it"))
        answers: AsyncIterable[Any] = super().ServerReflectionInfo(request_iterator, context)  # type: ignore[assignment] # as above
        async for answer in answers:
            yield answer


def add_reflection(server: grpc.aio.Server, services: Sequence[str], authenticator: Authenticator) -> None:
    """Let callers with a key, or on this machine, list these services and reflection itself."""
    servicer = _Reflection((*services, reflection.SERVICE_NAME), authenticator)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
