"""One replica: a verifier, and its services' methods under the names by which Ray calls them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING

from grpc_health.v1 import health_pb2

from outrider_server.config.config import ServerConfig
from outrider_server.rayserve.bridge import SerializedMessage, ServicerBridge
from outrider_server.rpc.bundle_service import BUNDLES
from outrider_server.rpc.server import Server
from outrider_server.rpc.service import SERVICE
from outrider_server.telemetry.logs import start_logging

if TYPE_CHECKING:
    from ray.serve.grpc_util import RayServegRPCContext


class Replica:
    """A deployment of launch.py. Ray calls each gRPC method by its short name, with its context as `grpc_context`."""

    async def __init__(self, config: ServerConfig) -> None:  # type: ignore[misc] # Ray awaits it, on its event loop
        # A process of its own: what `deploy` was told of logs is set here again.
        start_logging(config.telemetry.log_format, config.telemetry.log_level)
        self._server = Server.build(config)
        self._bridge = ServicerBridge(self._server.handlers())
        await self._server.start_verifier()

    async def Session(
        self, requests: AsyncIterator[bytes], grpc_context: RayServegRPCContext
    ) -> AsyncGenerator[SerializedMessage]:
        async with aclosing(self._bridge.streamed(f"/{SERVICE}/Session", requests, grpc_context)) as messages:
            async for message in messages:
                yield message

    async def Describe(self, request: bytes, grpc_context: RayServegRPCContext) -> SerializedMessage:
        return await self._bridge.unary(f"/{SERVICE}/Describe", request, grpc_context)

    async def Manifest(self, request: bytes, grpc_context: RayServegRPCContext) -> SerializedMessage:
        return await self._bridge.unary(f"/{BUNDLES}/Manifest", request, grpc_context)

    async def Fetch(self, request: bytes, grpc_context: RayServegRPCContext) -> AsyncGenerator[SerializedMessage]:
        async with aclosing(self._bridge.streamed(f"/{BUNDLES}/Fetch", request, grpc_context)) as messages:
            async for message in messages:
                yield message

    async def Check(self, request: bytes) -> SerializedMessage:
        """Answer grpc.health.v1: a replica that answers serves."""
        serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
        return SerializedMessage(serving.SerializeToString())

    async def check_health(self) -> None:
        """Raise when the replica must be replaced; Ray asks from time to time."""
        if not self._server.verifier.alive:
            raise RuntimeError("the target can run no more passes")
