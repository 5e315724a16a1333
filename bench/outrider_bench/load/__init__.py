"""Many clients of one server: throughput, latency, fairness, memory, and whether every token is right."""
