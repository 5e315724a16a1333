"""The part that Ray's proxy loads into its own process: methods, address and certificate.

Ray's proxy would listen on every address, in plain text. `start` replaces its way to listen at an extension point
(ray/serve/_private/default_impl.py); where that did not happen, `add_services` raises.
"""

from __future__ import annotations

import json
import os
from collections.abc import AsyncIterator, Callable
from typing import Any

import grpc

from outrider_proto import verifier_pb2 as pb  # noqa: F401 # Ray's reflection looks the services up by their names
from outrider_proto.addresses import join_host_port, port_of
from outrider_proto.options.values import build
from outrider_server.config.config import SecurityConfig
from outrider_server.security.tls import server_credentials

# Host and security of the proxies, which inherit it from Ray's controller. PEM files must lie at the same place on
# every machine.
ENVIRONMENT = "OUTRIDER_INGRESS"
METHODS = {
    "/outrider.v1.Verifier/Describe": "unary_unary",
    "/outrider.v1.Verifier/Session": "stream_stream",
    "/outrider.v1.Bundles/Manifest": "unary_unary",
    "/outrider.v1.Bundles/Fetch": "unary_stream",
    "/grpc.health.v1.Health/Check": "unary_unary",
}

_Behavior = Callable[[Any, Any], AsyncIterator[bytes]]  # Any: raw requests, and gRPC's context without types


_ours: list[object] = []  # servers that listen through add_grpc_address below


def start() -> list[object]:
    """Replace the proxy's way to listen; called by Ray as its proxy starts.

    RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH names it. Adds no HTTP middleware.
    """
    from ray.serve._private import default_impl

    settings = json.loads(os.environ[ENVIRONMENT])
    security = build(SecurityConfig, settings["security"])

    def add_grpc_address(server: grpc.aio.Server, address: str) -> None:
        address = join_host_port(settings["host"], port_of(address))
        if (credentials := server_credentials(security)) is None:
            server.add_insecure_port(address)
        else:
            server.add_secure_port(address, credentials)
        _ours.append(server)

    default_impl.add_grpc_address = add_grpc_address
    return []


def add_services(servicer: object, server: grpc.aio.Server) -> None:
    """Add our methods to a gRPC server of the proxy; called by Ray (gRPCOptions.grpc_servicer_functions)."""
    # Never serve on a socket that Ray has opened its own way: it would be plain text on every address.
    if not any(server is each for each in _ours):
        raise RuntimeError("this version of Ray listens in a way of its own: it would be open to the network")
    server.add_generic_rpc_handlers((_Methods(),))


class _Methods(grpc.GenericRpcHandler):
    """Handlers of raw bytes. Ray puts its own behavior into `_method_handlers`."""

    def __init__(self) -> None:
        make = {name: getattr(grpc, f"{kind}_rpc_method_handler") for name, kind in METHODS.items()}
        self._method_handlers: dict[str, Any] = {name: make[name](None) for name in METHODS}  # Any: a named tuple

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> Any:  # Any: as above
        handler = self._method_handlers.get(handler_call_details.method)
        if handler is None or not handler.response_streaming:
            return handler
        return handler._replace(
            unary_stream=_without_empty(handler.unary_stream), stream_stream=_without_empty(handler.stream_stream)
        )


def _without_empty(behavior: _Behavior) -> _Behavior:
    """Drop empty messages, which only carried the reason of a refusal here (replica.py)."""

    async def without_empty(request: Any, context: Any) -> AsyncIterator[bytes]:  # Any: as above
        async for message in behavior(request, context):
            if message:
                yield message

    return without_empty
