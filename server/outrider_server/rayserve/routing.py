"""Routing of streams to replicas by the client's session id, so that a resumed session finds its K/V.

Ray's own router does the hashing; of gRPC's metadata Ray reads only `session_id`, and we send `x-session-id`, as every
proxy's examples do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from ray.serve.experimental.consistent_hash_router import ConsistentHashRouter

from outrider_proto.frames import SESSION_HEADER

if TYPE_CHECKING:
    from ray.serve.request_router import PendingRequest


class SessionRouter(ConsistentHashRouter):  # type: ignore[misc] # without types
    """Routes by consistent hash of the session header; streams without one go anywhere."""

    def _routing_key(self, pending_request: PendingRequest | None) -> str | None:
        context = None if pending_request is None else pending_request.metadata.grpc_context
        for name, value in [] if context is None else context.invocation_metadata():
            if name == SESSION_HEADER:
                return str(value)
        return super()._routing_key(pending_request)  # type: ignore[no-any-return] # as above
