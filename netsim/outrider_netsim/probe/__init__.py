"""Measuring what a link does to packets, through any engine that carries them."""
