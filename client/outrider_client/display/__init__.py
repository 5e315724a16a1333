"""Shows answers and pulls on a terminal, in pipes, and as JSON."""
