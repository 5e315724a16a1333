"""Study of small exchanges over TCP and gRPC."""
