"""The same service on Ray Serve: many replicas behind Ray's own gRPC proxy. Imported only where Ray is installed."""
