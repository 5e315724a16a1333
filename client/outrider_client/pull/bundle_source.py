"""Bundles over gRPC. Every wait has a timeout, and every field and size is checked on receipt."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import grpc

from outrider_client.connection.grpc_transport import GrpcTransport, translate_errors
from outrider_proto import verifier_pb2 as pb
from outrider_proto.bundles import MAX_CHUNK_BYTES, BundleFile, BundleManifest, manifest_from_proto
from outrider_proto.errors import LinkError, Reason, UsageError, Violation
from outrider_proto.frames import ServerDescription
from outrider_proto.verifier_pb2_grpc import BundlesStub

ANSWER_S = 15.0  # for Describe and Manifest; a server that is building a bundle says so after 5 s
STALL_S = 15.0  # without a chunk; enough for a chunk of 64 KiB at 35 kbit/s


class BundleSource:
    """Calls Describe, Manifest and Fetch on one channel. Raises LinkError, Refusal or UsageError."""

    def __init__(self, transport: GrpcTransport, channel: grpc.aio.Channel) -> None:
        self._transport = transport
        self._address = transport.address
        self._metadata = transport.access.metadata()
        self._channel = channel
        self._stub = BundlesStub(channel)  # type: ignore[no-untyped-call] # generated without annotations

    async def describe(self) -> ServerDescription:
        return await self._transport.describe(self._channel, ANSWER_S)

    async def manifest(self, drafter: str, weights: str) -> BundleManifest:
        try:
            with translate_errors(self._address):
                request = pb.ManifestRequest(drafter=drafter, weights=weights)
                return manifest_from_proto(
                    await self._stub.Manifest(request, timeout=ANSWER_S, metadata=self._metadata)
                )
        except UsageError as error:
            # The server answered Describe, so UNIMPLEMENTED does not mean another program: only bundles are missing.
            raise UsageError(f"{self._address}: this server is too old to offer edge bundles") from error

    async def fetch(self, bundle_id: str, file: BundleFile, offset: int) -> AsyncGenerator[bytes, None]:
        """Yield a file's bytes from `offset` on, never more than its declared size."""
        request = pb.FetchRequest(bundle_id=bundle_id, name=file.name, offset=offset)
        call = self._stub.Fetch(request, metadata=self._metadata)
        try:
            while (data := await self._next(call)) is not None:
                offset += len(data)
                if not 0 < len(data) <= MAX_CHUNK_BYTES or offset > file.size_bytes:
                    raise Violation(Reason.MALFORMED_FRAME, f"{file.name}: the server sends more than it declared")
                yield data
        finally:
            call.cancel()

    async def _next(self, call: grpc.aio.UnaryStreamCall[pb.FetchRequest, pb.Chunk]) -> bytes | None:
        """Read a chunk; None at the end of the file."""
        try:
            async with asyncio.timeout(STALL_S):
                with translate_errors(self._address):
                    chunk = await call.read()
        except TimeoutError:
            raise LinkError(f"{self._address}: no byte for {STALL_S:g} s") from None
        return chunk.data if isinstance(chunk, pb.Chunk) else None
