"""One generation from its first token to its last."""
