"""The same services on Ray Serve: replicas behind Ray's gRPC proxy. Imported only where Ray is installed."""
