"""Measuring what TCP makes of a link: downloads, pauses, cuts and lost packets, engine beside engine."""
