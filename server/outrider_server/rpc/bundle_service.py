"""The gRPC service of edge bundles."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import TYPE_CHECKING, Any

import grpc

from outrider_proto import verifier_pb2 as pb
from outrider_proto.bundles import manifest_to_proto
from outrider_proto.errors import Reason, Refusal
from outrider_server.bundles.catalogue import EdgeBundles
from outrider_server.rpc.service import abort, caller_of, parsing
from outrider_server.security.authenticator import Authenticator
from outrider_server.security.principal import Principal, Scope
from outrider_server.telemetry.observer import ServerObserver

if TYPE_CHECKING:
    Context = grpc.aio.ServicerContext[pb.FetchRequest, pb.Chunk]

_STALL_S = 60.0  # a client that takes no byte for so long loses its place
_LEAST_RATE = 4096  # bytes a second on average, after that time
BUNDLES = pb.DESCRIPTOR.services_by_name["Bundles"].full_name


class BundlesService:
    """The methods of outrider.v1.Bundles; without bundles each is refused."""

    def __init__(self, bundles: EdgeBundles | None, authenticator: Authenticator, observer: ServerObserver) -> None:
        self._bundles = bundles
        self._authenticator = authenticator
        self._observer = observer
        self.manifest = parsing(self._manifest, pb.ManifestRequest, authenticator, observer)
        self.fetch = parsing(self._fetch, pb.FetchRequest, authenticator, observer)

    def handler(self) -> grpc.GenericRpcHandler:
        methods: dict[str, grpc.RpcMethodHandler[Any, Any]] = {  # Any: each method has its own types
            "Manifest": grpc.unary_unary_rpc_method_handler(
                self.manifest, response_serializer=pb.BundleManifest.SerializeToString
            ),
            "Fetch": grpc.unary_stream_rpc_method_handler(self.fetch, response_serializer=pb.Chunk.SerializeToString),
        }
        return grpc.method_handlers_generic_handler(BUNDLES, methods)

    async def _manifest(self, request: pb.ManifestRequest, context: Context) -> pb.BundleManifest:
        try:
            self._authenticator.admit(caller_of(context), Scope.BUNDLE)
            return manifest_to_proto(await self._offered().manifest(request.drafter, request.weights))
        except Refusal as refusal:
            self._observer.refused(refusal.reason)
            await abort(context, refusal)

    async def _fetch(self, request: pb.FetchRequest, context: Context) -> None:
        """Send one file as fast as the client takes it: each write waits for HTTP/2 flow control."""
        try:
            caller = caller_of(context)
            principal = self._authenticator.admit(caller, Scope.BUNDLE)
            wanted = request.bundle_id, request.name, request.offset
            async with aclosing(self._offered().chunks(*wanted, principal.payer or caller.address.name)) as chunks:
                await self._send(chunks, principal, context)
        except Refusal as refusal:
            self._observer.refused(refusal.reason)
            await abort(context, refusal)
        except TimeoutError:
            await abort(context, Refusal(Reason.SERVER_FULL, "too little was taken for too long: fetch the rest"))

    async def _send(self, chunks: AsyncGenerator[bytes], principal: Principal, context: Context) -> None:
        """Send chunks. Raises Refusal once the key is not valid any more, TimeoutError where too little is taken."""
        clock = asyncio.get_running_loop().time
        started, num_bytes = clock(), 0
        async for data in chunks:
            if not self._authenticator.still_admits(principal):
                raise Refusal(Reason.NO_KEY, "this key has been revoked, or has expired")
            async with asyncio.timeout(_STALL_S):
                await context.write(pb.Chunk(data=data))
            num_bytes += len(data)
            seconds = clock() - started
            if seconds > _STALL_S and num_bytes < _LEAST_RATE * seconds:
                raise TimeoutError

    def _offered(self) -> EdgeBundles:
        if self._bundles is None:
            raise Refusal(Reason.NO_BUNDLE, "this server serves no edge bundles (--no-edge-bundle)")
        return self._bundles
