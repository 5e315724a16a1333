"""How a user names a server."""

from __future__ import annotations

from outrider_client.core.config import ClientConfig

PORT = ClientConfig().server.rpartition(":")[2]


def with_port(server: str) -> str:
    """HOST is HOST:50051; what has a port, or is no address at all, stays as it is."""
    is_bare = server.endswith("]") if server.startswith("[") else ":" not in server
    return f"{server}:{PORT}" if server and is_bare else server
