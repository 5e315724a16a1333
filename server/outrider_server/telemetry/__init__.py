"""What a server tells its keeper: metrics, logs, traces."""
