"""The engine loop: which requests run in the next pass."""
