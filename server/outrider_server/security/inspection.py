"""gRPC's server reflection, for this machine's own and those who have a key: strangers need not learn what to try."""

from __future__ import annotations

from collections.abc import AsyncIterable, Sequence
from typing import Any

import grpc
from grpc_reflection.v1alpha import reflection, reflection_pb2_grpc

from outrider_proto.errors import Reason, Refusal
from outrider_proto.status import refusal_status
from outrider_server.security.address import PeerAddress
from outrider_server.security.authenticator import Caller, Gatekeeper


class _Inspection(reflection.aio.ReflectionServicer):
    def __init__(self, services: Sequence[str], gatekeeper: Gatekeeper) -> None:
        super().__init__(services)
        self._gatekeeper = gatekeeper

    async def ServerReflectionInfo(  # type: ignore[override] # the stubs take it for a coroutine
        self,
        request_iterator: AsyncIterable[Any],  # Any: without types
        unused_context: grpc.aio.ServicerContext[Any, Any],
    ) -> AsyncIterable[Any]:
        context = unused_context
        caller = Caller(context.invocation_metadata() or (), PeerAddress.of(context.peer()))
        if not self._gatekeeper.admits_inspector(caller):
            code, text, metadata = refusal_status(Refusal(Reason.NO_KEY, "reflection: this server needs a key for it"))
            await context.abort(code, text, metadata)
        answers: AsyncIterable[Any] = super().ServerReflectionInfo(request_iterator, context)  # type: ignore[assignment] # as above
        async for answer in answers:
            yield answer


def add_inspection(server: grpc.aio.Server, services: Sequence[str], gatekeeper: Gatekeeper) -> None:
    """Of these services and itself."""
    servicer = _Inspection((*services, reflection.SERVICE_NAME), gatekeeper)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)  # type: ignore[no-untyped-call]
