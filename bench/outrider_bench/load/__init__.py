"""Many clients of one server: how much it verifies, how long each waits, and whether every token stays right."""
