"""grpc.health.v1, as Kubernetes and balancers ask: of the whole server ("") and of each service."""

from __future__ import annotations

import asyncio

import grpc
from grpc_health.v1 import health_pb2
from grpc_health.v1.health import aio


class Health(aio.HealthServicer):
    """Lets go of those who watch before the server ends: gRPC would log a traceback for each of them."""

    def __init__(self) -> None:
        super().__init__()
        self._watches: set[asyncio.Task[None]] = set()

    async def Watch(
        self,
        request: health_pb2.HealthCheckRequest,
        context: grpc.aio.ServicerContext[health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse],
    ) -> None:
        watch = asyncio.create_task(super().Watch(request, context))
        self._watches.add(watch)
        try:
            await asyncio.wait((watch,))
        finally:
            watch.cancel()
            self._watches.discard(watch)

    def end_watches(self) -> bool:
        """Whether there were any."""
        for watch in self._watches:
            watch.cancel()
        return bool(self._watches)
