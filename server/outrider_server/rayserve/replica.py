"""One replica: a verifier, and its services' methods under the names by which Ray calls them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

from grpc_health.v1 import health_pb2

from outrider_proto import verifier_pb2 as pb
from outrider_server.config.config import ServerConfig
from outrider_server.rayserve.bridge import RayServicerContext, SerializedMessage
from outrider_server.rpc.server import Server
from outrider_server.telemetry.logs import start_logging

if TYPE_CHECKING:
    from ray.serve.grpc_util import RayServegRPCContext


class Replica:
    """A deployment of launch.py. Ray calls each gRPC method by its short name, with its context as `grpc_context`."""

    async def __init__(self, config: ServerConfig) -> None:  # type: ignore[misc] # Ray awaits it, on its event loop
        # A process of its own: what `deploy` was told of logs is set here again.
        start_logging(config.telemetry.log_format, config.telemetry.log_level)
        self._server = Server.build(config)
        self._verifier, self._bundles = self._server.services()
        await self._server.start_verifier()

    async def Session(
        self, requests: AsyncIterator[bytes], grpc_context: RayServegRPCContext
    ) -> AsyncGenerator[SerializedMessage]:
        call: Any = RayServicerContext(grpc_context)  # Any: gRPC's own context, to the service
        async with aclosing(call.streamed(self._verifier.session(requests, call))) as messages:
            async for message in messages:
                yield message

    async def Describe(self, request: bytes, grpc_context: RayServegRPCContext) -> SerializedMessage:
        call: Any = RayServicerContext(grpc_context)  # Any: as above, and below
        return await call.unary(self._verifier.describe(pb.DescribeRequest.FromString(request), call))  # type: ignore[no-any-return]

    async def Manifest(self, request: bytes, grpc_context: RayServegRPCContext) -> SerializedMessage:
        call: Any = RayServicerContext(grpc_context)
        return await call.unary(self._bundles.manifest(pb.ManifestRequest.FromString(request), call))  # type: ignore[no-any-return]

    async def Fetch(self, request: bytes, grpc_context: RayServegRPCContext) -> AsyncGenerator[SerializedMessage]:
        call: Any = RayServicerContext(grpc_context)
        async with aclosing(call.streamed(self._bundles.fetch(pb.FetchRequest.FromString(request), call))) as messages:
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
