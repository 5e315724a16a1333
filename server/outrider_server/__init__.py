"""The server: loads a target, keeps sessions' K/V in slots, verifies draft trees in flat batches, speaks gRPC."""
