"""The worker processes and the clients that they run."""
