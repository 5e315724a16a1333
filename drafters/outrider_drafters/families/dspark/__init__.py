"""DSpark."""
