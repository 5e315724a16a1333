"""How TCP and gRPC carry small exchanges."""
