"""The gRPC services and the life of the server."""
