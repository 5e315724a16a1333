"""Draft trees: how large they may grow, fixed choices, and growing them."""
