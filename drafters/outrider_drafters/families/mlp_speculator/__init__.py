"""IBM's MLP speculator."""
