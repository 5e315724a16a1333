"""The engine loop and the scheduler: which requests run in the next pass."""
